"""`mink-bench`: what a cut costs, timed beside other things in the same run.

Machines are noisy, so nothing here stands alone: every contestant takes its turn in every round, and
what is reported are medians, and ratios of medians within rounds.
"""

import ctypes
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mink_local import kernels
from mink_local.catalog import DEFAULT_MODEL
from mink_local.cli import GpuLayers, finite, run
from mink_local.draw import Draw
from mink_local.errors import MinkError
from mink_local.graph import GraphDraw, has_graph
from mink_local.loading import load_model
from mink_local.samplers import (
    SAMPLERS,
    Greedy,
    MinK,
    MinP,
    Sampler,
    Scratch,
    TopK,
    TopNSigma,
    TopP,
    parse,
)

if TYPE_CHECKING:
    from mink_local.model import Model

PROGRAM = "mink-bench"
PROMPT = "Tell me a long story about a dog named Max who went to the sea."

Rows = NDArray[np.float32]
Form = Literal["host", "graph", "llama.cpp"]

# llama.cpp's own sampler for a method, where it has one; its min-p, top-p see the logits they are given.
LLAMA_CPP: dict[type[Sampler], Callable[[Any], Any]] = {
    Greedy: lambda _: C.llama_sampler_init_greedy(),
    TopK: lambda sampler: C.llama_sampler_init_top_k(sampler.k),
    TopP: lambda sampler: C.llama_sampler_init_top_p(sampler.p, 1),
    MinP: lambda sampler: C.llama_sampler_init_min_p(sampler.p, 1),
    TopNSigma: lambda sampler: C.llama_sampler_init_top_n_sigma(sampler.n),
}


@dataclass
class Cost:
    """Median microseconds of one step on rows of `n_vocab` logits; None where there is no such thing.

    select: our cut alone. step: cut, temperature and draw, as generation does it. llama_cpp: llama.cpp's own
    sampler applied to candidates that are already laid out. processor: as a logits processor in Python.
    """

    n_vocab: int
    method: str
    select: float | None = None
    step: float | None = None
    llama_cpp: float | None = None
    processor: float | None = None


def time_samplers(rows: Rows, samplers: Sequence[Sampler], temperature: float, rounds: int) -> list[Cost]:
    """Time every sampler on every row in turn, on one thread, beside np.max and a full np.sort.

    rows: raw logits (n, V).
    """
    contestants: dict[tuple[str, str], Callable[[Rows], float]] = {
        ("np.max", "select"): _timed(np.max),
    }
    for sampler in samplers:
        name = str(sampler)
        contestants[name, "select"] = _select(sampler, temperature, rows.shape[1])
        contestants[name, "step"] = _step(sampler, temperature, rows.shape[1])
        contestants[name, "processor"] = _processor(sampler, temperature)
        if type(sampler) in LLAMA_CPP:
            contestants[name, "llama_cpp"] = _llama_cpp(sampler, rows.shape[1])
    contestants["np.sort", "select"] = _timed(np.sort)
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in contestants}
    for i in range(rounds + 1):
        row = np.ascontiguousarray(rows[i % len(rows)])
        for key, contestant in contestants.items():
            contestant(row)  # so that each finds the row, and its own buffers, in the processor's caches
            seconds = contestant(row)
            if i > 0:  # the first round compiles and warms up
                taken[key].append(seconds * 1e6)
    costs: dict[str, Cost] = {}
    for (method, what), times in taken.items():
        cost = costs.setdefault(method, Cost(rows.shape[1], method))
        setattr(cost, what, round(median(times), 2))
    return list(costs.values())


def _timed(function: Callable[..., object]) -> Callable[[Rows], float]:
    def contestant(row: Rows) -> float:
        began = time.perf_counter()
        function(row)
        return time.perf_counter() - began

    return contestant


def _select(sampler: Sampler, temperature: float, n_vocab: int) -> Callable[[Rows], float]:
    scratch = Scratch(n_vocab)
    return _timed(lambda row: sampler.select(row, temperature, scratch))


def _step(sampler: Sampler, temperature: float, n_vocab: int) -> Callable[[Rows], float]:
    draw = Draw(sampler, temperature, 1, n_vocab)
    return _timed(lambda row: draw(row, 1))


def _processor(sampler: Sampler, temperature: float) -> Callable[[Rows], float]:
    """In the strided view that llama-cpp-python hands to a processor."""
    processor = sampler.at(temperature)
    ids: list[int] = []

    def contestant(row: Rows) -> float:
        scores = np.zeros(row.size, kernels.TOKEN_DATA)["logit"]
        scores[:] = row
        began = time.perf_counter()
        processor(ids, scores)
        return time.perf_counter() - began

    return contestant


def _chain(sampler: Sampler) -> Any:
    """llama.cpp's own sampler, in a chain of its own; whoever asks for it frees it."""
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    C.llama_sampler_chain_add(chain, LLAMA_CPP[type(sampler)](sampler))
    return chain


def _llama_cpp(sampler: Sampler, n_vocab: int) -> Callable[[Rows], float]:
    chain = _chain(sampler)
    records = np.zeros(n_vocab, kernels.TOKEN_DATA)
    array = C.llama_token_data_array()

    def contestant(row: Rows) -> float:
        records["id"] = np.arange(n_vocab)
        records["logit"] = row
        array.data = ctypes.cast(records.ctypes.data, C.llama_token_data_p)
        array.size, array.selected, array.sorted = n_vocab, -1, False
        began = time.perf_counter()
        C.llama_sampler_apply(chain, ctypes.byref(array))
        return time.perf_counter() - began

    return contestant


@dataclass
class Speed:
    """What decoding with a method took: medians over rounds, and its slowdown against greedy.

    form: where tokens are drawn, on the "host" or in the "graph", or "llama.cpp" for its own greedy sampler.
    sampling_us: of a token's cut and draw, as far as the host sees them. slowdown: against greedy in the
    same form, in percent of greedy's time for a token, the median over rounds of the ratio within a round,
    with its 95% interval.
    """

    method: str
    form: str
    tokens_per_second: float
    ms_per_token: float
    sampling_us: float
    slowdown: float
    slowdown_low: float
    slowdown_high: float


def time_decoding(
    model: "Model",
    samplers: Sequence[Sampler],
    forms: Sequence[Form],
    temperature: float,
    tokens: int,
    rounds: int,
) -> list[Speed]:
    """Generate `tokens` tokens from one prompt with every sampler in turn, `rounds` times over.

    An answer that ends goes on all the same. Greedy always takes part, and llama.cpp's own greedy too; a
    sampler that has no graph form takes part in the host's only.
    """
    from scipy.stats import quantile_test

    methods: dict[tuple[str, Form], Sampler] = {("greedy", "llama.cpp"): Greedy()}
    methods |= {
        (str(sampler), form): sampler
        for form in forms
        for sampler in [Greedy(), *samplers]
        if form == "host" or has_graph(sampler)
    }
    steps: dict[tuple[str, Form], list[NDArray[np.float64]]] = {key: [] for key in methods}
    keys = list(methods)
    for i in range(rounds + 1):
        for key in keys[i % len(keys) :] + keys[: i % len(keys)]:  # no method always follows another
            took = _decode(model, methods[key], key[1], temperature, tokens, seed=i)
            if i > 0:  # the first round warms up
                steps[key].append(np.median(took, axis=0))
    speeds = []
    for (method, form), per_round in steps.items():
        whole, sampling = np.array(per_round).T
        slowdowns = 100 * (whole / np.array(steps["greedy", form])[:, 0] - 1)
        low, high = quantile_test(slowdowns).confidence_interval(0.95)
        speeds.append(
            Speed(
                method=method,
                form=form,
                tokens_per_second=round(1 / float(np.median(whole)), 2),
                ms_per_token=round(1e3 * float(np.median(whole)), 4),
                sampling_us=round(1e6 * float(np.median(sampling)), 2),
                slowdown=round(float(np.median(slowdowns)), 3),
                slowdown_low=round(float(low), 3),
                slowdown_high=round(float(high), 3),
            )
        )
    return speeds


def _decode(
    model: "Model",
    sampler: Sampler,
    form: Form,
    temperature: float,
    tokens: int,
    seed: int,
    keep: Rows | None = None,
) -> NDArray[np.float64]:
    """Seconds of each step of one answer, (tokens, 2): the whole step, and its cut and draw.

    keep: takes a copy of every step's logits, (tokens, V); host only.
    """
    context = model._context
    context.detach()
    prompt = model._template.tokens([{"role": "user", "content": PROMPT}])
    model._rewind([])
    draw = Draw(sampler, temperature, seed, model._weights.n_vocab)
    own = _chain(sampler) if form == "llama.cpp" else None
    graph = GraphDraw(sampler, temperature, seed, context) if form == "graph" else None
    if graph and not graph.attach():
        raise MinkError(f"this device lacks an operation of the graph form of {sampler}: time --form host")
    model._extend(prompt)
    took = np.empty((tokens, 2))
    for i in range(tokens):
        if keep is not None:
            keep[i] = context.logits()
        began = time.perf_counter()
        drawn = graph.next() if graph else None
        if graph and drawn is None:  # as in a chat: what the graph is not sure of is drawn on the host
            graph.detach()
            graph = None
            model._logits_instead()
        if own:
            drawn = C.llama_sampler_sample(own, context.handle, -1)
        token = draw(context.logits(), step=i + 1) if drawn is None else drawn
        done = time.perf_counter()
        model._extend([token])
        took[i] = time.perf_counter() - began, done - began
    context.detach()
    C.llama_sampler_free(own)
    return took


def real_rows(model: "Model", count: int = 32) -> Rows:
    """The raw logits (count, V) of the first steps of an answer."""
    rows = np.empty((count, model._weights.n_vocab), np.float32)
    _decode(model, MinK(), "host", 1.0, count, seed=1, keep=rows)
    return rows


def read_rows(path: Path) -> Rows:
    """Logits (n, V) from the array `logits` of an .npz file. Raises MinkError where there is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            rows = np.asarray(file["logits"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise MinkError(f"{path} is no .npz file with an array named logits: {error}") from None
    if rows.ndim != 2 or rows.size == 0:
        raise MinkError(f"the logits in {path} are not of shape (rows, V) but {rows.shape}")
    return rows


def cost_table(costs: Sequence[Cost]) -> Table:
    """For people: every method with its median microseconds, and how that compares with np.max."""
    table = Table(title=f"One step at a vocabulary of {costs[0].n_vocab:,}, median µs")
    _add_columns(table, "cut", "× np.max", "step", "llama.cpp", "× cut", "processor")
    floor = costs[0].select or 0.0
    for cost in costs:
        cut = cost.select or 0.0
        table.add_row(
            cost.method,
            _number(cost.select),
            _number(cut / floor),
            _number(cost.step),
            _number(cost.llama_cpp),
            _number(cost.llama_cpp / cut if cost.llama_cpp else None),
            _number(cost.processor),
        )
    return table


def speed_table(speeds: Sequence[Speed], title: str) -> Table:
    """For people: the paper's Table `tab:latency` for this machine and model."""
    table = Table(title=title, title_justify="left")
    _add_columns(table, "tokens/s", "ms/token", "draw µs", "slowdown", "95% interval")
    for speed in speeds:
        table.add_row(
            f"{speed.method} ({speed.form})",
            f"{speed.tokens_per_second:.1f}",
            f"{speed.ms_per_token:.3f}",
            f"{speed.sampling_us:.1f}",
            f"{speed.slowdown:+.2f}%",
            f"{speed.slowdown_low:+.1f} … {speed.slowdown_high:+.1f}",
        )
    return table


def _add_columns(table: Table, *numbers: str) -> None:
    table.add_column("method", overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def plot_costs(groups: Sequence[Sequence[Cost]], path: Path) -> None:
    """Bars of every method's cut and of llama.cpp's own, one panel a vocabulary, on a log scale."""
    figure, axes = _figure(len(groups))
    for axis, costs in zip(axes, groups, strict=True):
        names = [cost.method for cost in costs]
        at = np.arange(len(costs))
        axis.barh(at - 0.2, [cost.select or 0 for cost in costs], 0.4, label="this cut")
        axis.barh(at + 0.2, [cost.llama_cpp or 0 for cost in costs], 0.4, label="llama.cpp's own")
        axis.set_yticks(at, names)
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.set_xlabel("median µs a step")
        axis.set_title(f"vocabulary of {costs[0].n_vocab:,}")
        axis.legend()
    figure.savefig(path)


def plot_speeds(speeds: Sequence[Speed], path: Path) -> None:
    """Slowdown against greedy with its interval, one bar a method."""
    figure, (axis,) = _figure(1)
    slowdowns = np.array([speed.slowdown for speed in speeds])
    low = slowdowns - [speed.slowdown_low for speed in speeds]
    high = np.array([speed.slowdown_high for speed in speeds]) - slowdowns
    at = np.arange(len(speeds))
    axis.barh(at, slowdowns, xerr=np.array([low, high]), capsize=3)
    axis.set_yticks(at, [f"{speed.method} ({speed.form})" for speed in speeds])
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xlabel("slowdown against greedy, % of its time for a token")
    figure.savefig(path)


def _figure(panels: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4 * panels), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(panels))


def _samplers(_: click.Context, __: click.Parameter, texts: Iterable[str]) -> list[Sampler]:
    try:
        return [parse(text) for text in texts] or [sampler() for sampler in SAMPLERS.values()]
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def _writable(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """A picture's file, refused before the measuring and not after it."""
    if path is None:
        return None
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise click.UsageError("--plot needs matplotlib: type  python -m pip install matplotlib") from None
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in kinds:
        raise click.BadParameter(f"{path} does not end in one of .{', .'.join(sorted(kinds))}.")
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}.")
    return path


_sampler_option = click.option(
    "--sampler",
    "samplers",
    multiple=True,
    callback=_samplers,
    metavar="NAME[:OPTION=VALUE,…]",
    help="A method to time; may be given several times.  [default: all]",
)
_temp_option = click.option(
    "--temp",
    "-t",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    callback=finite,
    metavar="T",
    help="Temperature.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
_plot_option = click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_writable,
    metavar="FILE",
    help="Draw the figures too; the ending says how (.png, .svg, .pdf).",
)
_model_option = click.option(
    "--model",
    "-m",
    default=DEFAULT_MODEL,
    show_default=True,
    metavar="NAME|PATH",
    help="A name of models.txt or a .gguf file.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Time the cuts beside each other, beside llama.cpp's own, and in generation."""


@cli.command("sampler")
@click.option(
    "--logits",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE.npz",
    help="Rows of logits to time on, an array named logits of shape (rows, V).  [default: the model's]",
)
@_model_option
@_sampler_option
@_temp_option
@click.option("--rounds", type=click.IntRange(min=1), default=200, show_default=True, metavar="N")
@_json_option
@_plot_option
def sampler_command(
    files: Sequence[Path],
    model: str,
    samplers: Sequence[Sampler],
    temp: float,
    rounds: int,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Time every method's step on one thread: ours, llama.cpp's own, a logits processor, np.max, np.sort."""
    sources = [read_rows(file) for file in files] if files else [real_rows(load_model(model, n_ctx=512))]
    groups = [time_samplers(rows, samplers, temp, rounds) for rows in sources]
    if as_json:
        click.echo(json.dumps([asdict(cost) for costs in groups for cost in costs], indent=1))
    else:
        for costs in groups:
            Console().print(cost_table(costs))
    if plot:
        plot_costs(groups, plot)


@cli.command("decode")
@_model_option
@_sampler_option
@_temp_option
@click.option("--tokens", "-n", type=click.IntRange(min=1), default=64, show_default=True, metavar="N")
@click.option("--rounds", type=click.IntRange(min=6), default=11, show_default=True, metavar="N")
@click.option(
    "--form",
    "forms",
    multiple=True,
    type=click.Choice(["host", "graph"]),
    help="Where tokens are drawn; may be given twice.  [default: host, and graph on a GPU]",
)
@click.option("--gpu-layers", type=GpuLayers(), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), metavar="N")
@_json_option
@_plot_option
def decode_command(
    model: str,
    samplers: Sequence[Sampler],
    temp: float,
    tokens: int,
    rounds: int,
    forms: Sequence[Form],
    gpu_layers: Any,
    threads: int | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Generate with every method in turn and compare tokens/s with greedy's (the paper's latency table)."""
    loaded = load_model(model, n_ctx=tokens + 256, n_gpu_layers=gpu_layers, n_threads=threads)
    forms = forms or (("host", "graph") if loaded._weights.on_gpu else ("host",))
    speeds = time_decoding(loaded, samplers, forms, temp, tokens, rounds)
    if as_json:
        click.echo(json.dumps([asdict(speed) for speed in speeds], indent=1))
    else:
        title = f"{loaded.name} {loaded.placement}\n{tokens} tokens, {rounds} rounds"
        Console().print(speed_table(speeds, title))
    if plot:
        plot_speeds(speeds, plot)


def main() -> None:
    """Run `mink-bench`."""
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
