"""Telling what a model thinks aloud, `<think>…</think>`, from its answer, as the text comes."""

from collections.abc import Iterator
from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Piece:
    """A piece of an answer, or of the thought that goes before it."""

    text: str
    thinking: bool = False


class Splitter:
    """Splits an answer that may begin with a thought. A thought only stands at the beginning: a `<think>`
    that comes later is text.

    state: "start" of an answer that may think, in the "thought" (a template may have opened it), or in
    the "text". continued: something of it is shown already, and its next blanks are its own.
    """

    def __init__(self, state: str = "start", continued: bool = False) -> None:
        self._state = state
        self._held = ""
        self._strip = (
            state != "text" and not continued
        )  # blanks between the marks and what they mark are not shown

    def feed(self, text: str) -> Iterator[Piece]:
        """The pieces that are certain now; what may be the beginning of a mark is held back."""
        self._held += text
        if self._state == "start":
            begun = self._held.lstrip()
            if OPEN.startswith(begun[: len(OPEN)]) and len(begun) < len(OPEN):
                return
            self._state = "thought" if begun.startswith(OPEN) else "text"
            if self._state == "thought":
                self._held = begun[len(OPEN) :]
            else:
                self._strip = False  # what an answer begins with when there is no thought is its own
        if self._state == "thought":
            thought, mark, rest = self._held.partition(CLOSE)
            if mark:
                yield from self._piece(thought.rstrip(), True)
                self._state, self._strip, self._held = "text", True, rest
            else:
                certain = _without_beginning_of(CLOSE, self._held).rstrip()
                self._held = self._held[len(certain) :]
                yield from self._piece(certain, True)
        if self._state == "text":
            text, self._held = self._held, ""
            yield from self._piece(text, False)

    def end(self) -> Iterator[Piece]:
        """What was held back to the end."""
        held, self._held = self._held, ""
        yield from self._piece(held.rstrip() if self._state == "thought" else held, self._state == "thought")

    def _piece(self, text: str, thinking: bool) -> Iterator[Piece]:
        text = text.lstrip() if self._strip else text
        if text:
            self._strip = False
            yield Piece(text, thinking)


def _without_beginning_of(mark: str, text: str) -> str:
    """`text` without an end that `mark` may go on from."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return text[:-length]
    return text


def joined(thinking: str, text: str, opened: bool) -> str:
    """A thought and an answer as the model writes them; `opened`: the template has written the first mark."""
    if not thinking:
        return text
    begun = f"{'' if opened else OPEN + chr(10)}{thinking}"
    return f"{begun}\n{CLOSE}\n\n{text}" if text else begun
