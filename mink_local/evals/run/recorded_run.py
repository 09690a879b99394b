"""The questions and responses in a run's folder, however the run ended."""

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
CHUNK = 500  # responses scored in one go; fewer are not worth another process


@dataclass
class RecordedRun:
    """The questions and responses of a run.

    Attributes:
        questions: Questions by task and id.
        manifest: Settings of the run, without this machine's folders; empty if damaged.
        problems: A sentence for every line that was skipped, with its file and number.
        notes: Caveats to read before the numbers.
    """

    questions: dict[tuple[str, str], Question]
    responses: list[Response]
    manifest: dict[str, Any]
    problems: list[str]
    notes: list[str]

    def first_questions(self, limit: int | None) -> set[tuple[str, str]]:
        """Return the task and id of the first questions of each task; of all without a limit."""
        by_task: dict[str, list[tuple[str, str]]] = {}
        for task, question_id in self.questions:
            by_task.setdefault(task, []).append((task, question_id))
        return {key for keys in by_task.values() for key in keys[:limit]}


def read_run(folder: Path) -> RecordedRun:
    """Return the questions and responses in a folder, skipping unusable lines.

    A line is skipped if it cannot be parsed, or if its prompt, seed, model or length shows that it belongs to
    another run. If two responses have the same key, the first counts. Raises ReportError if the folder
    contains no run or no responses, RunError if a file cannot be read.
    """
    path = folder / QUESTIONS
    if not path.exists():
        raise ReportError(f"{folder} contains no {QUESTIONS}: give the --out folder of a mink-eval run")
    manifest = read_manifest(folder)
    questions: Rows[RecordedQuestion] = Rows()
    questions.read(path, RecordedQuestion)
    found: Rows[Response] = Rows(problems=questions.problems)
    check = RecordCheck(manifest, questions.by_key.values())
    for file in record_files(folder):
        found.read(file, Response, check)
    if not found.by_key:
        why = found.problems[0] if found.problems else "repeat the mink-eval run command"
        raise ReportError(f"{folder} contains no responses: {why}")
    notes = [
        *filter(None, [found.left_out]),
        *(f"{count(n, 'response')} from {name}." for name, n in found.files.items() if n and name != RECORDS),
    ]
    if manifest.get("questions_sha256") not in (None, sha256_of(path)):
        notes.append(f"{QUESTIONS} was modified after the run: its answers may have changed.")
    return RecordedRun(
        {one.key: one.question for one in questions.by_key.values()},
        list(found.by_key.values()),
        public(manifest) if check.manifest else {},
        found.problems,
        notes,
    )


def rescore(run: RecordedRun) -> RecordedRun:
    """Return the run rescored by this version's tasks, with notes on verdicts that differ.

    Scoring uses several processes, because answers to MATH500 can take long. Responses to tasks unknown to
    this version keep their verdicts. The records on disk do not change.
    """
    judged = {response.task for response in run.responses if not response.open_ended}
    rules = {name: settings.get("rule") for name, settings in run.manifest.get("tasks", {}).items()}
    tasks = {name: recorded_task(name, rules.get(name)) for name in sorted(judged)}
    given = [
        (response, run.questions[response.task, response.question_id], tasks.get(response.task))
        for response in run.responses
    ]
    workers = min(-(-len(given) // CHUNK), os.cpu_count() or 1, 61)  # Windows allows at most 61
    if workers == 1:
        again = list(map(_rescore, given))
    else:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks held by threads
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            again = list(pool.map(_rescore, given, chunksize=CHUNK))
    return replace(run, responses=again, notes=[*run.notes, *_notes(tasks, run.responses, again)])


def _rescore(given: tuple[Response, Question, Task | None]) -> Response:
    response, question, task = given
    if task is None or response.open_ended:
        return response
    strict, flexible = score(task, question, response.response, response.finish_reason)
    return replace(response, strict=strict, flexible=flexible)


def _notes(
    tasks: Mapping[str, Task | None], recorded: list[Response], again: list[Response]
) -> Iterator[str]:
    """Yield which tasks this version does not know, and how many verdicts differ from the recorded ones."""
    unknown = [name for name, task in tasks.items() if task is None]
    if unknown:
        yield f"Task unknown to this version: {listed(unknown)}; the recorded verdicts are shown."
    pairs = list(zip(recorded, again, strict=True))
    changed = {name: sum(getattr(a, name) != getattr(b, name) for a, b in pairs) for name in SCORINGS}
    if any(changed.values()):
        numbers = listed(f"{n} {scoring}" for scoring, n in changed.items())
        yield (
            f"{numbers} of {len(pairs)} recorded verdicts differ from this version's, which are shown: they "
            "come from another version of mink-eval, or were edited."
        )
