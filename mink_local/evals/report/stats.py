"""Statistics of a grid of correct and wrong answers: intervals, paired tests, power.

The distributions and corrections are SciPy's and statsmodels'. The unit of observation is the question, as if
sampled from all questions like it. Responses to one question depend on each other, so intervals and
tests have as many observations as there are questions, however often each was asked.

Sources: E. B. Wilson (1927), doi:10.2307/2276774, for the interval; Q. McNemar (1947),
doi:10.1007/BF02295996, for the paired test, and D. M. Ritzwoller et al. (2024), arXiv:2406.09521, for
flipping signs with several responses; D. G. Bonett and R. M. Price (2012), J. Educ. Behav. Stat. 37,
479-488, for the interval of a difference; S. Holm (1979), Scand. J. Statist. 6, 65-70, for the correction.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, norm
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

ALPHA = 0.05  # familywise error rate: the chance of even one false find among all comparisons of a family
POWER = 0.8

Outcomes = Mapping[tuple[str, int], bool]  # (question id, repeat) -> whether the response is correct


@dataclass(frozen=True)
class Share:
    """A mean over questions of shares, 0 to 1, with its 95% interval."""

    value: float
    low: float
    high: float


def share(values: Sequence[float]) -> Share:
    """Return the mean of a share of each question, with its interval. Raises ValueError without values.

    The interval is Wilson's, of `len(values)` observations if the values are all 0 or 1. Other values vary
    less than such ones with the same mean, and count as so many more observations. (Their variance is taken
    together with one 0 and one 1, so that values that happen to be alike have an interval too.)
    """
    if not values:
        raise ValueError("there are no outcomes to take a mean of")
    value = statistics.fmean(values)
    with_both = [*values, 0, 1]
    center = statistics.fmean(with_both)
    n = len(values) * center * (1 - center) / statistics.pvariance(with_both, center)
    low, high = proportion_confint(value * n, n, method="wilson")
    return Share(value, max(0.0, min(value, float(low))), min(1.0, max(value, float(high))))


@dataclass(frozen=True)
class Accuracy(Share):
    """The mean over questions of the share of a question's responses that are correct.

    `repeats` are the accuracies of the repeats.
    """

    n_questions: int
    repeats: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of the repeats' accuracies."""
        return statistics.stdev(self.repeats) if len(self.repeats) > 1 else None


def accuracy(outcomes: Outcomes) -> Accuracy:
    """Return the accuracy over questions, with its interval. Raises ValueError if there are no outcomes."""
    questions, repeats = _grouped(outcomes, by=0), _grouped(outcomes, by=1)
    mean = share([statistics.fmean(rights) for rights in questions.values()])
    shares = tuple(statistics.fmean(repeats[repeat]) for repeat in sorted(repeats))
    return Accuracy(mean.value, mean.low, mean.high, len(questions), shares)


def _grouped(outcomes: Outcomes, by: int) -> dict[Any, list[bool]]:
    """Return the outcomes by question id (0) or by repeat (1)."""
    groups: dict[Any, list[bool]] = {}
    for key, correct in outcomes.items():
        groups.setdefault(key[by], []).append(correct)
    return groups


@dataclass(frozen=True, eq=False)
class PairedTest:
    """Two methods compared on the questions that both answered in each of `n_repeats` common repeats.

    `gains`, int64 (n_questions,), are differences of counts: for each question, how many of the first's
    responses are correct, minus how many of the second's.
    """

    gains: NDArray[np.int64]
    n_repeats: int

    @property
    def n_questions(self) -> int:
        return len(self.gains)

    @property
    def difference(self) -> float:
        """The first's accuracy minus the second's; 0 without questions."""
        return float(self.gains.sum()) / max(1, self.n_questions * self.n_repeats)

    @property
    def won(self) -> int:
        """The questions that the first answered correctly more often."""
        return int((self.gains > 0).sum())

    @property
    def lost(self) -> int:
        return int((self.gains < 0).sum())

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the difference.

        As Bonett and Price do with one response a question, add one question that the first wins and one that
        it loses, in all repeats, and take the normal interval of the mean: so it is never empty.
        """
        n = self.n_questions + 2
        shares = self.gains / self.n_repeats
        center = shares.sum() / n
        half = norm.isf(0.025) * math.sqrt(((shares @ shares + 2) / n - center**2) / n)
        return max(-1.0, float(center - half)), min(1.0, float(center + half))

    @cached_property
    def p(self) -> float:
        """The two-sided p-value of the sign-flip permutation test that the mean gain is 0, exact.

        It is the chance of a sum of gains as far from 0 if each gain were as likely to be its opposite. With
        one response a question it is McNemar's exact test. Flipped signs leave the sum of squares as it is,
        so the test of the mean is that of the studentized mean: it also holds for many questions whose
        gains are not symmetric about 0, such as few large ones against many small ones.
        """
        total = abs(int(self.gains.sum()))
        if total == 0:
            return 1.0
        chances = np.ones(1)  # of what the gains that are won add up to
        for size, count in zip(*np.unique(abs(self.gains[self.gains != 0]), return_counts=True), strict=True):
            of_size = np.zeros(size * count + 1)
            of_size[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
            chances = np.convolve(chances, of_size)
        return min(1.0, 2 * float(chances[(len(chances) - 1 + total) // 2 :].sum()))

    def visible(self, level: float) -> float | None:
        """Return the smallest true difference of the accuracies that is found with a chance of 80%.

        A p-value of at most `level` counts as found. The mean square of the gains is taken to be the
        observed one, as if all gains other than 0 were of one size; with one response a question, they are.
        Returns None if not even a difference of 1 would be found.
        """
        shares = abs(self.gains) / self.n_repeats
        size = float(shares @ shares / shares.sum()) if shares.any() else 1.0
        visible = visible_difference(self.n_questions, float(shares.sum()) / size, level)
        return visible and size * visible


def compare(first: Outcomes, second: Outcomes) -> PairedTest:
    """Return the paired test of two methods.

    A question with fewer common repeats than others is left out: it is one that is being answered, and its
    short responses come first.
    """
    gains: dict[str, list[int]] = {}
    for key in first.keys() & second.keys():
        gains.setdefault(key[0], []).append(first[key] - second[key])
    n_repeats = max(map(len, gains.values()), default=1)
    totals = [sum(gain) for gain in gains.values() if len(gain) == n_repeats]
    return PairedTest(np.array(totals, np.int64), n_repeats)


def holm(p_values: Sequence[float]) -> tuple[list[float], float]:
    """Return Holm's adjusted p-values of one family, in the order given, and the level of its next step.

    An adjusted p-value of at most `ALPHA` is significant. The level is what the smallest p-value that is not
    significant had to reach: `ALPHA / (n - n_significant)`, or `ALPHA` if all are significant.
    """
    if not p_values:
        return [], ALPHA
    rejected, adjusted, *_ = multipletests(p_values, ALPHA, method="holm")
    return [float(p) for p in adjusted], ALPHA / max(1, len(p_values) - int(rejected.sum()))


@lru_cache(maxsize=4096)
def visible_difference(n: int, discordant: float, level: float) -> float | None:
    """Return the smallest true difference that McNemar's exact test finds with a chance of 80% (`POWER`).

    The difference is questions won minus questions lost, as a share of all `n`. A p-value of at most `level`
    counts as found, if the better method is ahead. The true share of discordant questions is taken to be
    `discordant / n`, or the difference itself if that is larger. Returns None if not even a difference of 1
    would be found.
    """
    if n == 0 or _power(n, discordant / n, 1.0, level) < POWER:
        return None
    return float(brentq(lambda d: _power(n, discordant / n, d, level) - POWER, 0.0, 1.0, xtol=1e-6))


def _power(n: int, discordant: float, difference: float, level: float) -> float:
    """Return the chance that the exact test finds `difference`.

    The number of discordant questions is binomial; given that number, so is the number of those won. The
    power is the sum over the first of the chance that enough are won.
    """
    if difference == 0:
        return 0.0  # there is nothing to find
    discordant = max(discordant, difference)
    counts = np.arange(n + 1)
    enough = binom.isf(level / 2, counts, 0.5)  # the largest number won that is not significant yet
    found = binom.sf(enough, counts, (1 + difference / discordant) / 2)
    return float(binom.pmf(counts, n, discordant) @ found)


@dataclass(frozen=True)
class CutoffCounts:
    """Counts of each cutoff k: `sizes`, int64 (m,), ascending, and their `counts`, int64 (m,)."""

    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "CutoffCounts":
        sizes = np.fromiter(chain.from_iterable(sequences), np.int64)
        return cls(*np.unique(sizes, return_counts=True))

    @property
    def n_steps(self) -> int:
        return int(self.counts.sum())

    def at_least(self) -> NDArray[np.float64]:
        """Return the share of steps with a k of at least `sizes[i]`, float64 (m,)."""
        shares: NDArray[np.float64] = self.counts[::-1].cumsum()[::-1] / max(1, self.n_steps)
        return shares

    def share(self, k: int) -> float:
        return float(self.counts[self.sizes == k].sum() / max(1, self.n_steps))

    def quantile(self, q: float) -> int:
        """Return the smallest k that is not exceeded in a share `q` of the steps. There must be steps."""
        return int(self.sizes[np.searchsorted(self.counts.cumsum(), q * self.n_steps)])
