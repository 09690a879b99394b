"""Files that are written whole or not at all, hashed, kept private; sizes in words."""

import hashlib
import json
import logging
import os
import secrets
from pathlib import Path
from typing import Any

log = logging.getLogger("mink_local")


def user_path(text: str) -> Path:
    """Return the path that a person typed: ~ is the home folder; ~NAME stays if nobody has that name."""
    return Path(os.path.expanduser(text))


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file whole or not at all: a reader sees what was there before, or all of `data`.

    Permissions are kept, and a symbolic link stays one. Text is written as UTF-8, line ends as they are.
    Raises OSError if the file cannot be written: nothing is left behind and `path` is as it was.
    """
    path = Path(os.path.realpath(path))
    unfinished = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with unfinished.open("xb") as stream:
            if path.exists():
                unfinished.chmod(path.stat().st_mode & 0o777)
            stream.write(data.encode() if isinstance(data, str) else data)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can read, with its parents, unless it is there; return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def private_file(path: Path) -> Path:
    """Make an empty file that only its owner can read, in a private folder, unless it is there; return it."""
    private_folder(path.parent)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return path


def read_record(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of the cache; empty if it is missing or damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def add_to_record(path: Path, key: str, value: object) -> None:
    """Add a value to the JSON object in a file of the cache; if that fails, it is only logged."""
    try:
        private_folder(path.parent)
        write_atomic(path, json.dumps({**read_record(path), key: value}))
    except OSError as error:
        log.info("%s cannot be written: %s", path, error)


def size_in_words(n_bytes: int) -> str:
    """Return a number of bytes in words, in powers of 1000: `98 MB`, `4.9 GB`."""
    for unit, name, digits in ((1e9, "GB", 1), (1e6, "MB", 0)):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.{digits}f} {name}"
    return f"{n_bytes / 1e3:.0f} kB"
