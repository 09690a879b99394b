"""Prompts with all their valid answers, and the texts that are such an answer or can still become one.

An answer ends at an end token, or at the first line break after its first letter or digit. It is valid if
it is one of the accepted names. Upper and lower case and the shape of quotation marks, apostrophes and dashes
make no difference; accents may be left out, and "the" before the name left out or added; up to four
characters of white space and of " ' * ` may be before the name and after it, and after it . and ! too.
"""

import codecs
import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Text, json_rows

BUNDLED = Path(__file__).with_name("prompts.jsonl")

_BEFORE = " \t\n\"'*`"
_AFTER = _BEFORE + ".!"
_MOST_MARKS = 4  # at either end: vocabularies for code have hundreds of tokens of white space
_SHAPES = str.maketrans("‘’ʼ′“”„«»‐‑–—−\r", '\'\'\'\'"""""-----\n')
_ARTICLE = "the "

_Name = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n]+\Z")]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1)]


def fold(text: str) -> str:
    """Return a text without case and shapes of marks, character by character."""
    return text.casefold().translate(_SHAPES)


def decoded(data: bytes) -> tuple[str, bytes] | None:
    """Return the text of UTF-8 bytes, folded, and the first bytes of a character; None if it is no text."""
    try:
        text, n_decoded = codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return None
    return fold(text), data[n_decoded:]


def normalise(name: str) -> str:
    """Return the form in which names that are the same are equal; empty if a name has only marks."""
    decomposed = unicodedata.normalize("NFD", _bare(name))
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _bare(name: str) -> str:
    folded = fold(unicodedata.normalize("NFC", name))
    return folded.strip(_AFTER).removeprefix(_ARTICLE).strip(_AFTER)


class ClosedPrompt(msgspec.Struct, frozen=True):
    """A prompt whose valid answers can be listed; a line of a file of prompts.

    Attributes:
        id: What the report calls it.
        prompt: The whole user message.
        answers: The valid answers, at least two, each with its name or all its accepted names, the usual one
            first.
    """

    id: Text
    prompt: Text
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
        DataError: The file cannot be read, a line is not a `ClosedPrompt` as JSON, an id or a prompt is there
            twice, or a name is no name, or that of two answers.
    """
    prompts: list[ClosedPrompt] = []
    lines: dict[str, int] = {}
    for number, prompt in json_rows(path, ClosedPrompt):
        where = f"{path}, line {number}"
        for value in (prompt.id, prompt.prompt):
            if value in lines:
                raise DataError(f"{where}: {value!r} is in line {lines[value]} too; change one or remove it")
        lines |= dict.fromkeys((prompt.id, prompt.prompt), number)
        owners: dict[str, tuple[str, ...]] = {}
        for names in prompt.names:
            for name in names:
                normalised = normalise(name)
                if not normalised:
                    raise DataError(f"{where}: {name!r} has no letter and no digit")
                other = owners.setdefault(normalised, names)
                if other is not names:
                    raise DataError(f"{where}: {name!r} names two answers, {other[0]!r} and {names[0]!r}")
        prompts.append(prompt)
    if not prompts:
        raise DataError(f"{path} holds no prompts")
    return prompts


@dataclass(frozen=True)
class Open:
    """The text of an answer that may still become valid.

    Attributes:
        text: The name so far, folded, with the marks after it; before a name, as many spaces as marks.
        partial: The first bytes of a character whose other bytes are to come.
    """

    text: str = ""
    partial: bytes = b""


@dataclass(frozen=True)
class Valid:
    """A complete answer; `number` is its index among the valid ones."""

    number: int


@dataclass(frozen=True)
class Invalid:
    """A text that is no valid answer and cannot become one."""


Step = Open | Valid | Invalid


class AnswerSet:
    """The valid answers to one prompt; every answer is a sequence of its accepted names."""

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
        """Return what an answer is after some more bytes."""
        text = decoded(state.partial + data)
        if text is None:
            return Invalid()
        return self.step(state.text + text[0], text[1])

    def step(self, text: str, partial: bytes = b"") -> Step:
        """Return what an answer is that begins with a text, folded, and the first bytes of a character."""
        name = text.lstrip(_BEFORE)
        n_before = len(text) - len(name)
        if n_before > _MOST_MARKS:
            return Invalid()
        name, line_break, _ = name.partition("\n")
        if line_break or name not in self._beginnings:
            bare = name.rstrip(_AFTER)
            if bare not in self._answers or len(name) - len(bare) > _MOST_MARKS:
                return Invalid()
            if line_break:
                return Valid(self._answers[bare])
        state = Open(name or " " * n_before, partial)
        if partial and not self._can_be_completed(state):
            return Invalid()
        return state

    def end(self, state: Open) -> Valid | Invalid:
        """Return what an answer is that ends here."""
        step = Invalid() if state.partial else self.step(state.text + "\n")
        return step if isinstance(step, Valid) else Invalid()

    def _can_be_completed(self, state: Open) -> bool:
        """Return whether a character of accepted texts begins with the state's bytes and may follow here."""
        completions = self._completions.get(state.partial, ())
        return any(not isinstance(self.step(state.text + one), Invalid) for one in completions)

    @cached_property
    def _completions(self) -> dict[bytes, set[str]]:
        """The characters of accepted texts, folded, by the beginnings of their UTF-8 bytes."""
        alphabet = {*"".join(self._answers), *_AFTER}
        found = defaultdict(set)
        for character in map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x10000))):
            folded = fold(character)
            if alphabet.issuperset(folded):
                encoded = character.encode()
                for n in range(1, len(encoded)):
                    found[encoded[:n]].add(folded)
        return found
