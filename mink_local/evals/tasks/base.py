"""What a task is: questions from a file, and two readings of a response, strict and flexible."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from mink_local.errors import DataError

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Published:
    """A data set that its owner publishes: the address of one version, its SHA-256, its size in bytes."""

    url: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Bundled:
    """A data set that comes with this package: the name of its file in `evals/samples`."""

    file: str


@dataclass(frozen=True)
class OwnCopy:
    """A data set that is not downloaded; `advice` says why, and where the user gets it."""

    advice: str


@dataclass(frozen=True)
class Question:
    """One question as a model gets it.

    `id` is stable and unique within the task (the row's number, from 0), `prompt` the whole user message,
    `gold` the right answer ("18", "B", "\\frac{1}{2}"). Multiple choice: `choices` are the options in the
    order shown, and where they were shuffled `order[i]` is the place in the file of the i-th one shown.
    """

    id: str
    prompt: str
    gold: str
    choices: tuple[str, ...] = ()
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What was read from a response (None: no answer) and whether it is right."""

    answer: str | None
    correct: bool


NO_ANSWER = Verdict(None, correct=False)


@dataclass(frozen=True)
class Task(ABC):
    """A data set with its prompt, its extraction and its comparison.

    `max_tokens` is the longest response, in tokens, where the user names no other limit (the paper names
    none). `instruction` ends every prompt (the paper's appendix, "Reasoning Datasets").
    """

    name: str
    title: str
    source: Published | Bundled | OwnCopy

    max_tokens: ClassVar[int] = 1024
    instruction: ClassVar[str]

    def read(self, path: Path, seed: int) -> list[Question]:
        """The questions of a file in this task's format; `seed` is the run's, for whatever is shuffled.

        Raises DataError naming the file and the line that does not fit.
        """
        questions: list[Question] = []
        lines: dict[str, int] = {}
        for line, question in self.questions(path, seed):
            first = lines.setdefault(question.prompt, line)
            if first != line:
                raise DataError(f"{path}, line {line}: the same question as in line {first}; remove one")
            questions.append(replace(question, id=str(len(questions))))
        if not questions:
            raise DataError(f"{path} holds no questions")
        return questions

    @abstractmethod
    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:
        """Line number, from 1, and question of every row. Raises DataError."""

    @abstractmethod
    def strict(self, response: str, question: Question) -> Verdict:
        """Read by the paper's regular expression, exactly; its last match counts."""

    @abstractmethod
    def flexible(self, response: str, question: Question) -> Verdict:
        """Read as a person would read the stated answer."""


def score(task: Task, question: Question, response: str, finish_reason: str) -> tuple[Verdict, Verdict]:
    """The strict and the flexible verdict on a response.

    A response that ran out of tokens ("length") is wrong, whatever can be read from it.
    """
    text = without_thoughts(response)
    strict, flexible = task.strict(text, question), task.flexible(text, question)
    if finish_reason == "length":
        return replace(strict, correct=False), replace(flexible, correct=False)
    return strict, flexible


def without_thoughts(response: str) -> str:
    """The response without its `<think>…</think>` blocks and without blank ends.

    A block that was never closed reaches to the end. One that was never opened began in the prompt,
    as some chat templates have it.
    """
    return _THOUGHT.sub("", response).rpartition("</think>")[2].strip()


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group of the last match."""
    found = pattern.findall(text)
    return found[-1] if found else None
