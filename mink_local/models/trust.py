"""Refuse GGUF files that make llama.cpp crash.

A damaged file can make llama.cpp abort the whole process, or take all the memory of the machine. So a file
is tried in a child process first, unless its SHA-256 is that of the catalogue, or the file has passed before
with the same llama.cpp (same path, size and modification time).
"""

import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from mink_local.errors import ModelError
from mink_local.files import add_to_record, read_record, sha256_of
from mink_local.models.catalog import ModelFile
from mink_local.models.gguf import MAGIC, shards
from mink_local.sandbox import GIB, ChildTimeoutError, SandboxError, ask

_SECONDS = 60.0  # for a file of any size, and
_BYTES_PER_SECOND = 20e6  # what the slowest disk reads on top of that

log = logging.getLogger("mink_local")


def check(file: ModelFile) -> None:
    """Try a model file in a child process, unless the file is known to be good.

    Raises ModelError if the file cannot be read, is not a model, or makes llama.cpp crash; ChildStartError if
    the child process does not start.
    """
    path = file.path.absolute()
    try:
        state = _state(path)
        with path.open("rb") as stream:
            magic = stream.read(len(MAGIC))
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read: {error.strerror}") from None
    size = state[0]
    if size == 0:
        raise ModelError(f"{path} is empty")
    if magic != MAGIC:
        raise ModelError(f"{path} is not a GGUF file: it does not start with {MAGIC.decode()}")
    if read_record(_record()).get(str(path)) == state:
        return
    if file.sha256 is None or sha256_of(path) != file.sha256:
        if size > GIB:
            log.warning("trying %s in a child process first (only this once)", path.name)
        _try_in_child(path, size)
    remember(path)


def _try_in_child(path: Path, size: int) -> None:
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    memory = 2 * size + 4 * GIB  # weights mapped and repacked, libraries, the context
    try:
        complaint = ask("mink_local.models.trial", str(path), seconds=seconds, memory=memory)
    except ChildTimeoutError as error:
        raise ModelError(f"{path} cannot be loaded: llama.cpp {error}") from None
    except SandboxError as error:
        raise ModelError(f"{path} is damaged, fetch it again: llama.cpp {error}") from None
    if complaint:
        raise ModelError(complaint)


def remember(path: Path) -> None:
    """Add a file to those that passed; if the cache cannot be written, the file is tried again next time."""
    path = path.absolute()
    try:
        state = _state(path)
    except OSError as error:
        log.info("%s cannot be read: %s", path, error)
    else:
        add_to_record(_record(), str(path), state)


def _state(path: Path) -> list[Any]:
    """Return the bytes and latest modification time (ns) of a file's shards, and llama.cpp's version."""
    status = [shard.stat() for shard in shards(path)]
    size, modified = sum(each.st_size for each in status), max(each.st_mtime_ns for each in status)
    return [size, modified, version("llama-cpp-python")]


def _record() -> Path:
    return user_cache_path("mink-local") / "vetted.json"
