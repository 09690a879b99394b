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
from dataclasses import dataclass, replace
from functools import cached_property

from mink_local.llama.weights import Weights

_BEFORE = " \t\n\"'*`"
_AFTER = _BEFORE + ".!"
_MOST_MARKS = 4  # at either end: vocabularies for code have hundreds of tokens of white space
_SHAPES = str.maketrans("‘’ʼ′“”„«»‐‑–—−\r", '\'\'\'\'"""""-----\n')
_ARTICLE = "the "


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
class Open:
    """The text of an answer that may still become valid.

    Attributes:
        name: The beginning of a name, folded; empty if there were only marks so far.
        n_marks: Marks before the name if it is empty, else after it: then only marks may follow.
        partial: The first bytes of a character whose other bytes are to come.
    """

    name: str = ""
    n_marks: int = 0
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
        self._prefixes = {name[:n] for name in self._answers for n in range(1, len(name) + 1)}

    def __len__(self) -> int:
        return self._n

    def classify(self, text: str) -> Step:
        """Return what a whole text is, as an answer that ends there."""
        return self.end(Open(), fold(text))

    def end(self, state: Open, folded: str = "") -> Step:
        """Return what an answer is that ends after `folded`."""
        step = Invalid() if state.partial else self._follow(state, folded + "\n")
        return step if isinstance(step, Valid) else Invalid()

    def advance(self, state: Open, data: bytes) -> Step:
        """Return what an answer is after some more bytes."""
        data = state.partial + data
        try:
            text, n_decoded = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            return Invalid()
        return self.follow(state, fold(text), data[n_decoded:])

    def follow(self, state: Open, folded: str, partial: bytes = b"") -> Step:
        """Return what an answer is after some more text, folded, and the first bytes of a character."""
        step = self._follow(state, folded)
        if not partial or not isinstance(step, Open):
            return step
        completed = (self._follow(step, character) for character in self._completions.get(partial, ()))
        if all(isinstance(one, Invalid) for one in completed):
            return Invalid()
        return replace(step, partial=partial)

    def _follow(self, state: Open, folded: str) -> Step:
        if state.name and state.n_marks:
            marks, line_break, _ = folded.partition("\n")
            if marks.strip(_AFTER):
                return Invalid()
            return self._complete(state.name, state.n_marks + len(marks), ended=bool(line_break))
        text = " " * state.n_marks + state.name + folded
        name = text.lstrip(_BEFORE)
        n_before = len(text) - len(name)
        if n_before > _MOST_MARKS:
            return Invalid()
        if not name:
            return Open(n_marks=n_before)
        name, line_break, _ = name.partition("\n")
        if name in self._prefixes and not line_break:
            return Open(name)
        whole = name.rstrip(_AFTER)
        return self._complete(whole, len(name) - len(whole), ended=bool(line_break))

    def _complete(self, name: str, n_marks: int, *, ended: bool) -> Step:
        """Return what a name is with marks after it, if no other name goes on with them."""
        if name not in self._answers or n_marks > _MOST_MARKS:
            return Invalid()
        return Valid(self._answers[name]) if ended else Open(name, n_marks)

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

    def continuations(self, answers: AnswerSet, state: Open) -> tuple[dict[int, Open], dict[int, int]]:
        """Return the tokens that lead from a state to a valid answer; all others make it invalid.

        Returns:
            The tokens after which the answer goes on, with the state after each, and the tokens that end a
            valid answer, with its number.
        """
        goes_on: dict[int, Open] = {}
        ended: dict[int, int] = {}
        for token, step in self._steps(answers, state):
            if isinstance(step, Open):
                goes_on[token] = step
            elif isinstance(step, Valid):
                ended[token] = step.number
        whole = answers.end(state)
        if isinstance(whole, Valid):
            ended |= dict.fromkeys(sorted(self._weights.end_tokens), whole.number)
        return goes_on, ended

    def _steps(self, answers: AnswerSet, state: Open) -> Iterator[tuple[int, Step]]:
        """Yield every token that may follow a state, and what the answer is after it."""
        if state.partial:
            for token in self._inner:
                yield token, answers.advance(state, self._weights.piece(token))
            return
        for first, starts in self._by_start.items():
            if isinstance(answers.follow(state, first), Invalid):
                continue
            for start, tokens in starts.items():
                if isinstance(answers.follow(state, start), Invalid):
                    continue
                for token, folded, partial in tokens:
                    yield token, answers.follow(state, folded, partial)
