"""The facts that `mink-models` shows of a model, from its metadata: contents, size, memory."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

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
    n_heads = metadata.number("attention.head_count")
    return {
        "path": str(metadata.path),
        "size": metadata.n_bytes,
        "name": _printable(metadata.text("general.name")),
        "licence": _printable(metadata.text("general.license")),
        "architecture": _printable(metadata.architecture),
        "parameters": metadata.n_parameters,
        "bits_per_parameter": _bits_per_parameter(metadata),
        "tensor_types": _tensor_types(metadata),
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
        "thinking": _thinking(metadata),
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
    rows = [_entry(entry, budget) for entries in catalog.read_catalog().values() for entry in entries]
    known = {row["path"] for row in rows}
    for name, path in stores.elsewhere():
        if str(path) not in known:
            source = name.partition(":")[0]
            rows.append({"name": name, **_file(path, budget), "source": source, "licence": "", "note": ""})
    return rows


def _entry(entry: catalog.CatalogEntry, budget: Budget) -> dict[str, Any]:
    try:
        file = _file(catalog.resolve(entry.name).path, budget)
    except ModelNotFoundError:
        fits = where_size_fits(entry.size, budget) if entry.size else None
        file = {"size": entry.size, "path": None, "fits": fits}
    return {
        "name": entry.name,
        **file,
        "source": entry.source,
        "licence": entry.licence,
        "note": entry.note,
    }


def _file(path: Path, budget: Budget) -> dict[str, Any]:
    try:
        metadata = read_metadata(path)
    except ModelError:  # `mink-models info` says why
        return {"size": None, "path": str(path), "fits": "damaged"}
    return {"size": metadata.n_bytes, "path": str(path), "fits": where_it_fits(metadata, budget)}


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


def _thinking(metadata: Metadata) -> Literal["no", "yes", "can be switched"]:
    """Return whether the chat template knows reasoning before the answer, and a switch for it."""
    template = metadata.chat_template or ""
    if "enable_thinking" in template:
        return "can be switched"
    return "yes" if "<think>" in template else "no"


def _bits_per_parameter(metadata: Metadata) -> float | None:
    n_bytes = sum(tensor.n_bytes for tensor in metadata.tensors)
    return round(8 * n_bytes / metadata.n_parameters, 2) if metadata.n_parameters else None


def _usage(usage: Usage) -> dict[str, int]:
    return {**asdict(usage), "total": usage.total}


def _printable(text: str | None) -> str | None:
    """Return text from a file, cut short, without characters that command a terminal."""
    if text is None:
        return None
    return "".join(character if character.isprintable() else "\ufffd" for character in text[:100])
