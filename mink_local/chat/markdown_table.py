"""A Markdown table that is shown while its rows are generated."""

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Literal

from rich.console import Console
from rich.style import Style
from rich.text import Text

_HELD = 5  # rows, with the header, that are held back to choose the widths of the columns
_LEAST = 5  # columns of the window for each column of the table
_BAR = re.compile(r"(?<!\\)\|")
_DELIMITER = re.compile(r" *\|( *:?-+:? *\|)* *:?-+:? *\|? *$")  # between the header and the other rows
_DIM, _HEAD = Style(dim=True), Style(bold=True)


def is_table(header: str, delimiter: str, width: int) -> bool:
    """Return if two lines begin a table that fits a window of `width` columns."""
    n = len(_cells(header))
    return bool(_DELIMITER.match(delimiter)) and len(_cells(delimiter)) == n and n * _LEAST <= width


def _cells(line: str) -> list[str]:
    """Return the texts between the bars of a line that begins with one."""
    cells = _BAR.split(line.strip())[1:]
    return [cell.strip() for cell in (cells if cells[-1] else cells[:-1])]


class MarkdownTable:
    """The rows of a table as text for the console; `styled` gives the text of a cell in its styles.

    The first rows are held back, and choose the widths of the columns; the words of longer cells that come
    later are put below each other.
    """

    def __init__(
        self, header: str, delimiter: str, console: Console, styled: Callable[[str, Style], Text]
    ) -> None:
        self._console, self._styled = console, styled
        self._align = [_alignment(cell) for cell in _cells(delimiter)]
        self._held = [[styled(cell, _HEAD) for cell in _cells(header)]]
        self._widths: Sequence[int] = ()

    def add(self, line: str) -> Text:
        """Add a row; return the rows that can be shown now."""
        n = len(self._align)
        cells = [*_cells(line), *[""] * n]
        cells[n - 1 :] = [" | ".join(filter(None, cells[n - 1 :]))]
        self._held.append([self._styled(cell, Style.null()) for cell in cells])
        return self.flush(is_whole=False) if self._widths or len(self._held) == _HELD else Text()

    def flush(self, is_whole: bool = True) -> Text:
        """Return the rows that are held back. If more may follow, the columns are made a little wider."""
        shown = Text()
        if not self._widths:
            widths = [max(cell.cell_len for cell in column) for column in zip(*self._held, strict=True)]
            if not is_whole:
                widths = [width + max(2, width // 2) for width in widths]
            self._widths = _fitted(widths, self._console.width - 3 * (len(widths) - 1))
            shown.append_text(self._row(self._held.pop(0)))
            shown.append("─┼─".join("─" * width for width in self._widths) + "\n", _DIM)
        for cells in self._held:
            shown.append_text(self._row(cells))
        self._held = []
        return shown

    def _row(self, cells: Sequence[Text]) -> Text:
        columns = [
            cell.wrap(self._console, width, overflow="fold")
            for cell, width in zip(cells, self._widths, strict=True)
        ]
        row = Text()
        for lines in zip_longest(*columns, fillvalue=Text()):
            parts = []
            for line, align, width in zip(lines, self._align, self._widths, strict=True):
                part = line.copy()
                part.rstrip()
                part.align(align, width)
                parts.append(part)
            whole = Text(" │ ", _DIM).join(parts)
            whole.rstrip()
            row.append_text(whole).append("\n")
        return row


def _alignment(cell: str) -> Literal["left", "center", "right"]:
    if cell.endswith(":"):
        return "center" if cell.startswith(":") else "right"
    return "left"


def _fitted(widths: Sequence[int], space: int) -> list[int]:
    """Return widths whose sum is at most `space`; the widest columns give way."""
    fitted = [max(width, 1) for width in widths]
    while sum(fitted) > space:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted
