"""Text from token bytes, and a model's reasoning, such as `<think>…</think>`, split from its content."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

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


class Marks(NamedTuple):
    """What a model writes around its reasoning.

    Attributes:
        start: What begins it, with the space that follows.
        end: What ends it, with the space around.
        frame: What stands around the content, and is dropped.
        after_end: What comes before content or calls after reasoning.
        text: What begins the content.
        ignored: What begins text that is neither; `end` ends it too.
        is_repeated: Whether there may be more reasoning after content.
    """

    start: str = f"{THINK}\n"
    end: str = f"\n{THINK_END}\n\n"
    frame: tuple[str, ...] = ()
    after_end: str = ""
    text: str = ""
    ignored: str = ""
    is_repeated: bool = False

    @property
    def closing(self) -> str:
        """What stands between reasoning and content."""
        return self.end + self.after_end + self.text


def literal(text: str, ids: Mapping[str, int]) -> str:
    """Return a text, perhaps none, in Lark's syntax; tokens without text are given by their `ids`."""
    tokens = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    parts = re.split(f"({tokens})", text) if ids else [text]
    written = [f"<[{ids[part]}]>" if part in ids else json.dumps(part) for part in parts if part]
    return " ".join(written)


def up_to(mark: str, name: str, ids: Mapping[str, int]) -> str:
    """Return a rule in Lark's syntax for any text up to a mark, and that; `ids` as for `literal`."""
    if any(token in mark for token in ids):  # tokens without text are no part of a text
        return f"{name}: /(?s:.*)/ {literal(mark, ids)}\n"
    return f"{name}[suffix={json.dumps(mark)}]: /(?s:.*)/\n"  # llguidance reads up to the first one


THINK_MARKS = Marks()


class ReasoningSplitter:
    """Splits a text into reasoning and content, piece by piece.

    `<think>` is looked for at the very start, whatever the marks.

    Args:
        state: Where the text begins.
        marks: What stands around the reasoning.
        is_expected: Whether the model is known to reason.

    Attributes:
        state: Where the text has got to.
        held: What is held back because it may begin a mark.
        follows_tag: Whether the text begins right after the opening tag, in the prompt.
    """

    def __init__(
        self, state: ReasoningState = "start", marks: Marks = THINK_MARKS, *, is_expected: bool = True
    ) -> None:
        self.state: ReasoningState = state
        self.is_expected = is_expected
        self.held = ""
        self.follows_tag = False
        self._read_marks(marks)
        self._strip = state != "text"  # whitespace next to the tags is dropped
        self._is_ignored = False

    def _read_marks(self, marks: Marks) -> None:
        self.marks = marks
        self._start, self._end = marks.start.strip(), marks.end.strip()
        # A model that begins its content has ended its reasoning.
        self._ends = re.compile("|".join(map(re.escape, filter(None, (self._end, marks.text)))))
        later = (self._start, self._end) if marks.is_repeated else ()
        self._later = tuple(filter(None, (*marks.frame, *later, marks.ignored)))
        longest_first = sorted(self._later, key=len, reverse=True)
        self._mark = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @property
    def n_held(self) -> int:
        """Number of characters held back."""
        return len(self.held)

    @property
    def in_reasoning(self) -> bool:
        """True if reasoning has started and not ended."""
        return self.state == "reasoning"

    @property
    def in_content(self) -> bool:
        """True if the text has got to the content, and nothing beside it is dropped here."""
        return self.state == "text" and not self._strip

    @property
    def is_over(self) -> bool:
        """True if all that follows is content."""
        return self.in_content and not self._later

    def feed(self, text: str, *, is_final: bool = False) -> tuple[str, str]:
        """Return the reasoning and the content that are now certain; what may begin a mark is held back."""
        self.held += text
        reasoning, content, state = "", "", None
        while state != self.state:
            state = self.state
            if state == "start":
                self._decide(is_final)
            elif state == "reasoning":
                reasoning += self._reasoning(is_final)
            else:
                content += self._content(is_final)
        return reasoning, content

    def _decide(self, is_final: bool) -> None:
        """Leave the state "start", unless the text may still become an opening mark."""
        text = self.held.lstrip()
        if text.startswith(THINK) and self._start != THINK:
            self._read_marks(THINK_MARKS)
        if text.startswith(self._start):
            self.state, self.held = "reasoning", text.removeprefix(self._start)
        elif is_final or not any(start.startswith(text) for start in (self._start, THINK)):
            self.state, self._strip = "text", False  # without reasoning, leading whitespace is kept

    def _reasoning(self, is_final: bool) -> str:
        found = self._ends.search(self.held)
        reasoning, mark = (self.held[: found.start()], found[0]) if found else (self.held, "")
        content = self.held[len(reasoning) + len(mark) :]
        if not (mark or is_final):  # hold back what may be the start of one
            reasoning = reasoning[: len(reasoning) - started_length(reasoning, (self._end, self.marks.text))]
        taken = self._take(len(reasoning.rstrip()))
        if is_final:
            self.held = ""
        if mark:
            self.state, self._strip, self.held = "text", True, content
        return taken

    def _content(self, is_final: bool) -> str:
        content = ""
        while mark := self._mark.search(self.held):
            rest = self.held[mark.start() :]
            if not is_final and any(
                len(longer) > len(rest) and longer.startswith(rest) for longer in self._later
            ):
                break
            content += self._take(mark.start()) * (not self._is_ignored)
            self.held = self.held[len(mark[0]) :]
            self._is_ignored = mark[0] == self.marks.ignored or (self._is_ignored and mark[0] != self._end)
            if mark[0] == self._start:
                self.state, self._strip = "reasoning", True
                return content
        n_begun = len(self.held) - mark.start() if mark else started_length(self.held, self._later)
        n_begun *= not is_final
        return content + self._take(len(self.held) - n_begun) * (not self._is_ignored)

    def _take(self, length: int) -> str:
        """Return the first characters of the held text."""
        text, self.held = self.held[:length], self.held[length:]
        text = text.lstrip() if self._strip else text
        self._strip &= not text
        return text
