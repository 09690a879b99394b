"""`mink-eval`: run GGUF models on tasks with every sampler and temperature, compare them, and report."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from mink_local.cli import AutoOrInt, FiniteFloat, Temperature, run
from mink_local.files import user_path
from mink_local.llama.constants import N_SEQ_MAX
from mink_local.models.catalog import default_model
from mink_local.models.options import (
    SamplerType,
    SharedOption,
    chat_template_option,
    complete_model,
    ctx_option,
    max_tokens_option,
    model_option,
    parallel_option,
    placement_options,
    reasoning_budget_option,
    sampler_option,
    seed_option,
    temp_option,
    template_kwargs_option,
)
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.evals.tasks.base import Task
    from mink_local.models.catalog import ModelFile
    from mink_local.samplers import Sampler

PROGRAM = "mink-eval"
EXTRAS = {"lm_eval": "lm-eval", "ray": "ray"}  # extras that install a library; all others are in "eval"

EXAMPLES = """\b
Examples:
  mink-eval run sample-math --sampler min-k --sampler top-p --temp 1 --temp 5
  mink-eval run gsm8k aqua --model qwen3-4b --model ./mine.gguf --temp 1 --repeats 3 --out runs/qwen
  mink-eval run my-questions.jsonl --model ./mine.gguf --temp 5
  mink-eval report mink-eval-run
  mink-eval judge mink-eval-run --judge ./larger.gguf
  mink-eval coverage --model ./mine.gguf
  mink-eval frontier --model ./small.gguf --reference ./large.gguf --text novel.txt
  mink-eval quants ./mine-Q8_0.gguf ./mine-Q5_K_M.gguf ./mine-Q4_K_M.gguf

Run the same command again to resume a measurement, however it ended. Add samplers, temperatures, models,
tasks, questions or repeats, and only what is new is measured.

Exit status: 0 success, 1 failure, 2 usage error, 130 interrupted.
"""

# By command, as named in the manifest; a run has its own report. Imported when needed.
MEASUREMENTS = {
    "frontier": "mink_local.evals.frontier.measure:Frontier",
    "coverage": "mink_local.evals.coverage.measure:Walks",
    "judge": "mink_local.evals.judge.judgements:Judging",
    "quants": "mink_local.evals.quants.measure:Quants",
}

POSITIVE = click.IntRange(min=1)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)

samplers_option = sampler_option.replace("samplers", multiple=True)
temperatures_option = temp_option.replace("temperatures", multiple=True, default=[1.0])
limit_option = click.option(
    "--limit", type=POSITIVE, metavar="N", help="Use only the first N questions of each task, or prompts."
)
folder_argument = click.argument("folder", metavar="DIR", type=FOLDER)
data_option = click.option(
    "--data",
    multiple=True,
    metavar="[TASK=]FILE",
    help="File with a task's questions, used instead of a download.",
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Do not show progress.")
fixed_seed_option = seed_option.replace(default=0, show_default=True, help="Seed for all random choices.")


out_option = SharedOption(
    "--out",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for the results; a measurement already in it is resumed.",
)


class Program(click.Group):
    """The program; tells how to install a missing library."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            library = str(error.name).partition(".")[0]
            extra = EXTRAS.get(library, "eval")
            raise click.UsageError(
                f'this needs {library}: type  python -m pip install "mink-local[{extra}]"'
            ) from None


@click.group(
    cls=Program,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Evaluate GGUF models across samplers and temperatures."""


def _tasks(_: click.Context, __: click.Parameter, names: Sequence[str]) -> "list[Task]":
    from mink_local.evals.tasks import find_task

    tasks = {name: find_task(name) for name in names}
    by_name = {task.name: task for task in tasks.values()}
    if len(by_name) < len(tasks):
        raise click.BadParameter("two files have the same name: rename one.")
    return list(tasks.values())


def _models(_: click.Context, __: click.Parameter, names: Sequence[str]) -> "list[ModelFile]":
    """Return the models' files, without duplicates; a repeated name gets its folder's name, too."""
    from dataclasses import replace

    from mink_local.models.catalog import resolve

    by_name: dict[str, ModelFile] = {}
    for file in map(resolve, names):
        if by_name.setdefault(file.name, file).path != file.path:
            longer = replace(file, name=f"{file.path.absolute().parent.name}/{file.name}")
            if by_name.setdefault(longer.name, longer).path != file.path:
                raise click.BadParameter(f"two models are named {longer.name}: rename one.")
    return list(by_name.values())


def _files(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Return files by task, given as TASK=FILE, or as FILE if there is a single task."""
    from mink_local.evals.tasks import TASKS

    files: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or name not in {*TASKS, *names}:
            if not names:
                raise click.UsageError(f"{option} {text} is for a built-in task: leave it out.")
            if len(names) > 1:
                raise click.UsageError(f"{option} {text} does not name its task: write TASK={text}.")
            name, file = names[0], text
        if name not in names:
            raise click.UsageError(f"{option} {text} is for a task that is not in this run.")
        if name in files:
            raise click.UsageError(f"{option} is given twice for {name}.")
        files[name] = user_path(file)
    return files


def _stop(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[str]:
    if not all(texts):
        raise click.BadParameter("an empty text would end every response: leave it out.")
    return [text.replace("\\n", "\n") for text in texts]


@cli.command("run")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK…", callback=_tasks)
@model_option.replace("models", multiple=True, default=lambda: [default_model()], callback=_models)
@samplers_option.replace(default=["min-k"])
@temperatures_option.replace(help="Temperature for every sampler; at 0 every sampler is greedy.")
@click.option(
    "--greedy/--no-greedy",
    default=True,
    help="Also decode greedily, once per question: the baseline that samplers have to beat.",
)
@limit_option
@click.option(
    "--repeats",
    type=POSITIVE,
    default=1,
    metavar="N",
    help="Number of responses per question, each with its own seed.",
)
@fixed_seed_option
@max_tokens_option.replace(
    show_default="the task's",
    help="Maximum response length in tokens; longer responses are cut off and count as wrong.",
)
@reasoning_budget_option
@data_option
@click.option(
    "--shots",
    type=POSITIVE,
    metavar="N",
    help="Put the first N questions and their worked answers before each question, as earlier turns of the "
    "conversation; they are then excluded from the run.",
)
@click.option(
    "--shots-from",
    multiple=True,
    metavar="[TASK=]FILE",
    help="File in the task's format that provides the --shots examples: its first N questions.",
)
@click.option(
    "--stop",
    multiple=True,
    metavar="TEXT",
    callback=_stop,
    help=r"Text that ends a response, such as '\nQuestion:' (\n is a line break); for base models.",
)
@out_option.replace(default="mink-eval-run")
@parallel_option.replace(
    type=AutoOrInt(min=1, max=N_SEQ_MAX),
    default="auto",
    help="Number of responses generated at a time; auto: depends on memory and device.",
)
@ctx_option.replace(show_default="as much as needed")
@placement_options
@chat_template_option.replace(
    "chat_template", help="Use the Jinja chat template in FILE in place of the models' own."
)
@template_kwargs_option
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="ray: distribute the run over a Ray cluster, with one worker per GPU.",
)
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="Address of the Ray cluster.  [default: RAY_ADDRESS, or this machine]",
)
@click.option(
    "--workers",
    type=POSITIVE,
    metavar="N",
    help="Number of Ray workers.  [default: one per GPU, or per machine]",
)
@quiet_option
def run_command(
    tasks: "list[Task]",
    data: Sequence[str],
    shots: int | None,
    shots_from: Sequence[str],
    parallel: Any,
    executor: str,
    ray_address: str | None,
    workers: int | None,
    quiet: bool,
    out: Path,
    **options: Any,  # `Run`'s, under the same names
) -> None:
    """Have models answer tasks' questions with every sampler at every temperature.

    TASK is a name listed by mink-eval tasks, or your own .jsonl file: each line is a JSON object with
    "question" and optionally "answer" (a number or a text), "choices" and "id". Responses to questions
    without an answer are recorded but not scored. --model, --sampler and --temp are repeatable.

    Each response is written to DIR/records.jsonl as soon as it is complete. After Ctrl-C or a crash, run the
    same command again to resume.
    """
    from mink_local.evals.tasks import TASKS

    names = [task.name for task in tasks]
    files = _files("--data", data, [name for name in names if name in TASKS])  # others are files
    if shots_from and not shots:
        raise click.UsageError("--shots-from needs --shots N.")
    shots_files = _files("--shots-from", shots_from, names)
    from mink_local.evals.measurement import carry_out
    from mink_local.evals.run.evaluation import Run

    if executor == "ray":
        if options["rpc"]:
            raise click.UsageError("--rpc supports only one worker: use it without --executor ray.")
        from mink_local.evals.run.workers import Cluster, connect

        connect(ray_address)
        options["start"] = partial(Cluster, workers)
    elif workers or ray_address:
        raise click.UsageError("--workers and --ray-address are for Ray: add --executor ray.")
    run_ = Run(tasks, data=files, shots=shots or 0, shots_from=shots_files, n_parallel=parallel, **options)
    carry_out(run_, out, quiet=quiet)


class AgainstType(SamplerType):
    """Type of --against: a sampler, "model=NAME" or "temp=T"; its value is a kind and a name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        kind, _, name = value.partition("=")
        if kind == "model":
            return kind, name
        if kind == "temp":
            return "temperature", click.FLOAT.convert(name, param, ctx)
        try:
            return "sampler", str(super().convert(value, param, ctx))
        except click.BadParameter as error:
            self.fail(f"{error.message} For a model, write model={value}.", param, ctx)


@cli.command("report")
@folder_argument
@click.option(
    "--against",
    type=AgainstType(),
    metavar="SAMPLER|model=NAME|temp=T",
    help="Sampler, model or temperature to compare the others with.  [default: min-k, and the first of "
    "several models]",
)
def report_command(folder: Path, against: tuple[str, Any] | None) -> None:
    """Report on the results in DIR: a run (even one in progress), a frontier, coverage, judgements.

    Prints tables. For a run, writes to DIR/report: report.html with tables, figures and a browser for all
    responses, report.md, the numbers as CSV and JSON, and the figures as SVG. All responses are rescored by
    this version's tasks, and verdicts that differ from the recorded ones are counted; the records stay
    unchanged.
    """
    from mink_local.evals.judge.people import report_votes, saved_votes
    from mink_local.evals.measurement import read_results
    from mink_local.evals.report.page import report_run
    from mink_local.evals.store import read_manifest

    measures = read_manifest(folder).get("measures", "run")
    if measures in MEASUREMENTS:
        kind = resolve_name(MEASUREMENTS[measures])
        kind.report(read_results(folder, kind))
    else:
        report_run(folder, against)
    if (folder / "judge").is_dir():
        judging = resolve_name(MEASUREMENTS["judge"])
        judging.report(read_results(folder / "judge", judging))
    votes = saved_votes(folder / "sheet")
    if votes:
        report_votes(folder / "sheet", votes)


def _stateless(_: click.Context, __: click.Parameter, samplers: "Sequence[Sampler]") -> "Sequence[Sampler]":
    for sampler in samplers:
        if sampler.is_stateful:
            raise click.BadParameter(f"{sampler.name} depends on more than the logits: choose another one.")
    return samplers


def _chains(
    context: click.Context, option: click.Parameter, samplers: "Sequence[Sampler]"
) -> "Sequence[Sampler]":
    for sampler in samplers:
        if len(sampler.members) == 1:
            raise click.BadParameter(f"{sampler.name} is measured anyway: give a chain, such as top-k+min-k.")
    return _stateless(context, option, samplers)


@cli.command("frontier")
@model_option.replace(required=True, show_default=False)
@click.option(
    "--reference",
    "-r",
    required=True,
    metavar="NAME|PATH",
    help="Larger model with the same vocabulary that judges the model's tokens.",
)
@click.option(
    "--texts",
    type=FOLDER,
    metavar="DIR",
    help="Folder of a mink-eval run whose sampled answers by the reference serve as texts.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File whose paragraphs, separated by blank lines, serve as texts.",
)
@click.option(
    "--limit",
    type=POSITIVE,
    default=100,
    metavar="N",
    help="Maximum number of texts, chosen at random; a larger N adds to them.",
)
@samplers_option.replace(
    default=None,
    show_default=False,
    callback=_chains,
    help="Chain to measure as well, such as top-k:k=40+min-k; repeatable.",
)
@temperatures_option.replace(
    type=Temperature(),
    default=[1.0, 2.0, 5.0, float("inf")],
    metavar="T|inf",
    help="Temperature; at inf all candidates are equally likely. Repeatable.",
)
@click.option(
    "--noise",
    "wanted",
    multiple=True,
    type=FiniteFloat(min=0, min_open=True, max=100),
    default=[0.5, 1.0, 2.0, 5.0],
    metavar="POINTS",
    help="Noise level at which to compare samplers, in percentage points above greedy's; repeatable.",
)
@out_option.replace(default="mink-eval-frontier")
@placement_options
@quiet_option
def frontier_command(texts: Path | None, text: Path | None, out: Path, quiet: bool, **options: Any) -> None:
    """Measure each sampler's trade-off between noise and variety, exactly.

    At each position of the given texts, the model's logits determine each sampler's candidates and their
    probabilities. Noise is the probability of tokens to which a larger reference model gives less than 1%
    (and 0.1%); variety is the entropy. Nothing is sampled, and no judge is needed. Each sampler's option is
    swept at every temperature, and in both orders of temperature and cut if it supports both.

    Writes to DIR: frontier.md with the tables, frontier.svg, and all numbers with their intervals as CSV and
    JSON. Run the same command again to resume; with more texts or temperatures, only what is new is measured.
    """
    if (texts is None) == (text is None):
        raise click.UsageError("give the texts with either --texts or --text.")
    from mink_local.evals.frontier.measure import Frontier
    from mink_local.evals.measurement import carry_out

    carry_out(Frontier(texts=texts, text=text, **options), out, quiet=quiet)


@cli.command("coverage")
@model_option
@samplers_option.replace(
    default=None,
    show_default=False,
    callback=_stateless,
    help="Sampler; repeatable.  [default: all samplers in both orders, min-k:floor=1, and "
    "min-p:p=0,order=temperature-last, which keeps every token]",
)
@temperatures_option.replace(
    type=Temperature(),
    default=[0.25, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, float("inf")],
    metavar="T|inf",
    help="Temperature; at inf all candidates are equally likely. Repeatable.",
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
    help="Explore until at most this much probability is left for every sampler and temperature.",
)
@click.option(
    "--nodes",
    type=POSITIVE,
    default=2000,
    metavar="N",
    help="Maximum number of nodes to evaluate per prompt, whatever is left unexplored.",
)
@parallel_option.replace(type=AutoOrInt(min=1), default=16, help="Nodes evaluated at a time, or auto.")
@out_option.replace(default="mink-eval-coverage")
@placement_options
@quiet_option
def coverage_command(out: Path, quiet: bool, **options: Any) -> None:
    """Measure each sampler's validity and coverage on prompts whose valid answers can be listed.

    "Name one country in Africa. Answer with its name only." has 54 valid answers. The distribution over
    answers is computed exactly, by walking the tree of candidates: how likely is a valid answer, and how many
    different ones do 100 samples contain? Nothing is sampled, and all samplers share the evaluated nodes.

    Writes to DIR: coverage.md with the tables, coverage.svg with a curve over temperature for each sampler,
    and all numbers as CSV and JSON. Run the same command again to resume; with more prompts, samplers or
    temperatures, only what is new is measured.
    """
    from mink_local.evals.coverage.measure import Walks
    from mink_local.evals.measurement import carry_out

    carry_out(Walks(**options), out, quiet=quiet)


def _limits(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
    from mink_local.evals.quants.report import FIGURES

    limits = {}
    for text in texts:
        name, _equals, most = text.partition("=")
        if name not in FIGURES:
            raise click.BadParameter(f"unknown figure {name!r}: use {', '.join(FIGURES)}.")
        limits[name] = float(click.FLOAT(most))
    return limits


@cli.command("quants")
@click.argument(
    "models", nargs=-1, required=True, metavar="BASE OTHER…", callback=_models, shell_complete=complete_model
)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="bundled",
    help="Text to compare the files on, in place of the bundled prose, code, mathematics and dialogue.",
)
@click.option(
    "--positions",
    type=POSITIVE,
    default=2040,
    metavar="N",
    help="Minimum number of positions to compare, if the text has as many; a larger N adds to them.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=16),
    default=512,
    metavar="N",
    help="Tokens per chunk of text; the second half of each chunk is scored, as in llama-perplexity.",
)
@samplers_option.replace(
    default=["min-k", "min-p", "top-p"],
    callback=_stateless,
    help="Sampler whose candidates to compare at temperature 1; repeatable.",
)
@click.option(
    "--task",
    metavar="TASK",
    help="Also answer a task's questions greedily, as mink-eval run does, and list the flips.",
)
@data_option
@limit_option
@click.option(
    "--fail-above",
    multiple=True,
    metavar="FIGURE=X",
    callback=_limits,
    help="Exit with status 1 if a figure exceeds X for any file, such as kld_mean=0.05; repeatable.",
)
@out_option.replace(default="mink-eval-quants")
@placement_options
@quiet_option
def quants_command(
    models: "Sequence[ModelFile]",
    task: str | None,
    data: Sequence[str],
    out: Path,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure what the quantizations OTHER lose compared with the file BASE.

    Compares next-token distributions at the same positions of a text: divergence, top token, perplexity and
    the samplers' candidates, each next to the base's own noise; also speed, size and memory. Two files that
    do not fit into memory together are loaded in turns.

    Writes to DIR: quants.html, including responses if there is a task, quants.md, .csv and .json, and two
    figures. Run the same command again to resume; with more files or positions, only what is new is measured.
    """
    if len(models) < 2:
        raise click.UsageError("give the base and at least one other file.")
    if task is None and (options["limit"] or data):
        raise click.UsageError("--limit and --data need --task.")
    from mink_local.evals.measurement import carry_out
    from mink_local.evals.quants.measure import Quants
    from mink_local.evals.tasks import find_task

    base, *others = models
    asked = find_task(task) if task else None
    files = _files("--data", data, [asked.name] if asked else [])
    quants = Quants(base, others, task=asked, data=files, quiet=quiet, **options)
    carry_out(quants, out, quiet=quiet)


@cli.command("judge")
@folder_argument
@click.argument("votes", nargs=-1, metavar="[VOTES]…", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--judge",
    "-j",
    "judge",
    metavar="NAME|PATH|URL",
    help="The judge: a GGUF model, as for mink-eval run --model, or the base URL of an OpenAI-compatible "
    "server, such as http://127.0.0.1:8080/v1.",
)
@click.option("--judge-model", metavar="ID", help="Model on the server.  [default: its only one]")
@click.option(
    "--api-key-variable",
    default="OPENAI_API_KEY",
    metavar="NAME",
    help="Environment variable that holds the server's API key.",
)
@click.option(
    "--against",
    type=SamplerType(),
    default="greedy",
    metavar="SAMPLER",
    help="Sampler to compare the others with.",
)
@limit_option
@click.option(
    "--max-chars",
    "characters",
    type=click.IntRange(min=200),
    default=6000,
    metavar="N",
    help="Maximum number of characters of a response to show the judge, which is told of any cut.",
)
@parallel_option.replace(
    type=AutoOrInt(min=1, max=64),
    default="auto",
    help="Number of requests at a time; auto: 8 for a server, 4 for a GGUF model.",
)
@click.option(
    "--timeout",
    "seconds",
    type=FiniteFloat(min=1),
    default=120.0,
    metavar="SECONDS",
    help="Time limit for a server's response, after which the request is retried.",
)
@placement_options
@quiet_option
@click.option(
    "--people",
    is_flag=True,
    help="Let people judge: write a page for them, or report on their saved VOTES.",
)
@samplers_option.replace(
    default=None,
    show_default=False,
    help="With --people: sampler of the run. Give two or more; all are compared with each other.",
)
@temperatures_option.replace(
    default=None,
    show_default="all",
    help="With --people: only pairs at this temperature; repeatable.",
)
@click.option(
    "--pairs", type=POSITIVE, default=50, metavar="N", help="With --people: maximum number of pairs."
)
@fixed_seed_option.replace(help="With --people: seed for the choice, order and sides of the pairs.")
@out_option.replace(help="With --people: folder for the page and its key.  [default: DIR/sheet]")
def judge_command(
    folder: Path,
    votes: Sequence[Path],
    judge: str | None,
    judge_model: str | None,
    api_key_variable: str,
    against: "Sampler",
    limit: int | None,
    characters: int,
    parallel: Any,
    seconds: float,
    quiet: bool,
    people: bool,
    samplers: "Sequence[Sampler]",
    temperatures: Sequence[float],
    pairs: int,
    seed: int,
    out: Path | None,
    **placement: Any,
) -> None:
    """Have a model or people compare the responses of the run in DIR, two samplers at a time.

    With --judge, a model compares each pair of responses to a question in both orders; a sampler wins the
    pair if it is preferred both times. Judgements are saved in DIR/judge as they arrive; run the same command
    again to resume. Prints win rates and the position bias, and writes them to judge.md and judge.json.

    With --people, writes sheet.html, a single file that needs no network: send it, and nothing else, to the
    raters. key.json says which sampler wrote what: keep it to yourself. Given the VOTES saved by the page, a
    file per rater, prints win rates and the raters' agreement, and writes them to votes.md and votes.json
    next to the key.
    """
    if people == bool(judge):
        raise click.UsageError("give --judge NAME|PATH|URL, or --people.")
    if people:
        _ask_people(folder, out or folder / "sheet", votes, samplers, temperatures, pairs, seed)
        return
    assert judge
    if votes:
        raise click.UsageError(f"{votes[0]} contains people's votes: add --people.")
    is_url = judge.startswith(("http://", "https://"))
    if judge_model and not is_url:
        raise click.UsageError("--judge-model is for a server: give --judge URL.")
    from mink_local.evals.judge.ask import EndpointJudge, LocalJudge
    from mink_local.evals.judge.judgements import judge_run

    if is_url:
        key = os.environ.get(api_key_variable, "")
        n_requests = 8 if parallel == "auto" else parallel
        chosen: EndpointJudge | LocalJudge = EndpointJudge(judge, judge_model, key, n_requests, seconds)
    else:
        n_parallel = 4 if parallel == "auto" else parallel  # more would delay the first judgements
        chosen = LocalJudge(judge, n_parallel=n_parallel, **placement)
    judge_run(folder, chosen, str(against), limit, characters, quiet)


def _ask_people(
    folder: Path,
    out: Path,
    votes: Sequence[Path],
    samplers: "Sequence[Sampler]",
    temperatures: Sequence[float],
    pairs: int,
    seed: int,
) -> None:
    from mink_local.evals.judge.people import KEY, PAGE, report_votes, write_sheet

    if votes:
        report_votes(folder if (folder / KEY).exists() else out, votes)
        return
    names = list(dict.fromkeys(map(str, samplers)))
    if len(names) < 2:
        raise click.UsageError("people compare samplers: give --sampler at least twice.")
    click.echo(f"{write_sheet(folder, names, pairs, seed, temperatures, out)}.\n")
    click.echo(f"{out / PAGE}  for the raters\n{out / KEY}  to read their votes with: keep it to yourself")


@cli.command("candidates")
@click.argument("prompt")
@model_option
@click.option(
    "--answer",
    default="",
    metavar="TEXT",
    help="Beginning of the answer to PROMPT; the candidates are for the token after it.",
)
@samplers_option.replace(
    default=None,
    show_default=False,
    help="Sampler; repeatable.  [default: all but mirostat, in each order they support]",
)
@temperatures_option.replace(
    type=FiniteFloat(min=0, min_open=True),
    default=[1.0, 2.0, 5.0, 10.0],
    help="Temperature; repeatable.",
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File for a plot of the sorted logits with the cuts at the last temperature; the extension sets the "
    "format.",
)
@placement_options
def candidates_command(
    prompt: str,
    model: str,
    answer: str,
    samplers: "Sequence[Sampler]",
    temperatures: Sequence[float],
    picture: Path | None,
    **placement: Any,
) -> None:
    """Show the candidates for the next token, and how many each sampler keeps at each temperature.

    The token is the next one in the answer to PROMPT. Samplers differ in the tokens that only some keep.
    """
    from mink_local.evals.candidates import show_candidates

    show_candidates(prompt, model, answer, samplers, temperatures, picture, **placement)


@cli.command("tasks")
def tasks_command() -> None:
    """List the tasks."""
    from mink_local.evals.tasks import TASKS

    for task in TASKS.values():
        click.echo(f"{task.name:15}{task.title}, {task.n_questions:,} questions; {task.source.how}")
    click.echo(f"{'FILE.jsonl':15}Your own questions: see mink-eval run --help")


@cli.command(
    "lm-eval",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,  # lm-evaluation-harness has its own
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lm_eval_command(arguments: Sequence[str]) -> None:
    """Run lm-evaluation-harness with a GGUF model.

    Takes the harness's own options. --model defaults to mink-local, and --model_args accepts model, sampler,
    temperature, seed, n_ctx, parallel, gpu_layers, threads and max_gen_toks:

    \b
    mink-eval lm-eval --tasks gsm8k --model_args model=qwen3-4b,sampler=top-p:p=0.9,temperature=2
    """
    from mink_local.evals.lm_eval import main as run_harness

    run_harness(arguments)


def main() -> None:
    """Run `mink-eval`."""
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
