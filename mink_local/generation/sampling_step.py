"""One step of an answer: its candidates, the cliff, and what each method keeps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mink_local.samplers import Eta, MinK, MinP, PLess, Sampler, TopK, TopNSigma, TopP

METHODS: tuple[Sampler, ...] = (MinK(), TopNSigma(), MinP(), TopP(), TopK(), Eta(), PLess())
"""Methods that a step is compared by."""


@dataclass(frozen=True)
class SamplingStep:
    """The candidates of one step, largest logit first; ranks count from 0."""

    ids: NDArray[np.int64]  # of the finite logits; the arrays below are parallel to this one
    logits: NDArray[np.float64]
    weights: NDArray[np.float64]  # of Min-k, after each candidate; NaN for the last
    p: NDArray[np.float64]  # at temperature 1
    p_hot: NDArray[np.float64]  # at `temperature`
    temperature: float
    kept: dict[str, int]  # how many candidates each method keeps, by its name with options
    sampled: int  # the rank of the sampled token

    @property
    def cliff(self) -> int:
        """The number of candidates before the largest weighted drop."""
        return int(np.nanargmax(self.weights)) + 1 if len(self.ids) > 1 else 1

    def shown_ranks(self, rows: int) -> list[int]:
        """Return the ranks that a table of so many rows shows: the first, and the sampled one."""
        first = list(range(min(rows, len(self.ids))))
        return first if self.sampled < len(first) else [*first[:-1], self.sampled]


def sampling_step(
    logits: NDArray[np.float32], sampled: int, temperature: float, methods: Sequence[Sampler] = METHODS
) -> SamplingStep:
    """Return the candidates of a step with (V,) raw logits, and what methods keep at a temperature > 0."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    order = order[np.isfinite(logits[order])]
    ordered = logits[order].astype(np.float64)
    span = ordered[0] - ordered[-1] + 1e-8
    gaps = np.append(ordered[:-1] - ordered[1:], np.nan)
    return SamplingStep(
        ids=order,
        logits=ordered,
        weights=gaps / span / np.arange(1, len(order) + 1),
        p=_softmax(ordered),
        p_hot=_softmax(ordered / temperature),
        temperature=temperature,
        kept={str(method): method.cutoff(logits, temperature) for method in methods},
        sampled=int(np.flatnonzero(order == sampled)[0]),
    )


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())
