"""`mink-bench`: what a cut costs, beside other things timed in the same run, as a table, JSON, a picture."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from mink_local.bench.batch import BatchSpeed, time_batches
from mink_local.bench.timing import Cost, Form, Speed, read_rows, real_rows, time_decoding, time_samplers
from mink_local.cli import FiniteFloat, json_option, run
from mink_local.generation.loading import load_model
from mink_local.llama.context import N_SEQ_MAX
from mink_local.models.options import SamplerType, gpu_layers_option, model_option, threads_option
from mink_local.samplers import SAMPLERS, Sampler

PROGRAM = "mink-bench"


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


def batch_table(speeds: Sequence[BatchSpeed], title: str) -> Table:
    """For people: how much more is written together, and what of llama.cpp's speed arrives."""
    table = Table("answers at a time", title=title, title_justify="left")
    for name in ("tokens/s", "bare llama_decode", "share of it", f"× {speeds[0].n_parallel} at a time"):
        table.add_column(name, justify="right")
    for speed in speeds:
        table.add_row(
            str(speed.n_parallel),
            f"{speed.tokens_per_second:.1f}",
            f"{speed.bare_tokens_per_second:.1f}",
            f"{100 * speed.share:.1f}%",
            f"{speed.gain:.2f}",
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
    type=SamplerType(),
    multiple=True,
    callback=lambda _, __, samplers: samplers or [sampler() for sampler in SAMPLERS.values()],
    help="A method to time; may be given several times.  [default: all]",
)
_temp_option = click.option(
    "--temp",
    "-t",
    type=FiniteFloat(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="T",
    help="Temperature.",
)
_plot_option = click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_writable,
    metavar="FILE",
    help="Draw the figures too; the ending says how (.png, .svg, .pdf).",
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
@model_option
@_sampler_option
@_temp_option
@click.option("--rounds", type=click.IntRange(min=1), default=200, show_default=True, metavar="N")
@json_option
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
@model_option
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
@gpu_layers_option
@threads_option
@json_option
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
    if not find_spec("scipy"):
        raise click.UsageError("the intervals need SciPy: type  python -m pip install scipy")
    loaded = load_model(model, n_ctx=tokens + 256, n_gpu_layers=gpu_layers, n_threads=threads)
    forms = forms or (("host", "graph") if loaded.weights.on_gpu else ("host",))
    speeds = time_decoding(loaded, samplers, forms, temp, tokens, rounds)
    if as_json:
        click.echo(json.dumps([asdict(speed) for speed in speeds], indent=1))
    else:
        title = f"{loaded.name} {loaded.placement}\n{tokens} tokens, {rounds} rounds"
        Console().print(speed_table(speeds, title))
    if plot:
        plot_speeds(speeds, plot)


@cli.command("batch")
@model_option
@click.option(
    "--parallel",
    "parallels",
    multiple=True,
    type=click.IntRange(1, N_SEQ_MAX),
    default=(1, 4, 16),
    show_default=True,
    metavar="N",
    help="Answers at a time; may be given several times.",
)
@click.option("--sampler", type=SamplerType(), default="min-k", show_default=True)
@_temp_option
@click.option("--tokens", "-n", type=click.IntRange(min=1), default=64, show_default=True, metavar="N")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, metavar="N")
@gpu_layers_option
@threads_option
@json_option
def batch_command(
    model: str,
    parallels: Sequence[int],
    sampler: Sampler,
    temp: float,
    tokens: int,
    rounds: int,
    gpu_layers: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write several answers at a time, and compare with the same llama_decode calls alone."""
    loaded = load_model(model, n_ctx=tokens + 256, n_parallel=1, n_gpu_layers=gpu_layers, n_threads=threads)
    speeds = time_batches(loaded, parallels, sampler, temp, tokens, rounds)
    if as_json:
        click.echo(json.dumps([asdict(speed) for speed in speeds], indent=1))
    else:
        title = f"{loaded.name} {loaded.placement}\n{sampler}, {tokens} tokens, {rounds} rounds"
        Console().print(batch_table(speeds, title))


def main() -> None:
    """Run `mink-bench`."""
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
