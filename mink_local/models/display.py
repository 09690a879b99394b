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
        _print_others(others, console)
    _print_here([row for row in rows if row["path"]], console)
    devices = "; ".join(
        f"{gpu.name}: {size_in_words(gpu.free)} of {size_in_words(gpu.total)} free" for gpu in gpus()
    )
    console.print(f"\n{size_in_words(budget.ram)} of memory are free; {devices or 'no GPU'}.", style="dim")
    console.print(f"Your own catalogue: {user_catalog_path()}", style="dim")


def _print_here(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one row for each model."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("here", overflow="fold")  # so that the name can be copied
    for title in ("size", "fits", "licence", "note"):
        table.add_column(title)
    for row in rows:
        size = size_in_words(row["size"]) if row["size"] else "?"
        table.add_row(*map(Text, (row["name"], size, row["fits"], row["licence"], row["note"])))
    console.print(table)


def _print_others(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print one row for each model, with its size in each quantization and a mark whether that fits."""
    sizes: dict[str, dict[str, Text]] = {}
    licences = {}
    for row in rows:
        model, _, quantization = row["name"].partition(":")
        mark, style = _MARKS[row["fits"]]
        size = f"{row['size'] / 1e9:.1f}" if row["size"] else "?"
        sizes.setdefault(model, {})[quantization or "size"] = Text(size + mark, style)
        licences[model] = Text(row["licence"])
    quantizations = sorted({quantization for each in sizes.values() for quantization in each})
    table = Table("to pull", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for quantization in quantizations:
        table.add_column(quantization, justify="right")
    table.add_column("licence")
    for model, each in sizes.items():
        cells = (each.get(quantization, Text()) for quantization in quantizations)
        table.add_row(model, *cells, licences[model])
    console.print()
    console.print(table)
    console.print("GB; + fits the GPU, ~ fits GPU and memory together, x does not fit", style="dim")


def in_words(facts: dict[str, Any]) -> str:
    """Return the facts of a model, as `info.model_info` gives them, as lines for a terminal."""
    vocabulary, memory = facts["vocabulary"], facts["memory"]
    experts = f", {facts['experts_used']} of {facts['experts']} experts in use" if facts["experts"] else ""
    bits = f", {facts['bits_per_parameter']} bits each" if facts["bits_per_parameter"] else ""
    kind = f"{vocabulary['kind']}, {vocabulary['split']}" if vocabulary["split"] else vocabulary["kind"]
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
        ("memory", _memory_in_words(memory)),
        ("", _usage_in_words("GPU", memory["gpu"])),
        ("", _usage_in_words("CPU", memory["cpu"])),
        ("", memory["warning"]),
    ]
    return "\n".join(f"{label:<15}{text}" for label, text in lines if text)


def _type_in_words(row: dict[str, Any]) -> str:
    size = f"{row['bytes'] / 1e6:>10,.1f} MB"
    return f"{row['type']:<8}{row['tensors']:>5} tensors {row['parameters']:>16,} parameters {size}"


def _memory_in_words(memory: dict[str, Any]) -> str:
    answers = f" for each of {memory['parallel']} answers" if memory["parallel"] > 1 else ""
    return f"with {memory['ctx']:,} tokens{answers}, {memory['kv_per_token']:,} bytes of KV cache per token:"


def _usage_in_words(device: str, usage: dict[str, int]) -> str:
    if not usage["total"]:
        return ""
    sizes = {name: size_in_words(n_bytes) for name, n_bytes in usage.items()}
    return (
        f"{device}: {sizes['total']} = {sizes['weights']} weights + {sizes['kv']} KV cache + "
        f"about {sizes['compute']} to compute with"
    )
