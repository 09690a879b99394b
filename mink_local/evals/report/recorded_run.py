"""The questions and responses that a run left in its folder, however the run ended."""

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from mink_local.errors import ReportError
from mink_local.evals.run.records import (
    QUESTIONS,
    RECORDS,
    RecordCheck,
    RecordedQuestion,
    Response,
    record_files,
)
from mink_local.evals.store import Rows, public, read_manifest
from mink_local.evals.tables import count, listed
from mink_local.evals.tasks import recorded_task
from mink_local.evals.tasks.base import Question, Task, score
from mink_local.files import sha256_of

SCORINGS = ("flexible", "strict")
CHUNK = 500  # responses to score in one go; fewer are not worth another process


@dataclass
class RecordedRun:
    """The questions and responses of a run.

    Attributes:
        questions: By task and id.
        manifest: Settings of the run, without the folders of this machine; empty if it is damaged.
        problems: A sentence for every line that was left out, with its file and number.
        remarks: What else the reader must know.
    """

    questions: dict[tuple[str, str], Question]
    responses: list[Response]
    manifest: dict[str, Any]
    problems: list[str]
    remarks: list[str]

    @property
    def notes(self) -> list[str]:
        """What a reader must know before the numbers."""
        left_out = Rows(problems=self.problems).left_out
        return [left_out, *self.remarks] if left_out else self.remarks


class _Manifest(msgspec.Struct):
    """What the report reads in a manifest."""

    models: dict[str, Any] = {}
    tasks: dict[str, dict[str, Any]] = {}
    sessions: list[dict[str, Any]] = []


def read_run(folder: Path) -> RecordedRun:
    """Return the questions and responses in a folder, without the lines that cannot be used.

    A line is left out if it cannot be read, or if its prompt, seed, model or length shows that it is of
    another run. If two responses have the same key, the first counts. Raises ReportError if the folder holds
    no run or no response, RunError if a file cannot be read.
    """
    path = folder / QUESTIONS
    if not path.exists():
        raise ReportError(f"{folder} holds no {QUESTIONS}: is it the --out of a mink-eval run?")
    manifest = read_manifest(folder)
    questions: Rows[RecordedQuestion] = Rows()
    found: Rows[Response] = Rows()
    questions.read(path, RecordedQuestion, lambda _: None)
    check = RecordCheck(manifest, questions.by_key.values())
    for file in record_files(folder):
        found.read(file, Response, check)
    problems = [*questions.problems, *found.problems]
    if not found.by_key and problems:
        raise ReportError(f"{folder} holds no responses that can be used: {problems[0]}")
    if not found.by_key:
        raise ReportError(f"{folder} holds no responses yet: type the mink-eval run command again")
    remarks = [
        f"{count(n, 'response')} from {name}." for name, n in found.files.items() if n and name != RECORDS
    ]
    if manifest.get("questions_sha256") not in (None, sha256_of(path)):
        remarks.append(f"{QUESTIONS} was changed after the run wrote it: its answers may be others.")
    return RecordedRun(
        {(one.task, one.question_id): one.question for one in questions.by_key.values()},
        list(found.by_key.values()),
        public(manifest) if _is_whole(manifest) else {},
        problems,
        remarks,
    )


def _is_whole(manifest: Mapping[str, Any]) -> bool:
    try:
        msgspec.convert(manifest, _Manifest)
    except msgspec.ValidationError:
        return False
    return True


def rescore(run: RecordedRun) -> RecordedRun:
    """Return the run with the verdicts of this version's tasks, and remarks on those that differ.

    It scores in several processes, because an answer of MATH500 can take long. Responses to a task that this
    version does not have keep their verdicts. The records on disk do not change.
    """
    judged = {response.task for response in run.responses if not response.open_ended}
    rules = {name: settings.get("rule") for name, settings in run.manifest.get("tasks", {}).items()}
    tasks = {name: recorded_task(name, rules.get(name)) for name in sorted(judged)}
    given = [
        (response, run.questions[response.task, response.question_id], tasks.get(response.task))
        for response in run.responses
    ]
    workers = min(-(-len(given) // CHUNK), os.cpu_count() or 1, 61)  # Windows takes at most 61
    if workers == 1:
        again = list(map(_rescore, given))
    else:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads hold
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            again = list(pool.map(_rescore, given, chunksize=CHUNK))
    remarks = [*run.remarks, *_remarks(tasks, run.responses, again)]
    return replace(run, responses=again, remarks=remarks)


def _rescore(given: tuple[Response, Question, Task | None]) -> Response:
    response, question, task = given
    if task is None or response.open_ended:
        return response
    strict, flexible = score(task, question, response.response, response.finish_reason)
    return replace(response, strict=strict, flexible=flexible)


def _remarks(
    tasks: Mapping[str, Task | None], recorded: list[Response], again: list[Response]
) -> Iterator[str]:
    """Yield which tasks this version does not have, and how many verdicts are not the recorded ones."""
    unknown = [name for name, task in tasks.items() if task is None]
    if unknown:
        yield f"This version does not have the task {listed(unknown)}: the recorded verdicts are shown."
    pairs = list(zip(recorded, again, strict=True))
    changed = {name: sum(getattr(a, name) != getattr(b, name) for a, b in pairs) for name in SCORINGS}
    if any(changed.values()):
        numbers = listed(f"{n} {scoring}" for scoring, n in changed.items())
        yield (
            f"{numbers} of {len(pairs)} recorded verdicts differ from those of this version, which are "
            "shown: another version of mink-eval gave them, or they were edited."
        )
