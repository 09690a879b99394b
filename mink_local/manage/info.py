"""What `mink-models info` shows: a model's contents and memory."""

from contextlib import closing
from dataclasses import asdict
from typing import Any

from mink_local.cli import counted, printable
from mink_local.files import size_in_words
from mink_local.generation.format.conventions import Conventions, conventions_of
from mink_local.generation.format.rendering import Renderer
from mink_local.models.gguf import Metadata
from mink_local.models.memory import Footprint, MemoryNeed, Placement
from mink_local.models.recommended import recommended, values_in_words


def conventions_in(metadata: Metadata) -> Conventions | None:
    """Return what a model's chat template shows of reasoning and tool calls, or None if it has none."""
    if not (source := metadata.text("tokenizer.chat_template")):
        return None
    with closing(Renderer(source, bos_token="", eos_token="")) as renderer:
        return conventions_of(renderer, source)


def model_info(
    metadata: Metadata,
    placement: Placement,
    n_parallel: int = 1,
    kv_type: str = "f16",
    conventions: Conventions | None = None,
) -> dict[str, Any]:
    """Return what `mink-models info` shows, ready for JSON; sizes are in bytes."""
    types = metadata.tensors_by_type()
    n_parameters, n_bytes = (sum(row[key] for row in types) for key in ("parameters", "bytes"))
    n_heads = metadata.number("attention.head_count")
    footprint = Footprint(metadata, kv_type, placement.need.cpu.checkpoints)
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
        "reasoning": conventions.reasons if conventions else "no",
        "conventions": conventions and conventions.as_dict(),
        "memory": {
            "ctx": placement.n_ctx,
            "parallel": n_parallel,
            "gpu_layers": placement.n_gpu_layers,
            "n_cpu_moe": placement.n_cpu_moe,
            "kv_per_token": placement.kv_per_token,
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


def _need(need: MemoryNeed) -> dict[str, dict[str, int]]:
    usages = {"gpu": need.gpu, "cpu": need.cpu}
    return {device: {**asdict(usage), "total": usage.total} for device, usage in usages.items()}


def _one_line(text: str | None) -> str | None:
    """Return the beginning of a text from a file, made safe to print."""
    return text and printable(" ".join(text[:100].split()))


def in_words(facts: dict[str, Any], conventions: Conventions | None) -> str:
    """Return the facts from `model_info` as lines for a terminal."""
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
        ("reasoning", conventions and conventions.reasoning_in_words),
        ("calls", conventions and conventions.calls_in_words),
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
