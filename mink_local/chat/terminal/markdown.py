"""Markdown while it is generated: a block is plain text while it grows, and rendered when it is whole."""

import re

from markdown_it import MarkdownIt
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.control import Control
from rich.markdown import Markdown
from rich.segment import ControlType, SegmentLines
from rich.syntax import Syntax
from rich.text import Text

from mink_local.cli import printable

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
_FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+#.-]*)[^`]*$")
_NEXT_BLOCK = re.compile(r" ?(#{1,6} |[-*+] |\d{1,9}[.)] )|\s*(```|~~~)")  # after any line
_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
_NEXT_PARAGRAPH = re.compile(r" ?\S")  # after a blank line; indented text belongs to the list item above


_PRODUCT = re.compile(r"`+[^`]*`+|(?<=[A-Za-z0-9])\*+(?=[A-Za-z0-9])")  # code, or the stars of 2*3*4


def _escaped(match: re.Match[str]) -> str:
    """Return stars between letters or digits as text: CommonMark takes 2*3*4 for an italic 3."""
    return match.group().replace("*", r"\*") if match.group()[0] == "*" else match.group()


class _AnswerMarkdown(Markdown):
    """Markdown in which line breaks and HTML tags are kept, and links show their address.

    A link's address must not hide behind its text: the model may have made it up.
    """

    def __init__(self, text: str, style: str) -> None:
        super().__init__("", style=style, hyperlinks=False)
        self.parsed = _PARSER.parse(_PRODUCT.sub(_escaped, text))
        for token in self.parsed:
            for part in token.children or []:
                if part.type == "softbreak":
                    part.type = "hardbreak"


class MarkdownWriter:
    """Shows one text piece by piece.

    A block that is taller than the window, or that was there when its width changed, cannot be replaced: it
    stays plain text, but code is rendered in pieces that fit the window. Plain text is broken between words.

    Args:
        console: Where it is shown.
        style: Style of rich for all of the text.
        streams: Show a block while it grows; if not, it appears when it is whole.
    """

    def __init__(self, console: Console, style: str = "", streams: bool = True) -> None:
        self._streams = streams
        self._console = console
        self._style = style
        self._lines: list[str] = []  # whole lines of the present block
        self._line = ""  # the last line, which is not whole
        self._shown = ""  # what the screen shows of both, with the line breaks that were added
        self._row = ""  # the last row of it
        self._width = self._row_width = console.width  # of the window at the first row, and at the last one
        self._fence = ""  # of the code block that is open
        self._language = ""

    def feed(self, text: str) -> None:
        """Show a piece of the text."""
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
        is_closing = (
            self._fence and line.strip().startswith(self._fence) and not line.strip(f" {self._fence[0]}")
        )
        if is_closing:
            self._finish_block(dim=line)
            self._fence = ""
            return
        if not self._fence and (fence := _FENCE.match(line)):
            self._finish_block(dim=line)
            self._fence, self._language = fence["fence"], fence["language"] or "text"
            return
        self._lines.append(line)
        if self._fence and self._rows_shown() > self._console.height // 2:
            self._finish_block()

    def _show(self, text: str) -> None:
        if not self._streams:
            return
        if not self._shown:
            self._width = self._row_width = self._console.width
        for part in [text] if self._fence else _PARTS.findall(text):
            self._show_part(part)

    def _show_part(self, part: str) -> None:
        """Show a word, blanks or a line break; begin a row with a word that the last row has no room for."""
        width, is_blank = self._console.width, not part.strip()
        word = _PARTS.findall(self._row)[-1] if self._row[-1:].strip() else ""
        start, cells = cell_len(self._row) - cell_len(word), cell_len(word + part)
        if self._fence or part == "\n":
            pass
        elif width != self._row_width:  # where the row ends is not known any more
            if is_blank:
                part, self._row_width = "\n", width
        elif is_blank and start + cells > width:
            self._row += part
            return
        elif start and start + cells > width and (cells <= width or start >= width):
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
        width = self._console.width
        return sum(max(1, len(chop_cells(line, width))) for line in self._shown.split("\n")) - 1

    def _finish_block(self, dim: str = "") -> bool:
        """Replace the block by its rendering, with the fence of a code block dim below it.

        Returns whether it was replaced; it is not if the terminal may show other rows than were counted.
        """
        lines, shown, rows, width = self._lines, self._shown, self._rows_shown(), self._width
        self._lines, self._shown, self._row = [], "", ""
        is_countable = all(cell_len(character) for character in shown.replace("\n", ""))
        if rows >= self._console.height or not is_countable or (shown and width != self._console.width):
            return False
        if shown:
            up = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * rows
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))
        if self._fence and lines:
            code = Syntax("", self._language, theme="ansi_dark").highlight("\n".join([*lines, ""]))
            self._console.print(code, end="", soft_wrap=True)
        elif lines:
            self._print_markdown("\n".join(lines))
        if dim:
            self._console.print(Text(dim, "dim"), soft_wrap=True)
        return True

    def _print_markdown(self, text: str) -> None:
        """Print a block, followed by as many blank lines as the text has at its end."""
        rows = self._console.render_lines(_AnswerMarkdown(text, self._style), pad=False)
        while rows and not any(segment.text.strip() for segment in rows[0]):
            rows.pop(0)
        while rows and not any(segment.text.strip() for segment in rows[-1]):
            rows.pop()
        self._console.print(SegmentLines(rows, new_lines=True), end="")
        self._console.print("\n" * (len(text) - len(text.rstrip("\n")) + (not rows)), end="")
