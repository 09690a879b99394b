"""Real logits: the rows of the test data, or, without them, of the embedded model."""

import functools
from pathlib import Path

import numpy as np
from llama_cpp import Llama
from numpy.typing import NDArray

from mink_local.models.catalog import resolve

EMBEDDED = "smollm2-135m-49152"
NAMES = (EMBEDDED, "qwen2.5-0.5b-151936", "gemma3-270m-262144")
TEXT = "Robots were rare, and so the small town had built its own, out of an old oven and two bicycles."


def real_logits(name: str, folder: Path) -> NDArray[np.float32] | None:
    """Return rows of a model's logits, (8, V), or None if neither the test data nor the model is there."""
    file = folder / f"{name}.npz"
    if file.exists():
        with np.load(file) as data:
            rows: NDArray[np.float32] = data["logits"]
        return rows
    return embedded_logits()[4:20:2] if name == EMBEDDED else None


@functools.cache
def embedded_logits(count: int = 20) -> NDArray[np.float32]:
    """Return the logits (count, V) of the embedded model after each token of a text; not to be written to."""
    llama = Llama(str(resolve("smollm2-135m").path), n_ctx=64, logits_all=True, verbose=False)
    tokens = llama.tokenize(TEXT.encode())[:count]
    assert len(tokens) == count
    llama.eval(tokens)
    rows: NDArray[np.float32] = llama.scores[:count].astype(np.float32)
    llama.close()
    rows.setflags(write=False)
    return rows
