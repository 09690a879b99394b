"""The model that the first chat offers in place of the embedded one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from mink_local.models import catalog, trust
from mink_local.models.gguf import read_metadata
from mink_local.models.info import model_list
from mink_local.models.memory import memory_budget

# Qwen3: one family in all sizes, freely licensed, no login required.
LADDER = ("qwen3-0.6b:Q8_0", "qwen3-1.7b:Q4_K_M", "qwen3-4b-instruct:Q4_K_M", "qwen3-8b:Q4_K_M")
# On the CPU, a model may take a quarter of the memory, but at most 3 GB: larger ones are slow to answer.
_PARTS, _MOST = 4, 3 * 10**9


def find_offer() -> dict[str, Any] | None:
    """Return the row of `mink-models list` with the chat model that suits this machine, or None.

    A model already on this machine, in any program's store, is preferred to a download: the largest that
    suits the machine, or else the smallest that fits at all.
    """
    rows = model_list(memory_budget())  # refuses a malformed HF_ENDPOINT, on which the next import would fail
    from huggingface_hub import constants

    most = min(psutil.virtual_memory().total // _PARTS, _MOST)
    here, to_pull = [], []
    for row in rows:
        if row["fits"] in (None, "no", "damaged") or row["name"] == catalog.EMBEDDED:
            continue
        if row["path"] and trust.is_refused(Path(row["path"])):
            continue
        row["suits"] = row["fits"] == "GPU" or row["size"] <= most
        if row["path"] and read_metadata(Path(row["path"])).text("tokenizer.chat_template"):
            here.append(row)
        elif row["name"] in LADDER and row["suits"] and not constants.HF_HUB_OFFLINE:
            to_pull.append(row)
    found = sorted(here or to_pull, key=lambda row: row["size"])
    return next((row for row in reversed(found) if row["suits"]), found[0] if found else None)


def take(offer: dict[str, Any], report: Callable[[str], None]) -> None:
    """Download an offered model unless it is already here, and check that llama.cpp can load it.

    Raises:
        MinkError: It cannot be downloaded or loaded.
    """
    from mink_local.models import download  # slow to import

    if not offer["path"] and (entry := catalog.find(offer["name"])):
        download.pull(entry, report)
    trust.check(catalog.resolve(offer["name"]))
