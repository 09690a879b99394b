"""`mink-eval coverage`: which valid answers a method gives, and how many invalid ones."""

from pathlib import Path
from typing import Any

import click

from mink_local.cli import AutoOrInt, FiniteFloat, Temperature
from mink_local.evals.libraries import saying_what_is_missing
from mink_local.evals.options import POSITIVE, quiet_option, results_folder_option, samplers_option
from mink_local.models.options import gpu_layers_option, model_option, threads_option


@click.command("coverage")
@model_option
@samplers_option(
    help="A method. May be given several times.  [default: min-k without and with floor, llama-default, "
    "min-p and top-p in both orders, top-n-sigma, p-less, greedy, temperature only]",
)
@click.option(
    "--temp",
    "-t",
    "temperatures",
    multiple=True,
    type=Temperature(),
    default=[0.25, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, float("inf")],
    metavar="T|inf",
    help="A temperature; at inf all candidates are equally probable. May be given several times.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Own prompts, one JSON object a line: {"id": "coins", "prompt": "Name one side of a coin.", '
    '"answers": [["heads", "obverse"], ["tails", "reverse"]]}.  [default: 60 that are bundled]',
)
@click.option("--limit", type=POSITIVE, metavar="N", help="Only the first N prompts.")
@click.option(
    "--rest",
    type=FiniteFloat(min=0, min_open=True, max=1, max_open=True),
    default=0.01,
    metavar="P",
    help="Walk until at most this probability is unexplored, for every method and temperature.",
)
@click.option(
    "--nodes",
    type=POSITIVE,
    default=2000,
    metavar="N",
    help="Most nodes of the tree that are evaluated for a prompt, whatever is unexplored then.",
)
@click.option(
    "--parallel", type=AutoOrInt(min=1), default=16, metavar="N|auto", help="Nodes evaluated at a time."
)
@results_folder_option("mink-eval-coverage")
@gpu_layers_option
@threads_option
@quiet_option
def coverage_command(**options: Any) -> None:
    """Measure validity and coverage of every method on prompts whose valid answers can be listed.

    "Name one country in Africa. Answer with its name only." has 54 valid answers. The distribution over the
    answers is computed exactly, by walking the tree of candidates: how probable is a valid answer, and how
    many different ones do 100 samples have? Nothing is sampled, and all methods share the evaluated nodes.

    Writes to DIR: coverage.md with the tables, coverage.svg with a curve for every method over temperature,
    and coverage.json with the figures of every prompt. The same command again continues a measurement that
    stopped.
    """
    with saying_what_is_missing():
        from mink_local.evals.coverage.run import CoverageOptions, run_coverage
    run_coverage(CoverageOptions(**options))
