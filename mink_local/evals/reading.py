"""What a run left in its folder: the questions, and one response a line, however the run ended."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import MinkError
from mink_local.evals.tasks.base import Question, Verdict

QUESTIONS = "questions.jsonl"
_T = TypeVar("_T")


class ReportError(MinkError):
    """A folder holds no run to report on, or the report cannot be written."""


@dataclass(frozen=True)
class Response:
    """One record. `k`: candidate-set sizes, int64 (steps,). `order`: None where the cut does not move with
    temperature. `finish_reason`: stop, length (the token limit), interrupted, or overflow (the prompt did
    not fit the context)."""

    model: str
    task: str
    sampler: str
    temperature: float
    order: str | None
    repeat: int
    question_id: str
    text: str
    n_tokens: int
    finish_reason: str
    k: NDArray[np.int64]
    strict: Verdict
    flexible: Verdict

    @property
    def key(self) -> tuple[object, ...]:
        """What no two responses of a run have in common."""
        return (self.model, self.task, self.sampler, self.temperature, self.repeat, self.question_id)


@dataclass
class Run:
    """`problems`: a sentence for every line that was left out, with its file and number."""

    questions: dict[tuple[str, str], Question] = field(default_factory=dict)  # by task and id
    responses: list[Response] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_run(folder: Path) -> Run:
    """The questions and responses in `folder`. A line that cannot be read is left out and named.

    Responses are in every `*.jsonl` file that has a "response" in it. Of two for the same question, cell and
    repeat the first counts. Raises ReportError where there is no run or no response.
    """
    if not folder.is_dir():
        raise ReportError(f"there is no folder {folder}")
    if not (folder / QUESTIONS).exists():
        raise ReportError(f"{folder} holds no {QUESTIONS}: is it the --out of a mink-eval run?")
    run = Run()
    for _, (task, question) in _read(folder / QUESTIONS, _question, run.problems):
        run.questions[task, question.id] = question
    seen = set()
    for path in sorted(folder.glob("*.jsonl")):
        if path.name == QUESTIONS or b'"response"' not in path.read_bytes():
            continue
        for number, response in _read(path, _response, run.problems):
            if response.key in seen:
                run.problems.append(_at(path, number, "its response was there already"))
            elif (response.task, response.question_id) not in run.questions:
                asked = f"question {response.question_id} of {response.task}"
                run.problems.append(_at(path, number, f"{asked} is not in {QUESTIONS}"))
            else:
                seen.add(response.key)
                run.responses.append(response)
    if not run.responses:
        first = f" ({run.problems[0]})" if run.problems else ""
        raise ReportError(f"{folder} holds no responses{first}: run mink-eval run … --out {folder}")
    return run


def _read(path: Path, convert: Callable[[Any], _T], problems: list[str]) -> Iterator[tuple[int, _T]]:
    """The lines of a file that `convert` takes, with their numbers."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    lines = content.split(b"\n")  # and not splitlines: U+2028 may stand inside a JSON string
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, convert(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            cut_short = number == len(lines)
            problems.append(_at(path, number, "cut short" if cut_short else "not JSON"))
        except ValueError as error:
            problems.append(_at(path, number, str(error)))


def _at(path: Path, number: int, what: str) -> str:
    return f"{path.name}, line {number}: {what}"


def _question(record: Any) -> tuple[str, Question]:
    choices = _take(record, "choices", list)
    question = Question(
        _take(record, "question_id", str),
        _take(record, "prompt", str),
        _take(record, "gold", str),
        tuple(map(str, choices)),
        tuple(_take(record, "order", list)),
    )
    return _take(record, "task", str), question


def _response(record: Any) -> Response:
    return Response(
        model=_take(record, "model", str),
        task=_take(record, "task", str),
        sampler=_take(record, "sampler", str),
        temperature=_temperature(record),
        order=_take(record, "order", str, type(None)),
        repeat=_take(record, "repeat", int),
        question_id=_take(record, "question_id", str),
        text=_take(record, "response", str),
        n_tokens=_take(record, "n_tokens", int),
        finish_reason=_take(record, "finish_reason", str),
        k=_sizes(record),
        strict=_verdict(record, "strict"),
        flexible=_verdict(record, "flexible"),
    )


def _take(record: Any, name: str, *kinds: type) -> Any:
    """A field of one of these types. Raises ValueError that says what is wrong with it."""
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if name not in record:
        raise ValueError(f'no "{name}"')
    if type(record[name]) not in kinds:
        raise ValueError(f'"{name}" cannot be {json.dumps(record[name])[:40]}')
    return record[name]


def _temperature(record: Any) -> float:
    value = float(_take(record, "temperature", float, int))
    if not 0 <= value < math.inf:
        raise ValueError(f'"temperature" cannot be {value}')
    return value


def _sizes(record: Any) -> NDArray[np.int64]:
    sizes = _take(record, "k", list)
    if not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        raise ValueError('"k" is not a list of whole numbers above 0')
    return np.array(sizes, np.int64)


def _verdict(record: Any, name: str) -> Verdict:
    verdict = _take(record, name, dict)
    return Verdict(_take(verdict, "answer", str, type(None)), _take(verdict, "correct", bool))
