"""Measures validity and coverage:  python -m scripts.lab.coverage --model ./mine.gguf"""

from pathlib import Path
from typing import Any

import click

from mink_local.cli import AutoOrInt, FiniteFloat, FiniteOrInf, run
from mink_local.evals.cli import (
    POSITIVE,
    limit_option,
    out_option,
    quiet_option,
    samplers_option,
    stateless,
    temperatures_option,
    template_option,
)
from mink_local.evals.measurement import carry_out
from mink_local.models.options import model_option, parallel_option, placement_options
from scripts.lab.coverage.measure import Walks


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@model_option
@samplers_option.replace(
    default=None,
    show_default=False,
    callback=stateless,
    help="Sampler; repeatable.  [default: all samplers in both orders, min-k:floor=1, and "
    "min-p:p=0,order=temperature-last, which keeps every token]",
)
@temperatures_option.replace(
    type=FiniteOrInf(min=0, min_open=True),
    default=[0.25, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, float("inf")],
    metavar="T|inf",
    help="Temperature; at inf all candidates are equally likely, and greedy is always measured. Repeatable.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Your own prompts, one JSON object per line: {"id": "coins", "prompt": "Name one side of a coin.", '
    '"answers": [["heads", "obverse"], ["tails", "reverse"]]}.  [default: 60 bundled prompts]',
)
@limit_option
@click.option(
    "--rest",
    type=FiniteFloat(min=0, min_open=True, max=1, max_open=True),
    default=0.01,
    metavar="P",
    help="Stop once no sampler at any temperature has more than P unexplored.",
)
@click.option(
    "--nodes",
    type=POSITIVE,
    default=2000,
    metavar="N",
    help="Maximum number of nodes to evaluate per prompt, whatever is left unexplored.",
)
@parallel_option.replace(type=AutoOrInt(min=1), default=16, help="Nodes evaluated at a time, or auto.")
@out_option.replace(default="coverage")
@placement_options
@template_option
@quiet_option
def measure(out: Path, quiet: bool, **options: Any) -> None:
    """Measure how many of a prompt's valid answers samplers find.

    "Name one country in Africa. Answer with its name only." has 54 valid answers. The distribution over
    answers is computed exactly, by walking the tree of candidates: how likely is a valid answer (validity),
    and how many different ones do 100 samples contain (coverage)? Nothing is sampled, and all samplers share
    the evaluated nodes.

    Writes coverage.html, .md, .svg, .pdf, .csv and .json to DIR. Run the same command again to resume; with
    more prompts, samplers or temperatures, only what is new is measured.
    """
    carry_out(Walks(**options), out, quiet=quiet)


def main() -> None:
    """Run the program."""
    run(measure, "coverage")


if __name__ == "__main__":
    main()
