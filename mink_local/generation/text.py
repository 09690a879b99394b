"""Text from token bytes, and a model's reasoning, `<think>…</think>`, split from its content."""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mink_local.llama.weights import Weights

THINK, THINK_END = "<think>", "</think>"

ReasoningState = Literal["start", "reasoning", "text"]
"""Where a text begins: before possible reasoning, inside reasoning, or after it."""


def text_decoder(before: bytes = b"") -> codecs.IncrementalDecoder:
    """Return a decoder of token bytes; invalid UTF-8 becomes U+FFFD.

    The text may begin inside a character whose first bytes are at the end of `before`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(before)
    return decoder


class StopStrings:
    """Ends a text at the first of some strings, however the text is cut into pieces.

    Attributes:
        strings: The strings.
        stopped_by: The one that ended the text.
        held: What is held back because it may be the start of one; after the end, what begins with it.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        self.strings = strings
        self.stopped_by: str | None = None
        self.held = ""

    def feed(self, text: str, may_end: Callable[[int], bool]) -> str:
        """Return the text that certainly precedes the first stop string.

        Args:
            text: More of the text.
            may_end: Returns whether the text may end so many characters before the end of `text`.
        """
        n_seen = len(self.held)
        self.held += text
        for _, start, string in sorted(self._found(n_seen)):
            if may_end(len(self.held) - start):
                self.stopped_by = string
                return self._take(start)
        return self._take(len(self.held) - started_length(self.held, self.strings))

    def flush(self) -> str:
        """Return what is held back."""
        return self._take(len(self.held))

    def _found(self, n_seen: int) -> Iterator[tuple[int, int, str]]:
        """Yield the end and the start of each string that ends after `n_seen` characters."""
        for string in self.strings:
            start = self.held.find(string, max(0, n_seen - len(string) + 1))
            while start >= 0:
                yield start + len(string), start, string
                start = self.held.find(string, start + 1)

    def _take(self, length: int) -> str:
        text, self.held = self.held[:length], self.held[length:]
        return text


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
        held: What is held back because it may begin a tag.
        follows_tag: Whether the text begins right after the opening tag, in the prompt.
    """

    def __init__(self, state: ReasoningState = "start") -> None:
        self.state: ReasoningState = state
        self.held = ""
        self.follows_tag = False
        self._strip = state != "text"  # whitespace next to the tags is dropped

    @property
    def in_reasoning(self) -> bool:
        """True if reasoning has started and not ended."""
        return self.state == "reasoning"

    @property
    def in_content(self) -> bool:
        """True if nothing that follows is reasoning, or dropped beside it."""
        return self.state == "text" and not self._strip

    def feed(self, text: str, *, is_final: bool = False) -> tuple[str, str]:
        """Return the reasoning and the content that are now certain; what may begin a tag is held back."""
        self.held += text
        if self.state == "start":
            self._decide(is_final)
        reasoning = self._reasoning(is_final) if self.state == "reasoning" else ""
        return reasoning, (self._take(len(self.held)) if self.state == "text" else "")

    def _decide(self, is_final: bool) -> None:
        """Leave the state "start", unless the text may still become the opening tag."""
        text = self.held.lstrip()
        if text.startswith(THINK):
            self.state, self.held = "reasoning", text.removeprefix(THINK)
        elif is_final or not THINK.startswith(text):
            self.state, self._strip = "text", False  # without reasoning, leading whitespace is kept

    def _reasoning(self, is_final: bool) -> str:
        reasoning, mark, content = self.held.partition(THINK_END)
        if not (mark or is_final):  # hold back what may be the start of one
            reasoning = reasoning[: len(reasoning) - started_length(reasoning, (THINK_END,))]
        taken = self._take(len(reasoning.rstrip()))
        if is_final:
            self.held = ""
        if mark:
            self.state, self._strip, self.held = "text", True, content
        return taken

    def _take(self, length: int) -> str:
        """Return the first characters of the held text."""
        text, self.held = self.held[:length], self.held[length:]
        text = text.lstrip() if self._strip else text
        self._strip &= not text
        return text
