"""pass@k and maj@k against all subsets, self-BLEU at its extremes, and made runs."""

import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.summary import (
    WORDS,
    Summary,
    attempt_sizes,
    majority_at,
    pass_at,
    self_bleu,
    summarise,
    votes,
)
from tests.support.made_run import change, write_run

MIN_K = "min-k:tau=3"

answers = st.lists(st.sampled_from("RRABC-"), min_size=1, max_size=8)  # R is right, - is none


def votes_of(text: Any) -> Any:
    return votes([None if one == "-" else one for one in text], [one == "R" for one in text])


def majority_is_right(chosen: Any) -> Fraction:
    counts = Counter(answer for answer in chosen if answer != "-")
    most = [answer for answer in counts if counts[answer] == max(counts.values())]
    return Fraction("R" in most, max(1, len(most)))


@given(answers)
def test_attempts_are_those_of_all_subsets(given: list[str]) -> None:
    for k in range(1, len(given) + 1):
        subsets = list(itertools.combinations(given, k))
        passed = sum("R" in chosen for chosen in subsets) / len(subsets)
        assert pass_at(len(given), given.count("R"), k) == pytest.approx(passed)
        right = float(sum(map(majority_is_right, subsets)) / len(subsets))
        exact = k in (1, len(given))
        assert majority_at(votes_of(given), k) == pytest.approx(right, abs=1e-9 if exact else 0.12)


def test_many_attempts_are_those_of_many_samples() -> None:
    rng = np.random.default_rng(1)
    given = list("R" * 40 + "A" * 35 + "B" * 5 + "CDEFG" + "-" * 15)
    for k in (5, 30):
        chosen = [rng.choice(given, k, replace=False).tolist() for _ in range(4000)]
        right = float(np.mean([float(majority_is_right(one)) for one in chosen]))
        assert majority_at(votes_of(given), k) == pytest.approx(right, abs=0.06)
    assert majority_at(votes_of(given), 100) == 1


@pytest.mark.parametrize(
    ("given", "n_answers"),
    [
        (("18", "18.0", "1.8e1", "$18$", " 18 "), 1),
        (("1,800", "1800", "1800."), 1),
        (("B", "b", "C"), 2),
        (("\\frac{1}{2}", "\\dfrac12", "1/2"), 1),
        (("1e999999999999", "nan", "inf", "nan"), 3),
    ],
)
def test_wrong_answers_are_the_same_as_numbers_or_texts(given: tuple[str, ...], n_answers: int) -> None:
    assert set(votes(given, [False] * len(given))) == set(range(1, n_answers + 1))


def test_sizes_are_powers_of_two_and_all() -> None:
    assert [attempt_sizes(n) for n in (2, 6, 8)] == [[1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_self_bleu_has_its_extremes_and_reads_the_first_words() -> None:
    assert self_bleu(["a b c d e"] * 3) == pytest.approx(100)
    assert self_bleu(["a b c d e", "f g h i j", "k l m n o"]) == pytest.approx(0)
    start = " ".join(map(str, range(WORDS)))
    assert self_bleu([f"{start} a b c", f"{start} d"]) == pytest.approx(100)


def made(folder: Path, **options: Any) -> Path:
    chosen: dict[str, Any] = {"tasks": ("gsm8k",), "samplers": (MIN_K,), "temperatures": (1.0,), "repeats": 4}
    return write_run(folder, **chosen | options)


def attempts_of(folder: Path, sampler: str = MIN_K) -> tuple[Summary, pd.DataFrame]:
    summary = summarise(read_run(folder))
    found = summary.attempts
    return summary, found[(found["sampler"] == sampler) & (found["scoring"] == "flexible")]


def test_questions_that_are_being_answered_are_left_out(tmp_path: Path) -> None:
    made(tmp_path, n_questions=5)
    change(tmp_path, lambda r: (r["question_id"], r["repeat"]) not in (("1", 3), ("4", 0)))
    summary, found = attempts_of(tmp_path)
    assert found["k"].tolist() == [1, 2, 4]
    assert set(found["questions"]) == {3}
    kept = summary.verdicts[summary.verdicts["question_id"].isin(["0", "2", "3"])]
    right = kept[kept["scoring"] == "flexible"].groupby("question_id")["correct"]
    assert found["pass"].iloc[-1].value == pytest.approx(right.max().mean())
    assert found["pass"].iloc[0].value == found["maj"].iloc[0].value == pytest.approx(right.mean().mean())


def test_fewer_repeats_than_other_methods_have_are_left_out(tmp_path: Path) -> None:
    """The diversity of two responses is not that of four, nor are two attempts four."""
    made(tmp_path, samplers=(MIN_K, "top-k:k=20"), n_questions=3)
    change(tmp_path, lambda r: r["sampler"] == MIN_K or r["repeat"] < 2)
    summary, found = attempts_of(tmp_path, "top-k:k=20")
    assert found.empty
    assert set(summary.cells.dropna(subset=["self_bleu"])["sampler"]) == {MIN_K}


def test_a_truncated_response_has_no_vote(tmp_path: Path) -> None:
    made(tmp_path, n_questions=1, repeats=3)

    def edit(r: dict[str, Any]) -> None:
        right = r["repeat"] == 0
        verdict = {"answer": "1" if right else "2", "correct": right}
        r.update(strict=verdict, flexible=verdict, finish_reason="stop" if right else "length")

    _, found = attempts_of(change(tmp_path, edit))
    assert found["maj"].iloc[-1].value == 1


def test_greedy_gains_nothing_by_attempts(tmp_path: Path) -> None:
    made(tmp_path, samplers=(MIN_K, "greedy"), n_questions=9)
    summary, found = attempts_of(tmp_path, "greedy")
    cell = summary.cells[summary.cells["sampler"] == "greedy"].iloc[0]
    for row in found.itertuples():
        assert row.maj == cell["accuracy"]
    assert (cell["self_bleu"], cell["distinct"]) == pytest.approx((100, 0.25))


def test_open_ended_responses_have_diversity_alone(tmp_path: Path) -> None:
    made(tmp_path, n_questions=2, repeats=3)
    summary = summarise(read_run(change(tmp_path, lambda r: r.update(strict=None, flexible=None))))
    assert summary.cells["self_bleu"].notna().all()
    assert summary.attempts.empty
