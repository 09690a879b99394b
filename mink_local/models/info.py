"""The facts that `mink-models` shows of models: contents, size, memory."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from mink_local.errors import ModelError, ModelNotFoundError
from mink_local.models import catalog, stores
from mink_local.models.gguf import Metadata, read_metadata
from mink_local.models.memory import (
    USUAL_CONTEXT,
    Budget,
    Placement,
    Usage,
    choose_placement,
    kv_bytes_per_layer,
)

_BESIDE_WEIGHTS = 600_000_000  # bytes: KV cache of 4096 tokens and compute buffer of an 8 B model


def model_info(
    metadata: Metadata, placement: Placement, n_parallel: int = 1, kv_type: str = "f16"
) -> dict[str, Any]:
    """Return all that `mink-models info` shows, ready for JSON; sizes are in bytes."""
    types = _tensor_types(metadata)
    bits, n_parameters = 8 * sum(row["bytes"] for row in types), metadata.n_parameters
    n_heads = metadata.number("attention.head_count")
    template = metadata.chat_template or ""
    thinks = "can be switched" if "enable_thinking" in template else "yes" if "<think>" in template else "no"
    return {
        "path": str(metadata.path),
        "size": metadata.n_bytes,
        "name": _printable(metadata.text("general.name")),
        "licence": _printable(metadata.text("general.license")),
        "architecture": _printable(metadata.architecture),
        "parameters": n_parameters,
        "bits_per_parameter": round(bits / n_parameters, 2) if n_parameters else None,
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
            "kind": _printable(metadata.text("tokenizer.ggml.model")),
            "split": _printable(metadata.text("tokenizer.ggml.pre")),
        },
        "chat_template": metadata.chat_template is not None,
        "thinking": thinks,
        "memory": {
            "ctx": placement.n_ctx,
            "parallel": n_parallel,
            "gpu_layers": placement.n_gpu_layers,
            "kv_per_token": sum(kv_bytes_per_layer(metadata, kv_type)),
            "gpu": _usage(placement.need.gpu),
            "cpu": _usage(placement.need.cpu),
            "warning": placement.warning,
        },
    }


def model_list(budget: Budget) -> list[dict[str, Any]]:
    """Return all that `mink-models list` shows: the models of the catalogue, then those of the stores."""
    rows = []
    for entry in (entry for entries in catalog.read_catalog().values() for entry in entries):
        try:
            rows.append(_row(entry, catalog.locate(entry), budget))
        except ModelNotFoundError:
            rows.append(_row(entry, None, budget))
    known = {row["path"] for row in rows}
    for name, path in stores.elsewhere():
        if str(path) not in known:
            rows.append(_row(catalog.CatalogEntry(name, name.partition(":")[0]), path, budget))
    return rows


def _row(entry: catalog.CatalogEntry, path: Path | None, budget: Budget) -> dict[str, Any]:
    size = entry.size
    fits = where_size_fits(size, budget) if size else None
    if path:
        try:
            metadata = read_metadata(path)
            size, fits = metadata.n_bytes, where_it_fits(metadata, budget)
        except ModelError:  # `mink-models info` says why
            size, fits = None, "damaged"
    return {
        "name": entry.name,
        "size": size,
        "path": path and str(path),
        "fits": fits,
        "source": entry.source,
        "licence": entry.licence,
        "note": entry.note,
    }


def where_it_fits(metadata: Metadata, budget: Budget) -> str:
    """Return where a model fits with a context of 4096 tokens: GPU, GPU and CPU, CPU, or no."""
    placement = choose_placement(metadata, budget, n_ctx=USUAL_CONTEXT)
    if placement.warning:
        return "no"
    if placement.n_gpu_layers == 0:
        return "CPU"
    return "GPU" if placement.n_gpu_layers > metadata.n_layers else "GPU and CPU"


def where_size_fits(size: int, budget: Budget) -> str:
    """Estimate where a file that is not on this machine fits, from its size alone; see `where_it_fits`."""
    needed = size + size // 20 + _BESIDE_WEIGHTS
    if needed <= budget.vram:
        return "GPU"
    if budget.vram <= _BESIDE_WEIGHTS:
        return "CPU" if needed <= budget.ram else "no"
    return "GPU and CPU" if needed <= max(budget.ram, budget.total - _BESIDE_WEIGHTS) else "no"


def _tensor_types(metadata: Metadata) -> list[dict[str, Any]]:
    """Return how many tensors, parameters and bytes there are of each type, the largest type first."""
    types: dict[str, dict[str, Any]] = {}
    for tensor in metadata.tensors:
        row = types.setdefault(tensor.type, {"type": tensor.type, "tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += tensor.n_parameters
        row["bytes"] += tensor.n_bytes
    return sorted(types.values(), key=lambda row: -row["bytes"])


def _usage(usage: Usage) -> dict[str, int]:
    return {**asdict(usage), "total": usage.total}


def _printable(text: str | None) -> str | None:
    """Return text from a file, cut short, without characters that command a terminal."""
    return text and "".join(char if char.isprintable() else "\ufffd" for char in text[:100])
