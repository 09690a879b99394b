"""`mink-eval frontier`: noise against variety of every method."""

from pathlib import Path
from typing import Any

import click

from mink_local.cli import FiniteFloat, Temperature
from mink_local.evals.libraries import saying_what_is_missing
from mink_local.evals.options import POSITIVE, quiet_option, results_folder_option
from mink_local.models.options import MODEL_HELP, gpu_layers_option, threads_option


@click.command("frontier")
@click.option("--model", "-m", required=True, metavar="NAME|PATH", help=f"The model. {MODEL_HELP}")
@click.option(
    "--reference",
    "-r",
    required=True,
    metavar="NAME|PATH",
    help="A larger model with the same vocabulary, which judges the model's tokens and writes the texts.",
)
@click.option("--task", metavar="TASK", help="Texts: answers of the reference to a task's questions.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The task's questions, instead of a download.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Texts: answers of the reference to the prompts of a file, one a line: plain, or a JSON object with "
    "a field question, prompt, instruction or problem.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Texts: the paragraphs of a file, which empty lines separate.",
)
@click.option(
    "--limit",
    type=POSITIVE,
    default=100,
    metavar="N",
    help="So many prompts or paragraphs, chosen at random; a larger number adds to them.",
)
@click.option(
    "--temp",
    "-t",
    "temperatures",
    multiple=True,
    type=Temperature(),
    default=[1.0, 2.0, 5.0, float("inf")],
    metavar="T|inf",
    help="A temperature; inf makes all candidates equally probable. May be given several times.",
)
@click.option(
    "--noise",
    "wanted",
    multiple=True,
    type=FiniteFloat(min=0, min_open=True, max=100),
    default=[0.5, 1.0, 2.0, 5.0],
    metavar="POINTS",
    help="A wanted noise, in percentage points above greedy's, at which the methods are compared. May be "
    "given several times.",
)
@click.option(
    "--max-tokens",
    "-n",
    type=POSITIVE,
    default=256,
    metavar="N",
    help="Longest answer that the reference writes.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 2),
    default=0,
    metavar="N",
    help="Of the choice of prompts and of their answers.",
)
@results_folder_option("mink-eval-frontier")
@gpu_layers_option
@threads_option
@quiet_option
def frontier_command(
    task: str | None, data: Path | None, prompts: Path | None, text: Path | None, **options: Any
) -> None:
    """Measure how much noise every method takes for its variety, exactly.

    At each position of given texts, the model's logits give each method's candidates and their probabilities;
    noise is the probability of tokens that a larger reference model gives less than 1% (and 0.1%), variety
    is the entropy. Nothing is sampled and no judge is needed. Every method is measured with its parameter
    swept, at every temperature, and in both orders of temperature and cut if it knows them.

    Writes to DIR: frontier.md with the tables, frontier.svg, frontier.json with all figures and their
    intervals, and the texts. The same command again continues a measurement that stopped.
    """
    if sum(source is not None for source in (task, prompts, text)) != 1:
        raise click.UsageError("name the texts by one of --task, --prompts and --text.")
    if data is not None and task is None:
        raise click.UsageError("--data is for --task.")
    with saying_what_is_missing():
        from mink_local.evals.frontier.run import Measurement, TextSource, run_frontier
    run_frontier(Measurement(source=TextSource(task, data, prompts, text), **options))
