"""Prompts with all their valid answers, from a file of JSON lines."""

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

from mink_local.errors import DataError
from mink_local.evals.coverage.answers import normalise
from mink_local.evals.tasks.lines import decoded_lines

BUNDLED = Path(__file__).with_name("prompts.jsonl")

_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n]+\Z")]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1)]


class ClosedPrompt(msgspec.Struct, frozen=True):
    """A prompt whose valid answers can be listed; a line of a file of prompts.

    Attributes:
        id: What the report calls it.
        prompt: The whole user message.
        answers: The valid answers, at least two, each with its name or all its accepted names, the usual one
            first.
    """

    id: _Text
    prompt: _Text
    answers: Annotated[tuple[_Names | _Name, ...], msgspec.Meta(min_length=2)]

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The accepted names of each answer."""
        return [(names,) if isinstance(names, str) else names for names in self.answers]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def read_prompts(path: Path) -> list[ClosedPrompt]:
    """Return the prompts of a file.

    Raises:
        DataError: The file cannot be read, or a line is not a `ClosedPrompt` as JSON, or is there twice.
    """
    prompts: list[ClosedPrompt] = []
    lines: dict[str, int] = {}
    for number, line in decoded_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            prompt = msgspec.json.decode(line, type=ClosedPrompt)
        except msgspec.DecodeError as error:
            raise DataError(f"{where}: {error}") from None
        for value in (prompt.id, prompt.prompt):
            if value in lines:
                raise DataError(f"{where}: {value!r} is in line {lines[value]} too; change one or remove it")
        lines |= dict.fromkeys((prompt.id, prompt.prompt), number)
        _check_names(prompt, where)
        prompts.append(prompt)
    if not prompts:
        raise DataError(f"{path} holds no prompts")
    return prompts


def _check_names(prompt: ClosedPrompt, where: str) -> None:
    """Raise DataError if a name is no name, or that of two answers."""
    owners: dict[str, tuple[str, ...]] = {}
    for names in prompt.names:
        for name in names:
            normalised = normalise(name)
            if not normalised:
                raise DataError(f"{where}: {name!r} has no letter and no digit")
            other = owners.setdefault(normalised, names)
            if other is not names:
                raise DataError(f"{where}: {name!r} is a name of two answers, {other[0]!r} and {names[0]!r}")
