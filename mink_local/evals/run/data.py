"""The file of a task's questions: a given one, a bundled one, or a download that is kept."""

import http.client
import os
import urllib.error
import urllib.request
from hashlib import sha256
from pathlib import Path

from platformdirs import user_cache_path

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Bundled, OwnCopy, OwnFile, Published, Task
from mink_local.files import sha256_of, user_path, write_atomic

_SECONDS = 30.0  # without a byte


def locate(task: Task, data: Path | None = None) -> Path:
    """Return the file of a task's questions: `data` if given, or else the bundled or downloaded one.

    A download is kept in the user's cache, and its SHA-256 is checked each time. Raises DataError if there is
    no such file, or it cannot be downloaded.
    """
    if data is not None:
        data = user_path(str(data))
        if os.path.isdir(data):
            raise DataError(f"{data} is a folder: name the file in it")
        if not os.path.exists(data):
            raise DataError(f"there is no file {data}")
        return data
    if isinstance(task.source, Bundled):
        return Path(__file__).parents[1] / "samples" / task.source.file
    if isinstance(task.source, OwnFile):
        return task.source.path
    if isinstance(task.source, OwnCopy):
        raise DataError(f"{task.name} needs your own copy of its data with --data FILE: {task.source.advice}")
    return fetch(task.source, task.name)


def fetch(source: Published, name: str) -> Path:
    """Return the data set's file in the user's cache, downloaded unless it is there. Raises DataError."""
    folder = user_cache_path("mink-local") / "data"
    path = folder / f"{name}-{source.sha256[:12]}{Path(source.url).suffix}"
    try:
        if not path.exists() or sha256_of(path) != source.sha256:
            content = _download(source, name)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)
    except OSError as error:
        raise DataError(f"{name} cannot be kept in {folder}: {error.strerror or error}") from None
    return path


def _download(source: Published, name: str) -> bytes:
    request = urllib.request.Request(source.url, headers={"User-Agent": "mink-local"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            content: bytes = response.read(source.size + 1)
        if sha256(content).hexdigest() == source.sha256:
            return content
        reason = f"the {len(content)} bytes that came are not the file: they have another SHA-256"
    except urllib.error.HTTPError as error:
        reason = f"HTTP {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
    raise DataError(
        f"{name} cannot be downloaded ({reason}): try again later, or fetch {source.url} on a machine "
        "that reaches it and give the file with --data FILE"
    )
