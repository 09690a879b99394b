"""Prompts with all their valid answers, and which texts are valid or can still become so.

An answer ends at an end token, or at the first line break after its first letter or digit. It is valid if
it is one of the accepted names. Case and the shape of quotation marks, apostrophes and dashes do not matter;
accents and a leading "the" are optional. Up to four characters of white space or " ' * ` may surround the
name, and . and ! may follow it.
"""

import codecs
import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Text, json_rows, read_each_once

BUNDLED = Path(__file__).with_name("prompts.jsonl")

_BEFORE = " \t\n\"'*`"
_AFTER = _BEFORE + ".!"
_MOST_MARKS = 4  # at either end: code vocabularies have hundreds of whitespace tokens
_SHAPES = str.maketrans("‘’ʼ′“”„«»‐‑–—−\r", '\'\'\'\'"""""-----\n')
_ARTICLE = "the "

_Name = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n]+\Z")]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1)]


def fold(text: str) -> str:
    """Return a text in lower case and with plain punctuation, character by character."""
    return text.casefold().translate(_SHAPES)


def decoded(data: bytes) -> tuple[str, bytes] | None:
    """Split UTF-8 bytes into folded text and the start of an incomplete character; None if invalid."""
    try:
        text, n_decoded = codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return None
    return fold(text), data[n_decoded:]


def normalise(name: str) -> str:
    """Return a name in a form in which equivalent names are equal; empty if it is only punctuation."""
    decomposed = unicodedata.normalize("NFD", _bare(name))
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _bare(name: str) -> str:
    folded = fold(unicodedata.normalize("NFC", name))
    return folded.strip(_AFTER).removeprefix(_ARTICLE).strip(_AFTER)


class ClosedPrompt(msgspec.Struct, frozen=True):
    """A prompt whose valid answers can be listed: a line of a prompts file.

    Attributes:
        id: Name used in the report.
        prompt: The user message.
        answers: The valid answers, at least two: each is a name or a list of accepted names, the usual one
            first.
    """

    id: Text
    prompt: Text
    answers: Annotated[tuple[_Names | _Name, ...], msgspec.Meta(min_length=2)]

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The accepted names for each answer."""
        return [(names,) if isinstance(names, str) else names for names in self.answers]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def read_prompts(path: Path) -> list[ClosedPrompt]:
    """Return the prompts in a file.

    Raises:
        DataError: The file cannot be read, a line is not a `ClosedPrompt` as JSON, an id or prompt occurs
            twice, or a name is only punctuation or stands for two answers.
    """
    return read_each_once(path, json_rows(path, ClosedPrompt), _checked)


def _checked(prompt: ClosedPrompt, _: int) -> ClosedPrompt:
    """Return the prompt. Raises DataError if a name is only punctuation or stands for two answers."""
    owners: dict[str, tuple[str, ...]] = {}
    for names in prompt.names:
        for name in names:
            normalised = normalise(name)
            if not normalised:
                raise DataError(f"{name!r} has no letter or digit")
            other = owners.setdefault(normalised, names)
            if other is not names:
                raise DataError(f"{name!r} stands for two answers, {other[0]!r} and {names[0]!r}")
    return prompt


@dataclass(frozen=True)
class Open:
    """The beginning of an answer that may still become valid.

    Attributes:
        text: The name so far, folded, with any marks after it; before the name, a space per mark.
        partial: The first bytes of an incomplete character.
    """

    text: str = ""
    partial: bytes = b""


Step = Open | int | None
"""What a text is: the beginning of an answer, a complete one by its index, or neither, whatever follows."""


class AnswerSet:
    """The valid answers to one prompt, each a sequence of its accepted names."""

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self._n = len(answers)
        self._answers = {
            article + name: i
            for i, names in enumerate(answers)
            for one in names
            for name in (_bare(one), normalise(one))
            for article in ("", _ARTICLE)
        }
        self._beginnings = {name[:n] for name in self._answers for n in range(len(name) + 1)}

    def __len__(self) -> int:
        return self._n

    def advance(self, state: Open, data: bytes) -> Step:
        """Return an answer's state after more bytes."""
        text = decoded(state.partial + data)
        return self.step(state.text + text[0], text[1]) if text else None

    def step(self, text: str, partial: bytes = b"") -> Step:
        """Return the state of an answer that starts with a folded text and part of a character."""
        name = text.lstrip(_BEFORE)
        n_before = len(text) - len(name)
        if n_before > _MOST_MARKS:
            return None
        name, line_break, _ = name.partition("\n")
        if line_break or name not in self._beginnings:
            bare = name.rstrip(_AFTER)
            if bare not in self._answers or len(name) - len(bare) > _MOST_MARKS:
                return None
            if line_break:
                return self._answers[bare]
        if partial and partial not in self._beginnings_of_characters:
            return None
        return Open(name or " " * n_before, partial)

    def end(self, state: Open) -> int | None:
        """Return the index of an answer that ends here; None if it is invalid."""
        step = None if state.partial else self.step(state.text + "\n")
        return step if isinstance(step, int) else None

    @cached_property
    def _beginnings_of_characters(self) -> set[bytes]:
        """All proper prefixes, as UTF-8 bytes, of characters that may occur in a valid answer."""
        alphabet = {*"".join(self._answers), *_AFTER}
        found: set[bytes] = set()
        for character in map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x10000))):
            if alphabet.issuperset(fold(character)):
                encoded = character.encode()
                found.update(encoded[:n] for n in range(1, len(encoded)))
        return found
