"""Tables of all measurements: from a pandas frame to a terminal, Markdown, CSV and JSON."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from mink_local.cli import printable
from mink_local.evals.stats import Interval


class Cell(NamedTuple):
    """A text, with another one `below` it in smaller print."""

    text: str = ""
    below: str = ""
    bold: bool = False


Format = Callable[[Any], str | Cell]
ENDS = ("", "_low", "_high")
"""What the columns of a number and of the ends of its interval end in."""


def percent(share: float) -> str:
    """Return a share, 0 to 1, as a percentage: "41.0"."""
    return f"{100 * share:.1f}"


def points(difference: float) -> str:
    """Return the difference of two shares in percentage points, with a sign: "−3.0"."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def p_value(p: float) -> str:
    """Return a p-value with three decimals, or as a power of ten if below 0.001."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def temperature_name(temperature: float) -> str:
    """Return a temperature as "5", or "∞"."""
    return "∞" if math.isinf(temperature) else f"{temperature:g}"


def count(n: int, noun: str) -> str:
    """Return a number with a noun: "1 question", "1,319 questions"."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def listed(items: Iterable[str]) -> str:
    """Return the items as an enumeration: "1, 2 and 5"."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def of_interval(row: Any, name: str, number: Format) -> Cell:
    """Return the cell of a row's NAME with, below it, its interval, NAME_low to NAME_high, if it has one."""
    shown, low, high = (_cell(getattr(row, f"{name}{end}", None), number) for end in ENDS)
    if not low.text:
        return shown
    return Cell(shown.text, (" to " if low.text[0] in "+−" else "–").join((low.text, high.text)))


def columns_of(found: Interval | None, name: str) -> dict[str, float | None]:
    """Return an interval as three columns of a frame; None becomes missing values."""
    return {f"{name}{end}": value for end, value in zip(ENDS, found or (None,) * 3, strict=True)}


@dataclass(frozen=True)
class Table:
    """A table whose first columns hold names and whose other columns hold numbers.

    Attributes:
        title: Title of the table.
        frame: A pandas frame of cells, or of what `str` shows. Missing values are empty cells.
        keys: Number of columns that hold names. A terminal never truncates them.
        numbers: False if the other columns hold sentences.
    """

    title: str
    frame: pd.DataFrame
    keys: int = 1
    numbers: bool = True

    @classmethod
    def of(
        cls, title: str, frame: pd.DataFrame, columns: Mapping[str, tuple[str, Format]], keys: int
    ) -> "Table":
        """Return a table of the columns that a frame has of those given, each with its head and format.

        Those that have an interval are shown with it; see `of_interval`.
        """
        shown = {
            head: [of_interval(row, name, number) for row in frame.itertuples()]
            for name, (head, number) in columns.items()
            if name in frame
        }
        return cls(title, pd.DataFrame(shown), keys)

    @classmethod
    def grid(
        cls,
        title: str,
        frame: pd.DataFrame,
        cell: Callable[[Any], Cell],
        index: str,
        columns: str,
        heads: Mapping[Any, str],
    ) -> "Table":
        """Return a table of cells made of a frame's rows: a row of it for each of its values of `index`.

        Args:
            heads: The values of `columns` that have a column, in this order, and their heads.
        """
        shown = frame.assign(cell=[cell(row) for row in frame.itertuples()])
        wide = shown.pivot(index=index, columns=columns, values="cell")
        wide = wide.reindex(index=shown[index].unique(), columns=list(heads))
        return cls(title, wide.rename(columns=heads).reset_index())

    @property
    def columns(self) -> list[str]:
        """The heads of the columns."""
        return list(map(str, self.frame.columns))

    @property
    def rows(self) -> list[list[Cell]]:
        """The formatted cells."""
        return [[_cell(value, str) for value in row] for row in self.frame.itertuples(index=False)]

    def print(self, console: Console) -> None:
        """Print the title and as few tables as fit without breaking numbers, each with the key columns.

        (A single table would wrap, and break numbers in the middle.)
        """
        console.print(Text(f"\n{printable(self.title)}", style="bold"))
        for part in self.parts(console.width):
            console.print(part)

    def parts(self, width: int) -> Iterator[RichTable]:
        """Yield the tables for a terminal of `width` columns."""
        rows = self.rows
        columns = zip(*([Cell(name) for name in self.columns], *rows), strict=True)
        widths = [max(len(t) for cell in column for t in (cell.text, cell.below)) + 3 for column in columns]
        keys = range(self.keys)
        groups: list[list[int]] = [[]]
        for i in range(self.keys, len(widths)):
            if groups[-1] and sum(widths[j] for j in (*keys, *groups[-1], i)) >= width:
                groups.append([])
            groups[-1].append(i)
        for group in groups:
            part = RichTable()
            for i in (*keys, *group):
                is_number = self.numbers and i >= self.keys
                part.add_column(
                    Text(self.columns[i]), justify="right" if is_number else "left", no_wrap=self.numbers
                )
            for row in rows:
                part.add_row(*(_rich(row[i]) for i in (*keys, *group)))
            yield part

    def markdown(self) -> str:
        """Return the table as Markdown, without the title."""
        number = "--:" if self.numbers else "---"
        rule = ["---"] * self.keys + [number] * (len(self.columns) - self.keys)
        rows = [[_markdown(cell) for cell in row] for row in self.rows]
        lines = [[escape_markdown(name) for name in self.columns], rule, *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any, as_text: Format) -> Cell:
    if not isinstance(value, tuple) and pd.isna(value):
        return Cell()
    shown = value if isinstance(value, Cell) else as_text(value)
    return shown if isinstance(shown, Cell) else Cell(shown)


def _rich(cell: Cell) -> Text:
    text = Text(printable(cell.text), style="bold" if cell.bold else "")
    return text.append(f"\n{printable(cell.below)}", style="dim not bold") if cell.below else text


def _markdown(cell: Cell) -> str:
    text = f"**{escape_markdown(cell.text)}**" if cell.bold else escape_markdown(cell.text)
    return f"{text} ({escape_markdown(cell.below)})" if cell.below else text


def escape_markdown(text: str) -> str:
    """Escape a text so that Markdown shows it unchanged, even in a table. (Names are whatever users type.)"""
    return " ".join(re.sub(r"[\\`*_\[\]<>|]", r"\\\g<0>", text).split())


def to_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV, in which no text is a formula of a spreadsheet: =1+1 becomes '=1+1."""
    texts = frame.map(lambda one: _cell_text(one) if isinstance(one, str) else one)
    return str(texts.to_csv(index=False, lineterminator="\n"))


def _cell_text(text: str) -> str:
    return re.sub(r"^(?=[=+@\t-])", "'", text.replace("\r", " "))


def to_json(about: Mapping[str, Any], **frames: pd.DataFrame) -> str:
    """Return settings and frames as JSON. Infinite numbers in a frame become "inf", and missing ones null."""
    rows = {
        name: json.loads(frame.replace(math.inf, "inf").to_json(orient="records", double_precision=15))
        for name, frame in frames.items()
    }
    return json.dumps({**about, **rows}, indent=1, allow_nan=False) + "\n"
