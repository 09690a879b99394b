"""Markdown while it is generated: a block is plain text while it grows, and rendered when it is whole."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.control import Control
from rich.markdown import Heading, ListItem, Markdown, MarkdownElement, TableDataElement
from rich.segment import ControlType, Segment, SegmentLines
from rich.syntax import Syntax
from rich.text import Text

from mink_local.chat.terminal import MOST_COLUMNS, wrapped_rows
from mink_local.chat.terminal.input import QuietTerminal
from mink_local.cli import printable

_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+#.-]*)[^`]*$")
_NEXT_BLOCK = re.compile(r" ?(#{1,6} |[-*+] |\d{1,9}[.)] )|\s*(```|~~~)")  # after any line
_WIDE_ALONE = re.compile("[\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")  # half a flag, or a skin tone
_BLANKS = re.compile(r"\s+")
_TEXT = re.compile(r"[^\s!-/:-@\[-`{-~]")  # what is no markup
_NEXT_PARAGRAPH = re.compile(r" ?\S")  # after a blank line; indented text belongs to the list item above


_FORMULA = re.compile(r"\s*(\\\[|\$\$|\\begin\{(?P<name>\w+\*?)\})")  # at the beginning of a line
# What CommonMark would change, and the model meant as it is: formulas, the stars of 2*3*4 and count(*),
# __init__, the underscores of an address, and a backslash, unless it stands before what is often escaped.
_AS_IT_IS = re.compile(
    r"\\\(.*?\\\)|\\\[.*?\\\]|\$\$.*?\$\$|\$(?!\s)[^$\n]+(?<!\s)\$(?!\d)"
    r"|(?<=[A-Za-z0-9])\*+(?=[A-Za-z0-9])|(?<=[(/])\*+|\*+(?=[)/])|(?<!\w)__\w+__(?!\w)|(?<=[/=?&#])_+"
    r"|\\(?![*_`#~|><.+!-])|(?<=[^\s\d])\\(?=[.+!-])",
    re.DOTALL,
)


def _as_it_is(state: StateInline, silent: bool) -> bool:
    """Take text that is shown as the model wrote it; a rule of markdown-it."""
    if not (found := _AS_IT_IS.match(state.src, state.pos)):
        return False
    if not silent:
        state.pending += found.group()
    state.pos = found.end()
    return True


_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
_PARSER.disable(["entity", "reference"]).inline.ruler.before("escape", "as_it_is", _as_it_is)


class _Heading(Heading):
    """A heading at the left, whatever its level."""

    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Cell(TableDataElement):
    """A cell that breaks a word for which its column has no room; rich would cut it off."""

    def __init__(self, justify: JustifyMethod) -> None:
        super().__init__(justify)
        self.content.overflow = "fold"


class _Item(ListItem):
    """An item of a list, whose number has its dot; rich leaves it out."""

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        for i, part in enumerate(super().render_number(console, options, number, last_number)):
            if i == 0 and isinstance(part, Segment):
                part = part._replace(text=f"{number}. ".rjust(len(part.text)))
            yield part


class _AnswerMarkdown(Markdown):
    """Markdown in which line breaks and HTML tags are kept, and links show their address.

    A link's address must not hide behind its text: the model may have made it up.
    """

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _Item,
        "th_open": _Cell,
        "td_open": _Cell,
    }

    def __init__(self, text: str, style: str, code_theme: str) -> None:
        super().__init__("", code_theme=code_theme, style=style, hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        for token in self.parsed:
            if token.children:
                token.children = list(_shown(token.children))


def _shown(parts: Sequence[Token]) -> Iterator[Token]:
    """Yield the parts of a paragraph as they are shown."""
    for part, text, end in zip(parts, [*parts[1:], *parts[:1]], [*parts[2:], *parts[:2]], strict=True):
        if part.type == "softbreak":
            part.type = "hardbreak"
        elif part.type == "link_open" and part.attrs["href"] == text.content:
            part.info = end.info = "auto"  # as <https://example.org>, whose address is its text
        if part.info != "auto":
            yield part


def _opened(line: str) -> tuple[str, str] | None:
    """Return what ends the code block or the formula that a line begins, and the language of the code."""
    if fence := _FENCE.match(line):
        return fence["fence"], fence["language"] or "text"
    if formula := _FORMULA.match(line):
        end = {"\\[": "\\]", "$$": "$$"}.get(formula[1], f"\\end{{{formula['name']}}}")
        return None if end in line[formula.end() :] else (end, "")
    return None


def _is_end(line: str, end: str, language: str) -> bool:
    """Return whether a line ends a code block, or a formula, in which no line is blank."""
    if language:
        return line.strip().startswith(end) and not line.strip(f" {end[0]}")
    return end in line or not line.strip()


def _most_cells(row: str) -> int:
    """Return how many columns a row may take.

    A character without a width may be shown in several ways; terminals show an emoji of several characters
    together or apart.
    """
    return sum(max(1, cell_len(character)) for character in _WIDE_ALONE.sub("😀", row))


def _without_end(row: Sequence[Segment]) -> list[Segment]:
    """Return a row without the blanks at its end, which would be copied too."""
    *before, last = row or [Segment("")]
    stripped = Segment(last.text.rstrip(), last.style, last.control)
    return [*before, stripped] if stripped.text or not before else _without_end(before)


class MarkdownWriter:
    """Shows one text piece by piece.

    A block that is taller than the window, or that was there when its width changed, cannot be replaced: it
    stays plain text, but code is rendered in pieces that fit the window. Plain text is broken between words.

    Args:
        console: Where it is shown.
        style: Style of rich for all of the text.
        streams: Show a block while it grows; if not, it appears when it is whole.
        code_theme: Style of Pygments for code.
    """

    def __init__(
        self, console: Console, style: str = "", streams: bool = True, code_theme: str = "ansi_dark"
    ) -> None:
        self._code_theme = code_theme
        self._streams = streams
        self._console = console
        self._style = style
        self._lines: list[str] = []  # whole lines of the present block
        self._line = ""  # the last line, which is not whole
        self._rows = [""]  # of these, on the screen
        self._row_start = 0  # of the last row in the last line
        self._window = self._window_now  # at the last row
        self._is_known = True  # no row of the block may be another one on the screen
        self._fence = ""  # that ends the code block or the formula that is open
        self._indent = 0  # of the code, which belongs to a list
        self._language = ""  # of the code; "" for a formula

    @property
    def _window_now(self) -> tuple[int, int]:
        """The window's width, and how often the program was stopped: the shell may have written since."""
        return self._console.width, QuietTerminal.n_stops

    def feed(self, text: str) -> None:
        """Show a piece of the text, with CR LF in one piece."""
        first, *others = printable(text).split("\n")
        self._extend_line(first)
        for line in others:
            self._end_line()
            self._extend_line(line)
        self._console.file.flush()

    def end(self) -> None:
        """Show the rest; the cursor is at the beginning of a line afterwards."""
        if self._line:
            self._end_line()
        self._finish_block()

    def _extend_line(self, text: str) -> None:
        """Add a text, in which a tab goes to a column of the line, counted from where its code block is."""
        shown, n = self._line + text, self._indent
        text = (shown[:n].expandtabs(4) + shown[n:].expandtabs(4)).removeprefix(self._line)
        self._line += text
        if self._lines and not self._fence:
            is_after_blank = not self._lines[-1].strip()
            if _NEXT_BLOCK.match(self._line) or (is_after_blank and _NEXT_PARAGRAPH.match(self._line)):
                self._finish_block()
        self._show(text)

    def _end_line(self) -> None:
        if self._streams:
            self._console.print()
            self._rows.append("")
        line, self._line, self._row_start = self._line, "", 0
        if self._fence and _is_end(line, self._fence, self._language):
            self._finish_block(line, "dim" if self._language else self._style)
            self._fence, self._indent = "", 0
            return
        if not self._fence and (opened := _opened(line)):
            self._finish_block(line, "dim" if opened[1] else self._style)
            self._fence, self._language = opened
            self._indent = len(line) - len(line.lstrip())
            return
        self._lines.append(line)
        if self._fence and len(self._rows) > self._console.height // 2 + 1:
            self._finish_block()

    def _show(self, text: str) -> None:
        """Show what the last line has grown by; a word that a row has no room for begins the next one."""
        if not self._streams:
            return
        window, width = self._window_now, self._console.width
        if self._rows == [""]:
            self._is_known = True
        # Where the row ends is not known any more, or not the same on all terminals.
        elif window != self._window or _most_cells(self._rows[-1]) > width:
            self._is_known = False
            word, *rest = _BLANKS.split(text, maxsplit=1)
            self._print(word)
            if not rest:
                return
            self._print("\n")
            self._rows.append("")
            self._row_start = len(self._line) - len(rest[0])
        self._window = window
        line, shown = self._line[self._row_start :], self._rows.pop()
        if self._fence:
            rows = chop_cells(line, width)
        else:
            rows = [row.plain for row in wrapped_rows(Text(line), min(width, MOST_COLUMNS))]
        rows = rows or [""]
        if not rows[0].startswith(shown):  # its last word begins the next row
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            shown = ""  # an emoji may have another width than the one that rich counts
        self._print("\n".join(rows).removeprefix(shown))
        self._rows += rows
        if len(rows) > 1:  # nothing changes those before the last one
            self._row_start = self._line.rindex(rows[-1])

    def _print(self, text: str, style: str | None = None, end: str = "") -> None:
        self._console.print(Text(text, self._style if style is None else style), end=end, soft_wrap=True)

    def _finish_block(self, below: str | None = None, style: str = "") -> None:
        """Replace the block by its rendering, with a line below it: the fence of a code block, for example.

        It is not replaced if the terminal may show other rows than were counted.
        """
        lines, rows, width = self._lines, self._rows, self._console.width
        is_same = self._window == self._window_now
        is_known = self._is_known and is_same and max(map(_most_cells, rows)) <= width
        self._lines, self._rows, self._is_known = [], rows[-1:], is_same
        if len(rows) > self._console.height or (rows != [""] and not is_known):
            return
        self._rows, self._row_start = [""], 0
        if rows != [""]:
            up = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * (len(rows) - 1)
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))
        if self._fence and lines:
            text = "\n".join([*lines, ""])
            syntax = Syntax("", self._language, theme=self._code_theme, background_color="default")
            code = syntax.highlight(text)
            self._console.print(code if self._language else Text(text, self._style), end="", soft_wrap=True)
        elif lines:
            self._print_markdown("\n".join(lines))
        if below is not None:
            self._print(below, style, end="\n")

    def _print_markdown(self, text: str) -> None:
        """Print a block, followed by as many blank lines as the text has at its end.

        It stays plain text if not all of it would be shown: an image's address, + or 1., a table with more
        columns than fit.
        """
        options = self._console.options.update(width=min(self._console.width, MOST_COLUMNS))
        answer = _AnswerMarkdown(text, self._style, self._code_theme)
        rows = self._console.render_lines(answer, options, pad=False)
        shown = "".join(segment.text for row in rows for segment in row)
        wanted = _TEXT.findall(re.sub(r"\[([^]]+)]\(\1\)", r"\1", text))  # an address that is its text, once
        if text.strip() and (not shown.strip() or Counter(wanted) - Counter(shown)):
            self._console.print(Text(text, self._style), width=options.max_width)
            return
        full = [at for at, row in enumerate(rows) if any(segment.text.strip() for segment in row)]
        rows = rows[full[0] : full[-1] + 1] if full else []
        self._console.print(SegmentLines([_without_end(row) for row in rows], new_lines=True), end="")
        self._console.print("\n" * (len(text) - len(text.rstrip("\n")) + (not rows)), end="")
