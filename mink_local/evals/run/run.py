"""`mink-eval run`: generate the responses that a run's folder lacks."""

import hashlib
import json
import logging
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from subprocess import list2cmdline
from typing import Any

from rich.console import Console

from mink_local.errors import DataError
from mink_local.evals.run.data import locate
from mink_local.evals.run.folder import RunFolder
from mink_local.evals.run.grid import Executor, Ready, TaskSettings, TaskWork, variants
from mink_local.evals.run.manifest import Manifest, file_sha256
from mink_local.evals.run.progress import Progress, duration, summary, watching
from mink_local.evals.run.records import ResponseKey, read_responses
from mink_local.evals.run.settings import RunSettings
from mink_local.evals.run.worker import NO_TEMPLATE
from mink_local.evals.tasks.base import Question, Task
from mink_local.evals.tasks.own import OwnTask
from mink_local.models import trust
from mink_local.models.catalog import ModelFile
from mink_local.samplers import Sampler

log = logging.getLogger("mink_local")


@dataclass(frozen=True)
class Evaluation:
    """Tasks, models and sampling settings, whose responses go to the folder `out`.

    Every sampler is asked at every temperature, `repeats` times. `data` has files with questions that replace
    a task's own, and `limit` takes only the first so many. The first `shots` questions are examples and are
    not asked; `shots_from` has files to take them from instead. `stop` are strings that end a response.
    `max_tokens` is of a response; None is the task's own limit. `ctx` is of a prompt and its response; None
    is what a model was trained on.
    """

    tasks: Sequence[Task]
    models: Sequence[ModelFile]
    samplers: Sequence[Sampler]
    temperatures: Sequence[float]
    repeats: int
    out: Path
    data: Mapping[str, Path]
    shots_from: Mapping[str, Path]
    shots: int = 0
    stop: Sequence[str] = ()
    limit: int | None = None
    seed: int = 0
    max_tokens: int | None = None
    ctx: int | None = None

    def asked(self, task: Task, file: Path) -> tuple[TaskSettings, list[Question]]:
        """Return how a task's questions are asked, and which ones of a file.

        Raises DataError if the file is not in the task's format, or has no worked answers for `shots`.
        """
        questions = task.read(file, self.seed)
        source = self.shots_from.get(task.name)
        pool = task.read(source, self.seed) if source else questions
        examples = pool[: self.shots]
        if len(examples) < self.shots:
            raise DataError(f"{source or file} has {len(pool)} questions: {self.shots} --shots need more")
        for example in examples:
            if not example.worked:
                raise DataError(
                    f"{source or file} has no worked answer to question {example.id}: leave --shots out, or "
                    "name another file with --shots-from"
                )
        shown = {example.prompt for example in examples}
        left = [question for question in questions if question.prompt not in shown][: self.limit]
        if not left:
            raise DataError(f"{file} has no other questions than those of --shots")
        shots = tuple((example.prompt, example.worked) for example in examples)
        return TaskSettings(task, self.max_tokens or task.max_tokens, shots, tuple(self.stop)), left


def evaluate(
    evaluation: Evaluation, execute: Executor, environment: Mapping[str, Any], quiet: bool = False
) -> None:
    """Generate and record the missing responses, and print a summary.

    `environment` has a `Worker`'s options that are not in the manifest: n_parallel, n_gpu_layers, n_threads.
    Raises MinkError if the run cannot go on, and KeyboardInterrupt after Ctrl-C. Everything that is recorded
    is kept.
    """
    files = {task.name: locate(task, evaluation.data.get(task.name)) for task in evaluation.tasks}
    asked = [evaluation.asked(task, files[task.name]) for task in evaluation.tasks]
    wanted = variants(evaluation.samplers, evaluation.temperatures, evaluation.repeats)
    if not quiet:
        for task in evaluation.tasks:
            if isinstance(task, OwnTask):  # whose rule was found in its data
                print(f"{task.name}: {task.title}.", file=sys.stderr)
    for model in evaluation.models:
        trust.check(model)  # a damaged file is found now, and not after hours with another model
    work = {
        model.name: [TaskWork.of(model.name, *one, wanted) for one in asked] for model in evaluation.models
    }
    with closing(RunFolder(evaluation.out)) as folder:
        questions = {settings.task.name: given for settings, given in asked}
        manifest = Manifest(folder, _wanted(evaluation, files, asked), questions)
        all_work = [task for tasks in work.values() for task in tasks]
        progress, done = _recorded(evaluation.out, all_work, manifest.settings)
        try:
            with watching(progress, quiet) as show:
                for model in evaluation.models:
                    left = [task for task in (task.without(done) for task in work[model.name]) if task.items]
                    if not left:
                        continue
                    # what names it on any machine: an alias, if models.txt has its SHA-256, or a path
                    name = model.name if model.sha256 else str(model.path)
                    options = {"model": name, "seed": evaluation.seed, "ctx": evaluation.ctx, **environment}
                    ready = _once_warned(evaluation, model.name, manifest)
                    with closing(execute(options, left, ready)) as responses:
                        for response in responses:
                            folder.append(response)
                            progress.add(response)
                            show(response)
        finally:
            _print_summary(progress, evaluation.out)


def _once_warned(evaluation: Evaluation, model: str, manifest: Manifest) -> Ready:
    """Return what notes a session; its first call warns of a model that will not end its responses."""
    is_first = True

    def ready(template_sha256: str, session: Mapping[str, Any]) -> None:
        nonlocal is_first
        manifest.begin_session(model, template_sha256, session)
        if is_first and template_sha256 == NO_TEMPLATE and not evaluation.shots and not evaluation.stop:
            log.warning(
                "%s may not know where its answer ends, as base models do not: a response that goes on to "
                "the token limit counts as wrong. Show it examples with --shots 4, or end its responses with "
                "--stop TEXT",
                model,
            )
        is_first = False

    return ready


def _wanted(
    evaluation: Evaluation,
    files: Mapping[str, Path],
    asked: Sequence[tuple[TaskSettings, Sequence[Question]]],
) -> dict[str, Any]:
    """Return the settings that the manifest keeps."""
    return {
        "seed": evaluation.seed,
        "ctx": evaluation.ctx,
        "stop": list(evaluation.stop),
        "asked": {
            "models": [model.name for model in evaluation.models],
            "samplers": [str(sampler) for sampler in evaluation.samplers],
            "temperatures": list(evaluation.temperatures),
            "repeats": evaluation.repeats,
            "limit": evaluation.limit,
            "questions": {settings.task.name: len(questions) for settings, questions in asked},
        },
        "models": {
            model.name: {"path": str(model.path), "sha256": file_sha256(model.path)}
            for model in evaluation.models
        },
        "tasks": {
            settings.task.name: _task_settings(settings, files[settings.task.name]) for settings, _ in asked
        },
    }


def _task_settings(settings: TaskSettings, file: Path) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "data": str(file),
        "data_sha256": file_sha256(file),
        "max_tokens": settings.max_tokens,
    }
    if isinstance(settings.task, OwnTask):
        kept["rule"] = settings.task.rule
    if settings.shots:
        kept["shots"] = len(settings.shots)
        kept["shots_sha256"] = hashlib.sha256(json.dumps(settings.shots).encode()).hexdigest()
    return kept


def _recorded(
    out: Path, work: Sequence[TaskWork], settings: RunSettings | None
) -> tuple[Progress, set[ResponseKey]]:
    """Return the progress with the recorded responses counted, and their keys.

    A response of another run, in a file that was put into the folder, is generated again.
    """
    wanted = [key for task in work for key in task.keys]
    progress, asked, done = Progress(wanted), set(wanted), set()
    for response in read_responses(out, settings.misfit if settings else None):
        if response.key in asked:  # the run may have had more questions before
            done.add(response.key)
            progress.add(response, new=False)
    return progress, done


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _print_summary(progress: Progress, out: Path) -> None:
    total = progress.total
    if total.done:
        console = Console(markup=False, highlight=False, soft_wrap=True)
        console.print(summary(progress, console.height - 5 if console.is_terminal else math.inf))
    if total.overflow:
        empty = f"{_counted(total.overflow, 'response')} without text"
        print(f"{empty}: the prompt did not fit the context, which counts as wrong.")
    if progress.new:
        took = f"{duration(progress.seconds)} ({progress.tokens / progress.seconds:.1f} tokens/s)"
        print(f"{_counted(progress.new, 'response')} of {_counted(progress.tokens, 'token')} in {took}.")
    if total.done < total.wanted:
        print(f"{total.done} of {total.wanted} responses are in {out}; the same command generates the rest.")
    else:
        quoted = list2cmdline([str(out)]) if os.name == "nt" else shlex.quote(str(out))
        whole = "The only response is" if total.wanted == 1 else f"All {total.wanted} responses are"
        print(f"{whole} in {out}. Next: mink-eval report {quoted}")
