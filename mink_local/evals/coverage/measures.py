"""Measures of a distribution over answers, and their means over prompts with intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.evals.bootstrap import LEVELS, resampled_counts

N_SAMPLES = 100
_N_RESAMPLES = 10_000

Floats = NDArray[np.float64]


def expected_distinct(probabilities: Floats, n_samples: int = N_SAMPLES) -> Floats:
    """Return how many different valid answers are expected among `n_samples` samples, exactly.

    Args:
        probabilities: Of each valid answer, (..., answers); the rest of the mass is not valid.
    """
    distinct: Floats = -np.expm1(n_samples * np.log1p(-np.minimum(probabilities, 1 - 1e-16))).sum(axis=-1)
    return distinct


def most_distinct(n_answers: int) -> float:
    """Return the expected distinct answers of a uniform distribution over the valid ones."""
    return float(expected_distinct(np.full(n_answers, 1 / n_answers)))


def coverage(probabilities: Floats) -> Floats:
    """Return the expected distinct answers as a share of the most possible, those of a uniform distribution.

    Args:
        probabilities: As for `expected_distinct`.
    """
    return expected_distinct(probabilities) / most_distinct(probabilities.shape[-1])


def evenness(probabilities: Floats) -> Floats:
    """Return the entropy of the distribution among valid answers as a share of its maximum, log n.

    It is 0 if no answer is valid.
    """
    total = probabilities.sum(axis=-1, keepdims=True)
    p = np.divide(probabilities, total, out=np.zeros_like(probabilities), where=total > 0)
    surprise = -np.log(p, out=np.zeros_like(p), where=p > 0)
    shares: Floats = (p * surprise).sum(axis=-1) / np.log(p.shape[-1])
    return shares


def oracle(valid: Floats, covered: Floats, least: float) -> NDArray[np.intp]:
    """Return for each prompt the cut-off that an oracle chooses.

    It is the one with the largest coverage among those with a validity of at least `least`, or the one with
    the largest validity if there is none.

    Args:
        valid: Validity, (prompts, cut-offs).
        covered: Coverage, (prompts, cut-offs).
    """
    score = np.where(valid >= least, 1 + covered, valid - 1)
    chosen: NDArray[np.intp] = score.argmax(axis=1)
    return chosen


class Mean(NamedTuple):
    """A mean over prompts with its 95% interval."""

    value: float
    low: float
    high: float


def means(values: Floats) -> list[Mean]:
    """Return the mean over prompts of every column with its bootstrap interval.

    Args:
        values: (prompts, columns); the same resamples of prompts serve all columns.
    """
    n = len(values)
    low, high = np.quantile(resampled_counts(n, _N_RESAMPLES) @ values / n, LEVELS, axis=0)
    return [Mean(*map(float, one)) for one in zip(values.mean(axis=0), low, high, strict=True)]


def best_with(valid: Sequence[Mean], covered: Sequence[Mean], least: float) -> int | None:
    """Return the column with the most coverage among those with a validity of at least `least`, or None."""
    enough = [i for i, mean in enumerate(valid) if mean.value >= least]
    return max(enough, key=lambda i: covered[i].value, default=None)
