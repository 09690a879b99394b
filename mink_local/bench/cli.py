"""`mink-bench`: time samplers against references in the same run; print a table or JSON."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from mink_local.cli import FiniteFloat, WholeNumber, no_blanks_at_line_ends, run
from mink_local.llama.constants import MODEL
from mink_local.models.options import (
    Command,
    SamplerType,
    SharedOption,
    model_option,
    sampler_option,
    temp_option,
)
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.bench.timing import Row
    from mink_local.samplers import Sampler

PROGRAM = "mink-bench"
EXAMPLES = """\b
Examples:
  mink-bench sampler
  mink-bench sampler --sampler min-k --sampler top-p:p=0.9 --temp 5

Exit status: 0 success, 1 failure, 2 wrong usage or unknown model, 130 interrupted.
"""


def report(rows: "Sequence[Row]", output: str | None, title: str) -> None:
    """Print rows as JSON, or as a table for the terminal or in Markdown."""
    if output == "json":
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(title=None if output else title, title_justify="left", box=MARKDOWN if output else None)
    for name, value in rows[0].items():
        heading = name.replace("_us", " µs").replace("_", " ")
        table.add_column(heading, overflow="fold", justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(_text, row.values()))
    console = Console(width=200 if output else None)
    with no_blanks_at_line_ends(console):
        console.print(table, markup=False)


def _text(value: Any) -> str:
    from mink_local.samplers import label

    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return label(value) if isinstance(value, str) else f"{value or ''}"


# Qwen3's recommendation, a chain of many cuts, and one whose first cut keeps most of the vocabulary.
_CHAINS = (
    "top-k:k=20+top-p:p=0.95,order=temperature-last",
    "top-k:k=100+typical:p=0.95,order=temperature-last+min-p:p=0.02,order=temperature-last+min-k",
    "xtc:probability=0.5,order=temperature-last+min-k",
)


def _samplers(_: click.Context, __: click.Parameter, samplers: "tuple[Sampler, ...]") -> "Sequence[Sampler]":
    from mink_local.samplers import SAMPLERS, parse

    return samplers or [*(sampler() for sampler in SAMPLERS.values()), *map(parse, _CHAINS)]


rounds_option = SharedOption(
    "--rounds", type=WholeNumber(min=1), default=200, metavar="N",
    help="Number of rounds; each times everything once.",
)  # fmt: skip
samplers_option = sampler_option.replace(
    "samplers", default=None, multiple=True, callback=_samplers, type=SamplerType(or_model=True),
    help=f"Sampler to time, or {MODEL}, what the model's file recommends; repeatable.",
    show_default="all",
)  # fmt: skip
temperature_option = temp_option.replace(type=FiniteFloat(min=0, min_open=True), help="Temperature.")


def output_options(command: Command) -> Command:
    """Add --json and --markdown, which set `output` (None: a table for the terminal)."""
    json_option = click.option("--json", "output", flag_value="json", help="Print JSON instead of a table.")
    markdown_option = click.option("--markdown", "output", flag_value="markdown", help="Print Markdown.")
    return json_option(markdown_option(command))


@click.group(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Time sampling."""


@cli.command("sampler")
@model_option
@samplers_option
@temperature_option
@rounds_option
@output_options
def sampler_command(
    model: str,
    samplers: "Sequence[Sampler | Literal['model']]",
    temp: float,
    rounds: int,
    output: str | None,
) -> None:
    """Time one step of each sampler on one thread.

    Next to them stand llama.cpp's own, np.max and np.sort. A chain costs little more than its first cut,
    unless that keeps most of the vocabulary, as xtc does.
    """
    from mink_local.bench.timing import logits_of_answer, time_samplers
    from mink_local.generation.loading import load_model
    from mink_local.models.recommended import require_recommended

    with load_model(model, n_ctx=512) as loaded:
        logits = logits_of_answer(loaded)
        path = loaded.weights.path
        timed = [require_recommended(path).sampler if isinstance(one, str) else one for one in samplers]
    costs = time_samplers(logits, timed, temp, rounds)
    report(costs, output, "One step: median microseconds")


def main() -> None:
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
