"""The terminal, pipe or file that a chat is shown on: the only way for text to get there."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mink_local.chat.store import Conversation

# Characters that a terminal obeys instead of showing them: everything below a space except tab and newline,
# C1, and those that change the direction of writing.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text without the characters that a terminal obeys."""
    return _CONTROL_CHARACTERS.sub("", text)


def one_line(text: str, width: int) -> str:
    """Return the beginning of a text on one line of `width` columns."""
    line = " ".join(printable(text).split())
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class TextWriter(Protocol):
    """Shows one text piece by piece."""

    def feed(self, text: str) -> None: ...

    def recall(self, text: str) -> None:
        """Continue a text that was shown before, whose last line is shown again."""

    def end(self) -> None:
        """Show the rest; the cursor is at the beginning of a line afterwards."""


class Screen:
    """Shows text, tables and notes, with Markdown and colours unless it `is_plain`.

    Args:
        plain: Show text as it is, also on a terminal that has colours.
        reasoning: "show" the reasoning of a model, or "line": only count its words.
    """

    def __init__(self, plain: bool = False, reasoning: str = "show") -> None:
        self.is_terminal = sys.stdout.isatty()
        self.is_dumb = os.environ.get("TERM") in ("dumb", "unknown")
        self.is_plain = plain or self.is_dumb or not self.is_terminal or bool(os.environ.get("NO_COLOR"))
        self.reasoning = reasoning
        options: dict[str, Any] = {"color_system": None} if self.is_plain else {}
        self.console = Console(highlight=False, markup=False, emoji=False, **options)
        self._progress = ""  # the line of standard error that is overwritten next

    @property
    def width(self) -> int:
        return self.console.width

    def show(self, *renderables: Any) -> None:
        """Print texts and tables; text in them that is not ours must be `printable`."""
        for renderable in renderables:
            self.console.print(renderable)

    def table(self, rows: Iterable[Sequence[str | Text]], *titles: str) -> None:
        """Print a table of any texts."""
        columns = (Column(title, overflow="fold") for title in titles)
        table = Table(*columns, box=None, pad_edge=False, show_header=bool(titles))
        for row in rows:
            table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
        self.console.print(table)

    def text(self, text: str) -> None:
        """Show a text as an answer is shown."""
        writer = self.writer()
        writer.feed(printable(text))
        writer.end()

    def note(self, text: str) -> None:
        """Print something that is not part of an answer, to standard error."""
        text = printable(text)
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            text = "\n".join(textwrap.fill(line, width) for line in text.split("\n"))
        click.echo(text if self.is_plain else click.style(text, dim=True), err=True)

    def progress(self, text: str = "") -> None:
        """Replace the last line of standard error by a text, or clear it; only on a terminal."""
        if not sys.stderr.isatty() or not (text or self._progress):
            return
        text = printable(text)[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write("\r" + text.ljust(len(self._progress)) + ("" if text else "\r"))
        sys.stderr.flush()
        self._progress = text

    def writer(self, style: str = "") -> TextWriter:
        """Return a writer for one text, in a rich style."""
        if self.is_plain:
            return _PlainWriter(self.is_terminal)
        from mink_local.chat.markdown import MarkdownWriter

        return MarkdownWriter(self.console, style)


class _PlainWriter:
    """Shows a text as it is, with a newline at the end."""

    def __init__(self, is_terminal: bool) -> None:
        self._last = ""
        self._is_terminal = is_terminal

    def feed(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last = text

    def recall(self, text: str) -> None:
        if self._is_terminal:
            self.feed(text.rpartition("\n")[2])

    def end(self) -> None:
        if self._is_terminal or (self._last and not self._last.endswith("\n")):
            self.feed("\n")


def show_conversations(
    screen: Screen, conversations: Sequence[Conversation], current: int | None = None
) -> None:
    """Print a table of conversations; an asterisk marks the one with the id `current`."""
    rows = []
    for one in conversations:
        then = datetime.fromtimestamp(one.updated)
        is_today = then.date() == datetime.now().date()
        row = (
            "*" if one.id == current else "",
            one.name or str(one.id),
            f"{one.turns:5}",
            f"{then:%H:%M}" if is_today else f"{then:%Y-%m-%d}",
            Path(one.model).name,
            one_line(one.title, max(20, screen.width - 50)),
        )
        rows += [row] if one.turns else []
    if rows:
        screen.table(rows, "", "name", "turns", "last", "model", "begins with")
    else:
        screen.note("(there is no conversation yet)")
