"""Text from token bytes, and a model's reasoning, `<think>…</think>`, split from its content."""

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mink_local.llama.weights import Weights

THINK, THINK_END = "<think>", "</think>"

ReasoningState = Literal["start", "reasoning", "text"]
"""Where a text begins: before possible reasoning, inside reasoning, or after it."""


class TextStream:
    """Decodes token bytes to text, up to the first stop string.

    A character is returned as soon as it is complete; invalid UTF-8 becomes U+FFFD. Text that may be the
    start of a stop string is held back. `stopped_by` is the stop string that ended the text. The text may
    begin inside a character whose first bytes are at the end of `before`.
    """

    def __init__(self, stop: Sequence[str] = (), before: bytes = b"") -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(before)
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, data: bytes, final: bool = False) -> str:
        """Return the text that `data` makes certain."""
        if self.stopped_by is not None:
            return ""
        self._held += self._decoder.decode(data, final)
        found = [string for string in self._stop if string in self._held]
        if found:
            self.stopped_by = min(found, key=self._held.index)
            end = self._held.index(self.stopped_by)
        elif final:
            end = len(self._held)
        else:
            end = len(self._held) - started_length(self._held, self._stop)
        text, self._held = self._held[:end], self._held[end:]
        return text

    def close(self) -> str:
        """Return the text held back, at the end of the bytes."""
        return self.push(b"", final=True)


def _in_hex(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("mink-local-hex", _in_hex)


def visible(data: bytes) -> str:
    """Return the text of a token's bytes, with `<0xE7>` for each byte of an incomplete character."""
    return data.decode(errors="mink-local-hex")


def token_name(weights: "Weights", token: int) -> str:
    """Return a token's `visible` text, or the vocabulary's name for a token without text."""
    return visible(weights.piece(token)) or weights.token_text(token)


def started_length(text: str, strings: Iterable[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of one of `strings`."""
    longest = 0
    for string in strings:
        lengths = range(min(len(text), len(string) - 1), longest, -1)
        longest = next((n for n in lengths if text.endswith(string[:n])), longest)
    return longest


class ReasoningSplitter:
    """Splits a text into reasoning and content, piece by piece; a later `<think>` is plain text.

    Attributes:
        state: Where the text has got to.
    """

    def __init__(self, state: ReasoningState = "start") -> None:
        self.state: ReasoningState = state
        self._held = ""
        self._strip = state != "text"  # whitespace next to the tags is dropped

    @property
    def in_reasoning(self) -> bool:
        """True if reasoning has started and not ended."""
        return self.state == "reasoning"

    def feed(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the content that are now certain; what may begin a tag is held back."""
        self._held += text
        if self.state == "start":
            self._decide()
        reasoning = self._reasoning() if self.state == "reasoning" else ""
        return reasoning, (self._take(len(self._held)) if self.state == "text" else "")

    def end(self) -> tuple[str, str]:
        """Return the text held back, as reasoning and content."""
        if self.state == "reasoning":
            self._held = self._held.rstrip()
        text = self._take(len(self._held))
        return (text, "") if self.state == "reasoning" else ("", text)

    def _decide(self) -> None:
        """Leave the state "start", unless the text may still become the opening tag."""
        text = self._held.lstrip()
        if text.startswith(THINK):
            self.state, self._held = "reasoning", text.removeprefix(THINK)
        elif not THINK.startswith(text):
            self.state, self._strip = "text", False  # without reasoning, leading whitespace is kept

    def _reasoning(self) -> str:
        reasoning, mark, content = self._held.partition(THINK_END)
        if not mark:  # hold back what may be the start of one
            reasoning = reasoning[: len(reasoning) - started_length(reasoning, (THINK_END,))]
        taken = self._take(len(reasoning.rstrip()))
        if mark:
            self.state, self._strip, self._held = "text", True, content
        return taken

    def _take(self, length: int) -> str:
        """Return the first characters of the held text."""
        text, self._held = self._held[:length], self._held[length:]
        text = text.lstrip() if self._strip else text
        self._strip &= not text
        return text


def joined(reasoning: str, text: str, opened: bool) -> str:
    """Return reasoning and answer as the model writes them; `opened`: the template opened the reasoning."""
    if not reasoning:
        return text
    start = f"{'' if opened else THINK + chr(10)}{reasoning}"
    return f"{start}\n{THINK_END}\n\n{text}" if text else start
