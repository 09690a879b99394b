"""The questions and responses that a run left in its folder, however the run ended."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from mink_local.errors import ReportError, RunError
from mink_local.evals.report.format import count
from mink_local.evals.run.folder import MANIFEST, RECORDS
from mink_local.evals.run.records import (
    QUESTIONS,
    Complaint,
    RecordedQuestion,
    Response,
    as_run_error,
    read_lines,
    record_files,
)
from mink_local.evals.run.settings import RunSettings
from mink_local.evals.tasks.base import Question

T = TypeVar("T")


@dataclass
class RecordedRun:
    """The questions and responses of a run, and what they were made with.

    `manifest` has what they were made with, without the folders of this machine.
    `asked` says how many responses were asked for, by model and task, if the manifest does. `problems` has a
    sentence for every line that was left out, with its file and number, and `remarks` has those on what else
    the reader must know.
    """

    questions: dict[tuple[str, str], Question] = field(default_factory=dict)
    responses: list[Response] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    asked: dict[tuple[str, str], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def made_with(self) -> dict[str, str]:
        """The values of the manifest by the path of their keys, such as "versions mink-local"."""
        return dict(_flat(self.manifest))


def read_run(folder: Path) -> RecordedRun:
    """Return the questions and responses in a folder, without the lines that cannot be used.

    A line is left out if it cannot be read, or if its prompt, seed, model or length shows that it is of
    another run. If two responses have the same key, the first counts. Raises ReportError if the folder holds
    no run or no response, or a file cannot be read.
    """
    if not (folder / QUESTIONS).exists():
        raise ReportError(f"{folder} holds no {QUESTIONS}: is it the --out of a mink-eval run?")
    manifest = _manifest(folder / MANIFEST)
    run = RecordedRun(manifest=_without_folders(manifest), asked=_asked(manifest))
    settings = RunSettings.of(manifest)
    try:
        run.remarks += _remarks_on_questions(folder / QUESTIONS, manifest)
        for _, recorded in _readable(folder / QUESTIONS, RecordedQuestion, run.problems):
            run.questions[recorded.task, recorded.question_id] = recorded.question
        for path in record_files(folder):
            n_before = len(run.responses)
            _add_responses(run, path, settings)
            if path.name != RECORDS and len(run.responses) > n_before:
                run.remarks.append(f"{count(len(run.responses) - n_before, 'response')} from {path.name}.")
    except RunError as error:
        raise ReportError(str(error)) from None
    if not run.responses:
        if run.problems:
            raise ReportError(f"{folder} holds no responses that can be used: {run.problems[0]}")
        raise ReportError(
            f"{folder} holds no responses yet: wait for the first one, or type the command mink-eval run … "
            f"--out {folder} again if it no longer runs"
        )
    return run


def _add_responses(run: RecordedRun, path: Path, settings: RunSettings | None) -> None:
    seen = {response.key for response in run.responses}
    for line, response in _readable(path, Response, run.problems):
        question = run.questions.get((response.task, response.question_id))
        if response.key in seen:
            run.problems.append(f"{line}: an earlier line has its response")
        elif question is None:
            name = f"question {response.question_id} of {response.task}"
            run.problems.append(f"{line}: {name} is not in {QUESTIONS}")
        elif response.prompt_sha256 not in ("", _sha256(question.prompt.encode("utf-8", "replace"))):
            name = f"question {response.question_id} of {response.task}"
            run.problems.append(f"{line}: {name} has another prompt in {QUESTIONS}")
        elif misfit := settings and settings.misfit(response):
            run.problems.append(f"{line}: {misfit}")
        else:
            seen.add(response.key)
            run.responses.append(response)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _remarks_on_questions(path: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence if the file is not as the run wrote it; manifests of old runs do not tell."""
    with as_run_error(path, "read"):
        sha256 = _sha256(path.read_bytes())
    if manifest.get("questions_sha256", sha256) != sha256:
        yield f"{path.name} was changed after the run wrote it: prompts or gold answers may be others."


def _readable(path: Path, kind: type[T], problems: list[str]) -> Iterator[tuple[str, T]]:
    """Yield the place and content of every line that can be parsed; add the others to the problems."""
    for number, content in read_lines(path, kind):
        line = f"{path.name}, line {number}"
        if isinstance(content, Complaint):
            problems.append(f"{line}: {content}")
        else:
            yield line, content


def _manifest(path: Path) -> Mapping[str, Any]:
    """Return the manifest; an empty one if it cannot be read, since the report can do without."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _asked(manifest: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return how many responses the commands of a run asked for together, by model and task.

    Empty if the manifest does not say, as those of earlier versions.
    """
    questions: dict[tuple[Any, ...], int] = {}  # by model, task, sampler, temperature and repeat
    try:
        for grid in manifest["asked"]:
            methods = product(grid["samplers"], grid["temperatures"], range(grid["repeats"]))
            sampled = [method for method in methods if method[0] != "greedy" and method[1]]
            tasks = product(grid["models"], grid["questions"].items(), [("greedy", 0.0, 0), *sampled])
            for model, (task, n), method in tasks:
                key = (model, task, *method)
                questions[key] = max(n, questions.get(key, 0))  # a limit takes the first ones
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    totals: Counter[tuple[str, str]] = Counter()
    for (model, task, *_), n in questions.items():
        totals[model, task] += n
    return dict(totals)


def _without_folders(value: Any) -> Any:
    """Return a part of the manifest as a report may show it to others."""
    if isinstance(value, dict):
        return {key: _without_folders(part) for key, part in value.items() if key not in ("path", "data")}
    return list(map(_without_folders, value)) if isinstance(value, list) else value


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value, start=1):
            if key != "asked":
                yield from _flat(part, f"{name} {key}".strip())
    else:
        yield name, str(value)
