"""Prompts with all their valid answers, from a file of JSON lines."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mink_local.errors import DataError
from mink_local.evals.coverage.answers import normalise
from mink_local.evals.tasks.lines import checked_text, read_rows, text_of

BUNDLED = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True)
class ClosedPrompt:
    """A prompt whose valid answers can be listed.

    Attributes:
        id: What the report calls it.
        text: The whole user message.
        answers: The valid answers, at least two, each with all its accepted names, the usual one first.
    """

    id: str
    text: str
    answers: tuple[tuple[str, ...], ...]


def read_prompts(path: Path) -> list[ClosedPrompt]:
    """Return the prompts of a file.

    A line is a JSON object with "id", "prompt" and "answers", a list whose items are texts, or lists of texts
    if an answer has several names.

    Raises:
        DataError: The file cannot be read, or a line is not of this form, or is there twice.
    """
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder: name the file in it")
    prompts: list[ClosedPrompt] = []
    lines: dict[tuple[str, str], int] = {}
    for number, row in read_rows(path):
        where = f"{path}, line {number}"
        prompt = ClosedPrompt(text_of(row, "id", where), text_of(row, "prompt", where), _answers(row, where))
        for kind, value in (("id", prompt.id), ("prompt", prompt.text)):
            first = lines.setdefault((kind, value), number)
            if first != number:
                raise DataError(f"{where}: the same {kind} as in line {first}; change one or remove it")
        prompts.append(prompt)
    if not prompts:
        raise DataError(f"{path} holds no prompts")
    return prompts


def _answers(row: dict[str, Any], where: str) -> tuple[tuple[str, ...], ...]:
    listed = row.get("answers")
    if not isinstance(listed, list):
        raise DataError(f"{where}: no 'answers': write a list of texts")
    if len(listed) < 2:
        raise DataError(f"{where}: 'answers' has {len(listed)}, and a distribution needs at least 2")
    answers = tuple(tuple(_names(item, where)) for item in listed)
    owners: dict[str, tuple[str, ...]] = {}
    for names in answers:
        for name in names:
            other = owners.setdefault(normalise(name), names)
            if other is not names:
                raise DataError(f"{where}: {name!r} is a name of two answers, {other[0]!r} and {names[0]!r}")
    return answers


def _names(item: object, where: str) -> Iterator[str]:
    """Yield the names of one answer."""
    if isinstance(item, list) and not item:
        raise DataError(f"{where}: an answer in 'answers' is an empty list")
    for name in item if isinstance(item, list) else [item]:
        text = checked_text(name, "answers", where)
        if "\n" in text or "\r" in text:
            raise DataError(f"{where}: {text!r} has a line break, which ends an answer")
        if not normalise(text):
            raise DataError(f"{where}: {text!r} has no letter and no digit that tells it from other answers")
        yield text
