"""`mink-eval run`: from what is asked for to the records that are missing."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from mink_local.evals.run.data import locate
from mink_local.evals.run.display import duration, summary, watching
from mink_local.evals.run.grid import Draw, Executor, Part, keys, part
from mink_local.evals.run.manifest import Manifest, file_sha256
from mink_local.evals.run.progress import Progress
from mink_local.evals.run.records import Key, Store, read_records
from mink_local.evals.tasks.base import Question, Task
from mink_local.models.catalog import ModelFile
from mink_local.models.trust import vet


@dataclass(frozen=True)
class Plan:
    """What is to be in the folder `out` in the end: the answers of every model to the first `limit`
    questions of every task (None: all), each drawn in all the ways of `draws`.

    data: files to take instead of a task's own, by task. seed: of the run. max_tokens: of an answer, None
    for the task's own limit. ctx: at most so many tokens for a prompt and its answer, None for what a model
    was trained on.
    """

    tasks: Sequence[Task]
    models: Sequence[ModelFile]
    draws: Sequence[Draw]
    out: Path
    data: Mapping[str, Path]
    limit: int | None = None
    seed: int = 0
    max_tokens: int | None = None
    ctx: int | None = None

    def longest_answer(self, task: Task) -> int:
        return self.max_tokens or task.max_tokens


def evaluate(plan: Plan, execute: Executor, circumstances: Mapping[str, Any], quiet: bool = False) -> None:
    """Make the records that are missing, and print what came of it.

    circumstances: the options of a `Worker` that only say how: n_parallel, n_gpu_layers, n_threads. Raises a
    MinkError with everything that is recorded kept, and KeyboardInterrupt after Ctrl-C.
    """
    files = {task.name: locate(task, plan.data.get(task.name)) for task in plan.tasks}
    questions = {task.name: task.read(files[task.name], plan.seed)[: plan.limit] for task in plan.tasks}
    for model in plan.models:
        vet(model)  # a damaged one is found now, and not after hours with another
    with closing(Store(plan.out)) as store:
        manifest = Manifest(store, _wanted(plan, files), questions)
        progress, done = _begin(plan, questions)
        try:
            with watching(progress, quiet) as tick:
                for model in plan.models:
                    parts = _parts(plan, model, questions, done)
                    if not parts:
                        continue
                    options = {
                        "model": _asked_for(model),
                        "name": model.name,
                        "seed": plan.seed,
                        "ctx": plan.ctx,
                    }
                    ready = partial(manifest.begin_session, model.name)
                    with closing(execute({**options, **circumstances}, parts, ready)) as records:
                        for record in records:
                            store.append(record)
                            progress.add(record)
                            tick()
        finally:
            _print_summary(progress, plan.out)


def _wanted(plan: Plan, files: Mapping[str, Path]) -> dict[str, Any]:
    """What the manifest is to say."""
    return {
        "seed": plan.seed,
        "ctx": plan.ctx,
        "models": {
            model.name: {"path": str(model.path), "sha256": file_sha256(model.path)} for model in plan.models
        },
        "tasks": {
            task.name: {
                "data": str(files[task.name]),
                "data_sha256": file_sha256(files[task.name]),
                "max_tokens": plan.longest_answer(task),
            }
            for task in plan.tasks
        },
    }


def _begin(plan: Plan, questions: Mapping[str, Sequence[Question]]) -> tuple[Progress, set[Key]]:
    """The progress with what an earlier run has recorded counted in, and the keys of that."""
    wanted = [
        key
        for model in plan.models
        for task in plan.tasks
        for key in keys(model.name, task.name, questions[task.name], plan.draws)
    ]
    progress, asked, done = Progress(wanted), set(wanted), set()
    for record in read_records(plan.out):
        if record.key in asked:  # a run with fewer questions than before leaves some out
            done.add(record.key)
            progress.add(record, new=False)
    return progress, done


def _asked_for(model: ModelFile) -> str:
    """What stands for the model on any machine: the name that `models.txt` vouches for, or the path."""
    return model.name if model.sha256 else str(model.path)


def _parts(
    plan: Plan, model: ModelFile, questions: Mapping[str, Sequence[Question]], done: set[Key]
) -> list[Part]:
    """What the model has left to do, task by task."""
    parts = [
        part(model.name, task.name, questions[task.name], plan.longest_answer(task), plan.draws, done)
        for task in plan.tasks
    ]
    return [part for part in parts if part.jobs]


def _print_summary(progress: Progress, out: Path) -> None:
    total = progress.total
    if total.done:
        Console(markup=False, highlight=False, soft_wrap=True).print(summary(progress))
    if total.overflow:
        print(f"{total.overflow} prompts did not fit the context, and count as wrong.")
    if total.new:
        took = f"{duration(total.seconds)} ({total.tokens_per_second:.1f} tokens/s)"
        print(f"{total.new} responses of {total.tokens} tokens in {took}.")
    if total.done < total.wanted:
        print(f"{total.done} of {total.wanted} responses are in {out}; the same command goes on from there.")
    else:
        print(f"All {total.wanted} responses are in {out}. Next: mink-eval report {shlex.quote(str(out))}")
