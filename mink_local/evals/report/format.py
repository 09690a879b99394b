"""Numbers, lists and names as a report writes them."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console


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


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows unchanged, also in a table. (A name is whatever a user typed.)"""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose first column holds names and the others numbers."""
    rule = ["---", *["--:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def show_file(console: Console, path: Path) -> None:
    """Print the path of a report that was written, in one piece however long it is."""
    console.print(f"\n{path}", style="bold", highlight=False, soft_wrap=True, markup=False)
