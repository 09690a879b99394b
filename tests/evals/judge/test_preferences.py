"""Win rates, their intervals and tests, and Fleiss' κ: against SciPy, statsmodels and published figures."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.inter_rater import fleiss_kappa

from mink_local.errors import ReportError
from mink_local.evals.judge.preferences import (
    bootstrap_interval,
    mean_share,
    response_pairs,
    samplers_of,
    win_rate,
)
from mink_local.evals.judge.votes import fleiss
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.stats import share
from tests.support.made_run import write_run


def test_the_papers_human_evaluation() -> None:
    """75 of 200 pairs for Min-k, 67 for top-nσ, 58 ties: its binomial test finds no difference."""
    found = win_rate([(i, sign) for i, sign in enumerate(75 * [1] + 58 * [0] + 67 * [-1])])
    assert found.counts == "75:58:67"
    assert found.rate.value == pytest.approx((75 + 29) / 200)
    assert found.p == pytest.approx(stats.binomtest(75, 142).pvalue)
    assert found.p == pytest.approx(0.557, abs=5e-4)


@pytest.mark.parametrize("counts", [(0, 0, 1), (0, 5, 0), (9, 1, 0), (3, 0, 3), (10, 20, 2), (500, 1, 420)])
def test_p_is_the_exact_binomial(counts: tuple[int, int, int]) -> None:
    won, tied, lost = counts
    found = win_rate(list(enumerate(won * [1] + tied * [0] + lost * [-1])))
    assert found.p == pytest.approx(stats.binomtest(won, won + lost).pvalue if won + lost else 1)


def test_the_pairs_of_one_question_change_sign_together() -> None:
    outcomes = [("a", 1)] * 3 + [("b", 1), ("b", -1), ("b", 1)] + [("c", -1)]
    totals = [abs(sum(s)) for s in itertools.product((3, -3), (1, -1), (1, -1))]
    found = win_rate(outcomes)
    assert (found.counts, found.n_questions) == ("5:0:2", 3)
    assert found.p == pytest.approx(sum(total >= 3 for total in totals) / 8)
    assert found.rate.value == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_interval_is_scipys_bootstrap() -> None:
    values = np.random.default_rng(5).choice([0, 0.25, 0.5, 1], 80)
    scipys = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile").confidence_interval
    wanted = pytest.approx((scipys.low, scipys.high), abs=0.008)
    assert bootstrap_interval(values) == wanted


def test_intervals_cover_the_true_win_rate() -> None:
    """With 2 pairs a question that depend on each other; an interval over pairs would cover far less."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(150):
        chance = rng.beta(0.6, 0.4, 60)  # of each question; its mean is 0.6
        wins = rng.random((2, 60)) < chance
        found = mean_share((i, float(won)) for row in wins for i, won in enumerate(row))
        covered += found.low <= 0.6 <= found.high
    assert 0.91 <= covered / 150 <= 0.98


FLEISS_1971 = [  # as in Wikipedia's article on his kappa: 10 subjects, 14 raters, 5 categories
    [0, 0, 0, 0, 14],
    [0, 2, 6, 4, 2],
    [0, 0, 3, 5, 6],
    [0, 3, 9, 2, 0],
    [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0],
    [3, 2, 6, 3, 0],
    [2, 5, 3, 2, 2],
    [6, 5, 2, 1, 0],
    [0, 2, 2, 3, 7],
]


def test_kappa_of_the_textbook() -> None:
    found = fleiss({i: [row] for i, row in enumerate(FLEISS_1971)})
    assert found
    assert found.value == pytest.approx(0.210, abs=5e-4)
    assert found.n_pairs == 10
    assert found.low < found.value < found.high


THREE = [[3, 0, 0], [0, 3, 0], [1, 2, 0], [0, 1, 2], [1, 1, 1]] * 2  # 3 raters, 3 categories


def plain_kappa(table: list[list[int]]) -> float:
    """Compute Fleiss' κ by pairs of raters and by chance, as it is defined."""
    agreements, everything = [], []
    for row in table:
        votes = [category for category, n in enumerate(row) for _ in range(n)]
        agreements.append(np.mean([a == b for a, b in itertools.combinations(votes, 2)]))
        everything += votes
    chance = sum((everything.count(c) / len(everything)) ** 2 for c in set(everything))
    return float((np.mean(agreements) - chance) / (1 - chance))


def test_kappa_is_agreement_beyond_chance() -> None:
    rng = random.Random(2)
    for n_raters in (2, 3, 4):
        table = []
        for _ in range(40):
            votes = rng.choices(range(3), weights=(5, 2, rng.random() * 9), k=n_raters)
            table.append([votes.count(category) for category in range(3)])
        found = fleiss({i: [row] for i, row in enumerate(table)})
        assert found
        assert found.value == pytest.approx(plain_kappa(table))
        assert found.value == pytest.approx(fleiss_kappa(table))


def test_the_pairs_of_one_prompt_are_resampled_together() -> None:
    """So the interval is that of 10 observations, however many pairs a prompt has."""
    alone = fleiss({i: [row] for i, row in enumerate(THREE)})
    often = fleiss({i: [row] * 5 for i, row in enumerate(THREE)})
    assert alone
    assert often
    assert (often.value, often.low, often.high) == pytest.approx((alone.value, alone.low, alone.high))
    assert (alone.n_pairs, often.n_pairs) == (10, 50)


@pytest.mark.slow
@pytest.mark.parametrize("agreement", [0.0, 0.5])
def test_intervals_cover_the_true_kappa(agreement: float) -> None:
    """All raters give one vote with a chance of `agreement`, and else each one of its own: so κ is."""
    rng = np.random.default_rng(1)
    shares = (0.45, 0.25, 0.3)
    covered = 0
    for _ in range(100):
        table = rng.multinomial(3, shares, 60)
        same = rng.random(60) < agreement
        table[same] = 3 * rng.multinomial(1, shares, int(same.sum()))
        found = fleiss({i: [row] for i, row in enumerate(table.tolist())})
        assert found
        covered += found.low <= agreement <= found.high
    assert 86 <= covered <= 99


@pytest.mark.parametrize("table", [[], [[1, 1, 0]], [[2, 0, 0]] * 5, [[1, 0, 0], [0, 1, 0]]])
def test_kappa_is_not_defined(table: list[list[int]]) -> None:
    assert fleiss({i: [row] for i, row in enumerate(table)}) is None


def test_shares_without_values_and_without_variance() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_share([])
    assert mean_share([("a", 1.0), ("b", 1.0)]) == share([1, 1])


def test_pairs_of_a_run(tmp_path: Path) -> None:
    """The same model, question, temperature and repeat; greedy, which is generated once, with all."""
    write_run(
        tmp_path,
        models=("one", "two"),
        tasks=("gsm8k",),
        samplers=("min-k:tau=3", "top-k:k=20", "greedy"),
        temperatures=(1.0, 5.0),
        n_questions=3,
    )
    run = read_run(tmp_path)
    run.responses[0] = replace(run.responses[0], response="<think>hm</think> So: 5")
    by_key = {r.key: r for r in run.responses}
    places = set(itertools.product(("one", "two"), ("gsm8k",), (1.0, 5.0), (0, 1), "012"))
    for first, second in itertools.permutations(("min-k:tau=3", "top-k:k=20", "greedy"), 2):
        pairs = list(response_pairs(run, first, second))
        assert len(pairs) == len(places)
        assert {pair.place for pair in pairs} == places
        for pair in pairs:
            for sampler, text in zip((first, second), pair.texts, strict=True):
                model, task, t, repeat, question = pair.place
                at = (0.0, 0) if sampler == "greedy" else (t, repeat)
                response = next(
                    r for k, r in by_key.items() if k == (model, task, sampler, *at, question)
                ).response
                assert text == response.removeprefix("<think>hm</think>").strip()
    with pytest.raises(ReportError, match="eta is not in this run: its samplers are min-k"):
        samplers_of(run, ["eta"])
