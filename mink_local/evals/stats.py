"""Statistics of all measurements: one interval type, and paired tests.

Distributions and corrections come from SciPy and statsmodels. The unit of observation is the cluster: a
question, prompt or text, regarded as sampled from a population. Measurements on the same cluster are
dependent, so intervals and tests have as many observations as there are clusters.

Sources: C. J. Clopper and E. S. Pearson (1934), doi:10.1093/biomet/26.4.404, for the interval of a
proportion; B. Efron (1979), doi:10.1214/aos/1176344552, for the bootstrap, and T. C. Hesterberg (2015),
doi:10.1080/00031305.2015.1089789, for its percentiles with few clusters; Q. McNemar (1947),
doi:10.1007/BF02295996, for the paired test, and D. M. Ritzwoller et al. (2024), arXiv:2406.09521, for
flipping signs with several responses; D. G. Bonett and R. M. Price (2012), J. Educ. Behav. Stat. 37, 479-488,
for the interval of a difference; S. Holm (1979), Scand. J. Statist. 6, 65-70, for the correction.

What the simulations in tests/evals/test_stats.py measure, where a 95% interval promises 95%:

- `share`: 95% or more, from 6 clusters on, for true shares from 2% to 98%.
- `paired_test`: 93% or more, and errors of 5% or less, from 6 clusters on.
- `mean` and `Interval.of`: with 8 clusters, 92% if they differ by a third of their mean (standard deviation),
  89% if by two thirds, and 84% if by as much as their mean; with 60 clusters, 94%, 93% and 90%.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.signal import convolve
from scipy.stats import binom, norm, t
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

ALPHA = 0.05  # familywise error rate: the chance of any false positive among a family of comparisons
FEW = 20  # clusters; with fewer, intervals of means may cover less than 90%
N_RESAMPLES = 2000
_LEVELS = (0.025, 0.975)  # the quantiles at the ends of a 95% interval
_POWER = 0.8  # the chance of finding a difference that counts as detectable
DISCORDANT = (0.2, 0.4)  # likely shares of clusters with differing outcomes
_FINEST = 5040  # resolution of gains in the exact test; divisible by all numbers up to 10

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A value with the ends of its 95% interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, resampled: Floats, n: int) -> "Interval":
        """Return a value with its percentile bootstrap interval; see `resample`.

        The percentiles of `n` clusters are further apart than those of many by as much as Student's interval
        is wider than the normal one: resamples of few clusters vary too little. A single cluster does not
        vary: the ends are NaN.
        """
        if n == 1:
            return cls(float(value), math.nan, math.nan)
        tail = float(norm.sf(t.isf(_LEVELS[0], n - 1) * math.sqrt(n / (n - 1))))
        low, high = np.quantile(resampled, (tail, 1 - tail))
        return cls(float(value), float(low), float(high))


def few_clusters(n: int, noun: str) -> str | None:
    """Return a warning if `n` clusters are too few for reliable intervals of means, else None."""
    if n >= FEW:
        return None
    there = noun if n != 1 else noun.removesuffix("s")
    return (
        f"Only {n} {there}: 95% intervals are too narrow if {noun} differ much, and other {noun} may give "
        "other results."
    )


def share(values: Sequence[float]) -> Interval:
    """Return the mean of the clusters' shares, 0 to 1, with its interval. Raises ValueError without any.

    The interval is Clopper and Pearson's, with `len(values)` observations if all values are 0 or 1. Other
    values vary less than those with the same mean, and count as more observations. (A 0 and a 1 are added
    when computing their variance, so that values that happen to be equal have an interval too.)
    """
    if not len(values):
        raise ValueError("there are no values to take a mean of")
    value = statistics.fmean(values)
    with_both = [*values, 0, 1]
    center = statistics.fmean(with_both)
    n = len(values) * center * (1 - center) / statistics.pvariance(with_both, center)
    low, high = proportion_confint(value * n, n, method="beta")
    return Interval(value, min(value, float(low)), max(value, float(high)))


def mean(clusters: Floats, least: float = -math.inf, most: float = math.inf) -> Interval:
    """Return the mean of clusters, with Student's interval, which is valid even for few of them.

    The ends are NaN if all clusters are equal, as a single one is.

    Args:
        clusters: float64 (n,), the means of clusters of equal size.
        least: Lower bound of the mean.
        most: Upper bound of the mean.
    """
    value = float(np.mean(clusters))
    if np.ptp(clusters) == 0:  # as of few clusters, or coarse ones: they do not tell how much others vary
        return Interval(value, math.nan, math.nan)
    half = t.isf(_LEVELS[0], len(clusters) - 1) * float(np.std(clusters, ddof=1)) / math.sqrt(len(clusters))
    return Interval(value, max(least, value - half), min(most, value + half))


def resample(clusters: Floats) -> Floats:
    """Return the sums of bootstrap resamples of clusters, the same resamples each time.

    Statistics of the same clusters share their resamples, so that differences are paired.

    Args:
        clusters: float64 (n, …), sums per cluster.

    Returns:
        float64 (N_RESAMPLES, …).
    """
    n = len(clusters)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), N_RESAMPLES).astype(np.float64)
    sums: Floats = np.tensordot(counts, clusters, axes=1)
    return sums


@dataclass(frozen=True)
class PairedTest:
    """Two methods compared on the same clusters.

    Attributes:
        n: Number of clusters.
        difference: Mean over clusters of the first method's share minus the second's. Its interval excludes 0
            if and only if p is at most `ALPHA`.
        won: Number of clusters in which the first has the larger share.
        lost: Number of clusters in which the first has the smaller share.
        p: Two-sided p-value for a mean difference of 0.
    """

    n: int
    difference: Interval
    won: int
    lost: int
    p: float


def paired_test(gains: Sequence[int], sizes: Sequence[int] | int = 1) -> PairedTest:
    """Compare two methods by an exact sign-flip permutation test of the mean difference.

    With one outcome per cluster, this is McNemar's exact test. Differences of several outcomes need not be
    symmetric about 0, as flipping signs assumes, so p is then at least that of the interval.

    Args:
        gains: Successes of the first method minus those of the second, per cluster.
        sizes: Number of outcomes per method, for each cluster or for all of them.
    """
    n_outcomes = np.broadcast_to(np.asarray(sizes, np.int64), len(gains))
    shares = np.asarray(gains, np.int64) / n_outcomes
    parts = min(math.lcm(1, *n_outcomes.tolist()), _FINEST)
    p = _sign_flip(np.rint(shares * parts).astype(np.int64))
    center, error = _centred(shares)
    if parts > 1:
        p = max(p, float(2 * norm.sf(abs(center) / error)))
    half = float(norm.isf(_LEVELS[0])) * error
    low, high = max(-1.0, center - half), min(1.0, center + half)  # excludes 0 whenever p is that small
    if p > ALPHA:
        low, high = min(low, 0.0), max(high, 0.0)
    value = float(shares.mean()) if len(shares) else 0.0
    won, lost = int((shares > 0).sum()), int((shares < 0).sum())
    return PairedTest(len(shares), Interval(value, low, high), won, lost, p)


def _centred(shares: Floats) -> tuple[float, float]:
    """Return the center of the interval for the mean of differences, -1 to 1, and its standard error.

    As in Bonett and Price for one outcome per cluster, add one cluster that is won and one that is lost
    outright, so that the error is never 0.
    """
    n = len(shares) + 2
    center = float(shares.sum()) / n
    return center, math.sqrt(((float(shares @ shares) + 2) / n - center**2) / n)


def _sign_flip(gains: NDArray[np.int64]) -> float:
    """Return the chance of a sum of gains at least as far from 0 if their signs are random.

    Flipping signs does not change the sum of squares, so the test of the mean equals that of the studentized
    mean: it also holds for many clusters whose gains are not symmetric about 0, such as a few large ones
    against many small ones.
    """
    total = abs(int(gains.sum()))
    if total == 0:
        return 1.0
    chances = np.ones(1)  # of each sum of the gains that are won
    for size, count in zip(*np.unique(abs(gains[gains != 0]), return_counts=True), strict=True):
        of_size = np.zeros(size * count + 1)
        of_size[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
        chances = convolve(chances, of_size)
    tail = float(chances[(len(chances) - 1 + total) // 2 :].sum())
    return min(1.0, max(0.0, 2 * tail))  # a long convolution is off by some 1e-16


def detectable_difference(n: int, n_comparisons: int = 1, discordant: float = DISCORDANT[0]) -> float | None:
    """Return the difference of two shares, 0 to 1, that the exact test of `n` clusters finds with 80% power.

    None if no difference is ever significant. Each cluster has one outcome per method.

    Args:
        n: Number of clusters.
        n_comparisons: Size of the family, of which this is the only true difference.
        discordant: Share of clusters whose outcomes differ, or more if such a difference needs more.
    """
    level = ALPHA / n_comparisons / 2
    if 0.5**n > level:
        return None
    differing = np.arange(n + 1)
    needed = binom.isf(level, differing, 0.5) + 1  # clusters to win, by how many differ

    def power(difference: float) -> float:
        differ = max(discordant, difference)
        won = (differ + difference) / (2 * differ)
        found = binom.sf(needed - 1, differing, won) + binom.cdf(differing - needed, differing, won)
        return float(binom.pmf(differing, n, differ) @ found)

    return float(brentq(lambda difference: power(difference) - _POWER, 0.0, 1.0))


def what_can_be_found(
    n: int, n_comparisons: int = 1, discordant: Sequence[float] = DISCORDANT, repeats: int = 1
) -> str:
    """Return a sentence on how large a difference `n` questions can show among comparisons of cells.

    Args:
        discordant: Shares of questions on which methods may disagree, each with its difference.
        repeats: Responses per question; of several, as if a method never disagreed with itself.
    """
    size = f"{n:,} question{'s' * (n != 1)}"
    if repeats > 1:
        size += f" answered {repeats} times each"
    if n_comparisons > 1:
        size += f" and {n_comparisons} comparisons"
    found = {share: detectable_difference(n, n_comparisons, share) for share in discordant}
    parts = dict.fromkeys(  # a few questions need more than all shares
        f"of {100 * least:.1f} points if methods disagree on {100 * max(share, least):.0f}%"
        for share, least in found.items()
        if least is not None
    )
    if not parts:
        return f"With {size}, no difference can be significant."
    chance = ", and for less, the more often a method disagrees with itself" * (repeats > 1)
    return (
        f"With {size}, the test has 80% power for a true difference {', and '.join(parts)} of the "
        f"questions{chance}."
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values for a family; those up to `ALPHA` are significant."""
    return [float(p) for p in multipletests(p_values, ALPHA, method="holm")[1]] if len(p_values) else []
