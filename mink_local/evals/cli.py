"""`mink-eval`: run GGUF models on tasks with every sampler and temperature, and report the results."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mink_local.cli import AutoOrInt, FiniteFloat, run
from mink_local.evals.coverage.command import coverage_command
from mink_local.evals.frontier.command import frontier_command
from mink_local.evals.judge.command import judge_command, sheet_command, votes_command
from mink_local.evals.libraries import saying_what_is_missing
from mink_local.evals.options import POSITIVE, run_folder_argument, samplers_option
from mink_local.files import user_path
from mink_local.models.catalog import DEFAULT_MODEL
from mink_local.models.options import MODEL_HELP, SamplerType, gpu_layers_option, rpc_option, threads_option
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.evals.tasks.base import Task
    from mink_local.models.catalog import ModelFile
    from mink_local.samplers import Sampler

PROGRAM = "mink-eval"

EXAMPLES = """\b
Examples:
  mink-eval run sample-math --sampler min-k --sampler top-p --temp 1 --temp 5
  mink-eval run gsm8k aqua --model qwen3-4b --model ./mine.gguf --temp 1 --repeats 3 --out runs/qwen
  mink-eval run my-questions.jsonl --model ./mine.gguf --temp 5
  mink-eval report mink-eval-run
  mink-eval judge mink-eval-run --judge ./larger.gguf
  mink-eval coverage --model ./mine.gguf
  mink-eval frontier --model ./small.gguf --reference ./large.gguf --text novel.txt

The same command again continues a run that stopped, for whatever reason. With another sampler,
temperature, model or task, or with more questions or repeats, only the responses that are missing
are generated.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


@click.group(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Evaluate GGUF models over sampling methods and temperatures."""


def _tasks(_: click.Context, __: click.Parameter, names: Sequence[str]) -> "list[Task]":
    from mink_local.evals.tasks import find_task

    tasks = {name: find_task(name) for name in names}
    by_name = {task.name: task for task in tasks.values()}
    if len(by_name) < len(tasks):
        raise click.BadParameter("two files have the same name: rename one.")
    return list(tasks.values())


def _models(_: click.Context, __: click.Parameter, names: Sequence[str]) -> "list[ModelFile]":
    """Return the models' files, each once; two must not share the name that is in the records."""
    from mink_local.models.catalog import resolve

    by_name: dict[str, ModelFile] = {}
    for file in map(resolve, names):
        other = by_name.setdefault(file.name, file)
        if other.path != file.path:
            raise click.BadParameter(f"{other.path} and {file.path} have the same name: rename one.")
    return list(by_name.values())


def _most_sequences() -> int:
    from mink_local.llama.context import N_SEQ_MAX

    return int(N_SEQ_MAX)


def _files(option: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Return files by task, from TASK=FILE, and from FILE if there is one task."""
    from mink_local.evals.tasks import TASKS

    files: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or name not in {*TASKS, *names}:
            if not names:
                raise click.UsageError(f"{option} {text} is for a task that has a name: leave it out.")
            if len(names) > 1:
                raise click.UsageError(f"{option} {text} names no task: write TASK={text}.")
            name, file = names[0], text
        if name not in names:
            raise click.UsageError(f"{option} {text} is for a task that is not run.")
        if name in files:
            raise click.UsageError(f"{option} is given twice for {name}.")
        files[name] = user_path(file)
    return files


def _stop(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> list[str]:
    if not all(texts):
        raise click.BadParameter("an empty text would end every response.")
    return [text.replace("\\n", "\n") for text in texts]


@cli.command("run")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK…", callback=_tasks)
@click.option(
    "--model",
    "-m",
    "models",
    multiple=True,
    default=[DEFAULT_MODEL],
    callback=_models,
    metavar="NAME|PATH",
    help=f"{MODEL_HELP} May be given several times, as may --sampler and --temp.",
)
@samplers_option(
    default=["min-k"],
    help="A sampler: min-k, top-p:p=0.9,order=temperature-last, min-p, top-k, top-n-sigma, eta, p-less, "
    "llama-default, mirostat, greedy.",
)
@click.option(
    "--temp",
    "-t",
    "temperatures",
    multiple=True,
    type=FiniteFloat(min=0),
    default=[1.0],
    metavar="T",
    help="A temperature, for every sampler. Greedy, which every sampler is at 0, is always run, once a "
    "question: it is what a sampler has to beat.",
)
@click.option("--limit", type=POSITIVE, metavar="N", help="Only the first N questions of a task.")
@click.option(
    "--repeats",
    type=POSITIVE,
    default=1,
    metavar="N",
    help="Responses to every question, each with another seed.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 2),  # MAX_SEED, whose module loads llama.cpp
    default=0,
    metavar="N",
    help="The seed of the run, from which the seeds of all responses are computed.",
)
@click.option(
    "--max-tokens",
    "-n",
    type=POSITIVE,
    metavar="N",
    help="Longest response; a longer one is truncated and counts as wrong.  [default: the task's]",
)
@click.option(
    "--data",
    multiple=True,
    metavar="[TASK=]FILE",
    help="A file with the questions, instead of a download. May be given for every task.",
)
@click.option(
    "--shots",
    type=POSITIVE,
    metavar="N",
    help="Show the first N questions with their worked answers before every question, as earlier turns of "
    "the conversation; they are not asked.",
)
@click.option(
    "--shots-from",
    multiple=True,
    metavar="[TASK=]FILE",
    help="A file in the task's format, whose first N questions --shots shows.",
)
@click.option(
    "--stop",
    multiple=True,
    metavar="TEXT",
    callback=_stop,
    help=r"A text that ends a response, such as '\nQuestion:', in which \n is the end of a line: for base "
    "models. May be given several times.",
)
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    default="mink-eval-run",
    metavar="DIR",
    help="Folder of the records; a run that is there is continued.",
)
@click.option(
    "--parallel",
    type=AutoOrInt(min=1, max=_most_sequences),
    default="auto",
    help="Responses at a time; auto chooses by memory and device.",
)
@click.option(
    "--ctx",
    type=POSITIVE,
    metavar="N",
    help="Most tokens of a prompt and its response.  [default: as many as they need]",
)
@gpu_layers_option
@threads_option
@rpc_option
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="ray spreads the run over a Ray cluster, with a worker on every GPU.",
)
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="The cluster.  [default: that of RAY_ADDRESS, or this machine]",
)
@click.option(
    "--workers",
    type=POSITIVE,
    metavar="N",
    help="Ray workers.  [default: one for every GPU, or every machine]",
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress, only the summary.")
def run_command(
    tasks: "list[Task]",
    data: Sequence[str],
    shots: int | None,
    shots_from: Sequence[str],
    parallel: Any,
    gpu_layers: Any,
    threads: int | None,
    rpc: Sequence[str] | None,
    executor: str,
    ray_address: str | None,
    workers: int | None,
    quiet: bool,
    **settings: Any,  # models, samplers, temperatures, repeats, stop, out, limit, seed, max_tokens, ctx
) -> None:
    """Have models answer the questions of tasks, with every sampler at every temperature.

    TASK is gsm8k, aqua, gpqa, math500, sample-math, sample-choice, or a file of your own whose name ends in
    .jsonl: a line is a JSON object with "question", and may have "answer" (a number or a text), "choices" and
    "id". Without answers the responses are recorded and not judged.

    Every response goes to a line of DIR/records.jsonl as soon as it is complete. After Ctrl-C, or after a
    crash, the same command continues the run.
    """
    from mink_local.evals.tasks import TASKS

    names = [task.name for task in tasks]
    files = _files("--data", data, [name for name in names if name in TASKS])  # the others are files
    if shots_from and not shots:
        raise click.UsageError("--shots-from needs --shots N.")
    shots_files = _files("--shots-from", shots_from, names)
    from mink_local.evals.run.grid import Executor
    from mink_local.evals.run.run import Evaluation, evaluate

    if executor == "ray":
        if rpc:
            raise click.UsageError("--rpc is for one worker: give it without --executor ray.")
        from mink_local.evals.run.ray import answer_on_ray, connect

        connect(ray_address)
        execute: Executor = partial(answer_on_ray, workers=workers)
    elif workers or ray_address:
        raise click.UsageError("--workers and --ray-address are Ray's: give --executor ray too.")
    else:
        from mink_local.evals.run.worker import answer_here

        execute = answer_here
    evaluation = Evaluation(tasks=tasks, data=files, shots=shots or 0, shots_from=shots_files, **settings)
    environment = {"n_parallel": parallel, "n_gpu_layers": gpu_layers, "n_threads": threads, "rpc": rpc}
    evaluate(evaluation, execute, environment, quiet)


@cli.command("candidates")
@click.argument("prompt")
@click.option("--model", "-m", default=DEFAULT_MODEL, metavar="NAME|PATH", help=MODEL_HELP)
@click.option(
    "--answer",
    default="",
    metavar="TEXT",
    help="What the answer to PROMPT begins with: the candidates are of the token after it.",
)
@samplers_option(
    help="A method. May be given several times.  [default: all but mirostat, in both orders]",
)
@click.option(
    "--temp",
    "-t",
    "temperatures",
    multiple=True,
    type=FiniteFloat(min=0, min_open=True),
    default=[1.0, 2.0, 5.0, 10.0],
    metavar="T",
    help="A temperature. May be given several times.",
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a picture of the sorted logits with the cuts at the last temperature; the ending names the "
    "format.",
)
def candidates_command(
    prompt: str,
    model: str,
    answer: str,
    samplers: "Sequence[Sampler]",
    temperatures: Sequence[float],
    picture: Path | None,
) -> None:
    """Show the candidates of one token, and how many of them each method keeps at each temperature.

    The token is the next one of the answer to PROMPT. Tokens that only some methods keep are what their
    answers differ in.
    """
    from rich.console import Console

    from mink_local.evals.candidates import next_step, show, write_picture
    from mink_local.generation.loading import load_model
    from mink_local.generation.sampling_step import METHODS

    with load_model(model) as loaded:
        step = next_step(loaded, prompt, answer, samplers or METHODS)
        show(Console(), loaded, step, temperatures)
        if picture:
            write_picture(loaded, step, temperatures[-1], picture)


class AgainstType(SamplerType):
    """Type of the option --against: a sampler, "model=NAME" or "temp=T"; its value is a string."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        kind, _, name = value.partition("=")
        if kind == "temp":
            return f"temp={click.FLOAT.convert(name, param, ctx):g}"
        return value if kind == "model" else str(super().convert(value, param, ctx))


@cli.command("report")
@run_folder_argument
@click.option(
    "--against",
    type=AgainstType(),
    metavar="SAMPLER|model=NAME|temp=T",
    help="The sampler to compare the others with, or model=NAME or temp=T to compare the other models or "
    "temperatures with, by the same method.  [default: min-k]",
)
def report_command(folder: Path, against: str | None) -> None:
    """Report on the run in DIR, which may still be going on.

    Prints tables and writes to DIR/report: report.html with tables, pictures and a browser of all
    responses, report.md, the numbers as CSV, and the pictures as SVG. All responses are judged by this
    version's tasks, and the recorded verdicts that differ are counted; the records do not change.
    """
    with saying_what_is_missing():
        from mink_local.evals.report.write import write_report

        write_report(folder, against)


@cli.command(
    "lm-eval",
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,  # lm-evaluation-harness has its own
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lm_eval_command(arguments: Sequence[str]) -> None:
    """Run lm-evaluation-harness with a GGUF model.

    Its own command line, with --model mink-local and, in --model_args, model, sampler, temperature, seed,
    n_ctx, parallel, gpu_layers, threads and max_gen_toks.
    """
    if not find_spec("lm_eval"):
        raise click.UsageError('this needs lm-evaluation-harness: type  pip install "mink-local[lm-eval]"')
    from mink_local.evals.lm_eval import main as run_harness

    run_harness(arguments)


for command in (frontier_command, coverage_command, judge_command, sheet_command, votes_command):
    cli.add_command(command)


def main() -> None:
    """Run `mink-eval`."""
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
