"""`mink-eval run`: generate the responses that a run's folder lacks."""

import hashlib
import json
import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from subprocess import list2cmdline
from typing import TYPE_CHECKING, Any, Literal

from mink_local.errors import RunError
from mink_local.evals.answering import NO_TEMPLATE, Answerer, FileAnswerer, Prepared, file_sha256
from mink_local.evals.measurement import Measurement, Results, duration
from mink_local.evals.run.pace import Pace
from mink_local.evals.run.questions import AskedTask, ask, locate
from mink_local.evals.run.records import (
    QUESTIONS,
    RECORDS,
    Response,
    ResponseKey,
    Wanted,
    methods,
    read_questions,
    read_responses,
    read_run,
    rescore,
)
from mink_local.evals.run.workers import Cluster, Worker
from mink_local.evals.stats import what_can_be_found
from mink_local.evals.store import Rows, Store, read_manifest, to_line
from mink_local.evals.tables import count
from mink_local.evals.tasks.base import Task
from mink_local.evals.tasks.own import OwnTask
from mink_local.interrupts import on_interrupt
from mink_local.models import trust
from mink_local.models.catalog import ModelFile
from mink_local.samplers import Sampler

if TYPE_CHECKING:
    from mink_local.evals.addresses import AddressAnswerer
    from mink_local.evals.report.report import Report

_SHOWN = 10  # changed questions named in a message
_REHEARSAL_SECONDS = 20.0

log = logging.getLogger("mink_local")


class Run(Measurement[Response]):
    """The responses of models to tasks' questions.

    Args:
        models: Files, or models behind an address.
        samplers: Samplers, each run at every temperature.
        repeats: Number of responses per question, sampler and temperature.
        data: Files with questions, by task, that replace a task's own.
        shots_from: Files that provide the examples, by task; see `ask`, also for the task options.
        max_tokens: Maximum response length in tokens; None uses the task's limit.
        reasoning_budget: Maximum length of the reasoning in tokens; None for no limit.
        instruction: The end of every prompt, or all of it, in place of the tasks' own; see `prompt_of`.
        system: The system message; empty for none.
        ctx: Maximum tokens of prompt plus response; None uses the model's training context.
        greedy: Whether to always run greedy as the baseline.
        start: Creates the `Worker` or `Cluster` that answers, given the arguments of `Worker`.
        n_parallel: Number of responses at a time; like the placement, it may change when a run is resumed.
        placement: Options of `load_model`.
    """

    measures, noun, row_type, file = "run", "responses", Response, RECORDS

    def __init__(
        self,
        tasks: Sequence[Task],
        models: "Sequence[ModelFile | AddressAnswerer]",
        samplers: Sequence[Sampler],
        temperatures: Sequence[float],
        *,
        repeats: int = 1,
        data: Mapping[str, Path],
        shots_from: Mapping[str, Path],
        shots: int = 0,
        stop: Sequence[str] = (),
        limit: int | None = None,
        seed: int = 0,
        max_tokens: int | None = None,
        reasoning_budget: int | None = None,
        instruction: str | None = None,
        system: str = "",
        ctx: int | None = None,
        greedy: bool = True,
        start: Callable[..., Worker | Cluster] = Worker,
        n_parallel: int | Literal["auto"] = "auto",
        **placement: Any,
    ) -> None:
        tasks = [replace(task, given_instruction=instruction) for task in tasks]
        files = {task.name: locate(task, data.get(task.name)) for task in tasks}
        self._tasks = {
            task.name: ask(
                task,
                files[task.name],
                seed=seed,
                shots=shots,
                shots_from=shots_from.get(task.name),
                stop=list(stop),
                limit=limit,
                max_tokens=max_tokens,
                reasoning_budget=reasoning_budget,
                system=system,
            )
            for task in tasks
        }
        for remark in (remark for asked in self._tasks.values() for remark in asked.remarks):
            log.warning(remark)
        for model in models:  # find a damaged file now, not after hours with another model
            if isinstance(model, ModelFile):
                trust.check(model)
            else:
                model.check(samplers, reasoning_budget)
        self._models = models
        self._ending = {model.name for model in models if shots or stop}  # or already warned about
        self._start = partial(start, tasks=self._tasks, seed=seed)
        self._of_file = partial(
            FileAnswerer, ctx=ctx, n_parallel=n_parallel, repeatable=True, placement=placement
        )
        self._answering: Worker | Cluster | None = None
        wanted = methods(samplers, temperatures, repeats, greedy)
        every = (
            Wanted(model.name, task, *method, question)
            for model, (task, asked) in product(models, self._tasks.items())
            for question, method in product(asked.questions.values(), wanted)
        )
        self._wanted = {one.key: one for one in every}
        n_columns = max(1, len({temperature for _, temperature, _ in wanted if temperature}))
        n_samplers = len({sampler for sampler, *_ in wanted})
        # of a family that Holm's correction covers: samplers, or else models
        self._n_comparisons = n_columns * ((n_samplers - 1) or (len(models) - 1))
        self._grid = {
            "models": [model.name for model in models],
            "samplers": [str(sampler) for sampler in samplers],
            "temperatures": list(temperatures),
            "repeats": repeats,
            "limit": limit,
            "questions": {name: len(asked.questions) for name, asked in self._tasks.items()},
            **({} if greedy else {"greedy": False}),
        }
        self.settings = {
            "seed": seed,
            "ctx": ctx,
            "stop": list(stop),
            "models": {model.name: _model_settings(model) for model in models},
            "tasks": {name: _task_settings(asked, files[name]) for name, asked in self._tasks.items()},
        }
        self._most = max(asked.max_tokens for asked in self._tasks.values())
        self._pace, self._n_new, self._n_tokens = Pace(), 0, 0
        self._lost: list[int] = []
        self._began = time.monotonic()

    def prepare(self, store: Store[Response]) -> None:
        """Note the questions and the wanted responses, against which a report counts."""
        known = read_questions(store.folder)
        path = store.folder / QUESTIONS
        if known.left_out:
            raise RunError(f"{path} is damaged: {known.left_out} Choose another --out")
        for name, asked in self._tasks.items():
            questions = asked.questions.values()
            changed = [one.id for one in questions if known.by_key.setdefault(one.key, one) != one]
            if changed:
                named = ", ".join(changed[:_SHOWN]) + ", …" * (len(changed) > _SHOWN)
                raise RunError(
                    f"question{'s' * (len(changed) > 1)} {named} of {name}: {path} has another text or "
                    "answer; add questions at the end of the file, or choose another --out"
                )
        lines = b"".join(map(to_line, known.by_key.values()))
        grids = store.manifest.get("asked", [])
        store.note(
            questions_sha256=hashlib.sha256(lines).hexdigest(),
            asked=grids if self._grid in grids else [*grids, self._grid],
        )
        store.keep(QUESTIONS, lines)
        for name, asked in self._tasks.items():
            n = sum(question.gold != "" for question in asked.questions.values())
            if n and self._n_comparisons:
                print(f"{name}: {what_can_be_found(n, self._n_comparisons)}")

    @classmethod
    def recorded(cls, folder: Path, manifest: Mapping[str, Any]) -> Rows[Response]:
        return read_responses(folder, manifest)

    def plan(self) -> Sequence[ResponseKey]:
        return list(self._wanted)

    def measure(self, keys: Sequence[ResponseKey], store: Store[Response]) -> Generator[Response, None, None]:
        self._began = time.monotonic()
        for model in self._models:
            left = [self._wanted[key] for key in keys if key.model == model.name]
            if not left:
                continue
            with closing(self._start(self._answerer(model))) as self._answering:
                if self.interrupted:
                    return
                for found in self._answering.answer(left):
                    if isinstance(found, Response):
                        self._note(found)
                        yield found
                    else:
                        self._begin_session(model.name, found, store)
                        self._pace = Pace()

    def _note(self, response: Response) -> None:
        """Count a response."""
        self._n_new += 1
        self._n_tokens += response.n_tokens
        self._pace.finished.append(response.n_tokens)

    def rehearse(self, folder: Path) -> Iterator[str]:
        """Yield what is missing in a folder, the first prompt, and how long the responses would take."""
        there = self.recorded(folder, read_manifest(folder)).by_key
        missing = [wanted for key, wanted in self._wanted.items() if key not in there]
        if missing:
            first = missing[0]
            for message in self._tasks[first.task].messages(first.question):
                yield f"[{message['role']}]\n{message['content']}\n"
        yield f"{len(missing):,} of {count(len(self._wanted), 'response')} missing in {folder}."
        for model in self._models:
            left = [one for one in missing if one.model == model.name]
            if left and isinstance(model, ModelFile):
                yield f"{count(len(left), 'response')} with {model.name}: {self._rehearsed(model, left)}."

    def _rehearsed(self, model: ModelFile, wanted: Sequence[Wanted]) -> str:
        """Generate for some seconds, and say how long the wanted responses would take."""
        self.interrupted, self._lost = False, []
        with closing(self._start(self._answerer(model))) as self._answering:
            timer = threading.Timer(_REHEARSAL_SECONDS, self.interrupt)
            with on_interrupt(self.interrupt):
                for found in self._answering.answer(wanted):
                    if isinstance(found, Response):
                        self._note(found)
                    elif timer.ident is None:  # the first that is ready: a thread starts once
                        self._pace = Pace()
                        timer.start()
            timer.cancel()
        n_left = len(wanted) - len(self._pace.finished)
        seconds = self._pace.seconds_left(self._lost, n_left, self._most)
        if seconds is not None:
            return f"about {duration(seconds)}"
        speed = self._pace.speed(self._lost)
        return f"at most {duration(len(wanted) * self._most / speed)}" if speed else "no token in 20 seconds"

    def _answerer(self, model: "ModelFile | AddressAnswerer") -> Answerer:
        if not isinstance(model, ModelFile):
            return model
        # its name on any machine: an alias if models.txt has its SHA-256, or else a path
        return self._of_file(model.name if model.sha256 else str(model.path))

    def _begin_session(self, model: str, session: Prepared, store: Store[Response]) -> None:
        """Record a session, and warn once about a model that may not end its responses."""
        if session.template_sha256:
            store.agree({"models": {model: {"template_sha256": session.template_sha256}}}, learned=True)
        store.begin_session(model=model, **session.environment)
        if session.template_sha256 == NO_TEMPLATE and model not in self._ending:
            log.warning(
                "%s may not end its responses, like base models, and responses cut off by the token limit "
                "count as wrong: show it examples with --shots 4, or end its responses with --stop TEXT",
                model,
            )
            self._ending.add(model)

    def interrupt(self) -> None:
        super().interrupt()
        self._lost = self._unfinished()
        if self._answering:
            self._answering.interrupt()

    def _unfinished(self) -> list[int]:
        return self._answering.unfinished() if self._answering else []

    def status(self) -> str:
        unfinished = self._unfinished()
        n_tokens = self._n_tokens + sum(unfinished)
        return f"{count(n_tokens, 'token')}, {self._pace.speed(unfinished):.0f} tokens/s"

    def seconds_left(self, n_new: int, n_left: int, seconds: float) -> float | None:  # noqa: ARG002
        return self._pace.seconds_left(self._unfinished(), n_left, self._most)

    @property
    def lost(self) -> str:
        if not self._lost:
            return ""
        n = count(len(self._lost), "unfinished response")
        return f"Lost: {n} with {count(sum(self._lost), 'token')}; a smaller --parallel N loses less."

    @property
    def _seconds(self) -> float:
        return max(1e-3, time.monotonic() - self._began)

    def conclude(self, results: Results) -> None:
        """Say what was measured; `mink-eval report` reports on it."""
        reasons = [row.finish_reason for row in results.rows.by_key.values()]
        for reason, what in (("overflow", "did not fit"), ("refused", "were refused by the server")):
            if n := reasons.count(reason):
                print(f"{count(n, 'prompt')} {what}: the empty responses count as wrong.")
        if self._n_new:
            speed = f"{self._n_tokens / self._seconds:.1f} tokens/s"
            took = f"{duration(self._seconds)} ({speed})"
            print(f"{count(self._n_new, 'response')}, {count(self._n_tokens, 'token')} in {took}.")
        folder = str(results.folder)
        quoted = list2cmdline([folder]) if os.name == "nt" else shlex.quote(folder)
        there = count(len(self._wanted), "response")
        print(f"{there} in {folder}, none missing. Next: mink-eval report {quoted}")

    @staticmethod
    def report(results: Results) -> "Report":
        from mink_local.evals.run.report import run_report  # a run need not wait for its libraries

        return run_report(rescore(read_run(results.folder)), results.against)


def _model_settings(model: "ModelFile | AddressAnswerer") -> Mapping[str, Any]:
    if isinstance(model, ModelFile):
        return {"path": str(model.path), "sha256": file_sha256(model.path)}
    return model.facts


def _task_settings(asked: AskedTask, file: Path) -> dict[str, Any]:
    shots = json.dumps(asked.shots).encode()
    return {
        "data": str(file),
        "data_sha256": file_sha256(file),
        "max_tokens": asked.max_tokens,
        "reasoning_budget": asked.reasoning_budget,
        "instruction": asked.task.given_instruction,
        "system": asked.system or None,
        "shots": len(asked.shots),
        "shots_sha256": hashlib.sha256(shots).hexdigest() if asked.shots else None,
        **({"rule": asked.task.rule} if isinstance(asked.task, OwnTask) else {}),
    }
