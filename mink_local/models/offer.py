"""The models that there are, where they fit, and the one that suits this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mink_local.container import total_memory
from mink_local.errors import ModelError, ModelNotFoundError
from mink_local.models import catalog, stores
from mink_local.models.gguf import Metadata, Tensor, read_metadata
from mink_local.models.memory import USUAL_CONTEXT, Budget, choose_placement, llama_loads, memory_budget

# Qwen3: one family in all sizes, freely licensed, no login required.
LADDER = ("qwen3-0.6b:Q8_0", "qwen3-1.7b:Q4_K_M", "qwen3-4b-instruct:Q4_K_M", "qwen3-8b:Q4_K_M")
# On the CPU, a model may take a quarter of the memory, but at most 3 GB: larger ones are slow to answer.
_PARTS, _MOST = 4, 3 * 10**9


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
    size, fits, kind, can_chat = entry.size, None, None, False
    if (path or size) and llama_loads():
        try:
            metadata = read_metadata(path) if path else typical_metadata(size or 0)
            size, fits, kind = metadata.n_bytes, where_it_fits(metadata, budget), metadata.kind
            can_chat = bool(metadata.text("tokenizer.chat_template")) and not kind
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
        "can_chat": can_chat,
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
        if row["can_chat"]:
            here.append(row)
        elif row["name"] in LADDER and row["suits"] and not constants.HF_HUB_OFFLINE:
            to_pull.append(row)
    known = (row for row in _best_first(here) if trust.is_known(Path(row["path"])))
    return next(known, next(iter(_best_first(to_pull)), None))


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
