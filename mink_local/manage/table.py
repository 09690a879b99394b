"""What `mink-models list` prints: the models to pull, and those on this machine."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mink_local.cli import no_blanks_at_line_ends
from mink_local.files import size_in_words
from mink_local.models import catalog
from mink_local.models.memory import Budget, gpus

# Mark and style of a size by where the model fits; None if unknown.
_MARKS = {
    "GPU": ("+", "green"),
    "GPU and CPU": ("~", "yellow"),
    "CPU": (" ", ""),
    "no": ("x", "dim red"),
    None: (" ", "dim"),
}


def print_models(rows: Sequence[dict[str, Any]], budget: Budget) -> None:
    """Print the models of `model_list`, both to pull and on this machine, and the free memory."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)  # a pipe gets whole lines
    with no_blanks_at_line_ends(console):
        if others := [row for row in rows if not row["path"]]:
            console.print("", _to_pull(others))
            console.print(
                "GB; + fits on the GPU, ~ fits on GPU and CPU together, x does not fit", style="dim"
            )
        here = _table("here", "size", "fits", "licence", "note")
        here.columns[0].overflow = "fold"  # so that the name can be copied
        for row in rows:
            if row["path"]:
                size = size_in_words(row["size"]) if row["size"] else "?"
                here.add_row(*map(Text, (row["name"], size, row["fits"] or "?", row["licence"], row["note"])))
        console.print(here)
        devices = "; ".join(
            f"{gpu.name}: {size_in_words(gpu.free)} of {size_in_words(gpu.total)} free" for gpu in gpus()
        )
        console.print(f"\n{size_in_words(budget.ram)} of memory free; {devices or 'no GPU'}", style="dim")
        console.print(f"Your models.txt: {catalog.user_catalog_path()}", style="dim")


def _table(*titles: str | Column) -> Table:
    return Table(*titles, box=None, padding=(0, 2, 0, 0), header_style="bold")


def _to_pull(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table of models: the size in each quantization, marked with where it fits."""
    cells: dict[tuple[str, str], Text] = {}
    licences: dict[str, str] = {}
    for row in rows:
        model, _, quantization = row["name"].partition(":")
        mark, style = _MARKS[row["fits"]]
        size = f"{row['size'] / 1e9:.1f}" if row["size"] else "?"
        cells[model, quantization or "size"] = Text(size + mark, style)
        licences.setdefault(model, row["licence"])
    titles = sorted({title for _, title in cells})
    table = _table("to pull", *(Column(title, justify="right") for title in titles), "licence")
    for model, licence in licences.items():
        table.add_row(model, *(cells.get((model, title), "") for title in titles), Text(licence))
    return table
