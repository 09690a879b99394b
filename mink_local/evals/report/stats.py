"""What a grid of right and wrong answers says: intervals, paired tests, the difference that could have
been seen, diversity. The distributions and corrections are SciPy's and statsmodels'.

A question is what is drawn at random here, from all questions like it. The responses to one question
are not independent of each other, so neither an interval nor a test counts them as if they were: both
have as many observations as there are questions, however often each was asked.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05  # the chance of a false find that is allowed to all comparisons of one family together
POWER = 0.8

Outcomes = Mapping[tuple[str, int], bool]  # (question id, repeat) -> whether the answer is correct


@dataclass(frozen=True)
class Accuracy:
    """Share of correct answers, 0 to 1, with a 95% interval.

    value: the mean over questions of the share of a question's responses that are correct.
    low, high: Wilson's interval of `value` for `n_questions` observations. With one response a question that
        is the interval of a proportion. With several, the variance of a question's mean is at most that of
        one response, so the interval is too wide and never too narrow.
    repeats: the accuracy of every repeat on its own, in their order.
    """

    value: float
    low: float
    high: float
    n_questions: int
    repeats: tuple[float, ...]

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of the repeats' accuracies; None where there is one repeat."""
        return statistics.stdev(self.repeats) if len(self.repeats) > 1 else None


def accuracy(outcomes: Outcomes) -> Accuracy:
    """Raises ValueError where there are no outcomes."""
    from statsmodels.stats.proportion import proportion_confint

    if not outcomes:
        raise ValueError("no outcomes: there is no accuracy of nothing")
    value = statistics.fmean(statistics.fmean(given) for given in _by_key(outcomes, 0).values())
    n_questions = len(_by_key(outcomes, 0))
    low, high = proportion_confint(value * n_questions, n_questions, method="wilson")
    repeats = _by_key(outcomes, 1)
    shares = tuple(statistics.fmean(repeats[repeat]) for repeat in sorted(repeats))
    return Accuracy(value, max(0.0, float(low)), min(1.0, float(high)), n_questions, shares)


def _by_key(outcomes: Outcomes, part: int) -> dict[Any, list[bool]]:
    grouped: dict[Any, list[bool]] = {}
    for key, correct in outcomes.items():
        grouped.setdefault(key[part], []).append(correct)
    return grouped


@dataclass(frozen=True)
class Paired:
    """Two methods on the questions that both answered.

    difference: of their accuracies there, the first's minus the second's.
    won, lost: questions that the first answered correctly in more, or in fewer, of the repeats that both
        have; with one response a question, McNemar's two discordant counts.
    p: two-sided p-value of the exact binomial test that a discordant question is as likely won as lost:
        McNemar's exact test, which with several responses a question becomes the sign test of the
        questions' counts. 1 where no question is discordant.
    """

    n_questions: int
    difference: float
    won: int
    lost: int
    p: float


def compare(first: Outcomes, second: Outcomes) -> Paired:
    """Exact for any number of repeats, since the signs of different questions are independent."""
    from scipy.stats import binomtest

    gains: dict[str, list[int]] = {}
    for key in first.keys() & second.keys():
        gains.setdefault(key[0], []).append(first[key] - second[key])
    totals = [sum(gain) for gain in gains.values()]
    won, lost = sum(total > 0 for total in totals), sum(total < 0 for total in totals)
    difference = statistics.fmean(map(statistics.fmean, gains.values())) if gains else 0.0
    p = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
    return Paired(len(gains), difference, won, lost, p)


def holm(p_values: Sequence[float]) -> tuple[list[float], float]:
    """Holm's adjusted p-values of one family, in the order given, and the level of its next step.

    An adjusted p-value of at most `ALPHA` is significant. The level is what the smallest p-value that is not
    significant would have had to reach, `ALPHA / (n − significant ones)`; `ALPHA` where all are.
    """
    from statsmodels.stats.multitest import multipletests

    if not p_values:
        return [], ALPHA
    rejected, adjusted, *_ = multipletests(p_values, ALPHA, method="holm")
    return [float(p) for p in adjusted], ALPHA / max(1, len(p_values) - int(rejected.sum()))


@lru_cache(maxsize=4096)
def visible_difference(n: int, discordant: int, level: float) -> float | None:
    """The smallest true difference that `compare` would find in four of five runs like this one.

    A run of `n` questions of which a share of `discordant / n` is discordant, or as large a share as the
    difference itself; found: p of at most `level`, the better method ahead. In questions won minus
    questions lost, as a share of all: with one response a question, the difference of the accuracies.
    None where not even a difference of 1 would be found.
    """
    from scipy.optimize import brentq

    if n == 0 or _power(n, discordant / n, 1.0, level) < POWER:
        return None
    return float(brentq(lambda d: _power(n, discordant / n, d, level) - POWER, 0.0, 1.0, xtol=1e-6))


def _power(n: int, discordant: float, difference: float, level: float) -> float:
    """Chance that the test finds `difference`: over every number of discordant questions, the chance
    that enough of them are won. 0 at a difference of 0, where there is nothing to find."""
    from scipy.stats import binom

    if difference == 0:
        return 0.0
    discordant = max(discordant, difference)
    counts = np.arange(n + 1)
    enough = binom.isf(level / 2, counts, 0.5)  # won > enough: P(that many or more) <= level / 2
    found = binom.sf(enough, counts, (1 + difference / discordant) / 2)
    return float(binom.pmf(counts, n, discordant) @ found)


def distinct(responses: Sequence[str]) -> float:
    """Share of different texts among the responses to one question: 1 / n where all are alike."""
    return len(set(responses)) / len(responses)


def distinct_2(responses: Sequence[str]) -> float | None:
    """Share of different pairs of neighbouring words among all such pairs in the responses to one
    question (distinct-2 of Li et al. 2016, arXiv 1510.03055). Words are what white space parts. None where
    there is no pair."""
    words = [response.split() for response in responses]
    pairs = [pair for text in words for pair in pairwise(text)]
    return len(set(pairs)) / len(pairs) if pairs else None


@dataclass(frozen=True)
class Steps:
    """How often every candidate-set size k occurred: `sizes` ascending, int64 (m,), and their `counts`."""

    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "Steps":
        sizes = np.fromiter(chain.from_iterable(sequences), np.int64)
        return cls(*np.unique(sizes, return_counts=True))

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    def at_least(self) -> NDArray[np.float64]:
        """Share of steps with a k of at least `sizes[i]`, float64 (m,)."""
        shares: NDArray[np.float64] = self.counts[::-1].cumsum()[::-1] / max(1, self.n)
        return shares

    def share(self, size: int) -> float:
        """Share of steps with exactly this k."""
        return float(self.counts[self.sizes == size].sum() / max(1, self.n))

    def quantile(self, q: float) -> int:
        """The smallest k that at least a share `q` of the steps does not exceed. Steps are needed."""
        return int(self.sizes[np.searchsorted(self.counts.cumsum(), q * self.n)])
