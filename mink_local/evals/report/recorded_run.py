"""The questions and responses that a run left in its folder, however the run ended."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
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
from mink_local.evals.store import Rows, as_run_error, public, read_manifest
from mink_local.evals.tables import count
from mink_local.evals.tasks.base import Question


@dataclass
class RecordedRun:
    """The questions and responses of a run.

    Attributes:
        questions: By task and id.
        manifest: Settings of the run, without the folders of this machine.
        asked: How many responses the commands of the run wanted, by model and task, if the manifest says so.
        problems: A sentence for every line that was left out, with its file and number.
        remarks: What else the reader must know.
    """

    questions: dict[tuple[str, str], Question] = field(default_factory=dict)
    responses: list[Response] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    asked: dict[tuple[str, str], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def left_out(self) -> str | None:
        """A sentence about the lines that were left out; None if there are none."""
        return Rows(problems=self.problems).left_out


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
    remarks = list(_remarks_on_questions(path, manifest))
    problems = [*questions.problems, *found.problems]
    if not found.by_key and problems:
        raise ReportError(f"{folder} holds no responses that can be used: {problems[0]}")
    if not found.by_key:
        raise ReportError(f"{folder} holds no responses yet: type the mink-eval run command again")
    remarks += [
        f"{count(n, 'response')} from {name}." for name, n in found.files.items() if n and name != RECORDS
    ]
    return RecordedRun(
        {(one.task, one.question_id): one.question for one in questions.by_key.values()},
        list(found.by_key.values()),
        public(manifest),
        _asked(manifest),
        problems,
        remarks,
    )


def _remarks_on_questions(path: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence if the file is not as the run wrote it; manifests of old runs do not tell."""
    with as_run_error(path, "read"):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    if manifest.get("questions_sha256", sha256) != sha256:
        yield f"{path.name} was changed after the run wrote it: prompts or gold answers may be others."


class _Grid(msgspec.Struct):
    """What one command of a run wanted."""

    models: list[str]
    samplers: list[str]
    temperatures: list[float]
    repeats: int
    questions: dict[str, int]
    greedy: bool = True


def _asked(manifest: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return how many responses the commands of a run wanted together, by model and task.

    Empty if the manifest does not say, as those of earlier versions.
    """
    try:
        grids = msgspec.convert(manifest.get("asked", []), list[_Grid])
    except msgspec.ValidationError:
        return {}
    questions: dict[tuple[Any, ...], int] = {}  # by model, task, sampler, temperature and repeat
    for grid in grids:
        methods = list(product(grid.samplers, grid.temperatures, range(grid.repeats)))
        sampled = [method for method in methods if method[0] != "greedy" and method[1]]
        once = [("greedy", 0.0, 0)] if grid.greedy or len(sampled) < len(methods) else []
        for model, (task, n), method in product(grid.models, grid.questions.items(), [*once, *sampled]):
            key = (model, task, *method)
            questions[key] = max(n, questions.get(key, 0))  # a limit takes the first ones
    totals: Counter[tuple[str, str]] = Counter()
    for (model, task, *_), n in questions.items():
        totals[model, task] += n
    return dict(totals)
