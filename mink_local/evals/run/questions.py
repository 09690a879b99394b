"""The questions of a run: where a task's file is, and how its questions are put to a model."""

import http.client
import os
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from platformdirs import user_cache_path

from mink_local.errors import DataError
from mink_local.evals.tasks.base import OnDisk, OwnCopy, Published, Question, Task
from mink_local.files import sha256_of, write_atomic

_SECONDS = 30.0  # without a byte


@dataclass(frozen=True)
class AskedTask:
    """A task and how its questions are put.

    Attributes:
        questions: By id.
        max_tokens: Longest response, in tokens.
        shots: Examples before every question: a prompt and the answer to it each.
        stop: Strings that end a response and are not part of it.
        reasoning_budget: Most tokens of reasoning; None for no limit.
    """

    task: Task
    questions: Mapping[str, Question]
    max_tokens: int
    shots: tuple[tuple[str, str], ...] = ()
    stop: Sequence[str] = ()
    reasoning_budget: int | None = None

    def messages(self, question: Question) -> list[dict[str, str]]:
        """Return the conversation that ends with a question; the examples are its earlier turns."""
        turns = [
            {"role": role, "content": content}
            for shot in self.shots
            for role, content in zip(("user", "assistant"), shot, strict=True)
        ]
        return [*turns, {"role": "user", "content": question.prompt}]


def ask(
    task: Task,
    file: Path,
    *,
    seed: int = 0,
    shots: int = 0,
    shots_from: Path | None = None,
    stop: Sequence[str] = (),
    limit: int | None = None,
    max_tokens: int | None = None,
    reasoning_budget: int | None = None,
) -> AskedTask:
    """Return the questions of a file, as a run puts them.

    Args:
        seed: The run's.
        shots: The first questions that are examples instead.
        shots_from: File in the task's format to take the examples from.
        stop: Strings that end a response.
        limit: Most questions.
        max_tokens: Of a response; None is the task's own limit.
        reasoning_budget: Most tokens of reasoning; None for no limit.

    Raises:
        DataError: The file is not in the task's format, or has no worked answers for `shots`.
    """
    questions = task.read(file, seed)
    pool = task.read(shots_from, seed) if shots_from else questions
    examples = pool[:shots]
    if len(examples) < shots:
        raise DataError(f"{shots_from or file} has {len(pool)} questions: {shots} --shots need more")
    for example in examples:
        if not example.worked:
            raise DataError(
                f"{shots_from or file} has no worked answer to question {example.id}: leave --shots out, or "
                "name another file with --shots-from"
            )
    shown = {example.prompt for example in examples}
    left = [question for question in questions if question.prompt not in shown][:limit]
    if not left:
        raise DataError(f"{file} has no other questions than those of --shots")
    return AskedTask(
        task,
        {question.id: question for question in left},
        max_tokens or task.max_tokens,
        tuple((example.prompt, example.worked) for example in examples),
        stop,
        reasoning_budget,
    )


def locate(task: Task, data: Path | None = None) -> Path:
    """Return the file of a task's questions: `data` if given, or else the bundled or downloaded one.

    A download is kept in the user's cache, and its SHA-256 is checked each time. Raises DataError if there is
    no such file, or it cannot be downloaded.
    """
    if data is not None:
        if not os.path.isfile(data):  # Path.is_file raises for a name that is too long
            raise DataError(f"there is no file {data}")
        return data
    if isinstance(task.source, OnDisk):
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
    except (OSError, http.client.HTTPException) as error:
        reason = str(error).strip("<>") or type(error).__name__
    raise DataError(
        f"{name} cannot be downloaded ({reason}): try again later, or fetch {source.url} on a machine "
        "that reaches it and give the file with --data FILE"
    )
