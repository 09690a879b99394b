"""The questions of a run: where a task's file is, and how a model is asked its questions."""

import http.client
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from mink_local.errors import DataError
from mink_local.evals.tables import count
from mink_local.evals.tasks.base import OnDisk, OwnCopy, Published, Question, Task
from mink_local.files import sha256_of, user_folder, write_atomic

_SECONDS = 30.0  # maximum wait for data


@dataclass(frozen=True)
class AskedTask:
    """A task and how its questions are asked.

    Attributes:
        questions: Questions by id.
        max_tokens: Maximum response length in tokens.
        shots: Examples before every question, each a prompt and its answer.
        system: The system message; empty for none.
        remarks: Sentences on what of the file is not used.
    """

    task: Task
    questions: Mapping[str, Question]
    max_tokens: int
    shots: tuple[tuple[str, str], ...] = ()
    system: str = ""
    remarks: tuple[str, ...] = ()

    def messages(self, question: Question) -> list[dict[str, str]]:
        """Return the conversation that ends with a question, with the examples as earlier turns."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        turns = [
            {"role": role, "content": content}
            for shot in self.shots
            for role, content in zip(("user", "assistant"), shot, strict=True)
        ]
        return [*first, *turns, {"role": "user", "content": question.prompt}]


def ask(
    task: Task,
    file: Path,
    *,
    seed: int = 0,
    shots: int = 0,
    shots_from: Path | None = None,
    limit: int | None = None,
    max_tokens: int | None = None,
    system: str = "",
) -> AskedTask:
    """Return the questions in a file, as a run asks them.

    Args:
        seed: Seed of the run.
        shots: Number of questions, counted from the first, to use as examples instead.
        shots_from: File in the task's format that provides the examples.
        limit: Maximum number of questions.
        max_tokens: Maximum response length in tokens; None uses the task's limit.
        system: The system message; empty for none.

    Raises:
        DataError: The file is not in the task's format, or has no worked answers for `shots`.
    """
    questions = task.read(file, seed)
    pool = task.read(shots_from, seed) if shots_from else questions
    examples = pool[:shots]
    if len(examples) < shots:
        there = count(len(pool), "question")
        raise DataError(f"{shots_from or file} has only {there}: {shots} --shots need more")
    for example in examples:
        if not example.worked:
            raise DataError(
                f"{shots_from or file} has no worked answer to question {example.id}: omit --shots, or "
                "give another file with --shots-from"
            )
    shown = {example.prompt for example in examples}
    new = [question for question in questions if question.prompt not in shown]
    left = new[:limit]
    if not left:
        raise DataError(f"{file} has no questions besides those used for --shots")
    remarks = list(task.remarks)
    if shots_from and len(new) < len(questions):
        remarks.append(f"{file}: left out {count(len(questions) - len(new), 'question')} that --shots shows.")
    return AskedTask(
        task,
        {question.id: replace(question, worked="") for question in left},
        max_tokens or task.max_tokens,
        tuple((example.prompt, example.worked) for example in examples),
        system,
        tuple(remarks),
    )


def locate(task: Task, data: Path | None = None) -> Path:
    """Return the file with a task's questions: `data` if given, or else the bundled or downloaded one.

    Downloads are kept in the user's cache, and their SHA-256 is checked each time. Raises DataError if there
    is no such file or it cannot be downloaded.
    """
    source = task.source if data is None else OnDisk(data)
    if isinstance(source, OwnCopy):
        raise DataError(f"{task.name} needs your own copy of its data with --data FILE: {source.advice}")
    if isinstance(source, Published):
        return fetch(source, task.name)
    if not os.path.isfile(source.path):  # Path.is_file raises for a name that is too long
        raise DataError(f"there is no file {source.path}")
    return source.path


def fetch(source: Published, name: str) -> Path:
    """Return the data set's file in the user's cache, downloading it if missing. Raises DataError."""
    folder = user_folder("cache") / "data"
    version = source.sha256 or sha256(source.url.encode()).hexdigest()
    path = folder / f"{name}-{version[:12]}{Path(source.url).suffix}"
    try:
        if not path.exists() or (source.sha256 and sha256_of(path) != source.sha256):
            content = _download(source, name)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)
    except OSError as error:
        raise DataError(f"{name} cannot be stored in {folder}: {error.strerror or error}") from None
    return path


def _download(source: Published, name: str) -> bytes:
    option = "--data" if source.sha256 else "--shots-from"
    request = urllib.request.Request(source.url, headers={"User-Agent": "mink-local"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            content: bytes = response.read(source.size + 1)
        is_whole = len(content) <= source.size and content.startswith(b"{")
        if sha256(content).hexdigest() == source.sha256 or (is_whole and not source.sha256):
            return content
        reason = f"the {len(content)} bytes received are not the file"
    except (OSError, http.client.HTTPException) as error:
        reason = str(error).strip("<>") or type(error).__name__
    raise DataError(
        f"{name} cannot be downloaded ({reason}): try again later, or download {source.url} on another "
        f"machine and give the file with {option} FILE"
    )
