"""Markdown while it is generated: a block is plain text while it grows, and rendered when it is whole."""

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich.cells import cell_len, chop_cells
from rich.console import Console, JustifyMethod
from rich.control import Control
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import ControlType, Segment, SegmentLines
from rich.syntax import Syntax
from rich.text import Text

from mink_local.chat.terminal.input import QuietTerminal
from mink_local.cli import printable

_MOST_COLUMNS = 100  # of prose: longer lines are hard to read
_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+#.-]*)[^`]*$")
_NEXT_BLOCK = re.compile(r" ?(#{1,6} |[-*+] |\d{1,9}[.)] )|\s*(```|~~~)")  # after any line
_SKIN = re.compile("[\U0001f3fb-\U0001f3ff]")  # colours the emoji before it
_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
_NEXT_PARAGRAPH = re.compile(r" ?\S")  # after a blank line; indented text belongs to the list item above


_FORMULA = re.compile(r"\s*(\\\[|\$\$|\\begin\{(?P<name>\w+\*?)\})")  # at the beginning of a line
# What CommonMark would change, and the model meant as it is: formulas, the stars of 2*3*4 and count(*),
# __init__, and a backslash, unless it stands before what is often escaped.
_AS_IT_IS = re.compile(
    r"\\\(.*?\\\)|\\\[.*?\\\]|\$\$.*?\$\$|\$(?!\s)[^$\n]+(?<!\s)\$(?!\d)"
    r"|(?<=[A-Za-z0-9])\*+(?=[A-Za-z0-9])|(?<=[(/])\*+|\*+(?=[)/])|(?<!\w)__\w+__(?!\w)"
    r"|\\(?![*_`#~|><.+!-])",
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
_PARSER.normalizeLink = lambda url: url  # type: ignore[method-assign]  # shown as it was written
_PARSER.disable(["entity", "reference"]).inline.ruler.before("escape", "as_it_is", _as_it_is)


class _Heading(Heading):
    """A heading at the left, whatever its level."""

    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _AnswerMarkdown(Markdown):
    """Markdown in which line breaks and HTML tags are kept, and links and images show their address.

    A link's address must not hide behind its text: the model may have made it up.
    """

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

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
        elif part.type == "image":
            part.type, part.content = "text", f"![{part.content}]({part.attrs['src']})"
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


def _n_rows(text: str, width: int) -> int:
    """Return how many rows of a window a text takes."""
    return sum(max(1, len(chop_cells(line, width))) for line in text.split("\n"))


def _is_countable(text: str, width: int) -> bool:
    """Return whether it is certain how many rows a text takes.

    A character without a width may be shown in several ways. Emoji of several characters, which terminals
    show together or apart, are certain if that changes no row.
    """
    narrow = text.replace("\ufe0f", "")
    apart = _SKIN.sub("😀", narrow.replace("\u200d", ""))
    is_known = all(map(cell_len, apart.replace("\n", "")))
    return is_known and len({_n_rows(one, width) for one in (text, narrow, apart)}) == 1


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
        self._shown = ""  # what the screen shows of both, with the line breaks that were added
        self._row = ""  # the last row of it
        self._width = self._row_width = console.width  # of the window at the first row, and at the last one
        self._fence = ""  # that ends the code block or the formula that is open
        self._language = ""  # of the code; "" for a formula
        self._n_stops = 0  # how often the program had been stopped at the first row

    def feed(self, text: str) -> None:
        """Show a piece of the text, with CR LF in one piece."""
        shown = (self._line + printable(text)).expandtabs(4)  # a tab goes to a column of the whole line
        *lines, rest = shown[len(self._line) :].split("\n")
        for line in lines:
            self._extend_line(line)
            self._end_line()
        self._extend_line(rest)
        self._console.file.flush()

    def recall(self, text: str) -> None:
        """Continue a text that was shown before, whose last block is shown again."""
        with self._console.capture():
            self.feed(text)
        self._shown = self._row = ""
        self._show("\n".join([*self._lines, self._line]))

    def end(self) -> None:
        """Show the rest; the cursor is at the beginning of a line afterwards."""
        if self._line:
            self._end_line()
        self._finish_block()

    def _extend_line(self, text: str) -> None:
        self._line += text
        if self._lines and not self._fence:
            is_after_blank = not self._lines[-1].strip()
            if _NEXT_BLOCK.match(self._line) or (is_after_blank and _NEXT_PARAGRAPH.match(self._line)):
                shown_of_line = self._line[: len(self._line) - len(text)] if self._shown else ""
                if self._finish_block():
                    text = self._line
                else:
                    self._shown = self._row = shown_of_line
        self._show(text)

    def _end_line(self) -> None:
        self._show("\n")
        line, self._line = self._line, ""
        if self._fence and _is_end(line, self._fence, self._language):
            self._finish_block(line, "dim" if self._language else self._style)
            self._fence = ""
            return
        if not self._fence and (opened := _opened(line)):
            self._finish_block(line, "dim" if opened[1] else self._style)
            self._fence, self._language = opened
            return
        self._lines.append(line)
        if self._fence and self._rows_shown() > self._console.height // 2:
            self._finish_block()

    def _show(self, text: str) -> None:
        if not self._streams:
            return
        if not self._shown:
            self._width = self._row_width = self._console.width
            self._n_stops = QuietTerminal.n_stops
        for part in [text] if self._fence else _PARTS.findall(text):
            self._show_part(part)

    def _show_part(self, part: str) -> None:
        """Show a word, blanks or a line break; begin a row with a word that the last row has no room for."""
        width, is_blank = self._console.width, not part.strip()
        limit = min(width, _MOST_COLUMNS)
        word = _PARTS.findall(self._row)[-1] if self._row[-1:].strip() else ""
        start, cells = cell_len(self._row) - cell_len(word), cell_len(word + part)
        if self._fence or part == "\n":
            pass
        elif width != self._row_width:  # where the row ends is not known any more
            if is_blank:
                part, self._row_width = "\n", width
        elif is_blank and start + cells > limit:
            self._row += part
            return
        elif start and start + cells > limit and (cells <= limit or start >= limit):
            if word:
                to_word = (ControlType.CURSOR_FORWARD, start), (ControlType.ERASE_IN_LINE, 0)
                self._console.control(Control(ControlType.CARRIAGE_RETURN, *to_word))
                self._shown = self._shown[: -len(word)]
            part = f"\n{word}{part}"
        self._console.print(Text(part, self._style), end="", soft_wrap=True)
        self._shown += part
        self._row = (self._row + part).rpartition("\n")[2]
        if cell_len(self._row) > width:
            self._row = chop_cells(self._row, width)[-1]

    def _rows_shown(self) -> int:
        """Return how many rows the cursor is below the first one of the block."""
        return _n_rows(self._shown, self._console.width) - 1

    def _finish_block(self, below: str | None = None, style: str = "") -> bool:
        """Replace the block by its rendering, with a line below it: the fence of a code block, for example.

        Returns whether it was replaced; it is not if the terminal may show other rows than were counted.
        """
        lines, shown, rows, width = self._lines, self._shown, self._rows_shown(), self._width
        self._lines, self._shown, self._row = [], "", ""
        is_known = (
            width == self._console.width
            and self._n_stops == QuietTerminal.n_stops
            and _is_countable(shown, width)
        )
        if rows >= self._console.height or (shown and not is_known):
            return False
        if shown:
            up = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * rows
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))
        if self._fence and lines:
            text = "\n".join([*lines, ""])
            syntax = Syntax("", self._language, theme=self._code_theme, background_color="default")
            code = syntax.highlight(text)
            self._console.print(code if self._language else Text(text, self._style), end="", soft_wrap=True)
        elif lines:
            self._print_markdown("\n".join(lines))
        if below is not None:
            self._console.print(Text(below, style), soft_wrap=True)
        return True

    def _print_markdown(self, text: str) -> None:
        """Print a block, followed by as many blank lines as the text has at its end."""
        options = self._console.options.update(width=min(self._console.width, _MOST_COLUMNS))
        answer = _AnswerMarkdown(text, self._style, self._code_theme)
        rows = self._console.render_lines(answer, options, pad=False)
        while rows and not any(segment.text.strip() for segment in rows[0]):
            rows.pop(0)
        while rows and not any(segment.text.strip() for segment in rows[-1]):
            rows.pop()
        self._console.print(SegmentLines([_without_end(row) for row in rows], new_lines=True), end="")
        self._console.print("\n" * (len(text) - len(text.rstrip("\n")) + (not rows)), end="")
