"""`mink-eval run`: generate the responses that a run's folder lacks."""

import hashlib
import json
import logging
import os
import shlex
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from statistics import fmean
from subprocess import list2cmdline
from typing import TYPE_CHECKING, Any

from msgspec import structs

from mink_local.errors import GenerationError, RunError
from mink_local.evals.answering import Answered, Answerer, ModelSession, file_sha256
from mink_local.evals.measurement import Measurement, Results, duration
from mink_local.evals.run.questions import AskedTask, ask, fetch, locate
from mink_local.evals.run.records import (
    QUESTIONS,
    RECORDS,
    Response,
    ResponseKey,
    Wanted,
    methods,
    prompt_sha256,
    read_questions,
    read_responses,
    read_run,
    scored,
    seed_of,
    with_verdicts,
)
from mink_local.evals.settings import SamplerSetting, sampling_of
from mink_local.evals.stats import what_can_be_found
from mink_local.evals.store import Rows, Store, read_manifest, to_line
from mink_local.evals.tables import count
from mink_local.evals.tasks.base import Task
from mink_local.evals.tasks.own import OwnTask
from mink_local.generation.request import EndLoops, Request, SamplingParams
from mink_local.samplers import Sampler

if TYPE_CHECKING:
    from mink_local.evals.report.report import Report

_SHOWN = 10  # changed questions named in a message

log = logging.getLogger("mink_local")


class Run(Measurement[Response]):
    """The responses of models to tasks' questions.

    Args:
        models: What answers; each is closed once it has.
        samplers: Samplers, each run at every temperature.
        settings: Samplers that are run at a temperature of their own.
        repeats: Number of responses per question, sampler and temperature.
        data: Files with questions, by task, that replace a task's own.
        shots_from: Files that provide the examples, by task; see `ask`, also for the task options.
        max_tokens: Maximum response length in tokens; None uses the task's limit.
        reasoning_budget: Maximum length of the reasoning in tokens; None for no limit.
        end_loops: What ends when it repeats itself.
        instruction: The end of every prompt, or all of it, in place of the tasks' own; see `prompt_of`.
        system: The system message; empty for none.
        ctx: Maximum tokens of prompt plus response; None uses the model's training context.
        greedy: Whether to always run greedy as the baseline.
    """

    measures, noun, row_type, file = "run", "responses", Response, RECORDS

    def __init__(
        self,
        tasks: Sequence[Task],
        models: Sequence[Answerer],
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
        end_loops: EndLoops = "none",
        instruction: str | None = None,
        system: str = "",
        ctx: int | None = None,
        greedy: bool = True,
        settings: Sequence[SamplerSetting] = (),
    ) -> None:
        tasks = [replace(task, given_instruction=instruction) for task in tasks]
        files = {task.name: locate(task, data.get(task.name)) for task in tasks}
        examples = {  # the user's own data has no other split
            task.name: fetch(task.examples, f"{task.name}-examples")
            for task in tasks
            if shots and task.examples and task.name not in {**data, **shots_from}
        }
        self._tasks = {
            task.name: ask(
                task,
                files[task.name],
                seed=seed,
                shots=shots,
                shots_from={**examples, **shots_from}.get(task.name),
                limit=limit,
                max_tokens=max_tokens,
                system=system,
            )
            for task in tasks
        }
        for remark in (remark for asked in self._tasks.values() for remark in asked.remarks):
            log.warning(remark)
        for model in models:  # find a damaged file now, not after hours with another model
            model.check([*samplers, *(one.sampler for one in settings)], reasoning_budget, end_loops)
        self._models, self._seed, self._repeats = models, seed, repeats
        self._params: dict[str, Any] = {
            "stop": list(stop),
            "reasoning_budget": reasoning_budget,
            "end_loops": end_loops,
        }
        every = [methods(samplers, temperatures, repeats, greedy)]
        every += (methods([sampler], [t], repeats, greedy) for sampler, t in settings)
        wanted = [*dict.fromkeys(method for some in every for method in some)]
        responses = (
            Wanted(ResponseKey(model.name, task, str(sampler), t, repeat, question.id), sampler, question)
            for model, (task, asked) in product(models, self._tasks.items())
            for question, (sampler, t, repeat) in product(asked.questions.values(), wanted)
        )
        self._wanted = {one.key: one for one in responses}
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
            **({"examples": _sources(tasks, examples, shots_from)} if shots else {}),
            **({"settings": [one.as_text for one in settings]} if settings else {}),
        }
        self.settings = {
            "seed": seed,
            "ctx": ctx,
            "stop": list(stop),
            "end_loops": None if end_loops == "none" else end_loops,
            "models": {model.name: model.facts for model in models},
            "tasks": {
                name: _task_settings(asked, files[name], reasoning_budget)
                for name, asked in self._tasks.items()
            },
        }
        self._lengths: list[int] = []  # of the new responses, in tokens
        self._began = time.monotonic()  # until the first model is loaded; then, when it was

    def prepare(self, store: Store[Response]) -> None:
        """Note the questions and the wanted responses, against which a report counts."""
        known = read_questions(store.folder)
        path = store.folder / QUESTIONS
        if known.left_out:
            raise RunError(f"{path} is damaged: {known.left_out} Choose another --out")
        for name, asked in self._tasks.items():
            there = known.by_key
            changed = [
                question.id
                for question in asked.questions.values()
                if structs.replace(there.get(question.key, question), category=question.category) != question
            ]
            if changed:
                named = ", ".join(changed[:_SHOWN]) + ", …" * (len(changed) > _SHOWN)
                raise RunError(
                    f"question{'s' * (len(changed) > 1)} {named} of {name}: {path} has another text or "
                    "answer; add questions at the end of the file, or choose another --out"
                )
            there |= {question.key: question for question in asked.questions.values()}
        store.keep(QUESTIONS, b"".join(map(to_line, known.by_key.values())))
        grids = store.manifest.get("asked", [])
        store.note(asked=grids if self._grid in grids else [*grids, self._grid])
        for name, asked in self._tasks.items():
            n = sum(question.gold != "" for question in asked.questions.values())
            if n and self._n_comparisons:
                found = what_can_be_found(n, self._n_comparisons, repeats=self._repeats)
                print(f"{name}: {found}")

    @classmethod
    def recorded(cls, folder: Path, manifest: Mapping[str, Any]) -> Rows[Response]:
        return read_responses(folder, manifest)

    def plan(self) -> Sequence[ResponseKey]:
        return list(self._wanted)

    def measure(self, keys: Sequence[ResponseKey], store: Store[Response]) -> Generator[Response, None, None]:
        for model in self._models:
            left = [self._wanted[key] for key in keys if key.model == model.name]
            with closing(model):
                for found in self._responses(model, left):
                    if isinstance(found, Response):
                        yield found
                    else:
                        found.record(store, "model", model.name)

    def _responses(self, model: Answerer, wanted: Sequence[Wanted]) -> Iterator[Response | ModelSession]:
        """Yield a model's responses in order of completion, and every new session before its responses.

        Generation continues while a response is written. Responses wanted to a question are
        consecutive, so that its prompt is evaluated once.
        """
        for task, group in groupby(wanted, lambda one: one.key.task):
            if model.interrupted:
                return
            members = list(group)
            questions = self._tasks[task].questions.values()
            room = (self._request(members[0]._replace(question=question)) for question in questions)
            with closing(model.answers(list(map(self._request, members)), room)) as answers:
                for answer in answers:
                    if isinstance(answer, ModelSession):
                        if not self._lengths:
                            self._began = time.monotonic()
                        yield answer
                    else:
                        response = self._response(members[answer.index], answer)
                        self._lengths.append(response.n_tokens or 0)
                        yield response

    def _request(self, wanted: Wanted) -> Request:
        asked = self._tasks[wanted.key.task]
        params = SamplingParams(
            **sampling_of(wanted.sampler),
            temperature=wanted.key.temperature,
            max_tokens=asked.max_tokens,
            seed=self._seed_of(wanted),
            **self._params,
        )
        return Request(asked.messages(wanted.question), params)

    def _seed_of(self, wanted: Wanted) -> int:
        return seed_of(self._seed, *wanted.question.key, wanted.key.repeat)

    def _response(self, wanted: Wanted, answer: Answered) -> Response:
        """Return the response, with the verdict of a user's function.

        Raises GenerationError without an answer, and ScorerError if the function fails.
        """
        question = wanted.question
        if answer.finish_reason == "error":
            where = f"question {question.id} of {wanted.key.task} with {wanted.key.model}"
            raise GenerationError(f"{where}: {answer.error}")
        response = Response(
            **vars(wanted.key),
            order=wanted.sampler.order,
            seed=self._seed_of(wanted),
            prompt_sha256=prompt_sha256(question.prompt),
            prompt_tokens=answer.prompt_tokens,
            response=answer.text,
            n_tokens=answer.n_tokens,
            n_reasoning=answer.n_reasoning,
            finish_reason=answer.finish_reason,
            k=list(answer.k),
            thoughts_cut=answer.reasoning_cut,
            seconds=round(answer.seconds, 3),
        )
        task = self._tasks[wanted.key.task].task
        return with_verdicts(response, question, task) if task.scorer_of(question).is_own else response

    def preview(self, folder: Path) -> Iterator[str]:
        """Yield the first prompt of what is missing in a folder, and how much that is."""
        there = self.recorded(folder, read_manifest(folder)).by_key
        missing = [wanted for key, wanted in self._wanted.items() if key not in there]
        if missing:
            first = missing[0]
            for message in self._tasks[first.key.task].messages(first.question):
                yield f"[{message['role']}]\n{message['content']}\n"
        yield f"{len(missing):,} of {count(len(self._wanted), 'response')} missing in {folder}."

    def interrupt(self) -> None:
        super().interrupt()
        for model in self._models:
            model.interrupt()

    def _unfinished(self) -> list[int]:
        return [length for model in self._models for length in model.unfinished()]

    def status(self) -> str:
        unfinished = self._unfinished()
        n_tokens = sum(self._lengths) + sum(unfinished)
        return f"{count(n_tokens, 'token')}, {self._speed(unfinished):.0f} tokens/s"

    def _speed(self, unfinished: Sequence[int]) -> float:
        """Return the tokens per second since the first model was loaded."""
        return (sum(self._lengths) + sum(unfinished)) / max(1e-3, time.monotonic() - self._began)

    def seconds_left(self, n_new: int, n_left: int, seconds: float) -> float | None:
        """Return the time for as many tokens as the responses so far have on average."""
        unfinished = self._unfinished()
        speed = self._speed(unfinished)
        if not (self._lengths and speed):
            return super().seconds_left(n_new, n_left, seconds)
        return max(0.0, n_left * fmean(self._lengths) - sum(unfinished)) / speed

    def conclude(self, results: Results) -> None:
        """Say what was measured; `mink-eval report` reports on it."""
        reasons = [row.finish_reason for row in results.rows.by_key.values()]
        for reason, what in (("overflow", "did not fit"), ("refused", "were refused by the server")):
            if n := reasons.count(reason):
                print(f"{count(n, 'prompt')} {what}: the empty responses count as wrong.")
        if n := len(self._lengths):
            seconds, n_tokens = time.monotonic() - self._began, sum(self._lengths)
            took = f"{duration(seconds)} ({n_tokens / max(1e-3, seconds):.1f} tokens/s)"
            print(f"{count(n, 'response')}, {count(n_tokens, 'token')} in {took}.")
        folder = str(results.folder)
        quoted = list2cmdline([folder]) if os.name == "nt" else shlex.quote(folder)
        there = count(len(self._wanted), "response")
        print(f"{there} in {folder}, none missing. Next: mink-eval report {quoted}")

    @staticmethod
    def report(results: Results) -> "Report":
        from mink_local.evals.run.report import run_report  # a run need not wait for its libraries

        return run_report(scored(read_run(results.folder), results.scorer), results.against)


def _sources(
    tasks: Sequence[Task], downloaded: Mapping[str, Path], given: Mapping[str, Path]
) -> dict[str, str]:
    """Return where the examples of each task come from."""
    found = {task.name: "its first questions, which are not asked" for task in tasks}
    found |= {name: path.name for name, path in given.items()}
    return found | {
        task.name: task.examples.url for task in tasks if task.examples and task.name in downloaded
    }


def _task_settings(asked: AskedTask, file: Path, reasoning_budget: int | None) -> dict[str, Any]:
    shots = json.dumps(asked.shots).encode()
    return {
        "data": str(file),
        "data_sha256": file_sha256(file),
        "max_tokens": asked.max_tokens,
        "reasoning_budget": reasoning_budget,
        "instruction": asked.task.given_instruction,
        "system": asked.system or None,
        "shots": len(asked.shots),
        "shots_sha256": hashlib.sha256(shots).hexdigest() if asked.shots else None,
        **({"rule": asked.task.rule} if isinstance(asked.task, OwnTask) else {}),
    }
