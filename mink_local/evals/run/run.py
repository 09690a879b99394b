"""`mink-eval run`: generate the responses that a run's folder lacks."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import list2cmdline
from typing import Any

from rich.console import Console

from mink_local.evals.run.data import locate
from mink_local.evals.run.folder import RunFolder
from mink_local.evals.run.grid import Executor, TaskWork, Variant
from mink_local.evals.run.manifest import Manifest, file_sha256
from mink_local.evals.run.progress import Progress, duration, summary, watching
from mink_local.evals.run.records import ResponseKey, read_responses
from mink_local.evals.tasks.base import Task
from mink_local.evals.tasks.own import OwnTask
from mink_local.models import trust
from mink_local.models.catalog import ModelFile


@dataclass(frozen=True)
class Evaluation:
    """Tasks, models and sampling settings, whose responses go to the folder `out`.

    `data` has files with questions that replace a task's own, and `limit` takes only the first so many.
    `max_tokens` is of a response; None is the task's own limit. `ctx` is of a prompt and its response; None
    is what a model was trained on.
    """

    tasks: Sequence[Task]
    models: Sequence[ModelFile]
    variants: Sequence[Variant]
    out: Path
    data: Mapping[str, Path]
    limit: int | None = None
    seed: int = 0
    max_tokens: int | None = None
    ctx: int | None = None

    def max_tokens_of(self, task: Task) -> int:
        return self.max_tokens or task.max_tokens


def evaluate(
    evaluation: Evaluation, execute: Executor, environment: Mapping[str, Any], quiet: bool = False
) -> None:
    """Generate and record the missing responses, and print a summary.

    `environment` has a `Worker`'s options that are not in the manifest: n_parallel, n_gpu_layers, n_threads.
    Raises MinkError if the run cannot go on, and KeyboardInterrupt after Ctrl-C. Everything that is recorded
    is kept.
    """
    files = {task.name: locate(task, evaluation.data.get(task.name)) for task in evaluation.tasks}
    questions = {
        task.name: task.read(files[task.name], evaluation.seed)[: evaluation.limit]
        for task in evaluation.tasks
    }
    if not quiet:
        for task in evaluation.tasks:
            if isinstance(task, OwnTask):  # whose rule was found in its data
                print(f"{task.name}: {task.title}.", file=sys.stderr)
    for model in evaluation.models:
        trust.check(model)  # a damaged file is found now, and not after hours with another model
    work = {
        model.name: [
            TaskWork.of(
                model.name,
                task,
                questions[task.name],
                evaluation.max_tokens_of(task),
                evaluation.variants,
            )
            for task in evaluation.tasks
        ]
        for model in evaluation.models
    }
    with closing(RunFolder(evaluation.out)) as folder:
        manifest = Manifest(folder, _wanted(evaluation, files), questions)
        progress, done = _recorded(evaluation.out, [task for tasks in work.values() for task in tasks])
        try:
            with watching(progress, quiet) as show:
                for model in evaluation.models:
                    left = [task for task in (task.without(done) for task in work[model.name]) if task.items]
                    if not left:
                        continue
                    # what names it on any machine: an alias, if models.txt has its SHA-256, or a path
                    name = model.name if model.sha256 else str(model.path)
                    options = {"model": name, "seed": evaluation.seed, "ctx": evaluation.ctx, **environment}
                    ready = partial(manifest.begin_session, model.name)
                    with closing(execute(options, left, ready)) as responses:
                        for response in responses:
                            folder.append(response)
                            progress.add(response)
                            show(response)
        finally:
            _print_summary(progress, evaluation.out)


def _wanted(evaluation: Evaluation, files: Mapping[str, Path]) -> dict[str, Any]:
    """Return the settings that the manifest keeps."""
    return {
        "seed": evaluation.seed,
        "ctx": evaluation.ctx,
        "models": {
            model.name: {"path": str(model.path), "sha256": file_sha256(model.path)}
            for model in evaluation.models
        },
        "tasks": {
            task.name: {
                "data": str(files[task.name]),
                "data_sha256": file_sha256(files[task.name]),
                "max_tokens": evaluation.max_tokens_of(task),
                **({"rule": task.rule} if isinstance(task, OwnTask) else {}),
            }
            for task in evaluation.tasks
        },
    }


def _recorded(out: Path, work: Sequence[TaskWork]) -> tuple[Progress, set[ResponseKey]]:
    """Return the progress with the recorded responses counted, and their keys."""
    wanted = [key for task in work for key in task.keys]
    progress, asked, done = Progress(wanted), set(wanted), set()
    for response in read_responses(out):
        if response.key in asked:  # the run may have had more questions before
            done.add(response.key)
            progress.add(response, new=False)
    return progress, done


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _print_summary(progress: Progress, out: Path) -> None:
    total = progress.total
    if total.done:
        Console(markup=False, highlight=False, soft_wrap=True).print(summary(progress))
    if total.overflow:
        print(f"{_counted(total.overflow, 'prompt')} did not fit the context, which counts as wrong.")
    if progress.new:
        took = f"{duration(progress.seconds)} ({progress.tokens / progress.seconds:.1f} tokens/s)"
        print(f"{_counted(progress.new, 'response')} of {_counted(progress.tokens, 'token')} in {took}.")
    if total.done < total.wanted:
        print(f"{total.done} of {total.wanted} responses are in {out}; the same command generates the rest.")
    else:
        quoted = list2cmdline([str(out)]) if os.name == "nt" else shlex.quote(str(out))
        whole = "The only response is" if total.wanted == 1 else f"All {total.wanted} responses are"
        print(f"{whole} in {out}. Next: mink-eval report {quoted}")
