"""The statistics against SciPy's and statsmodels' own, against simulation, and small cases worked by hand."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, permutation_test, ttest_1samp
from statsmodels.stats.contingency_tables import mcnemar

from mink_local.evals.report.stats import (
    ALPHA,
    POWER,
    CutoffCounts,
    Outcomes,
    PairedTest,
    accuracy,
    compare,
    holm,
    visible_difference,
)


def outcomes(*repeats: Any) -> Outcomes:
    """`outcomes([1, 0], [1, 1])`: two questions, the first right twice."""
    return {(str(q), r): bool(right) for r, rights in enumerate(repeats) for q, right in enumerate(rights)}


def paired(gains: Any, n_repeats: int = 1) -> PairedTest:
    return PairedTest(np.array(gains, np.int64), n_repeats)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_one_response_a_question_has_the_interval_of_a_proportion(rights: list[bool]) -> None:
    got = accuracy(outcomes(rights))
    wilson = binomtest(sum(rights), len(rights)).proportion_ci(method="wilson")
    assert got.value == pytest.approx(sum(rights) / len(rights))
    assert (got.low, got.high) == pytest.approx((wilson.low, wilson.high), abs=1e-9)
    assert got.spread is None


def test_repeats_are_no_further_questions() -> None:
    one, three = [1, 0, 1, 0, 0], [[1, 0, 1, 0, 0]] * 3
    assert accuracy(outcomes(*three)).low == accuracy(outcomes(one)).low
    got = accuracy(outcomes([1, 1, 0, 0], [1, 0, 0, 0]))  # per question 1, 1/2, 0, 0
    assert got.value == 0.375
    assert got.repeats == (0.5, 0.25)
    assert got.spread == pytest.approx(0.25 / 2**0.5)  # of two values, their distance over √2


def test_a_question_counts_once_however_often_it_was_asked() -> None:
    unfinished = {("a", 0): True, ("a", 1): True, ("a", 2): True, ("b", 0): False}
    assert accuracy(unfinished).value == 0.5


def test_the_interval_covers_where_repeats_depend_on_each_other() -> None:
    """40 questions of uniformly sampled difficulty, three responses each: the mean accuracy is 1/2."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        rights = rng.random((3, 40)) < rng.random(40)
        got = accuracy(outcomes(*rights))
        covered += got.low <= 0.5 <= got.high
    assert covered / 400 == pytest.approx(0.95, abs=0.025)  # not too wide either


def test_no_outcomes_have_no_accuracy() -> None:
    with pytest.raises(ValueError, match="no outcomes"):
        accuracy({})


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_one_response_a_question_is_mcnemars_exact_test(pairs: list[tuple[bool, bool]]) -> None:
    first, second = zip(*pairs, strict=True)
    table = [[sum(pair == (a, b) for pair in pairs) for b in (True, False)] for a in (True, False)]
    got = compare(outcomes(first), outcomes(second))
    assert (got.won, got.lost) == (table[0][1], table[1][0])
    assert got.p == pytest.approx(mcnemar(table, exact=True).pvalue if got.won + got.lost else 1.0)
    assert got.difference == pytest.approx((got.won - got.lost) / len(pairs))


def test_with_repeats_a_question_is_won_by_more_right_answers() -> None:
    first = outcomes([1, 1, 0, 0, 1], [1, 0, 0, 1, 1])
    second = outcomes([0, 0, 0, 1, 1], [0, 1, 0, 1, 1])  # differences 2, 0, 0, -1, 0
    got = compare(first, second)
    assert (got.n_questions, got.won, got.lost) == (5, 1, 1)
    assert got.difference == pytest.approx(0.1)
    assert got.p == 1  # ±2 ± 1 is never nearer to 0 than 2 - 1


def test_only_what_both_answered_is_compared() -> None:
    got = compare(outcomes([1, 1, 1], [1, 1, 1]), outcomes([0, 0]))
    assert (got.n_questions, got.won, got.difference) == (2, 2, 1.0)
    nothing = compare(outcomes([1]), {("other", 0): True})
    assert (nothing.n_questions, nothing.difference, nothing.p, nothing.visible(ALPHA)) == (0, 0, 1, None)
    assert nothing.interval == (-1, 1)


def test_a_question_that_is_being_answered_is_not_compared() -> None:
    first, second = outcomes([1, 1, 0], [1, 0, 0]), outcomes([0, 0, 0], [0, 0])
    assert sorted(compare(first, second).gains) == [1, 2]


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=9))
def test_p_is_that_of_all_flips_of_signs(gains: list[int]) -> None:
    got = paired(gains, 3)
    sums = [np.dot(signs, gains) for signs in itertools.product((-1, 1), repeat=len(gains))]
    assert got.p == pytest.approx(np.mean([abs(one) >= abs(sum(gains)) for one in sums]))
    scipy = permutation_test((np.array(gains),), np.sum, permutation_type="samples", n_resamples=10**4)
    assert got.p == pytest.approx(scipy.pvalue)
    assert got.difference == pytest.approx(sum(gains) / 3 / len(gains))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 200))
def test_one_response_a_question_has_bonett_and_prices_interval(won: int, lost: int, same: int) -> None:
    n = won + lost + same
    first, second = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    half = 1.959964 * ((first + second - (first - second) ** 2) / (n + 2)) ** 0.5
    expected = max(-1, first - second - half), min(1, first - second + half)
    assert paired([1] * won + [-1] * lost + [0] * same).interval == pytest.approx(expected, abs=1e-6)


def test_the_interval_is_the_means_if_there_are_many_questions() -> None:
    gains = np.random.default_rng(4).integers(-3, 4, 2000)
    interval = ttest_1samp(gains / 3, 0).confidence_interval()
    assert paired(gains, 3).interval == pytest.approx(tuple(interval), abs=2e-4)


def skewed(n: int, rounds: int) -> Any:
    """Yield tests of two methods of equal true accuracy, of which one mostly loses a question, but by less.

    A method is correct on half of the questions. The other one, asked three times, is correct 97% of the
    time on that half, and always on 3% of the others.
    """
    rng = np.random.default_rng(5)
    for _ in range(rounds):
        easy, lucky = rng.random(n) < 0.5, rng.random(n) < 0.03
        yield paired(np.where(easy, rng.binomial(3, 0.97, n) - 3, 3 * lucky), 3)


def test_methods_of_equal_accuracy_are_seldom_told_apart_however_many_questions_one_loses() -> None:
    tests = list(skewed(1319, 300))
    assert np.mean([test.p <= ALPHA for test in tests]) == pytest.approx(ALPHA, abs=0.03)
    sign_test = np.mean([binomtest(t.won, t.won + t.lost).pvalue <= ALPHA for t in tests])
    assert sign_test > 0.9  # the questions won and lost differ, but not the accuracies


@pytest.mark.parametrize("n", [60, 1319])
def test_the_interval_of_a_difference_covers_skewed_gains(n: int) -> None:
    tests = list(skewed(n, 300))
    assert np.mean([t.interval[0] <= 0 <= t.interval[1] for t in tests]) > 0.92


@pytest.mark.parametrize("n_repeats", [1, 3])
@pytest.mark.parametrize("n", [10, 100])
def test_the_interval_of_a_difference_covers_it(n: int, n_repeats: int) -> None:
    """Questions of sampled difficulty; the second method is correct 30% less often: 15 points in all."""
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(500):
        chance = rng.beta(0.5, 0.5, n)
        gains = rng.binomial(n_repeats, chance) - rng.binomial(n_repeats, 0.7 * chance)
        low, high = paired(gains, n_repeats).interval
        covered += low <= 0.15 <= high
    assert covered / 500 > 0.93


def test_equal_methods_are_seldom_told_apart_however_alike_the_repeats() -> None:
    """The null hypothesis with every response given three times, which counted singly would be three
    times the evidence: at most one run in twenty may be significant."""
    rng = np.random.default_rng(2)
    found = pooled = 0
    for _ in range(400):
        difficulty = rng.random(60)
        first, second = rng.random(60) < difficulty, rng.random(60) < difficulty
        found += compare(outcomes(*[first] * 3), outcomes(*[second] * 3)).p <= ALPHA
        won, lost = 3 * int((first & ~second).sum()), 3 * int((second & ~first).sum())
        pooled += binomtest(won, won + lost).pvalue <= ALPHA
    assert found / 400 <= ALPHA
    assert pooled / 400 > 2 * ALPHA  # what this test would have to find if questions were counted thrice


def test_holm() -> None:
    adjusted, level = holm([0.01, 0.04, 0.03])  # 3 × 0.01, then 2 × 0.03, which 1 × 0.04 may not undercut
    assert adjusted == pytest.approx([0.03, 0.06, 0.06])
    assert level == ALPHA / 2  # one is significant, two are left
    adjusted, level = holm([0.001, 0.002])
    assert (adjusted, level) == ([0.002, 0.002], ALPHA)
    assert holm([]) == ([], ALPHA)


def _found(n: int, discordant: float, difference: float, level: float, rounds: int = 4000) -> float:
    """Share of simulated runs in which the test finds the better method."""
    rng = np.random.default_rng(3)
    won_share = (discordant + difference) / 2
    counts = rng.multinomial(n, [won_share, discordant - won_share, 1 - discordant], rounds)
    splits, times = np.unique(counts[:, :2], axis=0, return_counts=True)
    found = [won > lost and binomtest(won, won + lost).pvalue <= level for won, lost in splits.tolist()]
    return float(times @ found / rounds)


@pytest.mark.parametrize(("n", "discordant", "level"), [(60, 20, 0.05), (200, 30, 0.05 / 28), (100, 2, 0.05)])
def test_the_visible_difference_is_found_four_times_in_five(n: int, discordant: int, level: float) -> None:
    difference = visible_difference(n, discordant, level)
    assert difference is not None
    share = max(discordant / n, difference)
    assert _found(n, share, difference, level) == pytest.approx(POWER, abs=0.03)
    assert _found(n, share, 0.7 * difference, level) < POWER - 0.1


@pytest.mark.parametrize(("n", "level"), [(60, 0.05), (300, 0.05 / 28)])
def test_with_repeats_the_visible_difference_is_one_of_accuracies(n: int, level: float) -> None:
    """The second method is correct on half of the questions, the first less often by what is visible."""
    rng = np.random.default_rng(7)

    def sampled(loss: float) -> PairedTest:
        chance = rng.beta(2, 2, n)
        return paired(rng.binomial(3, chance * (1 - 2 * loss)) - rng.binomial(3, chance), 3)

    visible = 0.0
    for _ in range(4):  # how far the methods disagree depends on the difference itself
        visible = float(np.mean([sampled(visible).visible(level) or np.nan for _ in range(30)]))
    found = [test.p <= level and test.difference < 0 for test in (sampled(visible) for _ in range(500))]
    assert np.mean(found) == pytest.approx(POWER, abs=0.05)
    half = [test.p <= level for test in (sampled(visible / 2) for _ in range(200))]
    assert np.mean(half) < POWER - 0.2


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 60))
def test_visible_is_mcnemars_however_often_the_same_is_said(won: int, lost: int, same: int) -> None:
    gains = np.array([1] * won + [-1] * lost + [0] * same)
    expected = visible_difference(len(gains), won + lost, ALPHA)
    for n_repeats in (1, 3):
        assert paired(n_repeats * gains, n_repeats).visible(ALPHA) == pytest.approx(expected, abs=1e-5)


def test_too_few_questions_show_nothing() -> None:
    assert visible_difference(5, 5, 0.05) is None  # all five won: p = 2 / 2^5 = 0.0625
    assert visible_difference(6, 0, 0.05) == pytest.approx(POWER ** (1 / 6), abs=1e-4)  # all six must be won
    assert visible_difference(0, 0, 0.05) is None


@given(st.lists(st.lists(st.integers(1, 50), max_size=30), min_size=1, max_size=5))
def test_cutoffs_are_counted_as_a_list_would(sequences: list[list[int]]) -> None:
    flat = sorted(k for sequence in sequences for k in sequence)
    counts = CutoffCounts.of(sequences)
    assert counts.n_steps == len(flat)
    assert counts.share(1) == (flat.count(1) / len(flat) if flat else 0)
    for size, share in zip(counts.sizes, counts.at_least(), strict=True):
        assert share == pytest.approx(sum(k >= size for k in flat) / len(flat))
    if flat:
        q = random.Random(len(flat)).random()
        assert sum(k <= counts.quantile(q) for k in flat) >= q * len(flat)
        assert sum(k < counts.quantile(q) for k in flat) < q * len(flat) or q == 0
        assert counts.quantile(1) == flat[-1]
