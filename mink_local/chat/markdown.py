"""Markdown shown as it is written: every character once, in its style, and no line twice.

What cannot be told yet is held back: a word until it ends (it may have to go to the next line), a `**` until
the one that closes it, the beginning of a line until it is clear what it begins. A line of code is echoed as
it comes and gets its colours, in place, when it is whole.
"""

import io
import re

from rich.cells import cell_len, get_character_cell_size
from rich.console import Console
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

_LONGEST_SPAN = 300  # characters that a mark waits for the one that closes it

_SPANS = re.compile(
    r"(?P<code>(?P<tick>`+)(?P<code_text>.+?)(?<!`)(?P=tick)(?!`))"
    r"|(?P<strong>(?<![A-Za-z0-9*])\*\*(?=[^\s*])(?P<strong_text>.+?)(?<=\S)\*\*)"
    r"|(?P<strong_>(?<!\w)__(?=[^\s_])(?P<strong__text>.+?)(?<=\S)__(?!\w))"
    r"|(?P<em>(?<![A-Za-z0-9*])\*(?=[^\s*])(?P<em_text>[^*]+?)(?<=\S)\*(?![A-Za-z0-9*]))"
    r"|(?P<em_>(?<!\w)_(?=[^\s_])(?P<em__text>[^_]+?)(?<=\S)_(?!\w))"
    r"|(?P<strike>~~(?=\S)(?P<strike_text>.+?)(?<=\S)~~)"
    r"|\\(?P<escaped>[\\`*_{}\[\]()#+\-.!~|>])"
)
_STYLES = {
    "code": Style(color="cyan"),
    "strong": Style(bold=True),
    "strong_": Style(bold=True),
    "em": Style(italic=True),
    "em_": Style(italic=True),
    "strike": Style(strike=True),
}
# What may begin a span: no blank follows it, and a star or a bar has no letter before it.
_MARK = re.compile(
    r"`+|(?<![A-Za-z0-9*])\*{1,2}(?!\*|\s)|(?<!\w)_{1,2}(?!_|\s)|~~?(?!~|\s)|\\(?=[\\`*_{}\[\]()#+\-.!~|>]|$)"
)
# What may begin a line, once enough of it is there to tell.
_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+#.-]*)[^`]*$")
_HEADING = re.compile(r" {0,3}#{1,6} +")
_ITEM = re.compile(r"(?P<indent> *)([-*+]|(?P<number>\d{1,9}[.)])) +(?=\S)")
_QUOTE = re.compile(r" {0,3}> ?")
_RULE = re.compile(r" {0,3}([-*_])( *\1){2,} *$")
_UNDECIDED = re.compile(r" *([-*+_]+[-*+_ ]*|#{1,6} *|\d{1,9}[.)]? *|>|`{1,2}|~{1,2}|(`{3,}|~{3,})[^\n]*)?$")

# Between these a line may end: blanks, words, and the characters of languages that have no blanks.
_WIDE = r"\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef"
_PARTS = re.compile(rf"\s+|[{_WIDE}]|[^\s{_WIDE}]+")
_DIM = Style(dim=True)
_HEAD = Style(bold=True)


class Markdown:
    """Shows one text: `feed` it the pieces, then `end`. style: of all of it."""

    def __init__(self, console: Console, style: str = "") -> None:
        self._console = console
        self._base = Style.parse(style)
        self._line = ""  # the present line as it was written, and
        self._at = 0  # how much of it is on the screen
        self._begun = False  # whether it is clear what the present line is
        self._style = Style.null()  # of the present line
        self._indent = ""  # of what is wrapped
        self._column = 0
        self._code: list[str] | None = None  # the lines of the code block that is open
        self._fence = ""
        self._language = ""

    def feed(self, text: str) -> None:
        while text:
            part, newline, text = text.partition("\n")
            self._line += part.expandtabs(4)
            if newline:
                self._finish_line()
            else:
                self._show_what_is_certain()
        self._console.file.flush()

    def recall(self, text: str) -> None:
        """Go on behind a text that was shown before, whose last line is shown again."""
        before, newline, last = text.rpartition("\n")
        console, self._console = self._console, Console(file=io.StringIO(), width=self._console.width)
        self.feed(before + newline)
        self._console = console
        self.feed(last)

    def end(self) -> None:
        """Show what was held back; the cursor is at the beginning of a line then."""
        if self._line:
            self._finish_line()
        self._console.file.flush()

    # Lines

    def _finish_line(self) -> None:
        if self._code is not None:
            self._finish_code_line()
        elif not self._begun and (fence := _FENCE.match(self._line)):
            self._open_code(fence)
        elif not self._begun and _RULE.match(self._line):
            self._put("─" * min(self._width, 40), _DIM)
        else:
            self._begin_line()
            self._show_inline(final=True)
        self._write("\n")
        self._line, self._at, self._begun, self._column = "", 0, False, 0

    def _show_what_is_certain(self) -> None:
        if self._code is not None:
            self._echo_code()
        elif self._begun or not _UNDECIDED.match(self._line):
            self._begin_line()
            self._show_inline(final=False)

    def _begin_line(self) -> None:
        """Show what stands before the text of a line, and note what its text looks like."""
        if self._begun:
            return
        self._begun, self._style, self._indent = True, Style.null(), ""
        if match := _HEADING.match(self._line):
            self._style = _HEAD
        elif match := _QUOTE.match(self._line):
            self._style, self._indent = _DIM, "│ "
            self._put(self._indent, _DIM)
        elif match := _ITEM.match(self._line):
            mark = match.group()
            mark = mark if match["number"] else f"{match['indent']}• "
            self._indent = " " * min(cell_len(mark), self._width // 2)
            self._put(mark, Style.null())
        self._at = match.end() if match else 0

    # Text

    def _show_inline(self, final: bool) -> None:
        """Show the beginning of what is left of the line that can be told by now; if `final`, all of it."""
        while self._at < len(self._line):
            span = _SPANS.search(self._line, self._at)
            mark = _MARK.search(self._line, self._at)
            starts = [match.start() for match in (span, mark) if match]
            until = min(starts, default=len(self._line))
            if until > self._at:
                if not self._show_words(until, whole=final or bool(starts)):
                    return
            elif span and span.start() == until and (final or span.end() < len(self._line)):
                self._show_span(span, self._style)
                self._at = span.end()
            elif not final and len(self._line) - self._at < _LONGEST_SPAN:
                return
            else:  # no mark after all
                assert mark
                self._put(mark.group(), self._style)
                self._at = mark.end()

    def _show_words(self, until: int, whole: bool) -> bool:
        """Show the words before `until`, but the last unless it is `whole`; False if there were none."""
        text = self._line[self._at : until]
        if not whole:
            text = text[: _last_break(text)]
        self._put(text, self._style)
        self._at += len(text)
        return bool(text)

    def _show_span(self, span: "re.Match[str]", style: Style) -> None:
        if span["escaped"]:
            self._put(span["escaped"], style)
            return
        kind = next(name for name in _STYLES if span[name] is not None)
        text, style = span[f"{kind}_text"], style + _STYLES[kind]
        end = 0
        for inner in _SPANS.finditer(text) if kind != "code" else ():
            self._put(text[end : inner.start()], style)
            self._show_span(inner, style)
            end = inner.end()
        self._put(text[end:], style)

    # Code

    def _open_code(self, fence: "re.Match[str]") -> None:
        self._code, self._fence, self._language = [], fence["fence"], fence["language"] or "text"
        self._put(self._line, _DIM)

    def _echo_code(self) -> None:
        """Show code as it comes, unless it might be the fence that ends it."""
        if self._at or not self._line.strip().startswith(self._fence[0]):
            self._write(self._line[self._at :])
            self._at = len(self._line)

    def _finish_code_line(self) -> None:
        assert self._code is not None
        closing = self._line.strip()
        if closing.startswith(self._fence) and not closing.strip(self._fence[0]):
            self._code = None
            self._put(self._line, _DIM)
            return
        self._code.append(self._line)
        rows = _rows(self._line[: self._at], self._width)
        # The same characters in the same places: nothing flickers.
        self._write(f"\r\x1b[{rows - 1}A" if rows > 1 else "\r")
        code = Syntax("", self._language, theme="ansi_dark").highlight("\n".join(self._code))
        lines = code.split("\n", allow_blank=True)
        self._print(lines[len(self._code) - 1])

    # The screen

    @property
    def _width(self) -> int:
        return self._console.width

    def _put(self, text: str, style: Style) -> None:
        """Text from the present column on, wrapped between words."""
        row = ""
        for part in _PARTS.findall(text):
            width = cell_len(part)
            if self._column + width > self._width and self._column > len(self._indent):
                self._print(Text(row, self._base + style))
                self._write("\n")
                self._print(Text(self._indent, _DIM))
                row, self._column = "", len(self._indent)
                if part.isspace():
                    continue
            row += part
            self._column += width
            if self._column > self._width:  # a long word, which the terminal breaks
                self._column %= self._width
        self._print(Text(row, self._base + style))

    def _print(self, text: Text) -> None:
        self._console.print(text, end="", soft_wrap=True, highlight=False, markup=False)

    def _write(self, text: str) -> None:
        self._console.file.write(text)


def _last_break(text: str) -> int:
    """Where the last word of a text begins that may go on; after a wide character words end anywhere."""
    for i in range(len(text), 0, -1):
        if text[i - 1].isspace() or get_character_cell_size(text[i - 1]) == 2:
            return i
    return 0


def _rows(text: str, width: int) -> int:
    """How many rows of the terminal a text takes that begins at the left."""
    rows, column = 1, 0
    for character in text:
        cells = get_character_cell_size(character)
        if column + cells > width:
            rows, column = rows + 1, 0
        column += cells
    return rows
