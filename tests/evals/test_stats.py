"""The statistics against SciPy's and statsmodels' own, against simulation, and small cases worked by hand.

How often intervals hold the truth and tests err is enumerated or simulated; the bounds are those that the
docstring of `stats` and the reports name."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, multinomial, norm, ttest_1samp
from statsmodels.stats.contingency_tables import mcnemar

from mink_local.evals.stats import (
    ALPHA,
    Interval,
    PairedTest,
    detectable_difference,
    holm,
    mean,
    paired_test,
    resample,
    share,
    what_can_be_found,
)

SHARES = (0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98)
Gains = NDArray[np.int64]


def holds(interval: Interval, truth: float) -> bool:
    return interval.low - 1e-9 <= truth <= interval.high + 1e-9


def coverage(intervals: Iterable[Interval], truth: float) -> float:
    return float(np.mean([holds(one, truth) for one in intervals]))


@pytest.mark.parametrize("n", [6, 10, 20, 50, 100, 200])
def test_the_interval_of_a_share_holds_whatever_the_share(n: int) -> None:
    intervals = [share([1.0] * right + [0.0] * (n - right)) for right in range(n + 1)]
    covered = []
    for truth in np.linspace(0.02, 0.98, 97):
        chances = binom.pmf(np.arange(n + 1), n, truth)
        covered.append(chances @ [holds(one, truth) for one in intervals])
    assert min(covered) >= 0.95
    assert np.mean(covered) < 0.99  # not much wider than need be


@pytest.mark.parametrize("n", [6, 20, pytest.param(200, marks=pytest.mark.slow)])
def test_the_interval_of_a_share_holds_with_several_responses_and_for_any_values(n: int) -> None:
    rng = np.random.default_rng(0)
    for truth in SHARES:
        chances = rng.beta(truth / 2, (1 - truth) / 2, (400, n))
        for values in (rng.binomial(3, chances) / 3, chances):
            assert coverage([share(one.tolist()) for one in values], truth) > 0.93


@cache
def tables(n: int) -> dict[tuple[int, int], PairedTest]:
    """Return the test of every number of questions won and lost."""
    return {
        (won, lost): paired_test([1] * won + [-1] * lost + [0] * (n - won - lost))
        for won in range(n + 1)
        for lost in range(n + 1 - won)
    }


@pytest.mark.parametrize("n", [6, 8, 20, 60, pytest.param(200, marks=pytest.mark.slow)])
def test_mcnemars_test_keeps_its_level_and_agrees_with_the_interval(n: int) -> None:
    """Every possible outcome, for methods of any accuracies that are right on the same questions or not."""
    outcomes = np.array([(won, lost, n - won - lost) for won, lost in tables(n)])
    low, high, p = np.array([(*test.difference[1:], test.p) for test in tables(n).values()]).T
    assert ((p <= ALPHA) == ((low > 0) | (high < 0))).all()
    for a in SHARES:
        for b in SHARES:
            for together in (0.0, 0.9):
                both = a * b + together * (min(a, b) - a * b)
                chances = multinomial.pmf(outcomes, n, [a - both, b - both, 1 - a - b + 2 * both])
                assert chances @ ((low - 1e-9 <= a - b) & (a - b <= high + 1e-9)) > 0.925
                if a == b:
                    assert chances @ (p <= ALPHA) <= ALPHA


@pytest.mark.parametrize("n_comparisons", [1, 6])
@pytest.mark.parametrize("n", [6, 8, 20, 60])
def test_the_detectable_difference_is_that_of_the_test(n: int, n_comparisons: int) -> None:
    least = detectable_difference(n, n_comparisons)
    significant = [n_comparisons * test.p <= ALPHA for test in tables(n).values()]  # Holm's first step
    if least is None:
        assert not any(significant)
        return
    discordant = max(0.2, least)
    chances = [(discordant + least) / 2, (discordant - least) / 2, 1 - discordant]
    outcomes = [(won, lost, n - won - lost) for won, lost in tables(n)]
    assert multinomial.pmf(outcomes, n, chances) @ significant == pytest.approx(0.8, abs=1e-6)


def alike(truth: float) -> Callable[[np.random.Generator, int, int], Gains]:
    """Both methods find the same questions difficult."""

    def gains(rng: np.random.Generator, n: int, repeats: int) -> Gains:
        chances = rng.beta(truth, 1 - truth, n)
        return rng.binomial(repeats, chances) - rng.binomial(repeats, chances)

    return gains


def lopsided(truth: float) -> Callable[[np.random.Generator, int, int], Gains]:
    """One method is always or never right on a question, the other as often on all."""

    def gains(rng: np.random.Generator, n: int, repeats: int) -> Gains:
        return repeats * rng.binomial(1, truth, n) - rng.binomial(repeats, truth, n)

    return gains


def rare(rng: np.random.Generator, n: int, repeats: int) -> Gains:
    """One method loses a little on half of the questions, and wins 3% of the others outright."""
    easy, lucky = rng.random(n) < 0.5, rng.random(n) < 0.03
    return np.where(easy, rng.binomial(repeats, 0.97, n) - repeats, repeats * lucky)


EQUAL = [*map(alike, (0.02, 0.5, 0.98)), *map(lopsided, (0.02, 0.1, 0.9)), rare]


@pytest.mark.parametrize("repeats", [3, 8])
@pytest.mark.parametrize("n", [6, 20, 60, pytest.param(200, marks=pytest.mark.slow)])
def test_the_paired_test_keeps_its_level_with_several_responses(n: int, repeats: int) -> None:
    rng = np.random.default_rng(1)
    for equal in EQUAL:
        tests = [paired_test(equal(rng, n, repeats).tolist(), repeats) for _ in range(300)]
        assert np.mean([test.p <= ALPHA for test in tests]) < ALPHA + 0.025
        assert coverage([test.difference for test in tests], 0.0) > 0.92
        for test in tests:
            assert (test.p <= ALPHA) == (test.difference.low > 0 or test.difference.high < 0)


def clusters(n: int, spread: float, rounds: int) -> Iterator[NDArray[np.float64]]:
    """Yield the sums and sizes of clusters of different sizes, whose means are 1 on average."""
    rng = np.random.default_rng(3)
    for _ in range(rounds):
        sizes = rng.integers(20, 300, n)
        yield np.column_stack([sizes * rng.lognormal(-(spread**2) / 2, spread, n), sizes])


def of_ratio(one: NDArray[np.float64]) -> Interval:
    """Return the mean over all positions with its bootstrap interval, as frontier does."""
    sums = resample(one)
    return Interval.of(one[:, 0].sum() / one[:, 1].sum(), sums[:, 0] / sums[:, 1], len(one))


def of_mean(one: NDArray[np.float64]) -> Interval:
    """Return the mean of the clusters' means with Student's interval, as quants does."""
    return mean(one[:, 0] / one[:, 1])


@pytest.mark.parametrize("interval", [of_ratio, of_mean])
@pytest.mark.parametrize(("spread", "least"), [(0.3, 0.9), (0.6, 0.87), (1.0, 0.77)])
@pytest.mark.parametrize("n", [8, 20, pytest.param(60, marks=pytest.mark.slow)])
def test_intervals_of_few_clusters_hold_unless_they_differ_much(
    interval: Callable[[NDArray[np.float64]], Interval], spread: float, least: float, n: int
) -> None:
    found = [interval(one) for one in clusters(n, spread, 200)]
    assert coverage(found, 1.0) > least


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_one_outcome_a_cluster_has_the_interval_of_a_proportion(rights: list[bool]) -> None:
    exact = binomtest(sum(rights), len(rights)).proportion_ci(method="exact")
    expected = sum(rights) / len(rights), exact.low, exact.high
    assert tuple(share(rights)) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_one_outcome_a_cluster_is_mcnemars_exact_test(pairs: list[tuple[bool, bool]]) -> None:
    table = [[sum(pair == (a, b) for pair in pairs) for b in (True, False)] for a in (True, False)]
    found = paired_test([a - b for a, b in pairs])
    assert (found.n, found.won, found.lost) == (len(pairs), table[0][1], table[1][0])
    assert found.p == pytest.approx(mcnemar(table, exact=True).pvalue if found.won + found.lost else 1.0)
    assert found.difference.value == pytest.approx((found.won - found.lost) / len(pairs))


def test_nothing_in_common_shows_nothing() -> None:
    nothing = paired_test([])
    assert (nothing.n, nothing.p, nothing.difference) == (0, 1, (0, -1, 1))


def interval_p(shares: Any) -> float:
    """Return the p-value of a mean of 0 by the interval with one cluster more won, and one more lost."""
    z = ttest_1samp([*shares, 1, -1], 0).statistic * (1 + 1 / (len(shares) + 1)) ** 0.5
    return float(2 * norm.sf(abs(z)))


@given(
    st.lists(
        st.integers(2, 6).flatmap(lambda n: st.tuples(st.integers(-n, n), st.just(n))), min_size=1, max_size=8
    )
)
def test_p_is_that_of_all_flips_of_signs_or_of_the_interval(clusters: list[tuple[int, int]]) -> None:
    """Clusters of any size count the same: the test is of the mean over them, and not over all outcomes."""
    gains, sizes = zip(*clusters, strict=True)
    shares = np.divide(gains, sizes)
    sums = [np.dot(signs, shares) for signs in itertools.product((-1, 1), repeat=len(shares))]
    found = paired_test(gains, sizes)
    flips = np.mean([abs(one) >= abs(shares.sum()) - 1e-9 for one in sums])
    assert found.p == pytest.approx(max(flips, interval_p(shares)))
    assert found.difference.value == pytest.approx(shares.mean())


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 200))
def test_one_outcome_a_cluster_has_bonett_and_prices_interval(won: int, lost: int, same: int) -> None:
    n = won + lost + same
    first, second = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    half = 1.959964 * ((first + second - (first - second) ** 2) / (n + 2)) ** 0.5
    low, high = max(-1, first - second - half), min(1, first - second + half)
    found = paired_test([1] * won + [-1] * lost + [0] * same)
    if found.p > ALPHA:
        low, high = min(low, 0), max(high, 0)
    assert found.difference[1:] == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("n_repeats", [1, 3])
@pytest.mark.parametrize("n", [10, 100])
def test_the_interval_of_a_difference_covers_it(n: int, n_repeats: int) -> None:
    """Questions of sampled difficulty; the second method is correct 30% less often: 15 points in all."""
    rng = np.random.default_rng(6)
    chances = rng.beta(0.5, 0.5, (500, n))
    gains = rng.binomial(n_repeats, chances) - rng.binomial(n_repeats, 0.7 * chances)
    assert coverage((paired_test(run.tolist(), n_repeats).difference for run in gains), 0.15) > 0.93


@pytest.mark.parametrize(
    ("found", "adjusted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([], []),
    ],  # 1 × 0.04 may not undercut 2 × 0.03
)
def test_holm(found: list[float], adjusted: list[float]) -> None:
    assert holm(found) == pytest.approx(adjusted)


def test_too_few_clusters_show_no_difference_at_all() -> None:
    assert paired_test([1] * 5).p > ALPHA >= paired_test([1] * 6).p
    assert (detectable_difference(5), detectable_difference(6, n_comparisons=2)) == (None, None)
    for n, n_comparisons, difference in ((6, 1, "96.3"), (8, 1, "80.1"), (20, 1, "36.6"), (20, 6, "46.9")):
        assert f"{difference} points" in what_can_be_found(n, n_comparisons)
    assert "points" not in what_can_be_found(5)
    assert "36.6 points" in what_can_be_found(20, repeats=3)
