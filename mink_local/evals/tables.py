"""Tables of all measurements: a pandas frame to a terminal, Markdown, CSV and JSON; numbers as text."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from mink_local.evals.stats import Interval


class Cell(NamedTuple):
    """A text, with another one `below` it in smaller print."""

    text: str = ""
    below: str = ""
    bold: bool = False


Format = Callable[[Any], str | Cell]


def percent(share: float) -> str:
    """Return a share, 0 to 1, in percent: "41.0"."""
    return f"{100 * share:.1f}"


def points(difference: float) -> str:
    """Return the difference of two shares in percentage points, with its sign: "−3.0"."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def p_value(p: float) -> str:
    """Return a p-value with three decimals, or as a power of ten if it is below 0.001."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def temperature_name(temperature: float) -> str:
    """Return "5", or "∞"."""
    return "∞" if math.isinf(temperature) else f"{temperature:g}"


def count(n: int, noun: str) -> str:
    """Return a number and its noun: "1 question", "1,319 questions"."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def listed(items: Iterable[str]) -> str:
    """Return the items as a list in a sentence: "1, 2 and 5"."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def with_interval(number: Callable[[float], str]) -> Callable[[Interval], Cell]:
    """Return the format of an `Interval` whose numbers have this format: the value, and the ends below."""

    def cell(found: Interval) -> Cell:
        low, high = number(found.low), number(found.high)
        return Cell(number(found.value), f"{low} to {high}" if low[0] in "+−" else f"{low}–{high}")

    return cell


@dataclass(frozen=True)
class Table:
    """A table whose first columns hold names and whose other columns hold numbers.

    Attributes:
        title: What it shows.
        frame: A pandas frame. A value that is missing is an empty cell.
        keys: How many columns hold names. A terminal never cuts them.
        formats: How a column's values are written, by its name; others are written by `str`.
        numbers: False if the other columns hold sentences.
    """

    title: str
    frame: pd.DataFrame
    keys: int = 1
    formats: Mapping[str, Format] = field(default_factory=dict)
    numbers: bool = True

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self.frame.columns]

    @property
    def rows(self) -> list[list[Cell]]:
        """The cells as they are shown."""
        formats = [self.formats.get(name, str) for name in self.columns]
        rows = self.frame.itertuples(index=False, name=None)
        return [[_cell(value, as_text) for value, as_text in zip(row, formats, strict=True)] for row in rows]

    def print(self, console: Console) -> None:
        """Print the title and as few tables as show every number whole, each with the key columns.

        (One table would be folded, and break numbers in the middle.)
        """
        console.print(Text(f"\n{self.title}", style="bold"))
        for part in self.parts(console.width):
            console.print(part)

    def parts(self, width: int) -> Iterator[RichTable]:
        """Yield the tables for a terminal of `width` columns."""
        rows = self.rows
        entries = zip(*([Cell(name) for name in self.columns], *rows), strict=True)
        widths = [max(len(t) for e in column for t in (e.text, e.below)) + 3 for column in entries]
        end = self.keys
        while True:
            chosen, left = list(range(self.keys)), width - sum(widths[: self.keys]) - 1
            while end < len(widths) and (len(chosen) == self.keys or left >= widths[end]):
                left -= widths[end]
                chosen.append(end)
                end += 1
            part = RichTable()
            for i in chosen:
                is_number = self.numbers and i >= self.keys
                part.add_column(
                    Text(self.columns[i]), justify="right" if is_number else "left", no_wrap=self.numbers
                )
            for row in rows:
                part.add_row(*(_rich(row[i]) for i in chosen))
            yield part
            if end >= len(widths):
                return

    def markdown(self) -> str:
        """Return the table as Markdown, without the title."""
        number = "--:" if self.numbers else "---"
        rule = ["---"] * self.keys + [number] * (len(self.columns) - self.keys)
        rows = [[_markdown(cell) for cell in row] for row in self.rows]
        lines = [[escape_markdown(name) for name in self.columns], rule, *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any, as_text: Format) -> Cell:
    if isinstance(value, Cell):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell()
    shown = as_text(value)
    return shown if isinstance(shown, Cell) else Cell(shown)


def _rich(cell: Cell) -> Text:
    text = Text(cell.text, style="bold" if cell.bold else "")
    return text.append(f"\n{cell.below}", style="dim not bold") if cell.below else text


def _markdown(cell: Cell) -> str:
    text = f"**{escape_markdown(cell.text)}**" if cell.bold else escape_markdown(cell.text)
    return f"{text} ({escape_markdown(cell.below)})" if cell.below else text


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows unchanged, also in a table. (A name is whatever a user typed.)"""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def grid(frame: pd.DataFrame, row: str, column: str, value: str) -> pd.DataFrame:
    """Return a frame with a row for every `row` and a column for every `column`, in the order of `frame`."""
    wide = frame.pivot(index=row, columns=column, values=value)
    wide = wide.reindex(index=frame[row].unique(), columns=sorted(frame[column].unique()))
    return wide.astype(object).where(wide.notna(), None).reset_index()


def flat(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose intervals are three columns each: NAME, NAME_low and NAME_high."""
    columns: dict[str, Any] = {}
    for name in frame.columns:
        values = list(frame[name])
        if any(isinstance(value, Interval) for value in values):
            for i, end in enumerate(("", "_low", "_high")):
                columns[f"{name}{end}"] = [
                    value[i] if isinstance(value, Interval) else None for value in values
                ]
        else:
            columns[name] = values
    return pd.DataFrame(columns)


def to_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV; an interval has three columns."""
    return str(flat(frame).to_csv(index=False, lineterminator="\n"))


def to_json(about: Mapping[str, Any], **frames: pd.DataFrame) -> str:
    """Return settings and frames as JSON, a line for every row; an interval is [value, low, high].

    An infinite number is "inf", and one that is missing is null.
    """
    parts = [f"{json.dumps(key)}: {_json(value)}" for key, value in about.items()]
    for name, frame in frames.items():
        rows = ",\n  ".join(map(_json, frame.to_dict("records")))
        parts.append(f"{json.dumps(name)}: [\n  {rows}\n ]")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, floats with six digits."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "item"):  # a number of NumPy
        value = value.item()
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def show_file(console: Console, path: Path) -> None:
    """Print the path of a report that was written, in one piece however long it is."""
    console.print(f"\n{path}", style="bold", highlight=False, soft_wrap=True, markup=False)
