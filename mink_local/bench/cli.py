"""`mink-bench`: times sampling beside other things in the same run; prints a table or JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mink_local.cli import FiniteFloat, json_option, run
from mink_local.models.options import SamplerType, gpu_layers_option, model_option, threads_option

if TYPE_CHECKING:
    from mink_local.bench.batch import BatchSpeed
    from mink_local.bench.decode import DecodeSpeed, Form
    from mink_local.bench.sampler import SamplerCost
    from mink_local.samplers import Sampler

PROGRAM = "mink-bench"
Command = TypeVar("Command", bound=Callable[..., Any])
_FORMS = ("host", "backend", "llama.cpp")


def print_table(title: str, first: str, others: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_costs(costs: "Sequence[SamplerCost]") -> None:
    from mink_local.samplers import label

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"

    floor = costs[0].select or 0.0
    rows = []
    for cost in costs:
        cut = cost.select or 0.0
        ratio = cost.llama_cpp / cut if cost.llama_cpp else None
        numbers = (cut, cut / floor, cost.step, cost.llama_cpp, ratio, cost.processor)
        rows.append([label(cost.method), *map(number, numbers)])
    title = f"One step at a vocabulary of {costs[0].n_vocab:,}, median µs"
    print_table(title, "method", ["cut", "× np.max", "step", "llama.cpp", "× cut", "processor"], rows)


def print_decode_speeds(title: str, speeds: "Sequence[DecodeSpeed]") -> None:
    from mink_local.samplers import label

    rows = [
        [
            label(speed.method),
            speed.form,
            f"{speed.tokens_per_second:.1f}",
            f"{speed.ms_per_token:.3f}",
            f"{speed.sampling_us:.1f}",
            f"{speed.slowdown:+.2f}%",
            f"{speed.slowdown_low:+.1f} … {speed.slowdown_high:+.1f}",
        ]
        for speed in speeds
    ]
    print_table(
        title, "method", ["form", "tokens/s", "ms/token", "sampling µs", "slowdown", "95% interval"], rows
    )


def print_batch_speeds(title: str, speeds: "Sequence[BatchSpeed]") -> None:
    rows = [
        [
            str(speed.n_parallel),
            f"{speed.tokens_per_second:.1f}",
            f"{speed.bare_tokens_per_second:.1f}",
            f"{100 * speed.share:.1f}%",
            f"{speed.gain:.2f}",
        ]
        for speed in speeds
    ]
    others = ["tokens/s", "bare llama_decode", "share of it", f"× {speeds[0].n_parallel} at a time"]
    print_table(title, "answers at a time", others, rows)


def _form(_: click.Context, __: click.Parameter, forms: tuple[str, ...]) -> tuple[str, ...]:
    """Take "graph", the former name, for "backend"."""
    return tuple(dict.fromkeys("backend" if form == "graph" else form for form in forms))


def _samplers(_: click.Context, __: click.Parameter, samplers: "tuple[Sampler, ...]") -> "Sequence[Sampler]":
    from mink_local.samplers import SAMPLERS

    return samplers or [sampler() for sampler in SAMPLERS.values()]


def _rounds_option(least: int, default: int) -> Callable[[Command], Command]:
    return click.option(
        "--rounds", type=click.IntRange(min=least), default=default, show_default=True, metavar="N",
        help="Rounds; each times everything once.",
    )  # fmt: skip


_samplers_option = click.option(
    "--sampler",
    "samplers",
    type=SamplerType(),
    multiple=True,
    callback=_samplers,
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
_tokens_option = click.option(
    "--tokens", "-n", type=click.IntRange(min=1), default=64, show_default=True, metavar="N",
    help="Tokens of an answer.",
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Time sampling by itself, in generation, and with many answers at a time."""


@cli.command("sampler")
@click.option(
    "--logits",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE.npz",
    help="Logits to time on, an array named logits of shape (rows, V).  [default: the model's]",
)
@model_option
@_samplers_option
@_temp_option
@_rounds_option(least=1, default=200)
@json_option
def sampler_command(
    files: Sequence[Path],
    model: str,
    samplers: "Sequence[Sampler]",
    temp: float,
    rounds: int,
    as_json: bool,
) -> None:
    """Time a step of every method on one thread, beside llama.cpp's own, np.max and np.sort."""
    from mink_local.bench.sampler import logits_of_answer, read_logits, time_samplers
    from mink_local.generation.loading import load_model

    if files:
        sources = [read_logits(file) for file in files]
    else:
        with load_model(model, n_ctx=512) as loaded:
            sources = [logits_of_answer(loaded)]
    groups = [time_samplers(logits, samplers, temp, rounds) for logits in sources]
    if as_json:
        _print_json([cost for costs in groups for cost in costs])
    else:
        for costs in groups:
            print_costs(costs)


@cli.command("decode")
@model_option
@_samplers_option
@_temp_option
@_tokens_option
@_rounds_option(least=6, default=11)
@click.option(
    "--form",
    "forms",
    multiple=True,
    type=click.Choice([*_FORMS, "graph"]),
    callback=_form,
    metavar="|".join(_FORMS),
    help="Where tokens are sampled; may be given several times.  [default: host, and backend on a GPU]",
)
@gpu_layers_option
@threads_option
@json_option
def decode_command(
    model: str,
    samplers: "Sequence[Sampler]",
    temp: float,
    tokens: int,
    rounds: int,
    forms: "Sequence[Form]",
    gpu_layers: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Generate with every method in turn and compare with greedy (the paper's latency table)."""
    from mink_local.bench.decode import time_decoding
    from mink_local.generation.loading import load_model

    if not find_spec("scipy"):
        raise click.UsageError("the intervals need SciPy: type  python -m pip install scipy")
    with load_model(model, n_ctx=tokens + 256, n_gpu_layers=gpu_layers, n_threads=threads) as loaded:
        forms = forms or (("host", "backend") if loaded.weights.on_gpu else ("host",))
        speeds = time_decoding(loaded, samplers, forms, temp, tokens, rounds)
    if as_json:
        _print_json(speeds)
    else:
        title = f"{loaded.name} {loaded.placement}\n{tokens} tokens, {rounds} rounds"
        print_decode_speeds(title, speeds)


@cli.command("batch")
@model_option
@click.option(
    "--parallel",
    "parallels",
    multiple=True,
    type=click.IntRange(min=1, max=256),  # LLAMA_MAX_SEQ
    default=(1, 4, 16),
    show_default=True,
    metavar="N",
    help="Answers at a time; may be given several times.",
)
@click.option("--sampler", type=SamplerType(), default="min-k", show_default=True, help="The method.")
@_temp_option
@_tokens_option
@_rounds_option(least=1, default=5)
@gpu_layers_option
@threads_option
@json_option
def batch_command(
    model: str,
    parallels: Sequence[int],
    sampler: "Sampler",
    temp: float,
    tokens: int,
    rounds: int,
    gpu_layers: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Generate several answers at a time, and compare with the same llama_decode calls alone."""
    from mink_local.bench.batch import time_batches
    from mink_local.generation.loading import load_model

    n_ctx = tokens + 256
    with load_model(model, n_ctx=n_ctx, n_parallel=1, n_gpu_layers=gpu_layers, n_threads=threads) as loaded:
        speeds = time_batches(loaded, parallels, sampler, temp, tokens, rounds)
    if as_json:
        _print_json(speeds)
    else:
        title = f"{loaded.name} {loaded.placement}\n{sampler}, {tokens} tokens, {rounds} rounds"
        print_batch_speeds(title, speeds)


def _print_json(results: Sequence[Any]) -> None:
    click.echo(json.dumps([asdict(result) for result in results], indent=1))


def main() -> None:
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
