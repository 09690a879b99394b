"""The output of `mink-models` for people: tables of models, and the facts of one."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mink_local.files import size_in_words
from mink_local.llama.devices import gpus
from mink_local.models.catalog import user_catalog_path
from mink_local.models.memory import Budget

# Mark and style of a size, by where the model fits; None if that is unknown.
_MARKS = {
    "GPU": ("+", "green"),
    "GPU and CPU": ("~", "yellow"),
    "CPU": (" ", ""),
    "no": ("x", "dim red"),
    None: (" ", "dim"),
}


def print_models(rows: Sequence[dict[str, Any]], budget: Budget) -> None:
    """Print the models to pull, those on this machine, and the free memory.

    Args:
        rows: As `info.model_list` gives them.
        budget: The free memory.
    """
    # A pipe gets whole lines.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if others := [row for row in rows if not row["path"]]:
        console.print("", _to_pull(others))
        console.print("GB; + fits the GPU, ~ fits GPU and memory together, x does not fit", style="dim")
    here = _table("here", "size", "fits", "licence", "note")
    here.columns[0].overflow = "fold"  # so that the name can be copied
    for row in rows:
        if row["path"]:
            size = size_in_words(row["size"]) if row["size"] else "?"
            here.add_row(*map(Text, (row["name"], size, row["fits"], row["licence"], row["note"])))
    console.print(here)
    devices = "; ".join(
        f"{gpu.name}: {size_in_words(gpu.free)} of {size_in_words(gpu.total)} free" for gpu in gpus()
    )
    console.print(f"\n{size_in_words(budget.ram)} of memory are free; {devices or 'no GPU'}.", style="dim")
    console.print(f"Your own catalogue: {user_catalog_path()}", style="dim")


def _table(*titles: str) -> Table:
    return Table(*titles, box=None, padding=(0, 2, 0, 0), header_style="bold")


def _to_pull(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a row for each model, with its size in each quantization and a mark whether that fits."""
    models: dict[str, dict[str, Text]] = {}
    for row in rows:
        model, _, quantization = row["name"].partition(":")
        mark, style = _MARKS[row["fits"]]
        size = f"{row['size'] / 1e9:.1f}" if row["size"] else "?"
        cells = models.setdefault(model, {"licence": Text(row["licence"])})
        cells[quantization or "size"] = Text(size + mark, style)
    quantizations = {title for cells in models.values() for title in cells} - {"licence"}
    titles = [*sorted(quantizations), "licence"]
    table = _table("to pull", *titles)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for model, cells in models.items():
        table.add_row(model, *(cells.get(title, "") for title in titles))
    return table


def in_words(facts: dict[str, Any]) -> str:
    """Return the facts of a model, as `info.model_info` gives them, as lines for a terminal."""
    vocabulary, memory = facts["vocabulary"], facts["memory"]
    experts = f", {facts['experts_used']} of {facts['experts']} experts in use" if facts["experts"] else ""
    bits = f", {facts['bits_per_parameter']} bits each" if facts["bits_per_parameter"] else ""
    kind = ", ".join(filter(None, (vocabulary["kind"], vocabulary["split"])))
    each = f" for each of {memory['parallel']} answers" if memory["parallel"] > 1 else ""
    tokens = f"{memory['ctx']:,} tokens{each}, {memory['kv_per_token']:,} bytes of KV cache per token"
    lines = [
        ("file", facts["path"]),
        ("size", f"{facts['size']:,} bytes"),
        ("name", facts["name"]),
        ("licence", facts["licence"]),
        ("architecture", f"{facts['architecture']}, {facts['layers']} layers of {facts['width']}{experts}"),
        ("attention", f"{facts['heads']} heads, {facts['kv_heads']} for keys and values"),
        ("parameters", f"{facts['parameters']:,}{bits}"),
        *(("", _type_in_words(row)) for row in facts["tensor_types"]),
        ("context", f"{facts['context_length']:,} tokens"),
        ("vocabulary", f"{vocabulary['tokens']:,} tokens ({kind})"),
        ("chat template", "yes" if facts["chat_template"] else "no"),
        ("thinking", facts["thinking"]),
        ("memory", f"with {tokens}:"),
        ("", _usage_in_words("GPU", memory["gpu"])),
        ("", _usage_in_words("CPU", memory["cpu"])),
        ("", memory["warning"]),
    ]
    return "\n".join(f"{label:<15}{text}" for label, text in lines if text)


def _type_in_words(row: dict[str, Any]) -> str:
    size = f"{row['bytes'] / 1e6:>10,.1f} MB"
    return f"{row['type']:<8}{row['tensors']:>5} tensors {row['parameters']:>16,} parameters {size}"


def _usage_in_words(device: str, usage: dict[str, int]) -> str:
    if not usage["total"]:
        return ""
    sizes = {part: size_in_words(n_bytes) for part, n_bytes in usage.items()}
    parts = "{weights} weights + {kv} KV cache + about {compute} to compute with"
    return f"{device}: {{total}} = {parts}".format(**sizes)
