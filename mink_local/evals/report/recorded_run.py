"""The questions and responses that a run left in its folder, however the run ended."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mink_local.errors import ReportError, RunError
from mink_local.evals.run.folder import MANIFEST
from mink_local.evals.run.records import (
    QUESTIONS,
    Complaint,
    RecordedQuestion,
    Response,
    read_lines,
    record_files,
)
from mink_local.evals.tasks.base import Question

T = TypeVar("T")


@dataclass
class RecordedRun:
    """The questions and responses of a run, and what they were made with.

    `made_with` has the values of the manifest by the path of their keys, such as "versions mink-local";
    `problems` has a sentence for every line that was left out, with its file and number.
    """

    questions: dict[tuple[str, str], Question] = field(default_factory=dict)
    responses: list[Response] = field(default_factory=list)
    made_with: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_run(folder: Path) -> RecordedRun:
    """Return the questions and responses in a folder, without the lines that cannot be read.

    If two responses have the same key, the first counts. Raises ReportError if the folder holds no run or no
    response, or a file cannot be read.
    """
    if not (folder / QUESTIONS).exists():
        raise ReportError(f"{folder} holds no {QUESTIONS}: is it the --out of a mink-eval run?")
    run = RecordedRun(made_with=_made_with(folder / MANIFEST))
    try:
        for _, recorded in _readable(folder / QUESTIONS, RecordedQuestion, run.problems):
            run.questions[recorded.task, recorded.question_id] = recorded.question
        for path in record_files(folder):
            _add_responses(run, path)
    except RunError as error:
        raise ReportError(str(error)) from None
    if not run.responses:
        first = f" ({run.problems[0]})" if run.problems else ""
        raise ReportError(f"{folder} holds no responses{first}: run mink-eval run … --out {folder}")
    return run


def _add_responses(run: RecordedRun, path: Path) -> None:
    seen = {response.key for response in run.responses}
    for line, response in _readable(path, Response, run.problems):
        if response.key in seen:
            run.problems.append(f"{line}: an earlier line has its response")
        elif (response.task, response.question_id) not in run.questions:
            question = f"question {response.question_id} of {response.task}"
            run.problems.append(f"{line}: {question} is not in {QUESTIONS}")
        else:
            seen.add(response.key)
            run.responses.append(response)


def _readable(path: Path, kind: type[T], problems: list[str]) -> Iterator[tuple[str, T]]:
    """Yield the place and content of every line that can be parsed; add the others to the problems."""
    for number, content in read_lines(path, kind):
        line = f"{path.name}, line {number}"
        if isinstance(content, Complaint):
            problems.append(f"{line}: {content}")
        else:
            yield line, content


def _made_with(manifest: Path) -> dict[str, str]:
    """Return the manifest's values; none if it cannot be read, since the responses do not depend on it."""
    try:
        return dict(_flat(json.loads(manifest.read_bytes())))
    except (OSError, ValueError, RecursionError):
        return {}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value, start=1):
            if key not in ("path", "data"):  # folders of this machine: a report is for showing to others
                yield from _flat(part, f"{name} {key}".strip())
    else:
        yield name, str(value)
