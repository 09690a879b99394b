"""An answer while it is generated: prompt progress, the reasoning, the text, the figures; and its colours."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Protocol

from rich.text import Text

from mink_local.chat.terminal.screen import Screen, TextWriter, counted

if TYPE_CHECKING:
    from mink_local.chat.conversation.store import StoredMessage
    from mink_local.generation.text import TextPart

AGAINST_LOOPS = "--temp 2, --dry-multiplier 0.8 or --no-loop-guard"  # what helps a one-shot answer
# The least k of each level, its name and its style; the last levels do not differ by colour alone.
_LEVELS = {
    1: ("1", ""),
    2: ("2–3", "on dark_green"),
    4: ("4–10", "on dark_goldenrod"),
    11: ("11–50", "underline on dark_orange3"),
    51: ("51+", "bold underline on red3"),
}


class GrowingAnswer(Protocol):
    """An answer while it is generated, here or elsewhere; see `AnswerStream`."""

    message: "StoredMessage"
    repeats_since: int | None

    @property
    def unread_tokens(self) -> int: ...

    @property
    def n_new(self) -> int: ...

    def parts(self, waiting: Callable[[], None] = ...) -> "Iterator[TextPart]": ...


def show_answer(screen: Screen, answer: GrowingAnswer, on_reasoning: str = "") -> None:
    """Show an answer while it is generated; `on_reasoning` says where to see what was only counted."""
    total = 0

    def show_prompt() -> None:
        nonlocal total
        unread = answer.unread_tokens
        total = max(total, unread)
        if unread:
            screen.progress(f"prompt: {total - unread} of {counted(total, 'token')}")

    text = screen.writer()
    reasoning: _ReasoningView | None = None
    continued = answer.message.content
    try:
        for part in answer.parts(show_prompt):
            if part.is_reasoning:
                reasoning = reasoning or _ReasoningView(screen, on_reasoning)
                reasoning.feed(part.text)
                continue
            if reasoning:
                reasoning.end()
                reasoning = None
            screen.progress()
            if continued:
                text.recall(continued)
                continued = ""
            text.feed(part.text)
    finally:
        screen.progress()
        if reasoning:
            reasoning.end()
        else:
            text.end()


class _ReasoningView:
    """Shows reasoning, dim, or a line that counts its words.

    Reasoning is not part of the answer: it is not written to a file or a pipe.
    """

    def __init__(self, screen: Screen, hint: str) -> None:
        self._screen = screen
        self._hint = hint
        self._text = ""
        self._writer: TextWriter | None = None
        if screen.reasoning == "show" and screen.is_terminal:
            screen.progress()
            self._writer = screen.writer("dim italic")
            if screen.is_plain:
                screen.note("(reasoning)")

    def feed(self, text: str) -> None:
        self._text += text
        if self._writer:
            self._writer.feed(text)
        else:
            self._screen.progress(f"(reasoning: {self._words})")

    def end(self) -> None:
        if self._writer:
            self._writer.feed("\n\n")
            self._writer.end()
        else:
            self._screen.progress()
            self._screen.note(f"(reasoning: {self._words}{self._hint})")

    @property
    def _words(self) -> str:
        return counted(len(self._text.split()), "word")


def note_end(screen: Screen, answer: GrowingAnswer, max_tokens: int | None, against_loops: str) -> None:
    """Say why an answer was cut short, if it was; `against_loops` says what to do about repetition."""
    reason = answer.message.finish_reason
    if reason == "repetition":
        screen.note(f"(stopped: repeating itself since token {answer.repeats_since}; try {against_loops})")
    elif reason == "interrupted":
        screen.note("(interrupted)")
    elif reason == "length" and max_tokens == answer.n_new:
        screen.note(f"(stopped after {counted(max_tokens, 'token')}: --max-tokens)")
    elif reason == "length":
        used = answer.message.prompt_tokens + answer.n_new
        screen.note(f"(stopped: the context of {used} tokens is full)")


def status(answer: "StoredMessage", n_ctx: int, new_tokens: int) -> str:
    """Return the figures of an answer."""
    seconds = max(answer.seconds - answer.first_token_s, 1e-9)
    parts = [counted(new_tokens, "token")]
    if new_tokens > 1:
        parts.append(f"{(new_tokens - 1) / seconds:.1f} tokens/s")
    parts.append(f"context {answer.prompt_tokens + new_tokens}/{n_ctx}")
    return " · ".join(parts)


def candidates(k: Sequence[int]) -> str:
    """Return the numbers of candidates of an answer's steps in words."""
    certain = sum(n == 1 for n in k) / len(k)
    return (
        f"candidates: {median_low(k):,} usually, at most {max(k):,}; "
        f"{certain:.0%} of tokens had no alternative"
    )


def coloured(texts: Iterable[str], k: Iterable[int], plain: bool = False) -> Text:
    """Return an answer whose tokens are coloured by k, with a legend; if plain, with k in brackets."""
    shown = Text().join(_marked(text, n, plain) for text, n in zip(texts, k, strict=False))
    if not plain:
        shown.append("\n\ncandidates:")
        for name, style in _LEVELS.values():
            shown.append(" ").append(f" {name} ", style)
    return shown


def _marked(text: str, k: int, plain: bool) -> Text:
    """Return a token with k as a colour, or in brackets if plain; as it is if it had no alternative."""
    if k < 2:
        return Text(text)
    if plain:
        return Text(f"{text}[{k:,}]")
    level = max(least for least in _LEVELS if least <= k)
    return Text(text.replace("\n", "↵\n"), _LEVELS[level][1])
