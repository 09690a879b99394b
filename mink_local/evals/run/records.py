"""The files of a run as they are read: a response a line of its record files, and its questions."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mink_local.errors import RunError
from mink_local.evals.tasks.base import Question, Verdict

QUESTIONS = "questions.jsonl"

T = TypeVar("T")


class Cell(NamedTuple):
    """A place in the grid of an evaluation. The report gives one accuracy for each cell."""

    model: str
    task: str
    sampler: str
    temperature: float


class ResponseKey(NamedTuple):
    """The fields that together occur once in a run."""

    model: str
    task: str
    sampler: str
    temperature: float
    repeat: int
    question_id: str

    @property
    def cell(self) -> Cell:
        return Cell(*self[:4])


@dataclass(frozen=True)
class Response:
    """A response to a question, its verdicts, and how it was generated: one line of `records.jsonl`.

    A response to an open-ended question has no verdicts: `strict` and `flexible` are None, and null in the
    line. It is neither right nor wrong, and counts in no accuracy.

    Attributes:
        sampler: The sampler as text, `str(sampler)`.
        order: Where the sampler's temperature acts; None if its cutoff does not depend on temperature.
        repeat: From 0.
        n_tokens: Of the response, without the token that ends it.
        finish_reason: "stop", "length" (truncated) or "overflow" (the prompt did not fit the context).
        k: The number of candidates at every step, also at that of the end token: one more than `n_tokens` if
            the model ended the response.
        prompt_sha256: Of the user's message, as UTF-8.
        seconds: From the moment the request got a slot to its end.
    """

    model: str
    task: str
    sampler: str
    temperature: float
    order: str | None
    repeat: int
    question_id: str
    response: str
    n_tokens: int
    finish_reason: str
    k: list[int]
    strict: Verdict | None
    flexible: Verdict | None
    seed: int = 0
    prompt_sha256: str = ""
    prompt_tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if (self.strict is None) != (self.flexible is None):
            raise ValueError('"strict" and "flexible" must both be null, or neither')

    @property
    def open_ended(self) -> bool:
        return self.flexible is None

    @property
    def key(self) -> ResponseKey:
        return ResponseKey(*(getattr(self, name) for name in ResponseKey._fields))


@dataclass(frozen=True)
class RecordedQuestion:
    """A question of a run: one line of `questions.jsonl`, so that the report needs no data."""

    task: str
    question_id: str
    prompt: str
    gold: str
    choices: list[str]
    order: list[int]

    @classmethod
    def of(cls, task: str, question: Question) -> "RecordedQuestion":
        return cls(
            task, question.id, question.prompt, question.gold, list(question.choices), list(question.order)
        )

    @property
    def question(self) -> Question:
        return Question(self.question_id, self.prompt, self.gold, tuple(self.choices), tuple(self.order))


def to_line(record: Response | RecordedQuestion) -> bytes:
    """Return a record's line of JSON, with its end."""
    return json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n"


_NAMES = {"model", "task", "sampler", "question_id"}  # printed to a terminal and in tables
_FITS: dict[Any, Callable[[Any], bool]] = {  # a bool is not an int, in a file
    bool: lambda value: type(value) is bool,
    int: lambda value: type(value) is int and 0 <= value < 2**63,
    float: lambda value: type(value) in (int, float) and 0 <= value <= sys.float_info.max,
    str: lambda value: type(value) is str,
    str | None: lambda value: value is None or type(value) is str,
    list[int]: lambda value: type(value) is list and all(map(_FITS[int], value)),
    list[str]: lambda value: type(value) is list and all(map(_FITS[str], value)),
}


def from_json(kind: type[T], value: Any) -> T:
    """Return the dataclass that a parsed line describes; fields that have a default may be missing.

    Raises ValueError, which names the field, if one is missing or has a value of another type.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    given: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name = field.name
        if name not in value:
            if field.default is MISSING:
                raise ValueError(f'no "{name}"')
        elif field.type == Verdict | None:
            given[name] = None if value[name] is None else from_json(Verdict, value[name])
        elif _FITS[field.type](value[name]) and (name not in _NAMES or value[name].isprintable()):
            given[name] = value[name]
        else:
            raise ValueError(f'"{name}" cannot be {json.dumps(value[name])[:40]}')
    return kind(**given)


class Complaint(str):
    """The reason that a line of a file is not usable."""

    __slots__ = ()


CUT_SHORT = Complaint("cut short")  # a last line that is still being written, or whose writer was killed


def parse_line(kind: type[T], line: bytes) -> T | Complaint:
    """Return the dataclass that a line describes, or what is wrong with the line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Complaint("not JSON") if line.endswith(b"\n") else CUT_SHORT
    try:
        return from_json(kind, value)
    except ValueError as error:
        return Complaint(error)


def read_lines(path: Path, kind: type[T]) -> Iterator[tuple[int, T | Complaint]]:
    """Yield number, from 1, and content of every line that is not blank. Raises RunError."""
    with as_run_error(path, "read"), path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):  # only \n ends a line: JSON text may hold U+2028
            if line.strip():
                yield number, parse_line(kind, line)


def record_files(folder: Path) -> list[Path]:
    """Return every `*.jsonl` file of a folder that has a "response" in it, such as another machine's."""
    found = []
    for path in sorted(set(folder.glob("*.jsonl")) - {folder / QUESTIONS}):
        with as_run_error(path, "read"), path.open("rb") as stream:
            if any(b'"response"' in line for line in stream):
                found.append(path)
    return found


def read_responses(folder: Path, misfit: Callable[[Response], object] | None = None) -> Iterator[Response]:
    """Yield the responses in all record files of a folder, each key once, except those that `misfit`.

    A last line that is cut short is skipped. Raises RunError, which names file and line, if a file cannot be
    read or a line is not a record.
    """
    seen = set()
    for path in record_files(folder):
        for number, item in read_lines(path, Response):
            if item is CUT_SHORT:
                continue
            if isinstance(item, Complaint):
                raise RunError(
                    f"line {number} of {path} is not a record ({item}): "
                    "delete the line to have its response generated again"
                )
            if item.key not in seen and not (misfit and misfit(item)):
                seen.add(item.key)
                yield item


@contextmanager
def as_run_error(path: Path, done: str = "written") -> Iterator[None]:
    """Raise what the operating system refuses as a RunError, in a sentence that names the file."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be {done}: {error.strerror}. "
            "The records are kept: the same command continues the run"
        ) from None
