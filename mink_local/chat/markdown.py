"""Markdown shown while it is generated: every character is printed once, in its style.

Rendering the whole text again for every token flickers, and cuts texts that are longer than the window.
Here text that cannot be decided yet is held back: a word until it ends (it may have to go to the next
line), a `**` until the one that closes it, the beginning of a line until it is clear what the line is, a line
of code until it is whole, a table until the widths of its columns can be chosen.

The address of a link is shown beside its text, and not hidden behind it: the model may have made it up.
"""

import re
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from mink_local.chat.markdown_table import MarkdownTable, is_table
from mink_local.cli import printable

_LONGEST_SPAN = 300  # characters after which a mark that is not closed is text

# A whole span at the present position, or a character behind a backslash.
_SPAN = re.compile(
    r"(?P<tick>`+)(?!`)(?P<code>.+?)(?<!`)(?P=tick)(?!`)"
    r"|(?<![A-Za-z0-9*])\*\*(?=[^\s*])(?P<strong>.+?)(?<=\S)\*\*"
    r"|(?<!\w)__(?=[^\s_])(?P<strong_>.+?)(?<=\S)__(?!\w)"
    r"|(?<![A-Za-z0-9*])\*(?=[^\s*])(?P<em>[^*]+?)(?<=\S)\*(?![A-Za-z0-9*])"
    r"|(?<!\w)_(?=[^\s_])(?P<em_>[^_]+?)(?<=\S)_(?!\w)"
    r"|~~(?=\S)(?P<strike>.+?)(?<=\S)~~"
    r"|\[(?P<link>[^\[\]]+)\]\((?P<url>[^\s()]+)\)"
    r"|\\(?P<escaped>[\\`*_{}\[\]()#+\-.!~|>])"
)
# A mark that may open a span: no blank follows, and there is no letter before a star or a bar.
_MARK = re.compile(
    r"\[[^\[\]]*(?:\](?:\([^\s()]*\)?)?)?$"
    r"|`+|(?<![A-Za-z0-9*])\*{1,2}(?!\*|\s)|(?<!\w)_{1,2}(?!_|\s)|~(?:~(?!~|\s)|$)|\\(?=[\\`*_{}\[\]()#+\-.!~|>]|$)"
)
_NO_MARK = re.compile(r"[^`*_~\\\[]+|`+|~+|.")
_STYLES = {
    "code": Style(color="cyan"),
    "strong": Style(bold=True),
    "strong_": Style(bold=True),
    "em": Style(italic=True),
    "em_": Style(italic=True),
    "strike": Style(strike=True),
    "url": Style(underline=True),
    "escaped": Style(),
}
# The beginnings of lines.
_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+#.-]*)[^`]*$")
_HEADING = re.compile(r" {0,3}#{1,6} +")
_ITEM = re.compile(r"(?P<indent> *)([-*+]|(?P<number>\d{1,9}[.)])) +(?=\S)")
_QUOTE = re.compile(r" {0,3}> ?")
_RULE = re.compile(r" {0,3}([-*_])( *\1){2,} *$")
_UNDECIDED = re.compile(
    r" *([-*+_]+[-*+_ ]*|#{1,6} *|\d{1,9}[.)]? *|>|`{1,2}|~{1,2}|(`{3,}|~{3,}|\|)[^\n]*)?$"
)
_ROW = re.compile(r" *\|")

# Blanks, words, and characters of languages without blanks: a line may end between two of these.
_WIDE = r"\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef"
_WORDS = re.compile(rf"\s+|[{_WIDE}]|[^\s{_WIDE}]+")
_DIM = Style(dim=True)
_HEAD = Style(bold=True)


def inline(line: str, start: int, final: bool, style: Style) -> Iterator[tuple[int, str, Style]]:
    """Yield (end, text, style) for the pieces of a line from `start` on, up to the first undecided mark.

    If `final`, the line is whole, and everything is decided.
    """
    while start < len(line):
        span = _SPAN.match(line, start)
        if span and (final or span.end() < len(line)):
            start = span.end()
            kind = str(span.lastgroup)
            text, inner = span["link" if kind == "url" else kind], style + _STYLES[kind]
            parts = [(0, text, inner)] if kind in ("code", "escaped") else inline(text, 0, True, inner)
            yield from ((start, part, inner) for _, part, inner in parts)
            if kind == "url" and not (text == span["url"] and "://" in text):
                yield start, f" ({span['url']})", style + _DIM
        elif not final and len(line) - start < _LONGEST_SPAN and _MARK.match(line, start):
            return
        else:
            plain = _NO_MARK.match(line, start)
            assert plain
            start = plain.end()
            yield start, plain.group(), style


class MarkdownWriter:
    """Shows one text piece by piece, with Markdown's styles on top of a style of rich."""

    def __init__(self, console: Console, style: str = "") -> None:
        self._console = console
        self._base = Style.parse(style)
        self._line = ""  # the present line as it was generated
        self._at = 0  # the index of its first character that is not laid out
        self._is_begun = False  # it is clear what the present line is
        self._style = Style.null()  # of the present line
        self._code: list[str] | None = None  # the lines of an open code block
        self._fence = ""
        self._language = ""
        self._header = ""  # a whole line that is held back: the next one says if it begins a table
        self._table: MarkdownTable | None = None
        self._rows = Text()  # laid out and not printed
        self._word: list[tuple[str, Style]] = []  # the last word, which may go on
        self._indent = ""  # of rows after the first of the present line
        self._column = 0

    def feed(self, text: str) -> None:
        """Show a piece of the text, as far as it is decided."""
        self._take(text)
        self._print()

    def recall(self, text: str) -> None:
        """Continue a text that was shown before, whose last line is shown again."""
        before, newline, last = text.rpartition("\n")
        self._take(before + newline)
        if self._table:
            self._table.flush()
        self._rows = Text()
        self.feed(last)

    def end(self) -> None:
        """Show what was held back; the cursor is at the beginning of a line afterwards."""
        if self._line:
            self._take("\n")
        self._end_table()
        self._print()

    def _take(self, text: str) -> None:
        """Lay out the lines of a text."""
        *lines, rest = printable(text).split("\n")
        for part in lines:
            self._line += part.expandtabs(4)
            self._finish_line()
        self._line += rest.expandtabs(4)
        if self._code is None and (self._is_begun or not _UNDECIDED.match(self._line)):
            self._lay_out(final=False)

    def _print(self) -> None:
        self._console.print(self._rows, end="", soft_wrap=True, highlight=False, markup=False)
        self._console.file.flush()
        self._rows = Text()

    # Lines

    def _finish_line(self) -> None:
        if self._code is None and not self._is_begun and _ROW.match(self._line):
            self._table_line()
            return
        self._end_table()
        if self._code is not None:
            self._code_line(self._code)
        elif not self._is_begun and (fence := _FENCE.match(self._line)):
            self._code, self._fence, self._language = [], fence["fence"], fence["language"] or "text"
            self._rows.append(self._line, _DIM)
        elif not self._is_begun and _RULE.match(self._line):
            self._rows.append("─" * min(self._console.width, 40), _DIM)
        else:
            self._finish_text()
            return
        self._rows.append("\n")
        self._line = ""

    def _finish_text(self) -> None:
        """Lay out the rest of a line of text."""
        self._lay_out(final=True)
        self._end_word()
        self._rows.append("\n")
        self._line, self._at, self._is_begun, self._column = "", 0, False, 0

    def _table_line(self) -> None:
        """Lay out a row of a table, or begin one, or hold the line back until the next one decides."""
        if self._table:
            self._rows.append_text(self._table.add(self._line))
        elif self._header and is_table(self._header, self._line, self._console.width):
            self._table = MarkdownTable(self._header, self._line, self._console, self._styled)
            self._header = ""
        else:
            self._end_table()
            self._header = self._line
        self._line = ""

    def _end_table(self) -> None:
        """Lay out the rows that are held back, or the line that begins no table."""
        if self._table:
            self._rows.append_text(self._table.flush())
            self._table = None
        elif self._header:
            line, self._line, self._header = self._line, self._header, ""
            self._finish_text()
            self._line = line

    def _styled(self, text: str, style: Style) -> Text:
        """Return a text in its styles, on top of another style."""
        styled = Text()
        for _, part, its in inline(text, 0, True, style):
            styled.append(part, self._base + its)
        return styled

    def _code_line(self, code: list[str]) -> None:
        """Lay out a line of code in the colours of its language, or the fence that ends the block."""
        closing = self._line.strip()
        if closing.startswith(self._fence) and not closing.strip(self._fence[0]):
            self._code = None
            self._rows.append(self._line, _DIM)
            return
        code.append(self._line)
        coloured = Syntax("", self._language, theme="ansi_dark").highlight("\n".join(code))
        self._rows.append_text(coloured.split("\n", allow_blank=True)[len(code) - 1])

    def _lay_out(self, final: bool) -> None:
        """Lay out the decided rest of the present line."""
        if not self._is_begun:
            self._end_table()
            self._begin_line()
        for end, text, style in inline(self._line, self._at, final, self._style):
            self._add(text, style)
            self._at = end

    def _begin_line(self) -> None:
        """Lay out the mark at the beginning of a line, and set the style of the line."""
        self._is_begun, self._style, self._indent = True, Style.null(), ""
        if match := _HEADING.match(self._line):
            self._style = _HEAD
        elif match := _QUOTE.match(self._line):
            self._style, self._indent = _DIM, "│ "
            self._add(self._indent, _DIM)
        elif match := _ITEM.match(self._line):
            mark = match.group() if match["number"] else f"{match['indent']}• "
            self._indent = " " * min(cell_len(mark), self._console.width // 2)
            self._add(mark, Style.null())
        self._at = match.end() if match else 0

    # Words

    def _add(self, text: str, style: Style) -> None:
        """Add a text to the present row. Its last word waits until the word ends."""
        style = self._base + style
        for part in _WORDS.findall(text):
            if part.isspace() or re.match(f"[{_WIDE}]", part):
                self._end_word()
                self._place([(part, style)])
            elif self._word and self._word[-1][1] == style:
                self._word[-1] = (self._word[-1][0] + part, style)
            else:
                self._word.append((part, style))

    def _end_word(self) -> None:
        self._place(self._word)
        self._word = []

    def _place(self, parts: list[tuple[str, Style]]) -> None:
        """Put a word or a blank on the present row if it fits, or on a new one."""
        text = "".join(part for part, _ in parts)
        width, limit = cell_len(text), self._console.width
        if self._column + width > limit and self._column > len(self._indent):
            self._rows.append("\n").append(self._indent, _DIM)
            self._column = len(self._indent)
            if text.isspace():
                return
        for part, style in parts:
            self._rows.append(part, style)
        self._column += width
        if self._column > limit:  # the terminal breaks a long word
            self._column %= limit
