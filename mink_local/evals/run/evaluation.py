"""`mink-eval run`: generate the responses that a run's folder lacks."""

import hashlib
import json
import logging
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import list2cmdline
from typing import Any

from rich.console import Console

from mink_local.errors import DataError, RunError
from mink_local.evals.measurement import Measurement, Results
from mink_local.evals.progress import duration
from mink_local.evals.run.data import locate
from mink_local.evals.run.grid import Executor, Ready, TaskSettings, TaskWork, variants
from mink_local.evals.run.records import (
    QUESTIONS,
    RECORDS,
    RecordCheck,
    RecordedQuestion,
    Response,
    ResponseKey,
    record_files,
)
from mink_local.evals.run.worker import NO_TEMPLATE
from mink_local.evals.store import Damage, Store, file_sha256, read_lines, to_line
from mink_local.evals.tables import Table, percent, temperature_name
from mink_local.evals.tasks.base import Question, Task
from mink_local.evals.tasks.datasets import OwnTask
from mink_local.models import trust
from mink_local.models.catalog import ModelFile
from mink_local.samplers import Sampler, label

log = logging.getLogger("mink_local")


@dataclass(frozen=True)
class Evaluation:
    """Tasks, models and sampling settings.

    Attributes:
        repeats: Responses of every sampler at every temperature to a question.
        data: Files with questions, by task, that replace a task's own.
        shots: The first questions that are examples instead.
        shots_from: Files to take the examples from, by task.
        stop: Strings that end a response.
        limit: Most questions of a task.
        max_tokens: Of a response; None is the task's own limit.
        ctx: Most tokens of a prompt and its response; None is what a model was trained on.
        greedy: Greedy is run in any case.
    """

    tasks: Sequence[Task]
    models: Sequence[ModelFile]
    samplers: Sequence[Sampler]
    temperatures: Sequence[float]
    repeats: int
    data: Mapping[str, Path]
    shots_from: Mapping[str, Path]
    shots: int = 0
    stop: Sequence[str] = ()
    limit: int | None = None
    seed: int = 0
    max_tokens: int | None = None
    ctx: int | None = None
    greedy: bool = True

    def questions(self, task: Task, file: Path) -> tuple[TaskSettings, list[Question]]:
        """Return the questions of a file, and how a task puts them.

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


class Run(Measurement[Response]):
    """The responses of models to the questions of tasks.

    Args:
        evaluation: What is run.
        executor: Has a model answer.
        environment: A `Worker`'s options that may change when a run continues: n_parallel, n_gpu_layers,
            n_threads, rpc.
    """

    measures, noun, row_type, rows = "run", "responses", Response, RECORDS

    def __init__(self, evaluation: Evaluation, executor: Executor, environment: Mapping[str, Any]) -> None:
        super().__init__()
        self._evaluation, self._executor, self._environment = evaluation, executor, environment
        files = {task.name: locate(task, evaluation.data.get(task.name)) for task in evaluation.tasks}
        found = [evaluation.questions(task, files[task.name]) for task in evaluation.tasks]
        for model in evaluation.models:
            trust.check(model)  # a damaged file is found now, and not after hours with another model
        wanted = variants(evaluation.samplers, evaluation.temperatures, evaluation.repeats, evaluation.greedy)
        self._questions = {settings.task.name: questions for settings, questions in found}
        self._work = {
            model.name: [TaskWork.of(model.name, *one, wanted) for one in found]
            for model in evaluation.models
        }
        self.settings = {
            "seed": evaluation.seed,
            "ctx": evaluation.ctx,
            "stop": list(evaluation.stop),
            "models": {
                model.name: {"path": str(model.path), "sha256": file_sha256(model.path)}
                for model in evaluation.models
            },
            "tasks": {one.task.name: _task_settings(one, files[one.task.name]) for one, _ in found},
        }
        self._n_tokens = self._n_new = 0
        self._began = time.monotonic()

    def upgrade(self, manifest: dict[str, Any]) -> None:
        if "measures" not in manifest:  # written before 0.2
            manifest |= {"measures": "run", "stop": manifest.get("stop", [])}
            for task in manifest["tasks"].values():
                task.setdefault("shots", 0)
                task.setdefault("shots_sha256", None)
                if task.get("rule", "open") != "open":  # a rule for all questions of an own file
                    task["rule"] = "question"

    def others(self, folder: Path) -> Iterable[Path]:
        return record_files(folder)

    def prepare(self, store: Store[Response]) -> None:
        """Keep the questions, and what is wanted, from which a report counts the responses."""
        path = store.folder / QUESTIONS
        known: dict[tuple[str, str], RecordedQuestion] = {}
        for number, line in read_lines(path, RecordedQuestion) if path.exists() else ():
            if isinstance(line, Damage):
                raise RunError(f"{path} is damaged (line {number}: {line}): name another --out")
            known[line.key] = line
        n_before = len(known)
        for task, questions in self._questions.items():
            for question in questions:
                recorded = RecordedQuestion.of(task, question)
                if known.setdefault(recorded.key, recorded) != recorded:
                    raise RunError(
                        f"question {question.id} of {task} has another text or answer in {path}: "
                        "name another --out"
                    )
        lines = b"".join(map(to_line, known.values()))
        if len(known) > n_before:
            store.write(QUESTIONS, lines)
        grids = store.manifest.get("asked", [])
        grid = self._grid()
        store.note(
            questions_sha256=hashlib.sha256(lines).hexdigest(),
            asked=grids if grid in grids else [*grids, grid],
        )
        self._check = RecordCheck(store.manifest, known.values())

    def _grid(self) -> dict[str, Any]:
        evaluation = self._evaluation
        grid = {
            "models": [model.name for model in evaluation.models],
            "samplers": [str(sampler) for sampler in evaluation.samplers],
            "temperatures": list(evaluation.temperatures),
            "repeats": evaluation.repeats,
            "limit": evaluation.limit,
            "questions": {task: len(questions) for task, questions in self._questions.items()},
        }
        return grid if evaluation.greedy else grid | {"greedy": False}

    def check(self, row: Response) -> str | None:
        return self._check(row)

    def plan(self) -> Sequence[ResponseKey]:
        return [key for tasks in self._work.values() for task in tasks for key in task.keys]

    def measure(self, keys: Sequence[ResponseKey], store: Store[Response]) -> Iterator[Response]:
        evaluation, done = self._evaluation, set(self.plan()) - set(keys)
        self._began = time.monotonic()
        for model in evaluation.models:
            work = [task for task in (task.without(done) for task in self._work[model.name]) if task.items]
            if work and not self.interrupted:
                # what names it on any machine: an alias, if models.toml has its SHA-256, or a path
                name = model.name if model.sha256 else str(model.path)
                options = {"model": name, "seed": evaluation.seed, "ctx": evaluation.ctx, **self._environment}
                yield from self._executor.answer(options, work, self._ready(model.name, store))

    def _ready(self, model: str, store: Store[Response]) -> Ready:
        """Return what notes a session; its first call warns of a model that will not end its responses."""
        is_first = True

        def ready(template_sha256: str, session: Mapping[str, Any]) -> None:
            nonlocal is_first
            store.agree({"models": {model: {"template_sha256": template_sha256}}})
            store.begin_session(model=model, **session)
            ends_itself = template_sha256 != NO_TEMPLATE or self._evaluation.shots or self._evaluation.stop
            if is_first and not ends_itself:
                log.warning(
                    "%s may not end its responses, as base models do not: one that the token limit cuts off "
                    "counts as wrong. Show it examples with --shots 4, or end its responses with --stop TEXT",
                    model,
                )
            is_first = False

        return ready

    def interrupt(self) -> None:
        super().interrupt()
        self._executor.interrupt()

    def status(self, row: Response) -> str:
        self._n_new += 1
        self._n_tokens += row.n_tokens
        return f"{self._n_tokens / self._seconds:.0f} tokens/s"

    @property
    def _seconds(self) -> float:
        return max(1e-3, time.monotonic() - self._began)

    def conclude(self, results: Results) -> None:
        self.report(results)
        n_empty = int((results.frame["finish_reason"] == "overflow").sum())
        if n_empty:
            print(f"{n_empty} responses are empty and count as wrong: the prompt did not fit the context.")
        if self._n_new:
            speed = f"{self._n_tokens / self._seconds:.1f} tokens/s"
            took = f"{duration(self._seconds)} ({speed})"
            print(f"{self._n_new:,} responses of {self._n_tokens:,} tokens in {took}.")
        folder = str(results.folder)
        quoted = list2cmdline([folder]) if os.name == "nt" else shlex.quote(folder)
        print(f"All {len(self.plan()):,} responses are in {folder}. Next: mink-eval report {quoted}")

    @classmethod
    def report(cls, results: Results) -> None:
        """Print the accuracies; `mink-eval report` says more."""
        frame = results.frame
        shares = frame[["task", "model", "sampler", "temperature"]].assign(
            sampler=frame["sampler"].map(label), n=1, truncated=frame["finish_reason"] == "length"
        )
        shares = shares.rename(columns={"temperature": "T"})
        for scoring in ("flexible", "strict"):
            shares[scoring] = frame[scoring].map(lambda verdict: verdict and verdict["correct"])
        shares["no answer"] = frame["flexible"].map(lambda verdict: verdict and verdict["answer"] is None)
        means = {name: (name, "mean") for name in ("flexible", "strict", "no answer", "truncated")}
        console = Console()
        by = ["task", "model", "sampler", "T"]
        formats = {"T": temperature_name, **dict.fromkeys(means, percent)}
        if console.is_terminal and len(shares.drop_duplicates(by)) > console.height - 8:
            found = shares.groupby(by[:2], as_index=False).agg(n=("n", "sum"), **means)
            Table("Accuracies, %", found, keys=2, formats=formats).print(console)
            return
        found = shares.groupby(by, as_index=False).agg(n=("n", "sum"), **means)
        for (task, model), group in found.groupby(by[:2]):
            table = group.drop(columns=by[:2])
            Table(f"{task} · {model}, %", table, keys=2, formats=formats).print(console)


def _task_settings(settings: TaskSettings, file: Path) -> dict[str, Any]:
    shots = json.dumps(settings.shots).encode()
    kept: dict[str, Any] = {
        "data": str(file),
        "data_sha256": file_sha256(file),
        "max_tokens": settings.max_tokens,
        "shots": len(settings.shots),
        "shots_sha256": hashlib.sha256(shots).hexdigest() if settings.shots else None,
    }
    if isinstance(settings.task, OwnTask):
        kept["rule"] = settings.task.rule
    return kept
