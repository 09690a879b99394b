"""Write the tables in docs/results.md and README.md from docs/results/*.csv; with --check, only compare.

.venv/bin/python scripts/results.py [--check]

Tables are enclosed in <!-- begin: NAME --> and <!-- end -->. Their numbers come from docs/results/NAME.csv,
where an interval has three columns: NAME, NAME_low and NAME_high. The rest of the page is written by hand. If
a row of a handwritten table ends with <!-- from: NAME … -->, the numbers with a decimal point in its second
cell must be in those files.
"""

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")

_BLOCK = re.compile(r"(<!-- begin: ([^\n]+) -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
_SOURCED = re.compile(r"^\| [^|]* \| ([^|]*) \|.*<!-- from: (.+) -->", re.MULTILINE)
_NUMBER = re.compile(r"[-−+]?\d[\d,]*\.\d+")


def read(name: str) -> list[list[str]]:
    """Return the rows of a CSV file, headings first."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))


def table(name: str) -> str:
    """Return a CSV file as a Markdown table, with intervals in brackets after their values."""
    heads, *rows = read(name)
    shown = [i for i, head in enumerate(heads) if not head.endswith(("_low", "_high"))]
    lines = [[heads[i] for i in shown], ["---", *["--:"] * (len(shown) - 1)]]
    for row in rows:
        lines.append([_cell(heads, row, i) for i in shown])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(heads: list[str], row: list[str], i: int) -> str:
    value = row[i].replace("_", "\\_")
    if f"{heads[i]}_low" not in heads or not value:
        return value
    low, high = row[i + 1 : i + 3]
    return f"{value} ({low} to {high})" if low[0] in "+−" else f"{value} ({low}–{high})"


def with_tables(text: str) -> str:
    """Return a page with all tables filled in for which there is a file."""

    def replace(block: re.Match[str]) -> str:
        begin, marker, body = block.groups()
        name = marker.replace(" ", "-")
        return begin + (table(name) if (RESULTS / f"{name}.csv").exists() else body)

    return _BLOCK.sub(replace, text)


def unfounded(text: str) -> Iterator[str]:
    """Yield the numbers in handwritten tables that are not in the files named in their rows."""
    for cell, names in _SOURCED.findall(text):
        rows = [row for name in names.split() for row in read(name)]
        known = [_float(number) for row in rows for entry in row for number in _NUMBER.findall(entry)]
        for number in _NUMBER.findall(cell):
            digits = len(number.partition(".")[2])
            if not any(round(abs(value), digits) == abs(_float(number)) for value in known):
                yield f"{number} is not in {names}: {cell[:60]}"


def _float(number: str) -> float:
    return float(number.replace("−", "-").replace(",", ""))


def main() -> None:
    problems: list[str] = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        problems += unfounded(text)
        if "--check" not in sys.argv:
            path.write_text(with_tables(text), encoding="utf-8")
        elif text != with_tables(text):
            problems.append(
                f"the tables in {path.name} differ from docs/results: update them with {sys.argv[0]}"
            )
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
