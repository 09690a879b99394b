"""The commands `mink-eval judge`, `sheet` and `votes`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mink_local.cli import AutoOrInt, FiniteFloat
from mink_local.evals.libraries import saying_what_is_missing
from mink_local.evals.options import POSITIVE, run_folder_argument, samplers_option
from mink_local.models.options import SamplerType, gpu_layers_option, threads_option

if TYPE_CHECKING:
    from mink_local.samplers import Sampler

KEY_VARIABLE = "OPENAI_API_KEY"


@click.command("judge")
@run_folder_argument
@click.option(
    "--judge",
    "-j",
    "judge",
    required=True,
    metavar="NAME|PATH|URL",
    help="The judge: a GGUF model, as --model of mink-eval run takes it, or the base URL of an "
    "OpenAI-compatible server, such as http://127.0.0.1:8080/v1.",
)
@click.option(
    "--judge-model",
    metavar="ID",
    help="The model of a server that is the judge.  [default: the only one it has]",
)
@click.option(
    "--api-key-variable",
    default=KEY_VARIABLE,
    metavar="NAME",
    help="The environment variable with a server's API key.",
)
@click.option(
    "--against",
    type=SamplerType(),
    default="greedy",
    metavar="SAMPLER",
    help="The method whose responses the others are compared with.",
)
@click.option("--limit", type=POSITIVE, metavar="N", help="Only the first N questions of a task.")
@click.option(
    "--max-chars",
    "characters",
    type=click.IntRange(min=200),
    default=6000,
    metavar="N",
    help="Characters of a response that the judge sees; the judge is told if there are more.",
)
@click.option(
    "--parallel",
    type=AutoOrInt(min=1, max=64),
    default="auto",
    help="Requests at a time; auto is 8 to a server and 4 to a GGUF model.",
)
@click.option(
    "--timeout",
    "seconds",
    type=FiniteFloat(min=1),
    default=120.0,
    metavar="SECONDS",
    help="Patience with one answer of a server; after it the request is sent again.",
)
@gpu_layers_option
@threads_option
def judge_command(
    folder: Path,
    judge: str,
    judge_model: str | None,
    api_key_variable: str,
    against: "Sampler",
    limit: int | None,
    characters: int,
    parallel: Any,
    seconds: float,
    gpu_layers: Any,
    threads: int | None,
) -> None:
    """Have a model judge the responses of the run in DIR against those of one method.

    Every pair of responses to the same question is judged in both orders: a method wins a pair if both
    prefer it. Prints win rates and how much the place of an answer matters, and writes them to
    DIR/judge/judge.md and judge.json. Every judgement goes to DIR/judge/judgements.jsonl as soon as it is
    there; the same command again asks only for what is missing.
    """
    is_url = judge.startswith(("http://", "https://"))
    if judge_model and not is_url:
        raise click.UsageError("--judge-model is for the URL of a server: give --judge URL.")
    with saying_what_is_missing():
        from mink_local.evals.judge.judged import judge_run
        from mink_local.evals.judge.judges import EndpointJudge, LocalJudge

    if is_url:
        key = os.environ.get(api_key_variable, "")
        n_requests = 8 if parallel == "auto" else parallel
        chosen: EndpointJudge | LocalJudge = EndpointJudge(judge, judge_model, key, n_requests, seconds)
    else:
        n_parallel = 4 if parallel == "auto" else parallel  # more would delay the first judgements
        chosen = LocalJudge(judge, n_parallel=n_parallel, n_gpu_layers=gpu_layers, n_threads=threads)
    judge_run(folder, chosen, str(against), limit, characters)


@click.command("sheet")
@run_folder_argument
@samplers_option(
    required=True,
    help="A sampler of the run. Give at least two; each is compared with each.",
)
@click.option(
    "--temp",
    "-t",
    "temperatures",
    multiple=True,
    type=FiniteFloat(min=0),
    metavar="T",
    help="Only pairs at this temperature. May be given several times.  [default: all of the run]",
)
@click.option("--limit", type=POSITIVE, default=50, metavar="N", help="Most pairs on the page.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Of the choice, the order, the sides."
)
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the page and the key.  [default: DIR/sheet]",
)
def sheet_command(
    folder: Path,
    samplers: "Sequence[Sampler]",
    temperatures: Sequence[float],
    limit: int,
    seed: int,
    out: Path | None,
) -> None:
    """Write a page on which people vote for responses of the run in DIR without knowing the methods.

    sheet.html is one file that needs no network: send it to the raters, and no other file. The methods are
    in key.json, which mink-eval votes needs.
    """
    names = list(dict.fromkeys(map(str, samplers)))
    if len(names) < 2:
        raise click.UsageError("a sheet compares methods: give --sampler at least twice.")
    with saying_what_is_missing():
        from mink_local.evals.judge.sheet import KEY, PAGE, write_sheet

    out = out or folder / "sheet"
    click.echo(f"{write_sheet(folder, names, limit, seed, temperatures, out)}.\n")
    click.echo(f"{out / PAGE}  for the raters\n{out / KEY}  for mink-eval votes: do not send it")


@click.command("votes")
@run_folder_argument
@click.argument(
    "votes", nargs=-1, required=True, metavar="VOTES…", type=click.Path(path_type=Path, dir_okay=False)
)
def votes_command(folder: Path, votes: Sequence[Path]) -> None:
    """Say what the votes on a sheet of the run in DIR show.

    VOTES are the files that the page has saved, one of each rater. Prints win rates, exact tests and the
    agreement of the raters, and writes them to votes.md and votes.json beside the sheet's key. DIR may also
    be the folder of the sheet itself.
    """
    with saying_what_is_missing():
        from mink_local.evals.judge.sheet import KEY
        from mink_local.evals.judge.votes import report_votes

    report_votes(folder if (folder / KEY).exists() else folder / "sheet", votes)
