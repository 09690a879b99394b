"""The records of a run: one response a line of `DIR/records.jsonl`, to which lines are only appended.

`RunFolder.append` hands a line to the operating system before it returns, so a run that is killed loses the
responses that were being generated and no others. Half a line, left by a kill or a full disk, is removed when
the folder is opened again.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock, Timeout

from mink_local.errors import RunError
from mink_local.evals.tasks.base import Verdict
from mink_local.files import write_atomic

RECORDS, MANIFEST, QUESTIONS = "records.jsonl", "manifest.json", "questions.jsonl"
_LOCK = ".lock"
_SYNC_SECONDS = 1.0  # of responses are lost when the power fails; a kill loses none

T = TypeVar("T")

log = logging.getLogger("mink_local")


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

    Attributes:
        sampler: The sampler as text, `str(sampler)`.
        order: Where the sampler's temperature acts; None if its cutoff does not depend on temperature.
        repeat: From 0.
        finish_reason: "stop", "length" (truncated) or "overflow" (the prompt did not fit the context).
        k: The number of candidates at every step.
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
    strict: Verdict
    flexible: Verdict
    seed: int = 0
    prompt_sha256: str = ""
    prompt_tokens: int = 0
    seconds: float = 0.0

    @property
    def key(self) -> ResponseKey:
        return ResponseKey(
            self.model, self.task, self.sampler, self.temperature, self.repeat, self.question_id
        )

    def line(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


# Reading


class Complaint(str):
    """The reason that a line of a file is not usable."""

    __slots__ = ()


CUT_SHORT = Complaint("cut short")  # a last line that is still being written, or whose writer was killed


def read_responses(folder: Path) -> Iterator[Response]:
    """Yield the responses in all record files of a folder, each key once.

    A last line that is cut short is skipped.

    Raises:
        RunError: A file cannot be read, or a line is not a record; the text names both.
    """
    seen = set()
    for path in record_files(folder):
        for number, item in read_lines(path, parse_response):
            if item is CUT_SHORT:
                continue
            if isinstance(item, Complaint):
                raise RunError(
                    f"line {number} of {path} is not a record ({item}): "
                    "delete the line to have its response generated again"
                )
            if item.key not in seen:
                seen.add(item.key)
                yield item


def record_files(folder: Path) -> list[Path]:
    """Return every `*.jsonl` file of a folder that has a "response" in it, such as another machine's."""
    paths = (path for path in sorted(folder.glob("*.jsonl")) if path.name != QUESTIONS)
    return [path for path in paths if _mentions_response(path)]


def _mentions_response(path: Path) -> bool:
    with as_run_error(path, "read"), path.open("rb") as stream:
        return any(b'"response"' in line for line in stream)


def read_lines(path: Path, parse: Callable[[Any], T]) -> Iterator[tuple[int, T | Complaint]]:
    """Yield number, from 1, and content of every line of JSON that is not blank.

    Args:
        path: A file of JSON lines.
        parse: Turns a line's value into what is yielded; raises ValueError that says what is wrong with it.

    Raises:
        RunError: The file cannot be read.
    """
    with as_run_error(path, "read"), path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):  # only \n ends a line: JSON text may hold U+2028
            if line.strip():
                yield number, _parsed(line, parse)


def _parsed(line: bytes, parse: Callable[[Any], T]) -> T | Complaint:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Complaint("not JSON") if line.endswith(b"\n") else CUT_SHORT
    try:
        return parse(value)
    except (ValueError, OverflowError) as error:
        return Complaint(error)


def parse_response(value: Any) -> Response:
    """Return the response of a parsed line. Raises ValueError that says what is wrong with it."""
    given = {**_OPTIONAL, **value} if isinstance(value, dict) else value
    return Response(
        model=take_name(given, "model"),
        task=take_name(given, "task"),
        sampler=take_name(given, "sampler"),
        temperature=_number(given, "temperature"),
        order=take(given, "order", str, type(None)),
        repeat=_count(take(given, "repeat", int), "repeat"),
        question_id=take_name(given, "question_id"),
        response=take(given, "response", str),
        n_tokens=_count(take(given, "n_tokens", int), "n_tokens"),
        finish_reason=take(given, "finish_reason", str),
        k=[_count(size, "k") for size in take(given, "k", list)],
        strict=_verdict(take(given, "strict", dict)),
        flexible=_verdict(take(given, "flexible", dict)),
        seed=take(given, "seed", int),
        prompt_sha256=take(given, "prompt_sha256", str),
        prompt_tokens=_count(take(given, "prompt_tokens", int), "prompt_tokens"),
        seconds=_number(given, "seconds"),
    )


_OPTIONAL = {"seed": 0, "prompt_sha256": "", "prompt_tokens": 0, "seconds": 0.0}


def take(record: Any, name: str, *types: type) -> Any:
    """Return a field of one of these types (a bool is not an int). Raises ValueError that names the field."""
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if name not in record:
        raise ValueError(f'no "{name}"')
    if type(record[name]) not in types:
        raise _wrong(name, record[name])
    return record[name]


def take_name(record: Any, field: str) -> str:
    """Return a field whose text can be printed to a terminal and in a table. Raises ValueError."""
    name: str = take(record, field, str)
    if not name.isprintable():
        raise _wrong(field, name)
    return name


def _number(record: Any, field: str) -> float:
    value = float(take(record, field, float, int))
    if not 0 <= value < math.inf:
        raise _wrong(field, value)
    return value


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise _wrong(name, value)
    return value


def _verdict(verdict: Any) -> Verdict:
    return Verdict(take(verdict, "answer", str, type(None)), take(verdict, "correct", bool))


def _wrong(name: str, value: Any) -> ValueError:
    return ValueError(f'"{name}" cannot be {json.dumps(value)[:40]}')


# Writing


class RunFolder:
    """The folder of a run, open for this process alone; it is made if it is missing.

    Raises:
        RunError: The folder cannot be written, another run has it open, or it holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RECORDS
        lock = FileLock(folder / _LOCK, timeout=0, thread_local=False)
        with ExitStack() as opened, as_run_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _refuse_other_files(folder)
            try:
                opened.enter_context(lock)
            except Timeout:
                raise RunError(
                    f"another mink-eval is writing to {folder}: wait for it, or name another --out"
                ) from None
            self._stream = opened.enter_context(self._path.open("a+b", buffering=0))
            self._size = _mend(self._stream, self._path)
            self._opened = opened.pop_all()
        self._synced = time.monotonic()

    def append(self, response: Response) -> None:
        """Write a response behind the others.

        Raises:
            RunError: It cannot be written, as on a full disk; nothing of it is left in the file.
        """
        line = response.line()
        with as_run_error(self._path):
            try:
                _write_all(self._stream, line)
                if time.monotonic() - self._synced > _SYNC_SECONDS:
                    os.fsync(self._stream.fileno())
                    self._synced = time.monotonic()
            except OSError:
                with suppress(OSError):
                    self._stream.truncate(self._size)
                raise
        self._size += len(line)

    def close(self) -> None:
        with as_run_error(self._path), self._opened:
            os.fsync(self._stream.fileno())

    def write(self, name: str, content: str) -> None:
        """Replace a file of the folder as a whole, or not at all. Raises RunError."""
        with as_run_error(self.folder / name):
            write_atomic(self.folder / name, content)

    def read(self, name: str) -> str | None:
        """Return the content of a file of the folder, None if there is none. Raises RunError."""
        path = self.folder / name
        with as_run_error(path, "read"):
            return path.read_text(encoding="utf-8") if path.exists() else None


def _refuse_other_files(folder: Path) -> None:
    """Raise RunError unless the folder holds a run, or nothing.

    A run that was killed before its manifest was written leaves questions and no records.
    """
    there = {path.name for path in folder.iterdir() if path.suffix != ".part"}
    records = folder / RECORDS
    if MANIFEST in there:
        return
    if there <= {RECORDS, QUESTIONS, _LOCK} and not (RECORDS in there and records.stat().st_size):
        return
    if RECORDS in there:
        raise RunError(f"{folder} has records and no {MANIFEST} that says what they are: name another --out")
    raise RunError(f"{folder} holds other files and no run: name a new or an empty folder with --out")


def _mend(stream: FileIO, path: Path) -> int:
    """Remove half a line from the end of the records; return their size in bytes."""
    size = start = stream.seek(0, os.SEEK_END)
    tail = b""
    while start and b"\n" not in tail:
        start = max(0, start - (1 << 16))
        stream.seek(start)
        tail = stream.read(size - start)
    torn = tail.rpartition(b"\n")[2]
    if not torn:
        return size
    if _parsed(torn, bool) is not CUT_SHORT:  # only its end is missing: an editor has removed it
        _write_all(stream, b"\n")
        return size + 1
    log.warning("%s ends in the middle of a line: its last %d bytes are removed", path, len(torn))
    return stream.truncate(size - len(torn))


def _write_all(stream: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


@contextmanager
def as_run_error(path: Path, done: str = "written") -> Iterator[None]:
    """Raise what the operating system refuses as a RunError, in a sentence that names the file."""
    try:
        yield
    except UnicodeDecodeError:
        raise RunError(f"{path} is not UTF-8 text: it is damaged, name another --out") from None
    except OSError as error:
        raise RunError(
            f"{path} cannot be {done}: {error.strerror}. "
            "The records are kept: the same command continues the run"
        ) from None
