"""What the header of a model says, in the words of a person or of a program, and what it would take."""

from typing import Any, Literal

from mink_local.models.gguf import Metadata
from mink_local.models.memory import (
    USUAL_CONTEXT,
    Budget,
    Placement,
    Usage,
    choose_placement,
    kv_bytes_per_token,
)

_BESIDE_WEIGHTS = (
    600_000_000  # bytes: the KV cache of 4096 tokens and the compute buffer of a model of 8 billion
)


def describe(header: Metadata, chosen: Placement, n_parallel: int) -> dict[str, Any]:
    """All that `mink-models info` shows, ready for JSON; sizes in bytes."""
    return {
        "path": str(header.path),
        "size": header.n_bytes,
        "name": _printable(header.text("general.name")),
        "licence": _printable(header.text("general.license")),
        "architecture": _printable(header.architecture),
        "parameters": header.n_parameters,
        "bits_per_parameter": _bits_each(header),
        "tensor_types": tensor_types(header),
        "layers": header.n_layers,
        "width": header.number("embedding_length"),
        "heads": header.number("attention.head_count"),
        "kv_heads": header.number("attention.head_count_kv", header.number("attention.head_count")),
        "experts": header.number("expert_count"),
        "experts_used": header.number("expert_used_count"),
        "context_length": header.n_ctx_train,
        "vocabulary": {
            "tokens": header.n_vocab,
            "kind": _printable(header.text("tokenizer.ggml.model")),
            "split": _printable(header.text("tokenizer.ggml.pre")),
        },
        "chat_template": header.chat_template is not None,
        "thinking": thinking(header),
        "memory": {
            "ctx": chosen.n_ctx,
            "parallel": n_parallel,
            "gpu_layers": chosen.n_gpu_layers,
            "kv_per_token": kv_bytes_per_token(header),
            "gpu": _share(chosen.need.gpu),
            "cpu": _share(chosen.need.cpu),
            "warning": chosen.warning,
        },
    }


def tensor_types(header: Metadata) -> list[dict[str, Any]]:
    """The quantization mix: how many tensors, parameters and bytes there are of each type, largest first."""
    types: dict[str, dict[str, Any]] = {}
    for tensor in header.tensors:
        row = types.setdefault(tensor.type, {"type": tensor.type, "tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += tensor.n_parameters
        row["bytes"] += tensor.n_bytes
    return sorted(types.values(), key=lambda row: -row["bytes"])


def thinking(header: Metadata) -> Literal["no", "yes", "can be switched"]:
    """Whether the chat template knows of a block of thoughts before the answer, and of a switch for it."""
    template = header.chat_template or ""
    if "enable_thinking" in template:
        return "can be switched"
    return "yes" if "<think>" in template else "no"


def where_it_fits(header: Metadata, room: Budget) -> str:
    """Where a model has room, with a context of 4096 tokens."""
    chosen = choose_placement(header, room, n_ctx=USUAL_CONTEXT)
    if chosen.warning:
        return "no"
    if chosen.n_gpu_layers == 0:
        return "CPU"
    return "GPU" if chosen.n_gpu_layers > header.n_layers else "GPU and CPU"


def where_size_fits(size: int, room: Budget) -> str:
    """The same for a file that is not here, from nothing but its size: an estimate."""
    needed = size + size // 20 + _BESIDE_WEIGHTS
    if needed <= room.vram:
        return "GPU"
    if needed <= room.ram:
        return "GPU and CPU" if room.vram > _BESIDE_WEIGHTS else "CPU"
    return "GPU and CPU" if needed <= room.ram + room.vram - _BESIDE_WEIGHTS else "no"


def size_in_words(n_bytes: int) -> str:
    for unit, name, digits in ((1e9, "GB", 1), (1e6, "MB", 0)):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.{digits}f} {name}"
    return f"{n_bytes / 1e3:.0f} kB"


def _bits_each(header: Metadata) -> float | None:
    n_bytes = sum(tensor.n_bytes for tensor in header.tensors)
    return round(8 * n_bytes / header.n_parameters, 2) if header.n_parameters else None


def _share(share: Usage) -> dict[str, int]:
    return {"weights": share.weights, "kv": share.kv, "compute": share.compute, "total": share.total}


def _printable(text: str | None) -> str | None:
    """Text from a file, short and without what a terminal would obey."""
    if text is None:
        return None
    return "".join(character if character.isprintable() else "\ufffd" for character in text[:100])
