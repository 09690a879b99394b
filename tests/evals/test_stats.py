"""The statistics against SciPy's and statsmodels' own, against simulation, and small cases worked by hand."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm, permutation_test, ttest_1samp
from statsmodels.stats.contingency_tables import mcnemar

from mink_local.evals.stats import (
    ALPHA,
    FEW,
    Interval,
    detectable_difference,
    few_clusters,
    holm,
    paired_test,
    resample,
    share,
    what_can_be_found,
)


def coverage(intervals: Iterable[Interval], truth: float) -> float:
    """Return the share of intervals that hold the true value; 0.95 is what they promise."""
    return float(np.mean([one.low <= truth <= one.high for one in intervals]))


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_one_outcome_a_cluster_has_the_interval_of_a_proportion(rights: list[bool]) -> None:
    exact = binomtest(sum(rights), len(rights)).proportion_ci(method="exact")
    expected = sum(rights) / len(rights), exact.low, exact.high
    assert tuple(share(rights)) == pytest.approx(expected, abs=1e-9)


def test_no_values_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no values"):
        share([])


def test_few_clusters_are_warned_of() -> None:
    assert few_clusters(FEW, "texts") is None
    assert "19 texts" in (few_clusters(FEW - 1, "texts") or "")


def test_resamples_are_the_same_for_all_statistics() -> None:
    clusters = np.random.default_rng(9).normal(size=(10, 2, 3))
    assert np.allclose(resample(clusters)[:, 1], resample(clusters[:, 1]))


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


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=9))
def test_p_is_that_of_scipys_permutations_or_of_the_interval(gains: list[int]) -> None:
    scipy = permutation_test((np.array(gains),), np.sum, permutation_type="samples", n_resamples=10**4)
    expected = max(scipy.pvalue, interval_p(np.divide(gains, 3)))
    assert paired_test(gains, 3).p == pytest.approx(expected)


def test_clusters_of_many_sizes_are_tested_in_time() -> None:
    """Their gains have hundreds of values: the time grew with the square of their number."""
    rng = np.random.default_rng(7)
    sizes = rng.integers(7, 11, 400)
    gains = rng.binomial(sizes, 0.6) - rng.binomial(sizes, 0.6)
    found = paired_test(gains.tolist(), sizes.tolist())
    assert found.p == pytest.approx(ttest_1samp(gains / sizes, 0).pvalue, abs=0.02)


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


def test_the_interval_is_the_means_if_there_are_many_clusters() -> None:
    gains = np.random.default_rng(4).integers(-3, 4, 2000)
    interval = ttest_1samp(gains / 3, 0).confidence_interval()
    assert paired_test(gains.tolist(), 3).difference[1:] == pytest.approx(tuple(interval), abs=2e-4)


@pytest.mark.parametrize("n_repeats", [1, 3])
@pytest.mark.parametrize("n", [10, 100])
def test_the_interval_of_a_difference_covers_it(n: int, n_repeats: int) -> None:
    """Questions of sampled difficulty; the second method is correct 30% less often: 15 points in all."""
    rng = np.random.default_rng(6)
    chances = rng.beta(0.5, 0.5, (500, n))
    gains = rng.binomial(n_repeats, chances) - rng.binomial(n_repeats, 0.7 * chances)
    assert coverage((paired_test(run.tolist(), n_repeats).difference for run in gains), 0.15) > 0.93


def test_holm() -> None:
    adjusted = holm([0.01, 0.04, 0.03])  # 3 × 0.01, then 2 × 0.03, which 1 × 0.04 may not undercut
    assert adjusted == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_too_few_clusters_show_no_difference_at_all() -> None:
    assert paired_test([1] * 5).p > ALPHA >= paired_test([1] * 6).p
    assert (detectable_difference(5), detectable_difference(6, n_comparisons=2)) == (None, None)
    for n, n_comparisons, difference in ((6, 1, "96.3"), (8, 1, "80.1"), (20, 1, "36.6"), (20, 6, "46.9")):
        assert f"{difference} points" in what_can_be_found(n, n_comparisons)
    assert "points" not in what_can_be_found(5)
