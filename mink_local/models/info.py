"""What is shown about models: contents, size and memory, and the one that suits this machine."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mink_local.cli import counted, no_blanks_at_line_ends, printable
from mink_local.container import total_memory
from mink_local.errors import ModelError, ModelNotFoundError
from mink_local.files import size_in_words
from mink_local.models import catalog, stores
from mink_local.models.gguf import Metadata, Tensor, read_metadata
from mink_local.models.memory import (
    USUAL_CONTEXT,
    Budget,
    Footprint,
    MemoryNeed,
    Placement,
    choose_placement,
    gpus,
    kv_bytes_per_layer,
    llama_loads,
    memory_budget,
)
from mink_local.models.recommended import recommended, values_in_words

# Mark and style of a size by where the model fits; None if unknown.
_MARKS = {
    "GPU": ("+", "green"),
    "GPU and CPU": ("~", "yellow"),
    "CPU": (" ", ""),
    "no": ("x", "dim red"),
    None: (" ", "dim"),
}

# Qwen3: one family in all sizes, freely licensed, no login required.
LADDER = ("qwen3-0.6b:Q8_0", "qwen3-1.7b:Q4_K_M", "qwen3-4b-instruct:Q4_K_M", "qwen3-8b:Q4_K_M")
# On the CPU, a model may take a quarter of the memory, but at most 3 GB: larger ones are slow to answer.
_PARTS, _MOST = 4, 3 * 10**9


def model_info(
    metadata: Metadata, placement: Placement, n_parallel: int = 1, kv_type: str = "f16"
) -> dict[str, Any]:
    """Return what `mink-models info` shows, ready for JSON; sizes are in bytes."""
    types = tensors_by_type(metadata)
    n_parameters, n_bytes = (sum(row[key] for row in types) for key in ("parameters", "bytes"))
    n_heads = metadata.number("attention.head_count")
    footprint = Footprint(metadata, kv_type)
    mixed, layers = footprint.n_mixed, metadata.n_layers + 1
    ways = {"all_on_gpu": (layers, 0), "experts_on_cpu": (layers, mixed)} if mixed else {}
    return {
        "path": str(metadata.path),
        "kind": metadata.kind,
        "size": metadata.n_bytes,
        "name": _one_line(metadata.text("general.name")),
        "licence": _one_line(metadata.text("general.license")),
        "architecture": _one_line(metadata.architecture),
        "parameters": n_parameters,
        "bits_per_parameter": round(8 * n_bytes / n_parameters, 2) if n_parameters else None,
        "tensor_types": types,
        "layers": metadata.n_layers,
        "width": metadata.number("embedding_length"),
        "heads": n_heads,
        "kv_heads": metadata.number("attention.head_count_kv", n_heads),
        "experts": metadata.number("expert_count"),
        "experts_used": metadata.number("expert_used_count"),
        "context_length": metadata.n_ctx_train,
        "vocabulary": {
            "tokens": metadata.n_vocab,
            "kind": _one_line(metadata.text("tokenizer.ggml.model")),
            "split": _one_line(metadata.text("tokenizer.ggml.pre")),
        },
        "chat_template": bool(metadata.text("tokenizer.chat_template")),
        "sampling": _sampling(metadata),
        "reasoning": "no",
        "conventions": None,
        "memory": {
            "ctx": placement.n_ctx,
            "parallel": n_parallel,
            "gpu_layers": placement.n_gpu_layers,
            "n_cpu_moe": placement.n_cpu_moe,
            "kv_per_token": sum(kv_bytes_per_layer(metadata, kv_type)),
            **_need(placement.need),
            **{name: _need(footprint.need(placement.n_ctx, n_parallel, *way)) for name, way in ways.items()},
            "warning": placement.warning,
        },
    }


def _sampling(metadata: Metadata) -> dict[str, Any] | None:
    """Return the sampling that a file recommends, and what of it is not usable."""
    if (found := recommended(metadata)) is None:
        return None
    return {
        "sampler": str(found.sampler),
        "temperature": found.temperature,
        **found.penalties,
        "values": dict(found.values),
        "ignored": list(found.ignored),
    }


def model_list(budget: Budget) -> list[dict[str, Any]]:
    """Return what `mink-models list` shows: the models of the catalogue, then those of the stores."""
    rows = []
    for entry in (entry for entries in catalog.read_catalog().values() for entry in entries):
        try:
            rows.append(_row(entry, catalog.locate(entry), budget))
        except ModelNotFoundError:
            rows.append(_row(entry, None, budget))
    known = {row["path"] for row in rows}
    for name, path in stores.elsewhere():
        if str(path) not in known:
            source = name.partition(":")[0] if name.startswith(stores.PREFIXES) else "file"
            rows.append(_row(catalog.CatalogEntry(name, source), path, budget))
    return rows


def _row(entry: catalog.CatalogEntry, path: Path | None, budget: Budget) -> dict[str, Any]:
    size, fits, kind = entry.size, None, None
    if (path or size) and llama_loads():
        try:
            metadata = read_metadata(path) if path else typical_metadata(size or 0)
            size, fits, kind = metadata.n_bytes, where_it_fits(metadata, budget), metadata.kind
        except ModelError:  # `mink-models info` tells why
            size, fits = None, "damaged"
    return {
        "name": entry.name,
        "size": size,
        "path": path and str(path),
        "fits": fits,
        "source": entry.source,
        "licence": entry.licence,
        "note": kind or entry.note,
        "kind": kind,
    }


def find_offer() -> dict[str, Any] | None:
    """Return the row of `mink-models list` with the chat model that suits this machine, or None.

    A model already on this machine, in any program's store, is preferred to a download: the largest that
    suits the machine, or else the smallest that fits at all.
    """
    rows = model_list(memory_budget())  # refuses a malformed HF_ENDPOINT, on which the next import would fail
    from huggingface_hub import constants

    from mink_local.models import trust

    most = min(total_memory() // _PARTS, _MOST)
    here, to_pull = [], []
    for row in rows:
        if row["fits"] in (None, "no", "damaged") or row["name"] == catalog.EMBEDDED:
            continue
        row["suits"] = row["fits"] == "GPU" or row["size"] <= most
        if row["path"] and _can_chat(Path(row["path"])):
            here.append(row)
        elif row["name"] in LADDER and row["suits"] and not constants.HF_HUB_OFFLINE:
            to_pull.append(row)
    known = (row for row in _best_first(here) if trust.is_known(Path(row["path"])))
    return next(known, next(iter(_best_first(to_pull)), None))


def _can_chat(path: Path) -> bool:
    metadata = read_metadata(path)
    return bool(metadata.text("tokenizer.chat_template")) and not metadata.kind


def _best_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of models that suit the machine, the largest first, then the others."""
    rows.sort(key=lambda row: row["size"])
    return [row for row in reversed(rows) if row["suits"]] + [row for row in rows if not row["suits"]]


def take(offer: dict[str, Any], report: Callable[[str], None]) -> None:
    """Download an offered model unless it is already here, and check that llama.cpp can load it.

    Raises:
        MinkError: It cannot be downloaded or loaded.
    """
    from mink_local.models import download, trust  # slow to import

    if not offer["path"] and (entry := catalog.find(offer["name"])):
        download.pull(entry, report)
    trust.check(catalog.resolve(offer["name"]))


def where_it_fits(metadata: Metadata, budget: Budget) -> str:
    """Return where a model fits with a context of 4096 tokens: GPU, GPU and CPU, CPU, or no."""
    placement = choose_placement(metadata, budget, n_ctx=USUAL_CONTEXT)
    if placement.warning:
        return "no"
    if placement.n_gpu_layers == 0:
        return "CPU"
    return "GPU" if placement.split == (metadata.n_layers + 1, 0) else "GPU and CPU"


def typical_metadata(size: int) -> Metadata:
    """Return metadata shaped like LLaMA-3 8B's for a file of `size` bytes, to estimate where it fits."""
    sizes = {
        "block_count": 32,
        "embedding_length": 4096,
        "feed_forward_length": 14336,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "vocab_size": 128256,
    }
    names = ["token_embd.weight", *(f"blk.{i}.ffn_up.weight" for i in range(32)), "output.weight"]
    tensors = tuple(Tensor(name, "F32", 0, size // len(names)) for name in names)
    values = {"general.architecture": "llama", **{f"llama.{key}": value for key, value in sizes.items()}}
    return Metadata(Path(), values, tensors, size)


def tensors_by_type(metadata: Metadata) -> list[dict[str, Any]]:
    """Return the number of tensors, parameters and bytes per type, largest first."""
    types: dict[str, dict[str, Any]] = {}
    for tensor in metadata.tensors:
        row = types.setdefault(tensor.type, {"type": tensor.type, "tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += tensor.n_parameters
        row["bytes"] += tensor.n_bytes
    return sorted(types.values(), key=lambda row: -row["bytes"])


def _need(need: MemoryNeed) -> dict[str, dict[str, int]]:
    usages = {"gpu": need.gpu, "cpu": need.cpu}
    return {device: {**asdict(usage), "total": usage.total} for device, usage in usages.items()}


def _one_line(text: str | None) -> str | None:
    """Return the beginning of a text from a file, made safe to print."""
    return text and printable(" ".join(text[:100].split()))


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


def in_words(facts: dict[str, Any], conventions: Sequence[tuple[str, str]] = ()) -> str:
    """Return the facts from `model_info`, and labelled lines about the template, as lines for a terminal."""
    vocabulary, memory, sampling = facts["vocabulary"], facts["memory"], facts["sampling"]
    experts = f", {facts['experts_used']} of {facts['experts']} experts active" if facts["experts"] else ""
    bits = f", {facts['bits_per_parameter']} bits each" if facts["bits_per_parameter"] else ""
    kind = ", ".join(filter(None, (vocabulary["kind"], vocabulary["split"])))
    each = f" for each of {memory['parallel']} answers" if memory["parallel"] > 1 else ""
    tokens = f"{memory['ctx']:,} tokens{each}, {memory['kv_per_token']:,} bytes of KV cache per token"
    moved = f"the experts of {counted(memory['n_cpu_moe'], 'layer')} are on the CPU"
    layers = f"{counted(facts['layers'], 'layer')} of {facts['width']}"
    lines = [
        ("file", facts["path"]),
        ("", facts["kind"] and f"is {facts['kind']}: it cannot chat"),
        ("size", f"{facts['size']:,} bytes"),
        ("name", facts["name"]),
        ("licence", facts["licence"]),
        ("architecture", f"{facts['architecture']}, {layers}{experts}"),
        ("attention", f"{counted(facts['heads'], 'head')}, {counted(facts['kv_heads'], 'KV head')}"),
        ("parameters", f"{facts['parameters']:,}{bits}"),
        *(("", _tensors_in_words(row)) for row in facts["tensor_types"]),
        ("context", f"{facts['context_length']:,} tokens" if facts["context_length"] else ""),
        ("vocabulary", f"{vocabulary['tokens']:,} tokens ({kind})"),
        ("chat template", "yes" if facts["chat_template"] else "no"),
        *conventions,
        ("recommended", sampling and f"{values_in_words(sampling['values'])} (--sampler model)"),
        ("", sampling and sampling["ignored"] and f"without {', '.join(sampling['ignored'])}: not in range"),
        ("memory", f"with {tokens}:"),
        ("", _usage_in_words("GPU", memory["gpu"])),
        ("", _usage_in_words("CPU", memory["cpu"])),
        ("", moved if memory["n_cpu_moe"] else ""),
        *(
            ("", f"{way}: {_totals(memory[key])}")
            for way, key in (("all on the GPU", "all_on_gpu"), ("experts on the CPU", "experts_on_cpu"))
            if key in memory
        ),
        ("", memory["warning"]),
    ]
    return "\n".join(f"{label:<15}{text}" for label, text in lines if text)


def _totals(need: dict[str, dict[str, int]]) -> str:
    return ", ".join(
        f"{size_in_words(usage['total'])} on the {device.upper()}" for device, usage in need.items()
    )


def _tensors_in_words(row: dict[str, Any]) -> str:
    tensors, size = counted(row["tensors"], "tensor"), size_in_words(row["bytes"])
    return f"{row['type']:<8}{tensors:>13} {row['parameters']:>16,} parameters {size:>10}"


def _usage_in_words(device: str, usage: dict[str, int]) -> str:
    sizes = {part: size_in_words(n_bytes) for part, n_bytes in usage.items()}
    parts = "{weights} weights + {kv} KV cache + about {compute} compute buffer"
    parts += " + {checkpoints} checkpoints" * (usage["checkpoints"] > 0)
    return f"{device}: {{total}} = {parts}".format(**sizes) if usage["total"] else ""
