"""The exact figures for every setting at one position, from sums over the sorted logits.

Every sampler keeps consecutive logits in descending order, mostly from the first on, so one sort serves all:
with k candidates and weights `w_i = exp((l_i - l_1) / T)`, the probability of candidate i is
`w_i / (w_1 + … + w_k)`, and each figure is a quotient of sums over the candidates.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from mink_local.evals.settings import SamplerSetting, cuts
from mink_local.samplers import Workspace

TAIL_LEVELS = {"tail_mass": 0.01, "deep_tail_mass": 0.001}
"""A token is in the tail if its probability under the reference, at temperature 1, is below this."""

FIGURES = (*TAIL_LEVELS, "surprise", "entropy", "k_is_1", "k")
"""Tail mass is a probability; entropy and the surprisal under the reference, -Σ q log p, are in nats."""

Floats = NDArray[np.float64]


class PositionFigures:
    """The figures for a list of settings, summed over the positions passed to `add`.

    Args:
        n_vocab: Number of tokens shared by the model and its reference.

    Attributes:
        sums: Sums over the positions so far, float64 (settings, FIGURES).
    """

    def __init__(self, settings: Sequence[SamplerSetting], n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._temperatures = np.array([setting.temperature for setting in settings])
        self._first = np.zeros(len(settings), np.int64)
        self._k = np.zeros(len(settings), np.int64)
        self._rank_of = np.zeros(n_vocab, np.int64)
        self._workspace = Workspace(n_vocab)
        self._cuts = [
            (sampler.selector(seen, self._workspace), members) for sampler, seen, members in cuts(settings)
        ]
        self.sums = np.zeros((len(settings), len(FIGURES)))

    def add(self, logits: NDArray[np.float32], reference: NDArray[np.float32]) -> None:
        """Add a position.

        Args:
            logits: The model's raw logits, for at least `n_vocab` tokens; any beyond are ignored.
            reference: The reference's raw logits.
        """
        row = np.ascontiguousarray(logits[: self._n_vocab])
        ids, x = _sorted(row)
        log_p = log_softmax(reference[: self._n_vocab].astype(np.float64))[ids]
        log_p = np.maximum(log_p, -1e30)  # finite even for tokens that the reference excludes
        self._rank_of[ids] = np.arange(ids.size)
        for select, members in self._cuts:
            self._k[members] = k = select(row)
            self._first[members] = self._rank_of[self._workspace.ids[:k]].min()
        for temperature, first in set(zip(self._temperatures.tolist(), self._first.tolist(), strict=True)):
            alike = (self._temperatures == temperature) & (self._first == first)
            sizes, size_of = np.unique(self._k[alike], return_inverse=True)
            kept = slice(first, first + sizes[-1])
            figures = _figures((x[kept] - x[first]) / temperature, log_p[kept], sizes)
            self.sums[alike, :4] += figures[size_of]
        self.sums[:, 4] += self._k == 1
        self.sums[:, 5] += self._k


_LOG_LEVELS = np.log(list(TAIL_LEVELS.values()))


def _sorted(row: NDArray[np.float32]) -> tuple[NDArray[np.int64], Floats]:
    """Return the tokens with a finite logit, largest first, and their logits minus the largest."""
    ids = np.argsort(-row, kind="stable")
    values = np.minimum(row[ids], np.finfo(np.float32).max).astype(np.float64)
    n = int(np.isfinite(values).sum())
    return ids[:n], values[:n] - values[0]


def _figures(x: Floats, log_p: Floats, sizes: NDArray[np.int64]) -> Floats:
    """Return both tail masses, surprisal and entropy of the first k candidates for every k in `sizes`.

    Args:
        x: Sorted logits minus the largest, divided by the temperature.
        log_p: The reference's log-probabilities of the same tokens.
    """
    weights = np.exp(x)
    tail = [weights * (log_p < level) for level in _LOG_LEVELS]
    terms = np.stack([weights, *tail, -weights * log_p, weights * x])
    between_sizes = np.add.reduceat(terms, [0, *sizes[:-1]], axis=1)
    total, *expected, products = between_sizes.cumsum(axis=1)
    return np.stack([*(one / total for one in expected), np.log(total) - products / total], axis=1)
