"""The folder of a run, to which one process writes: `records.jsonl` grows by lines, other files are replaced.

`RunFolder.append` hands a line to the operating system before it returns, so a run that is killed loses the
responses that were being generated and no others. Half a line, left by a kill or a full disk, is removed when
the folder is opened again.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

from filelock import FileLock, Timeout

from mink_local.errors import RunError
from mink_local.evals.run.records import CUT_SHORT, QUESTIONS, Response, as_run_error, parse_line, to_line
from mink_local.files import write_atomic

RECORDS, MANIFEST = "records.jsonl", "manifest.json"
_LOCK = ".lock"
_SYNC_SECONDS = 1.0  # of responses are lost when the power fails; a kill loses none

log = logging.getLogger("mink_local")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder if it is missing, and keep other processes from writing to it.

    Raises RunError if one does, or the folder cannot be written.
    """
    with as_run_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(folder / _LOCK, timeout=0, thread_local=False).acquire()
        except Timeout:
            raise RunError(
                f"another mink-eval is writing to {folder}: wait for it, or name another folder"
            ) from None
    with lock:
        yield


class RunFolder:
    """The folder of a run, open for this process alone; it is made if it is missing.

    Raises RunError if the folder cannot be written, another run has it open, or it holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RECORDS
        with ExitStack() as opened, as_run_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _refuse_other_files(folder)
            opened.enter_context(locked(folder))
            self._stream = opened.enter_context(self._path.open("ab", buffering=0))
            self._size = _mend(self._stream, self._path)
            self._opened = opened.pop_all()
        self._synced = time.monotonic()

    def append(self, response: Response) -> None:
        """Write a response behind the others; on an error, leave nothing of it and raise RunError."""
        line = to_line(response)
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

    def write(self, name: str, content: str | bytes) -> None:
        """Replace a file of the folder as a whole, or not at all. Raises RunError."""
        with as_run_error(self.folder / name):
            write_atomic(self.folder / name, content)


def _refuse_other_files(folder: Path) -> None:
    """Raise RunError unless the folder holds a run, or nothing.

    A run that was killed before its manifest was written leaves questions and no records.
    """
    there = {path.name for path in folder.iterdir() if path.suffix != ".part"}
    if MANIFEST in there:
        return
    if RECORDS in there and (folder / RECORDS).stat().st_size:
        raise RunError(f"{folder} has records and no {MANIFEST} that says what they are: name another --out")
    if there - {RECORDS, QUESTIONS, _LOCK}:
        raise RunError(f"{folder} holds other files and no run: name a new or an empty folder with --out")


def _mend(stream: FileIO, path: Path) -> int:
    """Remove half a line from the end of the records; return their size in bytes."""
    size = path.stat().st_size
    with path.open("rb") as lines:
        last = b"".join(deque(lines, maxlen=1))
    if not last or last.endswith(b"\n"):
        return size
    if parse_line(Response, last) is not CUT_SHORT:  # only its end is missing: an editor has removed it
        _write_all(stream, b"\n")
        return size + 1
    log.warning("%s ends in the middle of a line: its last %d bytes are removed", path, len(last))
    return stream.truncate(size - len(last))


def _write_all(stream: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]
