"""`mink-bench`: times sampling beside other things in the same run; prints a table or JSON."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mink_local.cli import FiniteFloat, json_option, run
from mink_local.models.options import SamplerType, gpu_layers_option, model_option, rpc_option, threads_option
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.bench.decode import Form
    from mink_local.samplers import Sampler

PROGRAM = "mink-bench"
Command = TypeVar("Command", bound=Callable[..., Any])
_FORMS = ("host", "backend", "llama.cpp")


def _report(results: Sequence[Any], as_json: bool, title: str, table: Callable[[Any], Any]) -> None:
    """Print results as JSON, or the table of them."""
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    headings, *rows = table(results)
    shown = Table(title=title, title_justify="left")
    for i, heading in enumerate(headings):
        shown.add_column(heading, overflow="fold", justify="right" if i > 0 else "left")
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)


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
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Time sampling by itself, in generation, with many answers at a time, and behind a server."""


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
    from mink_local.bench.tables import sampler_table
    from mink_local.generation.loading import load_model

    if files:
        sources = [read_logits(file) for file in files]
    else:
        with load_model(model, n_ctx=512) as loaded:
            sources = [logits_of_answer(loaded)]
    groups = [time_samplers(logits, samplers, temp, rounds) for logits in sources]
    if as_json:
        groups = [[cost for costs in groups for cost in costs]]
    for costs in groups:
        title = f"One step at a vocabulary of {costs[0].n_vocab:,}: medians"
        _report(costs, as_json, title, sampler_table)


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
@rpc_option
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
    rpc: Sequence[str] | None,
    as_json: bool,
) -> None:
    """Generate with every method in turn and compare with greedy (the paper's latency table)."""
    from mink_local.bench.decode import time_decoding
    from mink_local.bench.tables import decode_table
    from mink_local.generation.loading import load_model

    if not find_spec("scipy"):
        raise click.UsageError("the intervals need SciPy: type  python -m pip install scipy")
    n_ctx = tokens + 256
    with load_model(model, n_ctx=n_ctx, n_gpu_layers=gpu_layers, n_threads=threads, rpc=rpc) as loaded:
        forms = forms or (("host", "backend") if loaded.weights.on_gpu else ("host",))
        speeds = time_decoding(loaded, samplers, forms, temp, tokens, rounds)
    title = f"{loaded.name} {loaded.placement}\n{tokens} tokens, {rounds} rounds"
    _report(speeds, as_json, title, decode_table)


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
@rpc_option
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
    rpc: Sequence[str] | None,
    as_json: bool,
) -> None:
    """Generate several answers at a time, and compare with the same llama_decode calls alone."""
    from mink_local.bench.batch import time_batches
    from mink_local.bench.tables import batch_table
    from mink_local.generation.loading import load_model

    with load_model(
        model, n_ctx=tokens + 256, n_parallel=1, n_gpu_layers=gpu_layers, n_threads=threads, rpc=rpc
    ) as loaded:
        speeds = time_batches(loaded, parallels, sampler, temp, tokens, rounds)
    title = f"{loaded.name} {loaded.placement}\n{sampler}, {tokens} tokens, {rounds} rounds"
    _report(speeds, as_json, title, batch_table)


@cli.command("serve")
@click.option(
    "--against", metavar="PROGRAM", help="A llama-server of llama.cpp to compare with.  [default: none]"
)
@model_option
@click.option(
    "--clients",
    multiple=True,
    type=click.IntRange(min=1, max=256),
    default=(1, 4, 16, 32),
    show_default=True,
    metavar="N",
    help="Clients at a time; may be given several times.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1, max=256),  # LLAMA_MAX_SEQ
    metavar="N",
    help="Slots of a server.  [default: one for each client]",
)
@click.option("--sampler", type=SamplerType(), default="top-k:k=40", show_default=True, help="The method.")
@_temp_option
@_tokens_option
@_rounds_option(least=1, default=3)
@gpu_layers_option
@threads_option
@json_option
def serve_command(
    against: str | None,
    model: str,
    clients: Sequence[int],
    parallel: int | None,
    sampler: "Sampler",
    temp: float,
    tokens: int,
    rounds: int,
    gpu_layers: Any,
    threads: int | None,
    as_json: bool,
) -> None:
    """Have many clients at a time ask mink-serve, and compare with llama-server."""
    if not find_spec("httpx"):
        raise click.UsageError("the clients need HTTPX: type  python -m pip install httpx")
    from mink_local.bench.serve import FIELDS, PROMPT_ROOM, request_fields, time_servers
    from mink_local.bench.server_process import ServerOptions
    from mink_local.bench.tables import serve_table
    from mink_local.llama.cores import n_cores
    from mink_local.models.catalog import resolve

    if against is not None and which(against) is None:
        raise click.UsageError(f"there is no program {against}: give the path of a llama-server")
    if against is not None and type(sampler) not in FIELDS:
        raise click.UsageError(f"llama-server has no {sampler}: give another --sampler")
    n_parallel, n_ctx = parallel or max(clients), tokens + PROMPT_ROOM
    options = ServerOptions(resolve(model).path, n_parallel, n_ctx, threads or n_cores(), gpu_layers)
    with ExitStack() as stack:
        servers = [stack.enter_context(options.mink_serve())]
        if against is not None:
            servers.append(stack.enter_context(options.llama_server(against)))
        speeds = time_servers(servers, clients, request_fields(sampler, temp), tokens, rounds)
    title = f"{model} in {n_parallel} slots on {options.n_threads} threads\n"
    _report(speeds, as_json, f"{title}{sampler}, {tokens} tokens, {rounds} rounds", serve_table)


def main() -> None:
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
