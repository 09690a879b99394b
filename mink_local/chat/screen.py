"""What `mink-chat` shows: answers as they come, notes, tables; plain, or with Markdown and colours."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from mink_local.chat.store import Outcome
from mink_local.interrupts import until_interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from mink_local.chat.answer_stream import Answer
    from mink_local.generation.model import Reply

# What a terminal would obey instead of show: everything below a space but tab and newline, C1, and what
# turns the direction of writing.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_BAR = 24  # characters


_style: dict[str, bool | None] = {"dim": None if os.environ.get("NO_COLOR") else True}  # of notes


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return _CONTROL_CHARACTERS.sub("", text)


def one_line(text: str, width: int) -> str:
    """The beginning of a text, on one line of `width` columns."""
    from rich.cells import cell_len, set_cell_size

    line = " ".join(printable(text).split())
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def note(text: str) -> None:
    """Say something that is not part of an answer."""
    text = printable(text)
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(textwrap.fill(line, width) for line in text.split("\n"))
    click.echo(click.style(text, dim=_style["dim"]), err=True)


class Screen:
    """Where a chat is shown.

    plain: text as it is. thoughts: "show" them, or "line": only a line that says that there was one.
    """

    def __init__(self, plain: bool = False, thoughts: str = "show") -> None:
        self.is_terminal = sys.stdout.isatty()
        self.is_dumb = os.environ.get("TERM") in ("dumb", "unknown")
        self.plain = plain or self.is_dumb or not self.is_terminal or bool(os.environ.get("NO_COLOR"))
        _style["dim"] = None if self.plain else True
        self.thoughts = thoughts
        self._console: Console | None = None

    @property
    def console(self) -> "Console":
        from rich.console import Console

        if self._console is None:
            options: dict[str, Any] = {"color_system": None} if self.plain else {}
            self._console = Console(highlight=False, markup=False, emoji=False, **options)
        return self._console

    @property
    def width(self) -> int:
        return self.console.width

    def show(self, *renderables: Any) -> None:
        """Print text and tables, of which what is not ours must be `printable`."""
        for renderable in renderables:
            self.console.print(renderable)

    def stream(self, answer: "Answer") -> None:
        """Show an answer as it comes."""
        reading = _Reading(answer.reply)
        answer.waiting = reading.update
        thought: _Thought | None = None
        text = self.writer()
        if answer.continued:
            text.recall(printable(answer.continued))
        try:
            for piece in answer:
                reading.end()
                if piece.thinking:
                    thought = thought or _Thought(self)
                    thought.feed(printable(piece.text))
                    continue
                if thought:
                    thought.end()
                    thought = None
                text.feed(printable(piece.text) if self.is_terminal else piece.text)
        finally:
            reading.end()
            if thought:
                thought.end()
            else:
                text.end()

    def read(self, reply: "Reply") -> None:
        """Have a prompt read, of which nothing is shown but how far it is."""
        reading = _Reading(reply)
        try:
            for _ in until_interrupted(reply, reading.update):
                pass
        finally:
            reading.end()

    def text(self, text: str) -> None:
        """Show a text as an answer is shown."""
        writer = self.writer()
        writer.feed(printable(text))
        writer.end()

    def writer(self, style: str = "") -> Any:
        """What shows one text as it comes: `feed` it the pieces, then `end`."""
        if self.plain:
            return _Plain(self.is_terminal)
        from mink_local.chat.markdown import Markdown

        return Markdown(self.console, style)


class _Plain:
    """Text as it is, ended by a newline."""

    def __init__(self, is_terminal: bool) -> None:
        self._last = ""
        self._is_terminal = is_terminal

    def feed(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last = text

    def recall(self, text: str) -> None:
        """Go on behind a text, whose last line is shown again."""
        if self._is_terminal:
            self.feed(text.rpartition("\n")[2])

    def end(self) -> None:
        if self._is_terminal or (self._last and not self._last.endswith("\n")):
            self.feed("\n")


class _Thought:
    """What a model thinks aloud: dim, or a line that counts its words. It is not part of the answer, and so
    does not go where the answer is written to a file or a pipe."""

    def __init__(self, screen: Screen) -> None:
        self._text = ""
        self._writer = None
        if screen.thoughts == "show" and screen.is_terminal:
            self._writer = screen.writer("dim italic")
            if screen.plain:
                note("(thinking)")

    @property
    def _words(self) -> int:
        return len(self._text.split())

    def feed(self, text: str) -> None:
        self._text += text
        if self._writer:
            self._writer.feed(text)
        else:
            _overwrite(f"(thinking: {self._words} words)")

    def end(self) -> None:
        if self._writer:
            self._writer.feed("\n\n")
            self._writer.end()
        else:
            _overwrite()
            note(f"(thought for {self._words} words: /think shows them)")


class _Reading:
    """A bar for a prompt that takes long to read."""

    def __init__(self, reply: "Reply") -> None:
        self._reply = reply
        self._most = 0
        self._shown = False

    def update(self) -> None:
        unread = self._reply.unread_tokens
        self._most = max(self._most, unread)
        if unread:
            self._shown = True
            done = self._most - unread
            bar = ("█" * (_BAR * done // self._most)).ljust(_BAR, "░")
            _overwrite(f"{bar} reading {self._most} tokens")

    def end(self) -> None:
        if self._shown:
            _overwrite()
            self._shown = False


def _overwrite(text: str = "") -> None:
    """Show a text over the line that standard error is on, or clear that line, where it is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}" if text else "\r\x1b[K")
        sys.stderr.flush()


def status(outcome: Outcome, n_ctx: int, new_tokens: int) -> str:
    """An answer in figures, on one line."""
    seconds = max(outcome.seconds - outcome.first_token_s, 1e-9)
    parts = [f"{new_tokens} tokens"]
    if new_tokens > 1:
        parts.append(f"{(new_tokens - 1) / seconds:.1f} tokens/s")
    parts.append(f"context {outcome.prompt_tokens + new_tokens}/{n_ctx}")
    return " · ".join([*parts, distribution(outcome.k)] if outcome.k else parts)


def distribution(k: Sequence[int]) -> str:
    """How many candidates stood at the steps of an answer, in a few words; a step with one is certain."""
    certain = sum(n == 1 for n in k) / len(k)
    return f"k median {median(k):g}, most {max(k)}, {certain:.0%} certain"
