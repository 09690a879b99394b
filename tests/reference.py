"""Slow and plain twins of the kernels: float64 NumPy and a full sort."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def descending(logits: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Token ids and logits of the finite logits, largest first, equal ones by token id.

    +inf counts as the largest finite float32; -inf and NaN do not count.
    """
    row = np.asarray(logits, np.float32).astype(np.float64)
    row = np.minimum(row, float(np.finfo(np.float32).max))  # keeps NaN
    ids = np.flatnonzero(np.isfinite(row))
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return ids, row[ids]


def min_k(logits: ArrayLike, tau: float = 3.0) -> NDArray[np.int64]:
    """The Min-k candidates, in order: sections 3.1 and 3.2 of arXiv 2604.11012, line by line."""
    ids, sorted_logits = descending(logits)
    n = ids.size
    if n == 0:
        return ids
    spread = sorted_logits[0] - sorted_logits[-1] + 1e-8
    positions = np.arange(1, n)
    weights = (sorted_logits[:-1] - sorted_logits[1:]) / spread / positions
    k_cliff = int(np.argmax(weights)) + 1 if n > 1 else 1
    k_fallback = np.floor(tau / spread)
    return ids[: int(min(n, max(k_cliff, k_fallback, 1)))]


def penalties(
    logits: ArrayLike, history: list[int], repeat: float, frequency: float, presence: float
) -> NDArray[np.float64]:
    """Logits after llama.cpp's repeat, frequency and presence penalties for the tokens of `history`."""
    row = np.asarray(logits, np.float64).copy()
    for token in set(history):
        row[token] = row[token] * repeat if row[token] <= 0 else row[token] / repeat
        row[token] -= history.count(token) * frequency + presence
    return row
