"""The reasoning of a model, `<think>…</think>`, split from its answer while the text is generated."""

from collections.abc import Iterator
from dataclasses import dataclass

from mink_local.generation.text_stream import started_length

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class TextPart:
    """A piece of an answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool = False


class ReasoningSplitter:
    """Splits a text into reasoning and answer, piece by piece; a `<think>` that comes later is text.

    `state` is "start" (there may be reasoning), "reasoning" (it has started) or "text" (there is none). If
    `continued`, part of the text was shown before, so leading whitespace belongs to it.
    """

    def __init__(self, state: str = "start", continued: bool = False) -> None:
        self._state = state
        self._held = ""
        self._strip = state != "text" and not continued  # whitespace next to the marks is not shown

    @property
    def in_reasoning(self) -> bool:
        """True if reasoning has started and not ended."""
        return self._state == "reasoning"

    def feed(self, text: str) -> Iterator[TextPart]:
        """Yield the parts that are certain now; what may begin a mark is held back."""
        self._held += text
        if self._state == "start":
            self._decide()
        if self._state == "reasoning":
            yield from self._reasoning()
        if self._state == "text":
            yield from self._take(len(self._held))

    def end(self) -> Iterator[TextPart]:
        """Yield what was held back to the end."""
        if self._state == "reasoning":
            self._held = self._held.rstrip()
        yield from self._take(len(self._held))

    def _decide(self) -> None:
        """Leave the state "start", unless the text may still become the opening mark."""
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._state, self._held = "reasoning", text.removeprefix(OPEN)
        elif not OPEN.startswith(text):
            self._state, self._strip = "text", False  # without reasoning, leading blanks are the answer's

    def _reasoning(self) -> Iterator[TextPart]:
        reasoning, mark, answer = self._held.partition(CLOSE)
        if not mark:  # without an ending that the mark could continue
            reasoning = reasoning[: len(reasoning) - started_length(reasoning, (CLOSE,))]
        yield from self._take(len(reasoning.rstrip()))
        if mark:
            self._state, self._strip, self._held = "text", True, answer

    def _take(self, length: int) -> Iterator[TextPart]:
        """Yield the first characters of the held text as one part."""
        text, self._held = self._held[:length], self._held[length:]
        text = text.lstrip() if self._strip else text
        if text:
            self._strip = False
            yield TextPart(text, self._state == "reasoning")


def joined(reasoning: str, text: str, opened: bool) -> str:
    """Return reasoning and answer as the model writes them after a template that `opened` the reasoning."""
    if not reasoning:
        return text
    start = f"{'' if opened else OPEN + chr(10)}{reasoning}"
    return f"{start}\n{CLOSE}\n\n{text}" if text else start
