"""Downloading a data set once: resumed where it broke off, refused where its SHA-256 is not as pinned."""

import fcntl
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import Progress

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Published

_BLOCK = 1 << 15  # bytes
_SECONDS = 30.0  # without a byte
_TRIES = 3  # in a row that bring nothing new
_PAUSE = 0.5  # seconds before the second try, doubled with each


class _BrokenOffError(Exception):
    """This connection will bring no more; the text says why. Another one may."""


def fetch(source: Published, name: str) -> Path:
    """The data set's file in the user's cache, downloaded if it is not there yet. Raises DataError."""
    folder = user_cache_path("mink-local") / "data"
    path = folder / f"{name}-{source.sha256[:12]}{Path(source.url).suffix}"
    try:
        if _sha256(path) == source.sha256:
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.part").open("ab") as part:
            fcntl.flock(part, fcntl.LOCK_EX)  # a second process waits here, and then finds the file
            if _sha256(path) != source.sha256:
                _complete(part, source, name)
                os.replace(part.name, path)
    except OSError as error:
        raise DataError(f"{name} cannot be kept in {folder}: {error.strerror or error}") from None
    return path


def _complete(part: BinaryIO, source: Published, name: str) -> None:
    """Download what an unfinished file lacks, and check it. Raises DataError and OSError (the disk's)."""
    failures = 0
    with _progress(name, source.size) as show:
        while (had := part.tell()) < source.size:
            try:
                _receive(part, source, show)
                reason = "the connection broke off"
            except _BrokenOffError as error:
                reason = str(error)
            failures = 0 if part.tell() > had else failures + 1
            if failures == _TRIES:
                raise DataError(_advice(source, name, reason))
            time.sleep(_PAUSE * 2 ** (failures - 1) if failures else 0)
    part.flush()
    os.fsync(part.fileno())
    _validator(part).unlink(missing_ok=True)
    sha256 = _sha256(Path(part.name))
    if sha256 != source.sha256:
        Path(part.name).unlink()
        raise DataError(
            _advice(source, name, f"what came was removed: its SHA-256 is {sha256} and not {source.sha256}")
        )


def _receive(part: BinaryIO, source: Published, show: Callable[[int], None]) -> None:
    """Append what one connection brings, up to the data set's size."""
    blocks = _blocks(part, source)
    show(part.tell())
    for block in blocks:
        part.write(block)
        show(part.tell())


def _blocks(part: BinaryIO, source: Published) -> Iterator[bytes]:
    """What one connection brings from the end of `part` on; `part` is emptied where it must be sent anew.

    Raises _BrokenOffError.
    """
    try:
        with urllib.request.urlopen(_request(part, source), timeout=_SECONDS) as response:
            if not _goes_on(response, part):
                _empty(part)
                validator = response.headers.get("ETag") or ""
                if validator and not validator.startswith("W/"):
                    _validator(part).write_text(validator, encoding="utf-8")
            left = source.size - part.tell()
            while left > 0 and (block := response.read(min(_BLOCK, left))):
                left -= len(block)
                yield block
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            _empty(part)
        raise _BrokenOffError(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _BrokenOffError(str(getattr(error.reason, "strerror", None) or error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(str(error) or type(error).__name__) from None


def _request(part: BinaryIO, source: Published) -> urllib.request.Request:
    """Ask for the rest if the server can tell whether it is the rest of the same thing, else for all."""
    request = urllib.request.Request(source.url, headers={"User-Agent": "mink-local"})
    validator = _validator(part)
    if part.tell() and validator.exists():
        request.add_header("Range", f"bytes={part.tell()}-")
        request.add_header("If-Range", validator.read_text(encoding="utf-8"))
    return request


def _goes_on(response: http.client.HTTPResponse, part: BinaryIO) -> bool:
    """Whether the server sends the rest, and not all again, which it may."""
    start = response.headers.get("Content-Range", "").partition("-")[0]
    return response.status == http.client.PARTIAL_CONTENT and start == f"bytes {part.tell()}"


def _validator(part: BinaryIO) -> Path:
    """The file that keeps the ETag of what an unfinished file is the beginning of."""
    return Path(f"{part.name}.etag")


def _empty(part: BinaryIO) -> None:
    part.truncate(0)
    part.seek(0)
    _validator(part).unlink(missing_ok=True)


def _advice(source: Published, name: str, reason: str) -> str:
    return (
        f"{name} could not be downloaded ({reason}): try again later, or fetch {source.url} on a machine "
        "that reaches it and give the file with --data FILE"
    )


@contextmanager
def _progress(name: str, size: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error while that is a terminal; what it yields takes the bytes there are."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"downloading {name}", total=size)
        yield lambda there: progress.update(bar, completed=there)


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
