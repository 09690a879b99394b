"""The measures of a distribution over answers, beside simulation, SciPy and brute force."""

import numpy as np
import pytest
import scipy.stats

from mink_local.evals.coverage.measures import (
    N_SAMPLES,
    Mean,
    best_with,
    coverage,
    evenness,
    expected_distinct,
    means,
    most_distinct,
    oracle,
)


@pytest.mark.parametrize("p", [[0.5, 0.3, 0.1], [0.99, 0.001, 0.0], [1.0, 0.0], [0.02] * 40, [0.0, 0.0]])
def test_expected_distinct_is_the_mean_of_a_simulation(p: list[float]) -> None:
    counts = np.random.default_rng(1).multinomial(N_SAMPLES, [*p, max(0.0, 1 - sum(p))], size=20_000)
    distinct = (counts[:, :-1] > 0).sum(axis=1)
    error = 5 * distinct.std() / np.sqrt(len(distinct)) + 1e-9
    assert float(expected_distinct(np.array(p))) == pytest.approx(distinct.mean(), abs=error)


def test_coverage_is_a_share_of_what_a_uniform_distribution_has() -> None:
    p = np.array([[0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0], [0.1, 0.1, 0.1, 0.1], [0, 0, 0, 0]])
    found = coverage(p)
    assert found == pytest.approx([1, 0.25, 1, 0], abs=2e-4)
    assert found[0] > found[2]
    assert most_distinct(4) == pytest.approx(4 * (1 - 0.75**100))
    assert most_distinct(1000) == pytest.approx(1000 * (1 - 0.999**100))


def test_evenness_is_scipys_entropy() -> None:
    p = np.random.default_rng(2).dirichlet([0.3] * 9, size=20)
    expected = scipy.stats.entropy(p, axis=1, base=9)
    assert evenness(p) == pytest.approx(expected)
    assert evenness(0.01 * p) == pytest.approx(expected), "among the valid answers"
    assert evenness(np.array([[0.0, 0.0], [1.0, 0.0], [0.2, 0.2]])) == pytest.approx([0, 0, 1])


def test_the_oracle_beats_every_cut_off_that_is_valid_enough() -> None:
    random = np.random.default_rng(3)
    valid, covered = random.uniform(0.5, 1, (200, 6)), random.uniform(0, 1, (200, 6))
    chosen = oracle(valid, covered, 0.9)
    for v, c, i in zip(valid, covered, chosen, strict=True):
        enough = [j for j in range(6) if v[j] >= 0.9]
        assert i == (max(enough, key=lambda j: c[j]) if enough else v.argmax())


def test_the_intervals_hold_the_true_mean_in_95_percent() -> None:
    """60 prompts, 1,000 times, of validities as they are: most near 1, some near 0."""
    values = np.random.default_rng(4).beta(0.6, 0.2, size=(60, 1000))
    found = means(values)
    holds = np.mean([one.low <= 0.75 <= one.high for one in found])
    assert 0.92 < holds < 0.97
    assert [one.value for one in found] == pytest.approx(values.mean(axis=0))
    assert means(np.ones((5, 1))) == [Mean(1, 1, 1)]


def test_the_best_column() -> None:
    valid = [Mean(v, v, v) for v in (1.0, 0.95, 0.9, 0.5)]
    covered = [Mean(c, c, c) for c in (0.1, 0.4, 0.3, 0.9)]
    assert [best_with(valid, covered, least) for least in (0.99, 0.9, 0.0, 1.1)] == [0, 1, 3, None]
