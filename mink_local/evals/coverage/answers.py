"""The texts that are valid answers to a prompt, and those that can still become one.

An answer ends at an end token, or at the first line break after its first letter or digit. It is valid if
it is one of the accepted names. Upper and lower case and the shape of quotation marks, apostrophes and dashes
make no difference; accents may be left out, and "the" before the name left out or added; up to four
characters of white space and of " ' * ` may be before the name and after it, and after it . and ! too.
"""

import codecs
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from mink_local.llama.weights import Weights

_BEFORE = " \t\n\"'*`"
_AFTER = _BEFORE + ".!"
_MOST_MARKS = 4  # at either end: vocabularies for code have hundreds of tokens of white space
_SHAPES = str.maketrans("‘’ʼ′“”„«»‐‑–—−\r", '\'\'\'\'"""""-----\n')
_DONE = "\U0010ffff"  # a mark after a name, if no other name goes on with it; no text has this character
_ARTICLE = "the "

Ids = NDArray[np.int64]


def fold(text: str) -> str:
    """Return a text without case and shapes of marks, character by character."""
    return text.casefold().translate(_SHAPES)


def without_accents(text: str) -> str:
    """Return a text without the accents on its letters."""
    return "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")


def normalise(name: str) -> str:
    """Return the form in which names that are the same are equal; empty if a name has only marks."""
    return without_accents(_bare(name))


def _bare(name: str) -> str:
    folded = fold(unicodedata.normalize("NFC", name))
    return folded.strip(_AFTER).removeprefix(_ARTICLE).strip(_AFTER)


@dataclass(frozen=True)
class State:
    """The text of an answer so far, as far as it matters.

    Attributes:
        text: Folded; without the marks before a name, if there is a letter of it.
        partial: The first bytes of a character whose other bytes are to come.
    """

    text: str = ""
    partial: bytes = b""


class AnswerSet:
    """The valid answers of one prompt; every answer is a sequence of its accepted names."""

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self._n = len(answers)
        self._answers = {
            article + name: i
            for i, names in enumerate(answers)
            for one in names
            for name in (_bare(one), normalise(one))
            for article in ("", _ARTICLE)
        }
        self._prefixes = {name[:n] for name in self._answers for n in range(1, len(name) + 1)}

    def __len__(self) -> int:
        return self._n

    def find(self, text: str) -> int | None:
        """Return the number of the answer that a whole text is, or None."""
        step = self._advance("", fold(text) + "\n")
        return step if isinstance(step, int) else None

    def answer(self, state: State) -> int | None:
        """Return the number of the answer if it ends in this state, or None if that is not valid."""
        return None if state.partial else self._answer(state.text)

    def advance(self, state: State, data: bytes) -> State | int | None:
        """Return the state after some bytes more, or the answer that they end, or None if it is invalid."""
        data = state.partial + data
        try:
            text, n_decoded = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            return None
        return self.continued(state.text, fold(text), data[n_decoded:])

    def continued(self, text: str, folded: str, partial: bytes) -> State | int | None:
        """Return what `advance` does, for bytes that are decoded and folded already."""
        after = self._advance(text, folded)
        if not isinstance(after, str):
            return after
        if partial and not any(
            self._advance(after, completed) is not None for completed in self._completions.get(partial, ())
        ):
            return None
        return State(after, partial)

    def _answer(self, text: str) -> int | None:
        name = text.rstrip(_AFTER + _DONE)
        return self._answers.get(name) if len(text) - len(name) <= _MOST_MARKS else None

    def _advance(self, text: str, folded: str) -> str | int | None:
        text += folded
        name = text.lstrip(_BEFORE)
        n_before = len(text) - len(name)
        if n_before > _MOST_MARKS:
            return None
        if not name:
            return " " * n_before
        name, line_break, _ = name.partition("\n")
        if line_break:
            return self._answer(name)
        if name in self._prefixes:
            return name
        if self._answer(name) is None:
            return None
        whole = name.rstrip(_AFTER + _DONE)
        return whole + _DONE * (len(name) - len(whole))

    @cached_property
    def _completions(self) -> dict[bytes, set[str]]:
        """The characters of accepted texts, folded, by the beginnings of their UTF-8 bytes."""
        alphabet = {*"".join(self._answers), *_AFTER}
        found = defaultdict(set)
        for character, folded in _folded_characters().items():
            if alphabet.issuperset(folded):
                encoded = character.encode()
                for n in range(1, len(encoded)):
                    found[encoded[:n]].add(folded)
        return found


@cache
def _folded_characters() -> dict[str, str]:
    """Return the characters of two and three bytes, and what they are folded."""
    characters = (chr(code) for code in (*range(0x80, 0xD800), *range(0xE000, 0x10000)))
    return {character: fold(character) for character in characters}


@dataclass(frozen=True)
class Continuations:
    """The tokens after which an answer is valid or can become valid; after all others it is invalid.

    Attributes:
        open_ids: int64 (m,), tokens after which it goes on.
        states: The m states after them.
        end_ids: int64 (n,), tokens that end a valid answer.
        answers: int64 (n,), the numbers of these answers.
    """

    open_ids: Ids
    states: Sequence[State]
    end_ids: Ids
    answers: Ids


class Vocabulary:
    """The tokens of a model by the texts that they add.

    A token without text that does not end an answer, such as the beginning of a turn, makes it invalid.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._by_start: dict[str, dict[str, list[tuple[int, str, bytes]]]] = {}  # one character, then two
        self._inner: list[int] = []  # tokens that begin in the middle of a character
        for token in range(weights.n_vocab):
            data = weights.piece(token)
            if not data or token in weights.end_tokens:
                continue
            try:
                text, n_decoded = codecs.utf_8_decode(data, "strict", False)
            except UnicodeDecodeError:
                self._inner.append(token)
            else:
                folded = fold(text)
                starts = self._by_start.setdefault(folded[:1], {})
                starts.setdefault(folded[:2], []).append((token, folded, data[n_decoded:]))

    def continuations(self, answers: AnswerSet, state: State) -> Continuations:
        """Return the tokens that lead from a state to a valid answer."""
        found: list[tuple[int, State]] = []
        ended: list[tuple[int, int]] = []
        for token, after in self._steps(answers, state):
            if isinstance(after, State):
                found.append((token, after))
            elif after is not None:
                ended.append((token, after))
        answer = answers.answer(state)
        if answer is not None:
            ended += [(token, answer) for token in sorted(self._weights.end_tokens)]
        ends = np.array(ended, np.int64).reshape(-1, 2)
        open_ids = np.array([token for token, _ in found], np.int64)
        return Continuations(open_ids, [after for _, after in found], ends[:, 0], ends[:, 1])

    def _steps(self, answers: AnswerSet, state: State) -> Iterator[tuple[int, State | int | None]]:
        """Yield every token that may go on from a state, and what it leads to."""
        if state.partial:
            for token in self._inner:
                yield token, answers.advance(state, self._weights.piece(token))
            return
        for first, starts in self._by_start.items():
            if answers.continued(state.text, first, b"") is None:
                continue
            for start, tokens in starts.items():
                if answers.continued(state.text, start, b"") is None:
                    continue
                for token, folded, partial in tokens:
                    yield token, answers.continued(state.text, folded, partial)
