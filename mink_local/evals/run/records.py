"""The records of a run: one response a line in `DIR/records.jsonl`, which is only ever appended to.

A record is on the disk's side of the process as soon as `append` returns, so a run that is killed loses the
responses in flight and no other. What a kill or a full disk leaves behind of a line is cut off when the
folder is opened again.
"""

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mink_local.errors import RunError
from mink_local.evals.tasks.base import Verdict

RECORDS, MANIFEST, QUESTIONS = "records.jsonl", "manifest.json", "questions.jsonl"
_SYNC_SECONDS = 1.0  # what a power failure may cost; a kill costs nothing

Key = tuple[str, str, str, float, int, str]

log = logging.getLogger("mink_local")


@dataclass(frozen=True)
class Response:
    """One response and what it was asked for.

    sampler: its `str()`. order: its own, None where the cut does not move with temperature. repeat: from 0.
    finish_reason: "stop", "length" (truncated) or "overflow" (the prompt did not fit the context). k: the
    number of candidates at every step.
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

    @property
    def key(self) -> Key:
        """What no two responses of a run share."""
        return self.model, self.task, self.sampler, self.temperature, self.repeat, self.question_id


@dataclass(frozen=True)
class Record(Response):
    """A response and how it came about.

    prompt_sha256: of the user's message, as UTF-8. seconds: from the moment its slot was given to it to its
    end.
    """

    seed: int
    prompt_sha256: str
    prompt_tokens: int
    seconds: float

    def line(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"


_NAMES = [field.name for field in fields(Record)]


def _record(line: dict[str, Any]) -> Record:
    verdicts = {name: Verdict(**line[name]) for name in ("strict", "flexible")}
    return Record(**{name: line[name] for name in _NAMES} | verdicts)


def read_records(folder: Path) -> Iterator[Record]:
    """The records in every `*.jsonl` of a folder whose lines have a "response", each key once.

    A last line that is still being written is left out. Raises RunError naming the file and the line that
    is no record.
    """
    seen = set()
    for path in sorted(folder.glob("*.jsonl")):
        if path.name == QUESTIONS:
            continue
        with _telling(path, "read"), path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.endswith(b"\n") and not _parses(line):
                    break
                try:
                    content = json.loads(line)
                    if "response" not in content:
                        break  # a file of something else
                    record = _record(content)
                except (ValueError, KeyError, TypeError, AttributeError):
                    raise RunError(
                        f"line {number} of {path} is no record: delete it to have that response made again"
                    ) from None
                if record.key not in seen:
                    seen.add(record.key)
                    yield record


class Store:
    """A folder of records, open for this process alone; it is made where it is missing.

    Raises RunError where the folder cannot be written, another run has it open, or it holds something
    else than a run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / RECORDS
        with _telling(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _refuse_other_files(folder)
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with _telling(path, "locked"):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with _telling(path):
                self._size = _mend(self._fd, path)
        except BlockingIOError:
            os.close(self._fd)
            raise RunError(
                f"another mink-eval is writing to {folder}: wait for it, or name another --out"
            ) from None
        except BaseException:
            os.close(self._fd)
            raise
        self._path = path
        self._synced = time.monotonic()

    def append(self, record: Record) -> None:
        """Write a record behind the others. Raises RunError, with nothing of it left in the file, where
        the disk is full."""
        line = record.line()
        with _telling(self._path):
            try:
                _write(self._fd, line)
                if time.monotonic() - self._synced > _SYNC_SECONDS:
                    os.fsync(self._fd)
                    self._synced = time.monotonic()
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._fd, self._size)
                raise
        self._size += len(line)

    def close(self) -> None:
        with _telling(self._path):
            try:
                os.fsync(self._fd)
            finally:
                os.close(self._fd)

    def write(self, name: str, content: str) -> None:
        """Replace a file of the folder as a whole, or not at all."""
        path = self.folder / name
        unfinished = path.with_name(f"{name}.part")
        with _telling(path):
            with unfinished.open("w", encoding="utf-8") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            unfinished.replace(path)

    def read(self, name: str) -> str | None:
        """The content of a file of the folder, None where there is none."""
        path = self.folder / name
        with _telling(path, "read"):
            return path.read_text(encoding="utf-8") if path.exists() else None


def _refuse_other_files(folder: Path) -> None:
    """Without a manifest there may be what a run that was killed at once leaves: an empty records.jsonl,
    which is its lock, and questions."""
    there = {path.name for path in folder.iterdir()}
    begun = {RECORDS, QUESTIONS, f"{QUESTIONS}.part", f"{MANIFEST}.part"}
    if MANIFEST in there or (there <= begun and not _size(folder / RECORDS)):
        return
    if RECORDS in there:
        raise RunError(f"{folder} has records without the {MANIFEST} that says of what: name another --out")
    raise RunError(f"{folder} holds other files and no run: name a new or an empty folder with --out")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _mend(fd: int, path: Path) -> int:
    """Cut off the part of a line that a run left which was killed while it wrote; returns the size."""
    size = os.fstat(fd).st_size
    tail = b""
    start = size
    while start and b"\n" not in tail:
        start = max(0, start - (1 << 16))
        tail = os.pread(fd, size - start, start)
    torn = tail.rpartition(b"\n")[2]
    if not torn:
        return size
    if _parses(torn):  # only its end is missing: someone has been in the file with an editor
        _write(fd, b"\n")
        return size + 1
    log.warning("%s ended in the middle of a line: its %d bytes are cut off", path, len(torn))
    os.ftruncate(fd, size - len(torn))
    return size - len(torn)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _parses(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@contextmanager
def _telling(path: Path, done: str = "written") -> Iterator[None]:
    """Whatever the system refuses, as a sentence."""
    try:
        yield
    except BlockingIOError:
        raise
    except UnicodeDecodeError:
        raise RunError(f"{path} is not UTF-8 text: it is damaged, name another --out") from None
    except OSError as error:
        raise RunError(
            f"{path} cannot be {done}: {error.strerror}. What is recorded stays: the same command goes on"
        ) from None
