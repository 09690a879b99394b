"""`mink-eval`: run GGUF models on tasks with every sampler and temperature, compare them, and report."""

import json
import logging
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from mink_local.cli import AutoOrInt, FiniteFloat, FiniteOrInf, WholeNumber, run
from mink_local.errors import ReportError
from mink_local.files import user_path
from mink_local.llama.constants import MODEL, N_SEQ_MAX
from mink_local.models.catalog import default_model, resolve
from mink_local.models.options import (
    MODEL_HELP,
    OR_MODEL,
    SamplerType,
    SharedOption,
    chat_template_option,
    complete_model,
    ctx_option,
    kv_type_option,
    max_tokens_option,
    model_option,
    parallel_option,
    placement_options,
    reasoning_budget_option,
    reasoning_marks_option,
    sampler_option,
    seed_option,
    temp_option,
    template_kwargs_option,
)
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.evals.answering import Answerer
    from mink_local.evals.measurement import Measurement
    from mink_local.evals.settings import SamplerSetting
    from mink_local.evals.tasks.base import Task
    from mink_local.evals.tasks.own import Columns
    from mink_local.models.catalog import ModelFile
    from mink_local.samplers import Sampler

log = logging.getLogger("mink_local")

PROGRAM = "mink-eval"

EXAMPLES = """\b
Examples:
  mink-eval run sample-math --sampler min-k --sampler top-p --temp 1 --temp 5
  mink-eval run gsm8k aqua --model qwen3-4b --model ./mine.gguf --repeats 3
  mink-eval run my-questions.jsonl --model ./mine.gguf --temp 5
  mink-eval report mink-eval-run
  mink-eval judge mink-eval-run --judge ./larger.gguf
  mink-eval judge mink-eval-run --judge http://127.0.0.1:8080/v1
  mink-eval frontier --model ./small.gguf --reference ./large.gguf --text a.txt
  mink-eval quants ./mine-Q8_0.gguf ./mine-Q5_K_M.gguf ./mine-Q4_K_M.gguf
  mink-eval quants ./mine-Q8_0.gguf --kv-type f16 --kv-type q8_0

Run the same command again to resume a measurement, however it ended. Add samplers, temperatures, models,
tasks, questions or repeats, and only what is new is measured.

Exit status: 0 success, 1 failure, 2 wrong usage or unknown model, 130 interrupted.
"""

# By name in the manifest, which is the command's. Imported when needed.
MEASUREMENTS = {
    "run": "mink_local.evals.run.evaluation:Run",
    "frontier": "mink_local.evals.frontier.measure:Frontier",
    "judge": "mink_local.evals.judge.judging:Pairs",
    "quants": "mink_local.evals.quants.measure:Quants",
}

POSITIVE = WholeNumber(min=1)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)

samplers_option = sampler_option.replace("samplers", multiple=True)
temperatures_option = temp_option.replace("temperatures", multiple=True, default=[1.0])
limit_option = click.option(
    "--limit", type=POSITIVE, metavar="N", help="Use only the first N questions of each task, or prompts."
)
folder_argument = click.argument("folder", metavar="DIR", type=FOLDER)
template_option = chat_template_option.replace(
    "chat_template", help="Use the Jinja chat template in FILE in place of the models' own."
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


class EvalGroup(click.Group):
    """Command group that turns a missing library into an install hint."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            library = str(error.name).partition(".")[0]
            extra = "ray" if library == "ray" else "eval"
            raise click.UsageError(
                f'{library} is not installed: run  python -m pip install "mink-local[{extra}]"'
            ) from None


@click.group(
    cls=EvalGroup,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Evaluate GGUF models across samplers and temperatures."""


def _tasks(names: Sequence[str], scorer: str, columns: "Columns") -> "list[Task]":
    from mink_local.evals.tasks import TASKS, find_task

    if (scorer or columns) and TASKS.keys() >= set(names):
        raise click.UsageError("--scorer and --columns are for your own files only.")
    tasks = {name: find_task(name, scorer, columns) for name in names}
    if len({task.name for task in tasks.values()}) < len(tasks):
        raise click.UsageError("two files have the same name: rename one.")
    return list(tasks.values())


def _columns(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> "Columns":
    from mink_local.evals.tasks.own import parse_columns

    try:
        return parse_columns(texts)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def _model_files(names: Sequence[str]) -> "list[ModelFile]":
    """Return the models' files, without duplicates; a repeated name gets its folder's name, too."""
    from dataclasses import replace

    by_name: dict[str, ModelFile] = {}
    for file in map(resolve, names):
        if by_name.setdefault(file.name, file).path != file.path:
            longer = replace(file, name=f"{file.path.absolute().parent.name}/{file.name}", sha256=None)
            if by_name.setdefault(longer.name, longer).path != file.path:
                raise click.BadParameter(f"two models are named {longer.name}: rename one.")
    return list(by_name.values())


def _files(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Return files by task, given as TASK=FILE, or as FILE if there is a single task."""
    files: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or name not in names:
            if len(names) != 1:
                which = " or ".join(names) or "a built-in task"
                raise click.UsageError(f"{option} {text} must be for {which} of this run: write TASK=FILE.")
            name, file = names[0], text
        if name in files:
            raise click.UsageError(f"{option} is given twice for {name}.")
        files[name] = user_path(file)
    return files


def _line_breaks(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    return text and text.replace("\\n", "\n")


def _stop(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[str]:
    if not all(texts):
        raise click.BadParameter("an empty text would end every response: leave it out.")
    return [text.replace("\\n", "\n") for text in texts]


TEMPLATE = ("chat_template", "template_kwargs", "reasoning_marks")
OF_FILES = (
    "rpc", "n_threads", "main_gpu", "tensor_split", "cpu_moe", "n_cpu_moe", "n_gpu_layers", "ctx",
    *TEMPLATE, "ray",
)  # fmt: skip
OF_ADDRESSES = ("key_variable", "seconds", "extra")
"""Options that only a GGUF file uses, and only a server, by their parameters."""
SENT = ("model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "sampler", "stream", "n")
"""Fields of requests to a server that a run itself decides about."""
ANSWERING = ("parallel", "ray", "placement", *TEMPLATE, *OF_ADDRESSES)
"""Parameters of run's options for who answers."""

key_option = SharedOption(
    "--key-env",
    "key_variable",
    metavar="NAME",
    help="Environment variable with the API key for a model's server, such as OPENAI_API_KEY; it is sent "
    "only there. Without this option, no key is sent.",
)
timeout_option = SharedOption(
    "--timeout",
    "seconds",
    type=FiniteFloat(min=1),
    default=600.0,
    metavar="SECONDS",
    help="Time limit for a server's answer, after which the request is retried.",
)


def _extra(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, equals, value in (text.partition("=") for text in texts):
        if not (name and equals) or name in SENT:
            raise click.BadParameter(f"{name}: write NAME=JSON; {', '.join(SENT)} have options of their own.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


field_option = SharedOption(
    "--field",
    "extra",
    multiple=True,
    metavar="NAME=JSON",
    callback=_extra,
    help="Further field of each request to a server, such as top_k=20 or "
    """'chat_template_kwargs={"enable_thinking": false}'; repeatable.""",
)


def _refuse_unused(files: Sequence[Any], addresses: Sequence[str]) -> None:
    """Raise UsageError for given options that only a GGUF file uses, or only a server, if there is none."""
    context = click.get_current_context()
    unused = (() if files else OF_FILES) + (() if addresses else OF_ADDRESSES)
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in unused and context.get_parameter_source(option.name) == ParameterSource.COMMANDLINE
    ]
    if given:
        whose = "a server's address" if files else "a GGUF file"
        raise click.UsageError(f"{', '.join(given)}: only for {whose}.")


def answerers_of(
    names: Sequence[str],
    parallel: Any,
    key_variable: str | None,
    seconds: float,
    extra: dict[str, Any],
    *,
    is_strict: bool,
    ctx: int | None = None,
    ray: str | None = None,
    **placement: Any,
) -> "list[Answerer]":
    """Return what answers: the models' files among names, on a Ray cluster if given, then the addresses."""
    from mink_local.evals.addresses import AddressAnswerer, is_address
    from mink_local.evals.answering import FileAnswerer

    addresses = [name for name in dict.fromkeys(names) if is_address(name)]
    files = _model_files([name for name in names if name not in addresses])
    _refuse_unused(files, addresses)
    start = FileAnswerer
    if ray:
        if placement["placement"].rpc:
            raise click.UsageError("--rpc supports only one worker: use it without --ray.")
        from mink_local.evals.cluster import ClusterAnswerer, connect

        connect(ray)
        start = ClusterAnswerer
    return [
        *(start(file, ctx, parallel, placement=placement) for file in files),
        *(
            AddressAnswerer(url, key_variable, parallel, seconds, extra, is_strict=is_strict)
            for url in addresses
        ),
    ]


def _methods(
    models: Sequence[str], samplers: "Sequence[Sampler | Literal['model']]", arms: Sequence[str]
) -> dict[str, Any]:
    """Return `samplers` and `settings` for `Run`: of the grid, unless there are only arms, and of the arms.

    In place of MODEL stands what the model's file recommends, recorded as any other sampler: by its text; in
    the grid with its own temperature, unless --temp is given.
    """
    source = click.get_current_context().get_parameter_source
    given = [name for name in ("samplers", "temperatures") if source(name) == ParameterSource.COMMANDLINE]
    grid = samplers if given or not arms else []
    settings = [_setting(models, arm) for arm in arms]
    found = [sampler for sampler in grid if not isinstance(sampler, str)]
    if len(found) < len(grid):
        recommended = _setting(models, MODEL)
        if "temperatures" in given:
            found.append(recommended.sampler)
        else:
            settings.insert(0, recommended)
    return {"samplers": found, "settings": settings}


def _setting(models: Sequence[str], text: str) -> "SamplerSetting":
    """Return the setting of an arm; of MODEL, what the only model's file recommends. Raises UsageError."""
    from mink_local.evals.settings import SamplerSetting
    from mink_local.models.recommended import require_recommended

    if text != MODEL:
        try:
            return SamplerSetting.parse(text)
        except ValueError as error:
            raise click.UsageError(f"--arm {text}: {error}.") from None
    if len(set(models)) > 1:
        raise click.UsageError(f"{MODEL}: name a single model; a run of another may go to the same --out.")
    found = require_recommended(resolve(models[0]).path)
    if found.penalties:
        raise click.UsageError(
            f"{MODEL}: the file also recommends a repeat penalty, which mink-eval does not apply: to go "
            f"without, name {found.sampler}@{found.temperature:g} by --arm, or by --sampler and --temp."
        )
    return SamplerSetting(found.sampler, found.temperature)


def _carry_out(measurement: "Measurement[Any]", out: Path, quiet: bool) -> None:
    from mink_local.evals.measurement import carry_out

    carry_out(measurement, out, quiet=quiet)


@cli.command("run")
@click.argument("names", nargs=-1, required=True, metavar="TASK…")
@model_option.replace(
    "models",
    multiple=True,
    default=lambda: [default_model()],
    metavar="NAME|PATH|URL[#MODEL]",
    help=f"{MODEL_HELP} Or the address of an OpenAI-compatible server, such as http://127.0.0.1:8080/v1; "
    "unless it is mink-serve, the only samplers are greedy and top-p.",
)
@key_option
@timeout_option
@field_option
@samplers_option.replace(
    type=SamplerType(or_model=True), default=["min-k"], help=f"{samplers_option.attributes['help']}{OR_MODEL}"
)
@temperatures_option.replace(help="Temperature for every sampler; at 0 every sampler is greedy.")
@click.option(
    "--greedy/--no-greedy",
    default=True,
    help="Also decode greedily, once per question: the baseline that samplers have to beat.",
)
@click.option(
    "--arm",
    "arms",
    multiple=True,
    metavar="[SAMPLER@T/]SAMPLER@T|model",
    help="A sampler at a temperature of its own, such as min-k:floor=2@1.5, and before a slash perhaps one "
    "for reasoning; or what the model's file recommends; in place of --sampler and --temp, or beside "
    "them. Without these, the report compares all with the first arm.",
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
@click.option(
    "--end-loops",
    type=click.Choice(["none", "reasoning", "all"]),
    default="none",
    show_default=True,
    help="End reasoning, or all text, that repeats itself. Loops are counted in any case.",
)
@click.option(
    "--instruction",
    metavar="TEXT",
    callback=_line_breaks,
    help="End every prompt with TEXT instead of the task's own instruction; '' for none. Where TEXT has "
    "{question}, and perhaps {choices}, it is the whole prompt. (\\n is a line break.) Answers are found "
    'where they are stated, as in "The answer is 5"; see --scorer.',
)
@click.option(
    "--system", default="", metavar="TEXT", callback=_line_breaks, help="System message before every prompt."
)
@click.option(
    "--data",
    multiple=True,
    metavar="[TASK=]FILE",
    help="File with a task's questions, used instead of a download.",
)
@click.option(
    "--columns",
    multiple=True,
    metavar="NAME=COLUMN,…",
    callback=_columns,
    help="Names of your own files' columns, such as question=problem,answer=target; "
    "question=article+question joins two, and answer= asks without answers.",
)
@click.option(
    "--scorer",
    default="",
    show_default=False,
    metavar="NAME",
    help="How answers to your own questions are found and compared: number, letter, text, math, "
    "regex:PATTERN (the first group, or all, of its last match) or MODULE:FUNCTION, a Python function that "
    "takes the response and the question. By default, by the kind of each question's answer.",
)
@click.option(
    "--shots",
    type=POSITIVE,
    metavar="N",
    help="Few-shot: show N questions with worked answers as earlier turns: of the training or development "
    "split, or of your own data and GPQA the first N, which are not asked.",
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
    help="Number of responses generated at a time; auto: as memory and device allow, or as many as the "
    "server has slots.",
)
@ctx_option.replace(show_default="as much as needed")
@template_option
@template_kwargs_option
@reasoning_marks_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only say how much would be asked, with the first prompt whole; nothing is written.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Distribute the run over the Ray cluster at ADDRESS, or over this machine's GPUs (local), with one "
    "worker per GPU, or per machine without GPUs.",
)
@quiet_option
@placement_options
def run_command(
    names: Sequence[str],
    scorer: str,
    columns: "Columns",
    models: Sequence[str],
    data: Sequence[str],
    shots: int | None,
    shots_from: Sequence[str],
    ctx: int | None,
    dry_run: bool,
    quiet: bool,
    out: Path,
    **options: Any,  # those of `answerers_of` and of `Run`
) -> None:
    """Run models on tasks with every sampler and temperature.

    TASK is gsm8k, aqua or math500, which are downloaded once, gpqa, of which you need a copy (--data),
    sample-math or sample-choice, which are part of this package, or your own file: JSON Lines, a list in
    JSON, or CSV, with "question" and optionally "answer" (a number, a formula or a text), "choices" (or
    columns A, B, …; the answer is then a letter, a text, or an index from 0), "id" and "category"; see
    --columns for other names. Responses to questions without an answer are recorded but not scored.
    --model, --sampler and --temp are repeatable.

    Each response is written to DIR/records.jsonl as soon as it is complete. After Ctrl-C or a crash, run the
    same command again to resume.
    """
    from mink_local.evals.tasks import TASKS

    tasks = _tasks(names, scorer, columns)
    names = [task.name for task in tasks]
    files = _files("--data", data, [name for name in names if name in TASKS])  # others are files
    if shots_from and not shots:
        raise click.UsageError("--shots-from needs --shots N.")
    options |= {"data": files, "shots": shots or 0, "shots_from": _files("--shots-from", shots_from, names)}
    answering = {name: options.pop(name) for name in ANSWERING}
    answerers = answerers_of(models, is_strict=True, ctx=ctx, **answering)
    options |= _methods(models, options["samplers"], options.pop("arms"))
    run_ = _measurement("run")(tasks, answerers, ctx=ctx, **options)
    if dry_run:
        for sentence in run_.preview(out):
            click.echo(sentence)
    else:
        _carry_out(run_, out, quiet)


class AgainstType(SamplerType):
    """Type of --against: a sampler, "all", "model=NAME" or "temp=T"; its value is a kind and a name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        kind, _, name = value.partition("=")
        if value == "all":
            from mink_local.evals.run.summary import EVERY

            return "sampler", EVERY
        if kind == "model":
            return kind, name
        if kind == "temp":
            return "temperature", click.FLOAT.convert(name, param, ctx)
        try:
            if "@" in value:
                from mink_local.evals.settings import SamplerSetting, arm_of

                return "arm", arm_of(*SamplerSetting.parse(value))
            return "sampler", str(super().convert(value, param, ctx))
        except ValueError as error:
            self.fail(f"{error}", param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message} For a model, write model={value}.", param, ctx)


@cli.command("report")
@folder_argument
@click.option(
    "--against",
    type=AgainstType(),
    metavar="SAMPLER[@T]|all|model=NAME|temp=T",
    help="Sampler, arm, model or temperature to compare the others with; all: every pair of samplers. The "
    "report is then in DIR/report-against-….  [default: min-k, and the first of several models]",
)
@click.option(
    "--scorer",
    default="",
    metavar="NAME",
    help="Score the responses to your own questions by this, as for mink-eval run. Without it, what a Python "
    "function said during the run is shown: a report runs no code that a folder names.",
)
def report_command(folder: Path, against: tuple[str, Any] | None, scorer: str) -> None:
    """Report on the results in DIR; a measurement may still be running.

    DIR is the --out folder of another command. Prints tables, and writes NAME.html with tables and figures,
    NAME.md, the numbers as CSV and JSON, and the figures as SVG and PDF with their data; for a run, to
    DIR/report, and report.html has a browser for all responses, too. Judgements on a run are in DIR/judge.
    """
    from mink_local.evals.measurement import Results, report_on
    from mink_local.evals.run.records import QUESTIONS
    from mink_local.evals.store import MANIFEST, read_manifest

    measures = read_manifest(folder).get("measures", "run" if (folder / QUESTIONS).exists() else None)
    if measures is None:
        damaged = "is damaged" if (folder / MANIFEST).exists() else "is missing"
        raise ReportError(f"{folder / MANIFEST} {damaged}: give the --out folder of a mink-eval command")
    if (against or scorer) and measures != "run":
        raise click.UsageError(
            f"--against and --scorer are for a run: {folder} contains results of mink-eval {measures}."
        )
    report_on(Results(folder, _measurement(measures), against, scorer))


def _measurement(measures: str) -> Any:
    """Return the `Measurement` named in a manifest. Raises ReportError if this version has none."""
    if measures not in MEASUREMENTS:
        raise ReportError(
            f"this version has no mink-eval {measures}, whose results these are: use the one that wrote them"
        )
    return resolve_name(MEASUREMENTS[measures])


def stateless(
    context: click.Context, _: click.Parameter | None, samplers: "Sequence[Sampler | Literal['model']]"
) -> "Sequence[Sampler | Literal['model']]":
    for sampler in samplers:
        if not isinstance(sampler, str) and sampler.is_stateful:
            raise click.BadParameter(
                f"{sampler.name} depends on more than the logits: choose another one.", context
            )
    return samplers


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
    type=SamplerType(or_model=True),
    default=None,
    show_default="all, swept",
    callback=stateless,
    help="Sampler to sweep, beside min-k, min-p and greedy, or a chain, such as top-k:k=40+min-k; "
    "repeatable. model: what the model's file recommends.",
)
@temperatures_option.replace(
    type=FiniteOrInf(min=0, min_open=True),
    default=[1.0, 2.0, 5.0, float("inf")],
    metavar="T|inf",
    help="Temperature; at inf all candidates are equally likely, and greedy is always measured. Repeatable.",
)
@click.option(
    "--tail-mass",
    "wanted",
    multiple=True,
    type=FiniteFloat(min=0, min_open=True, max=100),
    default=[0.5, 1.0, 2.0, 5.0],
    metavar="POINTS",
    help="Tail mass at which to compare samplers, in percentage points above greedy's; repeatable.",
)
@out_option.replace(default="mink-eval-frontier")
@template_option
@quiet_option
@placement_options
def frontier_command(
    texts: Path | None,
    text: Path | None,
    samplers: "Sequence[Sampler | Literal['model']]",
    out: Path,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure how each sampler trades tail mass for variety.

    At each position of the given texts, the model's logits determine each sampler's candidates and their
    probabilities. Tail mass is the probability of tokens to which a larger reference model gives less than 1%
    (and 0.1%); variety is the entropy. Both are exact: nothing is sampled, and no judge is needed. Each
    sampler's option is swept at every temperature, and in both orders of temperature and cut if it supports
    both.

    Writes frontier.html, .md, .svg, .pdf, .csv and .json to DIR. Run the same command again to resume; with
    more texts or temperatures, only what is new is measured.
    """
    if (texts is None) == (text is None):
        raise click.UsageError("give the texts with either --texts or --text.")
    found = [
        _setting([options["model"]], sampler).sampler if isinstance(sampler, str) else sampler
        for sampler in samplers
    ]
    stateless(click.get_current_context(), None, found)
    _carry_out(_measurement("frontier")(texts=texts, text=text, samplers=found, **options), out, quiet)


@cli.command("coverage", hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def coverage_command(arguments: Sequence[str]) -> None:
    """Say where it went."""
    command = shlex.join(["python", "-m", "scripts.lab.coverage", *arguments])
    raise click.UsageError(f"coverage is measured from the repository: {command}")


def _limits(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
    from mink_local.evals.quants.report import FIGURES

    limits = {}
    for text in texts:
        name, _equals, limit = text.partition("=")
        if name not in FIGURES:
            raise click.BadParameter(f"unknown figure {name!r}: use {', '.join(FIGURES)}.")
        limits[name] = float(FiniteFloat()(limit))
    return limits


def _quantizations(_: click.Context, __: click.Parameter, names: Sequence[str]) -> "list[ModelFile]":
    """Return the models' files; of a folder, all of its models, the largest first."""
    from mink_local.models.gguf import shards
    from mink_local.models.stores import models_in

    def size(path: Path) -> int:
        return sum(part.stat().st_size for part in shards(path) if part.exists())

    paths: list[str] = []
    for name in names:
        folder = user_path(name)
        if not os.path.isdir(folder):
            paths.append(name)
        elif found := models_in(folder):
            paths += map(str, sorted(found, key=size, reverse=True))
        else:
            raise click.BadParameter(f"{name} has no models in .gguf files.")
    return _model_files(paths)


@cli.command("quants")
@click.argument(
    "models",
    nargs=-1,
    required=True,
    metavar="BASE|FOLDER [OTHER|FOLDER]…",
    callback=_quantizations,
    shell_complete=complete_model,
)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="bundled",
    help="Text to compare the files on, in place of the bundled prose, code, chats, tool calls and non-Latin "
    "scripts.",
)
@click.option(
    "--positions",
    type=POSITIVE,
    metavar="N",
    show_default="eight chunks of each kind of text",
    help="Minimum number of positions to compare, if the text has as many; a larger N adds to them.",
)
@click.option(
    "--chunk",
    type=WholeNumber(min=16),
    default=256,
    metavar="N",
    help="Tokens per chunk of text; the second half of each chunk is scored, as in llama-perplexity.",
)
@click.option(
    "--fail-above",
    multiple=True,
    metavar="FIGURE=X",
    callback=_limits,
    help="Exit with status 1 if a figure exceeds X for any of the files, such as kld_mean=0.05; repeatable.",
)
@click.option(
    "--fail-below",
    multiple=True,
    metavar="FIGURE=X",
    callback=_limits,
    help="Exit with status 1 if a figure is less than X for any of the files, such as same_top=0.95; "
    "repeatable.",
)
@kv_type_option.replace(
    "kv_types",
    multiple=True,
    default=["f16"],
    help="Type of BASE's KV cache; repeatable. The others are compared with the first, which all files use.",
)
@out_option.replace(default="mink-eval-quants")
@quiet_option
@placement_options
def quants_command(
    models: "Sequence[ModelFile]", kv_types: Sequence[str], out: Path, quiet: bool, **options: Any
) -> None:
    """Measure what quantizations lose compared with a base.

    BASE and OTHER are files of one model. FOLDER stands for all models in it; without a BASE, the largest is
    the base. Or --kv-type names other types of BASE's KV cache. Compares next-token distributions at the same
    positions of texts of several kinds: divergence, top token and perplexity, each next to the base's
    self-noise.

    Writes to DIR: quants.html, .md, .csv and .json, a figure, and quants-card.md, a block for a model
    card. What is kept of the base's distributions is in DIR/base, so that the base is not evaluated again:
    run the same command again to resume, or with more files or positions.
    """
    kv_types = list(dict.fromkeys(kv_types))
    if len(models) + len(kv_types) < 3:
        raise click.UsageError("give the base and at least one other file or --kv-type.")
    base, *others = models
    _carry_out(_measurement("quants")(base, others, kv_types=kv_types, **options), out, quiet)


def judge_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a judge is asked with."""
    for decorate in reversed(_JUDGE_OPTIONS):
        command = decorate(command)
    return command


_JUDGE_OPTIONS = (
    folder_argument,
    click.option(
        "--judge",
        "-j",
        required=True,
        metavar="NAME|PATH|URL[#MODEL]",
        help="The judge: a GGUF model or a server's address, as for mink-eval run --model.",
    ),
    click.option(
        "--against",
        type=SamplerType(),
        default="greedy",
        metavar="SAMPLER",
        help="Sampler to compare the others with.",
    ),
    limit_option,
    click.option(
        "--max-chars",
        "characters",
        type=WholeNumber(min=200),
        default=6000,
        metavar="N",
        help="Maximum number of characters of a response to show the judge.",
    ),
    parallel_option.replace(
        type=AutoOrInt(min=1, max=64),
        default="auto",
        help="Number of requests at a time; auto: as many as the server has slots, or as memory and device "
        "allow.",
    ),
    key_option,
    timeout_option.replace(default=120.0),
    field_option,
    template_option,
    quiet_option,
    placement_options,
)


@cli.command("judge")
@click.option(
    "--method",
    type=click.Choice(["paper", "noise"]),
    default="paper",
    hidden=True,
)
@judge_options
def judge_command(
    folder: Path,
    judge: str,
    method: str,
    against: "Sampler",
    limit: int | None,
    characters: int,
    quiet: bool,
    **options: Any,  # those of `answerers_of`
) -> None:
    """Have a model judge the responses of the run in DIR.

    It compares each pair of responses to a question as in the paper: by helpfulness, relevance, accuracy,
    creativity and level of detail, in a random order, where a tie is no win. Judgements are saved in
    DIR/judge as they arrive; run the same command again to resume. Prints win rates with the judge's position
    bias and tests against one sampler, and writes them to judge.html, .md, .csv and .json.
    """
    from mink_local.evals.judge.judging import judging_of
    from mink_local.evals.run.records import read_run

    if method == "noise":
        command = shlex.join(["python", "-m", "scripts.lab.noise", str(folder), "--judge", judge])
        raise click.UsageError(f"noise is measured from the repository: {command}")
    [answerer] = answerers_of([judge], is_strict=False, **options)
    run_ = read_run(folder)
    for note in run_.notes:
        log.warning("%s: %s", folder, note)
    judging = judging_of(run_, answerer, str(against), limit, characters)
    _carry_out(judging, folder / judging.measures, quiet)


def main() -> None:
    """Run `mink-eval`."""
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
