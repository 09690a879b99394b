"""pass@k, maj@k and diversity against all subsets, sacrebleu called by hand, and simulation."""

import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import sentence_bleu

from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.repeats import (
    VOCABULARY,
    WORDS,
    Votes,
    attempts,
    diversity,
    ead,
    self_bleu,
)
from mink_local.evals.report.stats import accuracy
from mink_local.evals.report.summary import CellResult, summarise
from mink_local.evals.tasks.base import NO_ANSWER, Verdict
from tests.support.made_run import change, write_run

MIN_K = "min-k:tau=3"

answers = st.lists(st.sampled_from("RRABC-"), min_size=1, max_size=8)  # R is right, - is none


def verdicts(text: Any) -> list[Verdict]:
    return [NO_ANSWER if answer == "-" else Verdict(answer, answer == "R") for answer in text]


def majority_is_right(chosen: Any) -> Fraction:
    counts = Counter(answer for answer in chosen if answer != "-")
    most = [answer for answer in counts if counts[answer] == max(counts.values())]
    return Fraction("R" in most, max(1, len(most)))


@given(answers)
def test_attempts_are_those_of_all_subsets(given: list[str]) -> None:
    votes = Votes.of(verdicts(given))
    assert votes.n == len(given)
    assert votes.n_answers == len(set(given) - {"-"})
    for k in range(1, len(given) + 1):
        subsets = list(itertools.combinations(given, k))
        assert votes.passes(k) == pytest.approx(sum("R" in chosen for chosen in subsets) / len(subsets))
        assert votes.majority(k) == pytest.approx(float(sum(map(majority_is_right, subsets)) / len(subsets)))


def test_many_attempts_are_those_of_many_samples() -> None:
    rng = np.random.default_rng(1)
    given = list("R" * 40 + "A" * 35 + "B" * 5 + "CDEFG" + "-" * 15)
    votes = Votes.of(verdicts(given))
    for k in (5, 30):
        chosen = [rng.choice(given, k, replace=False).tolist() for _ in range(4000)]
        right = float(np.mean([float(majority_is_right(one)) for one in chosen]))
        assert votes.majority(k) == pytest.approx(right, abs=0.03)
    assert votes.majority(100) == 1


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
    votes = Votes.of([Verdict(answer, correct=False) for answer in given])
    assert (votes.right, votes.none, votes.n_answers) == (0, 0, n_answers)


def test_sizes_are_powers_of_two_and_all() -> None:
    for n, sizes in ((2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])):
        found = attempts([Votes.of(verdicts("R" * n)), Votes.of(verdicts("A" * n))])
        assert [one.k for one in found] == sizes
        assert {(one.passed.value, one.majority.value) for one in found} == {(0.5, 0.5)}


def test_one_attempt_is_the_accuracy() -> None:
    rights = np.random.default_rng(2).random((30, 4)) < 0.3
    questions = [Votes.of([Verdict("18", bool(right)) for right in row]) for row in rights]
    one = attempts(questions)[0]
    expected = accuracy({(str(q), r): bool(rights[q, r]) for q in range(30) for r in range(4)})
    for share in (one.passed, one.majority):
        assert (share.value, share.low, share.high) == pytest.approx(
            (expected.value, expected.low, expected.high)
        )


@pytest.mark.slow
@pytest.mark.parametrize("n", [40, 100])
@pytest.mark.parametrize(
    "difficulties",
    [
        lambda rng, n: rng.beta(0.5, 0.5, n),
        lambda rng, n: rng.beta(2, 2, n),
        lambda rng, n: rng.beta(8, 0.5, n),
        lambda _, n: np.full(n, 0.3),
        lambda _, n: np.full(n, 0.01),
        lambda rng, n: np.where(rng.random(n) < 0.9, 0.01, 0.6),
    ],
    ids=["unlike", "alike", "easy", "equal", "hard", "mixed"],
)
def test_intervals_cover_the_truth(difficulties: Any, n: int) -> None:
    """Of n questions of sampled difficulty, asked eight times; the wrong answers are all the same.

    (Within 1 / n of 0 or 1 even Wilson's interval of a proportion covers it less often.)
    """
    rng = np.random.default_rng(3)
    chances = difficulties(rng, 100_000)
    of_all = {right: Votes(right, (8 - right,) if right < 8 else (), 0) for right in range(9)}
    rights = rng.binomial(8, chances)
    truths = attempts([of_all[right] for right in rights.tolist()])
    covered = Counter[tuple[str, int]]()
    for _ in range(400):
        found = attempts([of_all[right] for right in rng.binomial(8, difficulties(rng, n)).tolist()])
        for one, truth in zip(found, truths, strict=True):
            covered["pass", one.k] += one.passed.low <= truth.passed.value <= one.passed.high
            covered["maj", one.k] += one.majority.low <= truth.majority.value <= one.majority.high
    assert min(covered.values()) / 400 > 0.91, covered


@pytest.mark.parametrize(("n_texts", "length"), [(2, 20), (16, 50), (40, 200)])
def test_ead_of_words_sampled_alike_is_one(n_texts: int, length: int) -> None:
    rng = np.random.default_rng(4)
    texts = [[str(word) for word in rng.integers(0, VOCABULARY, length)] for _ in range(n_texts)]
    words = list(itertools.chain(*texts))
    of_words = len(set(words)) / (VOCABULARY * (1 - (1 - 1 / VOCABULARY) ** len(words)))
    assert of_words == pytest.approx(1, abs=0.02)
    distinct = [n_texts * (length - n + 1) for n in range(2, 6)]  # all longer n-grams are distinct
    rest = [count / (VOCABULARY * -np.expm1(count * np.log1p(-1 / VOCABULARY))) for count in distinct]
    assert ead(texts) == pytest.approx(np.mean([of_words, *rest]))


def test_ead_of_the_same_texts_is_the_smaller_the_more_there_are() -> None:
    text = [str(word) for word in range(40)]
    assert ead([text] * 8) == pytest.approx(ead([text]) / 8, rel=0.01)
    assert ead([[], []]) == 0


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=9).map(" ".join), min_size=2, max_size=5))
def test_self_bleu_is_sacrebleus(texts: list[str]) -> None:
    scores = [
        sentence_bleu(text, texts[:i] + texts[i + 1 :], tokenize="none").score for i, text in enumerate(texts)
    ]
    assert self_bleu(texts) == pytest.approx(np.mean(scores))


def test_diversity_has_its_extremes() -> None:
    same = diversity([["a b c d e"] * 3])
    different = diversity([["a b c d e", "f g h i j", "k l m n o"]])
    assert same is not None
    assert different is not None
    assert (same.self_bleu, different.self_bleu) == pytest.approx((100, 0))
    assert (same.distinct, different.distinct) == pytest.approx((1 / 3, 1))
    assert (same.ead, different.ead) == pytest.approx((1 / 3, 1), rel=1e-3)
    assert same.words == 5
    assert diversity([]) is diversity([["", " "]]) is None


def test_words_after_the_first_do_not_count() -> None:
    start = " ".join(map(str, range(WORDS)))
    long = diversity([[f"{start} a b c", f"{start} d"]])
    short = diversity([[start, start]])
    assert long is not None
    assert short is not None
    assert (long.ead, long.self_bleu, long.words) == (short.ead, short.self_bleu, WORDS)
    assert (long.distinct, short.distinct) == (1, 0.5)


def cell_of(folder: Path, sampler: str = MIN_K) -> CellResult:
    return summarise(read_run(folder)).tasks[0].cells[sampler, 1.0]


def test_questions_that_are_being_answered_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), samplers=(MIN_K,), temperatures=(1.0,), n_questions=5, repeats=4)
    change(tmp_path, lambda r: (r["question_id"], r["repeat"]) not in (("1", 3), ("4", 0)))
    cell = cell_of(tmp_path)
    assert [[r.question_id for r in given] for given in cell.repeated] == [[q] * 4 for q in ("0", "2", "3")]
    assert [one.k for one in cell.attempts["strict"]] == [1, 2, 4]
    right = [[bool(r.flexible and r.flexible.correct) for r in given] for given in cell.repeated]
    assert cell.attempts["flexible"][-1].passed.value == pytest.approx(np.mean([any(row) for row in right]))
    assert cell.attempts["flexible"][0].passed.value == pytest.approx(np.mean(right))


def test_fewer_repeats_than_other_methods_have_are_left_out(tmp_path: Path) -> None:
    """The diversity of two responses is not that of four, nor are two attempts four."""
    write_run(tmp_path, tasks=("gsm8k",), samplers=(MIN_K, "top-k:k=20"), n_questions=3, repeats=4)
    change(tmp_path, lambda r: r["sampler"] == MIN_K or r["repeat"] < 2)
    cell = cell_of(tmp_path, "top-k:k=20")
    assert (cell.repeated, cell.attempts, cell.diversity) == ([], {}, None)
    assert cell_of(tmp_path).diversity


def test_a_truncated_response_has_no_vote(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), samplers=(MIN_K,), temperatures=(1.0,), n_questions=1, repeats=3)

    def edit(r: dict[str, Any]) -> None:
        right = r["repeat"] == 0
        verdict = {"answer": "1" if right else "2", "correct": right}
        r.update(strict=verdict, flexible=verdict, finish_reason="stop" if right else "length")

    assert cell_of(change(tmp_path, edit)).attempts["flexible"][-1].majority.value == 1


def test_greedy_gains_nothing_by_attempts(tmp_path: Path) -> None:
    write_run(
        tmp_path, tasks=("gsm8k",), samplers=(MIN_K, "greedy"), temperatures=(1.0,), n_questions=9, repeats=4
    )
    cell = cell_of(tmp_path, "greedy")
    value = cell.accuracy["strict"].value
    for one in cell.attempts["strict"]:
        assert (one.passed.value, one.majority.value) == pytest.approx((value, value))
    assert cell.diversity is not None
    assert (cell.diversity.self_bleu, cell.diversity.distinct) == pytest.approx((100, 0.25))


def test_open_ended_responses_have_diversity_alone(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), samplers=(MIN_K,), temperatures=(1.0,), n_questions=2, repeats=3)
    cell = cell_of(change(tmp_path, lambda r: r.update(strict=None, flexible=None)))
    assert cell.diversity is not None
    assert (cell.attempts, cell.n_answers("strict")) == ({}, None)
