"""File utilities: text, atomic writes, locks, hashes, folders, small JSON caches, readable sizes."""

import codecs
import errno
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import platformdirs
import rich.filesize

log = logging.getLogger("mink_local")

_WRITTEN = (Path("/dev/fd"), Path("/proc/self/fd"))  # where the shell has its own pipes, those in <(…)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what flock answers on some network file systems

size_in_words = rich.filesize.decimal
"""Return a number of bytes as text, in powers of 1000: `98.4 MB`, `4.9 GB`."""


def user_folder(kind: Literal["cache", "config", "data"]) -> Path:
    """Return the folder for this user's caches, settings or data.

    One in a folder of the same name, where earlier versions had it on Windows, stays in use.
    """
    find = getattr(platformdirs, f"user_{kind}_path")
    earlier: Path = find("mink-local")
    return earlier if os.path.isdir(earlier) else Path(find("mink-local", appauthor=False))


def as_text(data: bytes, errors: str = "strict") -> str:
    """Return text in UTF-8, or in UTF-16 if a byte order mark says so, as some of Windows' tools write it.

    Raises UnicodeDecodeError.
    """
    return data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig", errors)


def user_path(text: str) -> Path:
    """Return the path a user typed, with ~ expanded; an unknown ~NAME is left as it is."""
    return Path(os.path.expanduser(text))


def regular(path: Path) -> Path:
    """Return the path of a file that is to be read.

    Raises:
        OSError: It is a pipe or a device: reading one may never end.
    """
    ends = path.is_file() or path.is_dir() or path.parent in _WRITTEN or str(path) == os.devnull
    if not ends and path.exists():
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return path


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file atomically: a reader sees either the old content or all of `data`.

    Keeps permissions and symbolic links. Text is written as UTF-8, with its line endings unchanged.

    Raises:
        OSError: The file cannot be written; it is unchanged, and no temporary file is left behind.
    """
    path = Path(os.path.realpath(path))
    with replaced(path) as unfinished, unfinished.open("xb") as stream:
        if path.exists():
            unfinished.chmod(path.stat().st_mode & 0o777)
        stream.write(data.encode() if isinstance(data, str) else data)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield the path of a new file that replaces `path` at the end of the block, unless the block fails."""
    unfinished = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield unfinished
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path, *, timeout: float = -1) -> Iterator[None]:
    """Hold the lock of a file during the block; go on without it where the file system has no locks.

    Args:
        path: The lock's own file, which is created and stays.
        timeout: Seconds to wait for another process; without limit if negative.

    Raises:
        TimeoutError: Another process holds it.
        OSError: The file cannot be created.
    """
    from filelock import FileLock  # slow to import

    # A soft lock would outlive its process, and take the file that a real one left for a lock that is held.
    lock = FileLock(path, timeout=timeout, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning("no locks on the file system of %s: let only one program write there", path.parent)
    try:
        yield
    finally:
        lock.release()


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal. Raises OSError, also if it is not `regular`."""
    with regular(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def private_folder(path: Path) -> Path:
    """Return a folder, created with its parents if missing, and readable only by its owner."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def private_file(path: Path) -> Path:
    """Return a file in a private folder; if missing, it is created empty and readable only by its owner."""
    private_folder(path.parent)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return path


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object that a text is, or None if it is anything else."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return value if isinstance(value, dict) else None
    return None


def read_record(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged."""
    with suppress(OSError):
        return json_object(regular(path).read_bytes()) or {}
    return {}


def add_to_record(path: Path, key: str, value: object) -> None:
    """Add a value to the JSON object in a cache file; failures are only logged."""
    try:
        private_folder(path.parent)
        write_atomic(path, json.dumps({**read_record(path), key: value}))
    except OSError as error:
        log.info("cannot write %s: %s", path, error)


def make_room(paths: Iterable[Path], most_bytes: int) -> None:
    """Delete files until the newest ones take no more than `most_bytes`."""
    size = 0
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        size += path.stat().st_size
        if size > most_bytes:
            path.unlink()
