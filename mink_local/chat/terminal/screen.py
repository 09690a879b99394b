"""The terminal, pipe or file that a chat is shown on: the only way for text to get there."""

import base64
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text
from rich.theme import Theme as RichTheme

from mink_local.chat.terminal import MOST_COLUMNS, wrapped_rows
from mink_local.cli import no_blanks_at_line_ends, printable
from mink_local.errors import MinkError

_MOST_COPIED = 74_000  # bytes of base64; terminals that limit OSC 52 take that many


class Theme(NamedTuple):
    """Styles of rich; those of candidates are for 1, 2, 4, 11 and 51 of them, the last not by colour alone.

    Attributes:
        accent: Headings, and the user's own messages.
        own: These in the input line, in prompt_toolkit's words.
        code: The style of Pygments for code.
        inline_code: Code within a line.
        candidates: Backgrounds with a foreground that can be read on them.
    """

    accent: str
    own: str
    code: str
    inline_code: str
    candidates: tuple[str, str, str, str, str]


_MANY = "bold underline #ffffff on #b01010"
DARK = Theme(
    "bold cyan",
    "bold ansicyan",
    "ansi_dark",
    "cyan",
    (
        "",
        "#ffffff on #00590c",
        "#000000 on #b89500",
        "underline #000000 on #e08030",
        _MANY,
    ),
)
LIGHT = Theme(
    "bold blue",
    "bold ansiblue",
    "default",
    "blue",
    (
        "",
        "#000000 on #c4ecc4",
        "#000000 on #fbe48a",
        "underline #000000 on #f7b98b",
        _MANY,
    ),
)
COLOURLESS = Theme("bold", "bold", "bw", "", ("",) * 5)
_LIGHT_BACKGROUNDS = ("7", "15")  # colours of a terminal
THEMES = {"dark": DARK, "light": LIGHT, "none": COLOURLESS}


def rich_styles(theme: Theme) -> RichTheme:
    """Return the styles of Markdown."""
    headings = {f"markdown.h{level}": theme.accent for level in range(1, 7)}
    accents = dict.fromkeys(("markdown.item.number", "markdown.list", "markdown.table.border"), "")
    links = {"markdown.link": "underline", "markdown.link_url": theme.inline_code}
    texts = {"markdown.code": theme.inline_code, "markdown.block_quote": "italic"}
    return RichTheme({**headings, **accents, **links, **texts, "markdown.table.header": theme.accent})


def theme_named(name: str) -> Theme:
    """Return a theme; `auto` is that for the background that COLORFGBG tells, or else the dark one."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return THEMES.get(name, LIGHT if background in _LIGHT_BACKGROUNDS else DARK)


def ask_window_for_size() -> None:
    """Have this program and those it starts take the size of the window, whatever COLUMNS and LINES say.

    Another program may have set them for its own window, or before this one was resized: an answer whose
    rows are counted wrong stays on the screen beside its rendering.
    """
    with suppress(OSError, ValueError):  # no terminal
        if os.get_terminal_size(sys.stdout.fileno()).columns:
            os.environ.pop("COLUMNS", None)
            os.environ.pop("LINES", None)


def one_line(text: str, width: int) -> str:
    """Return the beginning of a text on one line of `width` columns."""
    line = " ".join(printable(text).split())
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def beginnings(texts: Sequence[str], width: int) -> list[str]:
    """Return texts, each from where it parts from the others if `width` columns would not show that."""
    lines, shown = [" ".join(text.split()) for text in texts], []
    for line in lines:
        common = [os.path.commonprefix([line, other]) for other in lines if other != line]  # noqa: RUF071
        same = max(map(len, common), default=0)
        shown.append(line if same < width * 2 // 3 else f"…{line[same - width // 3 :]}")
    return shown


def joined_line_ends(texts: Iterable[str]) -> Iterator[str]:
    """Yield pieces of a text, CR LF in one piece: a CR at the end of one waits for the next."""
    held = ""
    for text in texts:
        whole = held + text
        held = "\r" if whole.endswith("\r") else ""
        yield whole.removesuffix(held)
    yield held


class _GatedConsole(Console):
    """A console that passes no control characters on, whatever text a renderable or a link holds."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            if style and style.link and style.link != printable(style.link):
                style = style.update_link(None)
            yield Segment(text if control else printable(text), style, control)


class Screen:
    """Shows text, tables and notes, with Markdown and colours unless it `is_plain`.

    Args:
        plain: Show text as it is, also on a terminal that has colours.
        shows_reasoning: Show the reasoning of a model; if not, only count its words.
        theme: The name of styles for the terminal's background; see `theme_named`.

    Attributes:
        is_terminal: Whether standard output is a terminal.
        is_dumb: Whether what is shown there cannot be changed any more.
        is_plain: Whether text is shown as it is.
    """

    def __init__(self, plain: bool = False, shows_reasoning: bool = True, theme: str = "auto") -> None:
        self.is_terminal = sys.stdout.isatty()
        self.is_dumb = not self.is_terminal or os.environ.get("TERM") in ("dumb", "unknown")
        self.is_plain = plain or self.is_dumb or bool(os.environ.get("NO_COLOR"))
        self.shows_reasoning = shows_reasoning
        self.theme = COLOURLESS if self.is_plain else theme_named(theme)
        options: dict[str, Any] = {
            "color_system": None if self.is_plain else "auto",
            "no_color": self.theme is COLOURLESS,
        }
        self.console: Console = _GatedConsole(
            highlight=False, markup=False, emoji=False, theme=rich_styles(self.theme), **options
        )
        self._errors = _GatedConsole(stderr=True, **options)
        self._progress = ""  # the line of standard error that is overwritten next

    @property
    def width(self) -> int:
        """The columns of what is shown: those of the window, unless its lines would be hard to read."""
        return min(self.console.width, MOST_COLUMNS)

    def show(self, *renderables: Any) -> None:
        """Print texts and tables."""
        self.progress()
        with no_blanks_at_line_ends(self.console):
            self.console.print(*renderables, sep="\n", width=self.width)

    def table(self, rows: Iterable[Sequence[str | Text]], *titles: str) -> None:
        """Print a table of any texts."""
        columns = (Column(title, overflow="fold") for title in titles)
        accent = self.theme.accent
        table = Table(*columns, box=None, pad_edge=False, show_header=bool(titles), header_style=accent)
        for row in rows:
            table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
        self.show(table)

    def text(self, text: str | Iterable[str], style: str = "") -> None:
        """Show a text, or its pieces while they come, in a rich style.

        The cursor is at the beginning of a line afterwards.
        """
        pieces: Iterable[str] = [text] if isinstance(text, str) else text
        if self.is_plain:
            self._write_plain(pieces)
            return
        from mink_local.chat.terminal.markdown import MarkdownWriter

        writer = MarkdownWriter(self.console, style, not isinstance(text, str), self.theme.code)
        try:
            for piece in pieces:
                writer.feed(piece)
        finally:
            writer.end()

    def _write_plain(self, pieces: Iterable[str]) -> None:
        """Write the pieces of a text as they are, with a newline at the end."""
        last = ""
        try:
            for last in filter(None, pieces):
                self.write(last)
        finally:
            if self.is_terminal or not (last or "\n").endswith("\n"):
                self.write("\n")

    def write(self, text: str) -> None:
        """Write a text to standard output as it is, or `printable` to a terminal."""
        sys.stdout.write(printable(text) if self.is_terminal else text)
        sys.stdout.flush()

    def copy(self, text: str) -> None:
        """Have the terminal put a text on the clipboard, by OSC 52. Raises MinkError if it cannot."""
        if not self.is_terminal or self.console.legacy_windows:
            raise MinkError("this is not a terminal that can copy: /export FILE.md writes a file")
        data = base64.b64encode(text.encode()).decode()
        if len(data) > _MOST_COPIED:
            raise MinkError(f"the answer has {len(text)} characters, too many to copy: /export FILE.md")
        sys.stdout.write(f"\x1b]52;c;{data}\x07")
        sys.stdout.flush()

    def own(self, text: str) -> None:
        """Print a message of the user, which was sent before."""
        self.show(Text(f"> {one_line(text, 2 * self.width)}", self.theme.accent))

    def note(self, text: str) -> None:
        """Print an aside to standard error, in brackets where it cannot be dim."""
        self.dim(f"({text})" if self.is_plain else text)

    def dim(self, text: str) -> None:
        """Print something that is not part of an answer, to standard error."""
        self.progress()
        whole = Text(printable(text), "" if self.is_plain else "dim")
        rows = wrapped_rows(whole, self.width) if self._errors.is_terminal else [whole]
        for at, row in enumerate(rows):  # without the blanks at which it was wrapped
            row.plain = row.plain.strip() if at else row.plain.rstrip()
        self._errors.print(*rows, sep="\n", soft_wrap=True)

    def progress(self, text: str = "") -> None:
        """Replace the last line of standard error by a text, or clear it; only on a terminal."""
        if not sys.stderr.isatty() or text == self._progress:
            return
        text = one_line(text, shutil.get_terminal_size().columns - 1)
        blanks = " " * (cell_len(self._progress) - cell_len(text))
        sys.stderr.write("\r" + text + blanks + ("" if text else "\r"))
        sys.stderr.flush()
        self._progress = text
