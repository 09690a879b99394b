"""Statistics of a grid of correct and wrong answers: intervals, paired tests, power, diversity.

The distributions and corrections are SciPy's and statsmodels'. The unit of observation is the question, as if
sampled from all questions like it. Responses to one question depend on each other, so intervals and
tests have as many observations as there are questions, however often each was asked.

Sources: E. B. Wilson (1927), doi:10.2307/2276774, for the interval; Q. McNemar (1947),
doi:10.1007/BF02295996, for the paired test; S. Holm (1979), Scand. J. Statist. 6, 65-70, for the correction;
J. Li et al. (2016), arXiv:1510.03055, for distinct-2.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, binomtest
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

ALPHA = 0.05  # familywise error rate: the chance of even one false find among all comparisons of a family
POWER = 0.8

Outcomes = Mapping[tuple[str, int], bool]  # (question id, repeat) -> whether the response is correct


@dataclass(frozen=True)
class Accuracy:
    """A share of correct responses, 0 to 1, with its 95% interval.

    `value` is the mean over questions of the share of a question's responses that are correct, and the
    interval is Wilson's for `n_questions` observations. With one response a question it is the interval of a
    proportion. With several, the variance of a question's mean is at most that of one response, so the
    interval is too wide and never too narrow.
    """

    value: float
    low: float
    high: float
    n_questions: int
    repeats: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of the repeats' accuracies."""
        return statistics.stdev(self.repeats) if len(self.repeats) > 1 else None


def accuracy(outcomes: Outcomes) -> Accuracy:
    """Return the accuracy over questions, with its interval. Raises ValueError if there are no outcomes."""
    if not outcomes:
        raise ValueError("there are no outcomes to take an accuracy of")
    questions, repeats = _grouped(outcomes, by=0), _grouped(outcomes, by=1)
    value = statistics.fmean(map(statistics.fmean, questions.values()))
    low, high = proportion_confint(value * len(questions), len(questions), method="wilson")
    shares = tuple(statistics.fmean(repeats[repeat]) for repeat in sorted(repeats))
    return Accuracy(value, max(0.0, float(low)), min(1.0, float(high)), len(questions), shares)


def _grouped(outcomes: Outcomes, by: int) -> dict[Any, list[bool]]:
    """Return the outcomes by question id (0) or by repeat (1)."""
    groups: dict[Any, list[bool]] = {}
    for key, correct in outcomes.items():
        groups.setdefault(key[by], []).append(correct)
    return groups


@dataclass(frozen=True)
class PairedTest:
    """Two methods compared on the `n_questions` questions that both answered.

    `difference` is the first's accuracy minus the second's. The first `won` the questions that it answered
    correctly in more of the repeats that both have: with one response a question, `won` and `lost` are
    McNemar's two discordant counts. `p` is two-sided, of the exact binomial test that a discordant question
    is as likely won as lost: McNemar's exact test, and with several responses a question the sign test of
    their counts. It is 1 if no question is discordant.
    """

    n_questions: int
    difference: float
    won: int
    lost: int
    p: float


def compare(first: Outcomes, second: Outcomes) -> PairedTest:
    """Return the paired test of two methods, exact because the signs of questions are independent."""
    gains: dict[str, list[int]] = {}
    for key in first.keys() & second.keys():
        gains.setdefault(key[0], []).append(first[key] - second[key])
    totals = [sum(gain) for gain in gains.values()]
    won, lost = sum(total > 0 for total in totals), sum(total < 0 for total in totals)
    difference = statistics.fmean(map(statistics.fmean, gains.values())) if gains else 0.0
    p = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
    return PairedTest(len(gains), difference, won, lost, p)


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
def visible_difference(n: int, discordant: int, level: float) -> float | None:
    """Return the smallest true difference that `compare` finds with a chance of 80% (`POWER`).

    The difference is questions won minus questions lost, as a share of all `n`; with one response a question,
    that of the accuracies. A p-value of at most `level` counts as found, if the better method is ahead. The
    true share of discordant questions is taken to be `discordant / n`, or the difference itself if that is
    larger. Returns None if not even a difference of 1 would be found.
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


def distinct(responses: Sequence[str]) -> float:
    """Return the share of different texts among the responses to one question: 1 / n if all are alike."""
    return len(set(responses)) / len(responses)


def distinct_2(responses: Sequence[str]) -> float | None:
    """Return the share of different pairs of neighbouring words in the responses to one question.

    This is distinct-2 of Li et al. (2016), with words separated by white space. None if there is no pair.
    """
    words = [response.split() for response in responses]
    pairs = [pair for text in words for pair in pairwise(text)]
    return len(set(pairs)) / len(pairs) if pairs else None


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
