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
    mean,
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


def test_the_interval_covers_where_repeats_depend_on_each_other() -> None:
    """40 questions of uniformly sampled difficulty, three responses each: the mean accuracy is 1/2."""
    rng = np.random.default_rng(1)
    runs = (rng.random((3, 40)) < rng.random(40) for _ in range(400))
    found = coverage((share(run.mean(axis=0).tolist()) for run in runs), 0.5)
    assert 0.93 < found < 0.99  # not too wide either


def test_no_values_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no values"):
        share([])


def test_few_clusters_are_warned_of() -> None:
    assert few_clusters(FEW, "texts") is None
    assert "19 texts" in (few_clusters(FEW - 1, "texts") or "")


def test_the_bootstrap_covers_a_ratio_of_sums() -> None:
    """Texts of different lengths, whose positions depend on each other: 60 texts, a mean of 2 a position."""
    rng = np.random.default_rng(8)

    def interval() -> Interval:
        lengths = rng.integers(5, 50, 60)
        clusters = np.column_stack([lengths * rng.normal(2, 1, 60), lengths]).astype(float)
        sums = resample(clusters)
        return Interval.of(clusters[:, 0].sum() / lengths.sum(), sums[:, 0] / sums[:, 1], 60)

    assert coverage((interval() for _ in range(100)), 2) > 0.88


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


def skewed(n: int, rounds: int) -> Any:
    """Yield tests of two methods of equal true accuracy, of which one mostly loses a question, but by less.

    A method is correct on half of the questions. The other one, asked three times, is correct 97% of the
    time on that half, and always on 3% of the others.
    """
    rng = np.random.default_rng(5)
    for _ in range(rounds):
        easy, lucky = rng.random(n) < 0.5, rng.random(n) < 0.03
        yield paired_test(np.where(easy, rng.binomial(3, 0.97, n) - 3, 3 * lucky).tolist(), 3)


def test_methods_of_equal_accuracy_are_seldom_told_apart_however_many_questions_one_loses() -> None:
    tests = list(skewed(1319, 300))
    assert np.mean([test.p <= ALPHA for test in tests]) == pytest.approx(ALPHA, abs=0.03)
    sign_test = np.mean([binomtest(t.won, t.won + t.lost).pvalue <= ALPHA for t in tests])
    assert sign_test > 0.9  # the questions won and lost differ, but not the accuracies


@pytest.mark.parametrize("n", [60, 1319])
def test_the_interval_of_a_difference_covers_skewed_gains(n: int) -> None:
    assert coverage((test.difference for test in skewed(n, 300)), 0) > 0.92


@pytest.mark.parametrize("n_repeats", [1, 3])
@pytest.mark.parametrize("n", [10, 100])
def test_the_interval_of_a_difference_covers_it(n: int, n_repeats: int) -> None:
    """Questions of sampled difficulty; the second method is correct 30% less often: 15 points in all."""
    rng = np.random.default_rng(6)
    chances = rng.beta(0.5, 0.5, (500, n))
    gains = rng.binomial(n_repeats, chances) - rng.binomial(n_repeats, 0.7 * chances)
    assert coverage((paired_test(run.tolist(), n_repeats).difference for run in gains), 0.15) > 0.93


def test_equal_methods_are_seldom_told_apart_however_alike_the_repeats() -> None:
    """The null hypothesis with every response given three times, which counted singly would be three
    times the evidence: at most one run in twenty may be significant."""
    rng = np.random.default_rng(2)
    difficulty = rng.random((400, 60))
    first, second = rng.random((2, 400, 60)) < difficulty
    tests = [paired_test((3 * gains).tolist(), 3) for gains in np.subtract(first, second, dtype=int)]
    assert np.mean([test.p <= ALPHA for test in tests]) <= ALPHA
    thrice = [binomtest(3 * test.won, 3 * (test.won + test.lost)).pvalue <= ALPHA for test in tests]
    assert np.mean(thrice) > 2 * ALPHA  # what this test would have to find if questions were counted thrice


def test_holm() -> None:
    adjusted = holm([0.01, 0.04, 0.03])  # 3 × 0.01, then 2 × 0.03, which 1 × 0.04 may not undercut
    assert adjusted == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


@pytest.mark.parametrize("n", [2, 4, 8])
def test_the_interval_of_a_mean_covers_for_few_clusters(n: int) -> None:
    """Of means of 255 skewed values, as divergences are, that depend on each other within a cluster."""
    rng = np.random.default_rng(n)
    scales = rng.lognormal(sigma=0.3, size=(1000, n))
    means = (scales * rng.exponential(size=(255, 1000, n))).mean(axis=0)
    found = coverage((mean(clusters, least=0.0) for clusters in means), np.exp(0.3**2 / 2))
    assert found == pytest.approx(0.95, abs=0.03)


def test_too_few_clusters_show_no_difference_at_all() -> None:
    assert paired_test([1] * 5).p > ALPHA >= paired_test([1] * 6).p
    assert (detectable_difference(5), detectable_difference(6, n_comparisons=2)) == (None, None)
    for n, n_comparisons, difference in ((6, 1, "96.3"), (8, 1, "80.1"), (20, 1, "36.6"), (20, 6, "46.9")):
        assert f"{difference} points" in what_can_be_found(n, n_comparisons)
    assert "points" not in what_can_be_found(5)
