"""Slow and plain twins of the kernels: float64 NumPy and a full sort.

A twin gives the tokens that must be kept and those that may be, if the rounding of a probability at a
threshold can decide.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDING = 1e-9  # what the kernels' probabilities may be off by, relatively; they are better than that


class Kept(NamedTuple):
    """The tokens that must be kept, and those that may be, in the order in which the method prefers them."""

    must: NDArray[np.int64]
    may: NDArray[np.int64]


def prefix(ids: NDArray[np.int64], least: int, most: int) -> Kept:
    return Kept(ids[:least], ids[:most])


def descending(logits: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Token ids and logits of the finite logits, largest first, equal ones by token id.

    +inf counts as the largest finite float32; -inf and NaN do not count.
    """
    row = np.asarray(logits, np.float32).astype(np.float64)
    row = np.minimum(row, float(np.finfo(np.float32).max))  # keeps NaN
    ids = np.flatnonzero(np.isfinite(row))
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return ids, row[ids]


def min_k(
    logits: ArrayLike,
    temperature: float,  # noqa: ARG001
    tau: float = 3.0,
    floor: float = 0.0,
    alpha: float = 1.0,
    decay: str = "power",
    normalize: bool = True,
) -> Kept:
    """The Min-k candidates: sections 3.1 and 3.2 of arXiv 2604.11012, with variants and a floor."""
    ids, sorted_logits = descending(logits)
    n = ids.size
    spread = sorted_logits[0] - sorted_logits[-1] + 1e-8 if normalize else 1.0
    if decay == "log":
        divisors = np.array([math.log(i + 1) for i in range(1, n)])
    else:
        divisors = np.array([math.pow(i, alpha) for i in range(1, n)])
    weights = (sorted_logits[:-1] - sorted_logits[1:]) / spread / divisors
    k_cliff = int(np.argmax(weights)) + 1 if n > 1 else 1
    k_fallback = np.floor(tau / spread)
    k_floor = np.count_nonzero(sorted_logits >= sorted_logits[0] - floor) if floor > 0 else 0
    k = int(min(n, max(k_cliff, k_fallback, k_floor)))
    return prefix(ids, k, k)


def every_finite(logits: ArrayLike, temperature: float, **_: object) -> Kept:  # noqa: ARG001
    ids, _logits = descending(logits)
    return prefix(ids, ids.size, ids.size)


def softmax(sorted_logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore", under="ignore"):
        exps = np.exp((sorted_logits - sorted_logits[0]) / temperature)
    result: NDArray[np.float64] = exps / exps.sum()
    return result


def greedy(logits: ArrayLike, temperature: float) -> Kept:  # noqa: ARG001
    return prefix(descending(logits)[0], 1, 1)


def top_k(logits: ArrayLike, temperature: float, k: int) -> Kept:  # noqa: ARG001
    ids, _ = descending(logits)
    return prefix(ids, min(k, ids.size), min(k, ids.size))


def top_p(logits: ArrayLike, temperature: float, p: float) -> Kept:
    ids, sorted_logits = descending(logits)
    if p == 1:
        return prefix(ids, ids.size, ids.size)
    masses = np.cumsum(softmax(sorted_logits, temperature))
    least, most = np.searchsorted(masses, [p * (1 - ROUNDING), p * (1 + ROUNDING)]) + 1
    return prefix(ids, int(least), min(int(most), ids.size))


def _at_least(ids: NDArray[np.int64], values: NDArray[np.float64], cut: float, rounding: float) -> Kept:
    least, most = (int((values >= edge).sum()) for edge in (cut + rounding, cut - rounding))
    return prefix(ids, max(least, 1), max(most, 1))


def min_p(logits: ArrayLike, temperature: float, p: float) -> Kept:
    ids, sorted_logits = descending(logits)
    if p == 0:
        return prefix(ids, ids.size, ids.size)
    return _near_the_largest(ids, sorted_logits, temperature, math.log(p))


def _near_the_largest(
    ids: NDArray[np.int64], sorted_logits: NDArray[np.float64], temperature: float, cut: float
) -> Kept:
    """Keep the tokens at least exp(cut) times as probable as the largest.

    In logarithms, since 5e-324 times a probability would be 0.
    """
    with np.errstate(over="ignore"):
        logs = (sorted_logits - sorted_logits[0]) / temperature
    return _at_least(ids, logs, cut, ROUNDING * max(1.0, -cut))


def llama_default(logits: ArrayLike, temperature: float, **options: float) -> Kept:  # noqa: ARG001
    """llama.cpp's top-k, top-p and min-p one after the other, on what top-k left; each is a prefix."""
    first = top_k(logits, 1.0, int(options["k"])).must
    kept = np.full(np.size(logits), -np.inf, np.float32)
    kept[first] = np.asarray(logits, np.float32)[first]
    ends = [top_p(kept, 1.0, options["p"]), min_p(kept, 1.0, options["min_p"])]
    return Kept(min((end.must for end in ends), key=len), min((end.may for end in ends), key=len))


def top_a(logits: ArrayLike, temperature: float, a: float) -> Kept:
    ids, sorted_logits = descending(logits)
    if a == 0:
        return prefix(ids, ids.size, ids.size)
    cut = math.log(a) + math.log(softmax(sorted_logits, temperature)[0])
    return _near_the_largest(ids, sorted_logits, temperature, cut)


def typical(logits: ArrayLike, temperature: float, p: float) -> Kept:
    """Locally typical sampling (arXiv 2202.00666, section 4), with all tokens as far as the last one.

    Distances are compared in float32, from a centre that is rounded: tokens of other logits that are about as
    far as the last one may be kept or not.
    """
    ids, sorted_logits = descending(logits)
    if p == 1:
        return prefix(ids, ids.size, ids.size)
    probabilities = softmax(sorted_logits, temperature)
    drops = sorted_logits[0] - sorted_logits
    distances = abs(drops - probabilities @ drops)
    order = np.argsort(distances, kind="stable")
    masses = np.cumsum(probabilities[order])
    must, may = [], []
    for mass in (p * (1 - ROUNDING), p * (1 + ROUNDING)):
        last = order[min(int(np.searchsorted(masses, mass)), ids.size - 1)]
        tolerance = 1e-3 * ROUNDING * drops[-1] + 2e-7 * distances[last]
        near = abs(distances - distances[last]) <= tolerance
        nearer = (distances < distances[last]) & ~near
        may.append(nearer | near)
        must.append(nearer | (sorted_logits[near] == sorted_logits[last]).all() & near)
    return Kept(ids[must[0] & must[1]], ids[may[0] | may[1]])


def xtc(logits: ArrayLike, temperature: float, probability: float, threshold: float) -> Kept:  # noqa: ARG001
    """What is left when it cuts."""
    ids, sorted_logits = descending(logits)
    probabilities = softmax(sorted_logits, temperature)
    fewest, most = (
        max(0, int((probabilities >= threshold * factor).sum()) - 1)
        for factor in (1 + ROUNDING, 1 - ROUNDING)
    )
    return Kept(ids[most:], ids[fewest:])


def top_n_sigma(logits: ArrayLike, temperature: float, n: float) -> Kept:  # noqa: ARG001
    ids, sorted_logits = descending(logits)
    reach = n * sorted_logits.std()
    rounding = ROUNDING * reach + 2 * np.spacing(abs(sorted_logits[0]))
    return _at_least(ids, sorted_logits, sorted_logits[0] - reach, rounding)


def eta(logits: ArrayLike, temperature: float, epsilon: float) -> Kept:
    ids, sorted_logits = descending(logits)
    probabilities = softmax(sorted_logits, temperature)
    positive = probabilities[probabilities > 0]
    entropy = -(positive * np.log(positive)).sum()
    cut = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy))
    return _at_least(ids, probabilities, cut, ROUNDING * cut)


def p_less(logits: ArrayLike, temperature: float) -> Kept:
    ids, sorted_logits = descending(logits)
    probabilities = softmax(sorted_logits, temperature)
    cut = float((probabilities**2).sum())
    return _at_least(ids, probabilities, cut, ROUNDING * cut)


def diff_sampling(logits: ArrayLike, temperature: float, p: float, min_p: float) -> Kept:  # noqa: ARG001
    """Algorithm 1 of arXiv 2502.14037: the lowest difference to the next probability, 0 after the last."""
    ids, sorted_logits = descending(logits)
    if p == 1:
        return prefix(ids, ids.size, ids.size)
    probabilities = softmax(sorted_logits, 1.0)
    following = np.append(probabilities[1:], 0.0)
    edge = (min_p or 1.0) * probabilities[0]
    drops, masses = probabilities - following, np.cumsum(probabilities)
    sure, possible = (
        (masses >= p * factor) & (following <= edge / factor) for factor in (1 + ROUNDING, 1 - ROUNDING)
    )
    largest = drops[sure].max(initial=0.0)
    places = np.flatnonzero(possible & (drops + ROUNDING * probabilities >= largest)) + 1
    return prefix(ids, *((places.min(), places.max()) if places.size else (ids.size, ids.size)))


def p_step(logits: ArrayLike, temperature: float, step: float) -> Kept:  # noqa: ARG001
    """llama.cpp's pull request 5675: the tokens before the first with less than `step` times as much."""
    ids, sorted_logits = descending(logits)
    gap = -math.log(step) if step else math.inf
    gaps = sorted_logits[:-1] - sorted_logits[1:]
    least, most = ([*np.flatnonzero(gaps > gap + slack), ids.size - 1][0] for slack in (-ROUNDING, ROUNDING))
    return prefix(ids, int(least) + 1, int(most) + 1)
