"""Where a task's questions are on this machine: a file given, a bundled one, or a download that is kept."""

from pathlib import Path

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Bundled, OwnCopy, Task


def locate(task: Task, data: Path | None = None) -> Path:
    """The file of a task's questions: `data` if it is given, else the bundled or the downloaded one.

    A download is kept in the user's cache, and its SHA-256 is checked each time. Raises DataError.
    """
    if data is not None:
        return _given(data.expanduser())
    if isinstance(task.source, Bundled):
        return Path(__file__).parents[1] / "samples" / task.source.file
    if isinstance(task.source, OwnCopy):
        raise DataError(f"{task.name} needs your own copy of its data with --data FILE: {task.source.advice}")
    from mink_local.evals.run.download import fetch

    return fetch(task.source, task.name)


def _given(data: Path) -> Path:
    if data.is_dir():
        raise DataError(f"{data} is a folder: name the file in it")
    if not data.exists():
        raise DataError(f"there is no file {data}")
    return data
