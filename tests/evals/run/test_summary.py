"""The cells of the grid and their comparisons on runs whose verdicts are chosen; attempts and diversity."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.evals.run.records import read_run
from mink_local.evals.run.summary import (
    EVERY,
    Summary,
    attempt_sizes,
    has_loop,
    pass_at,
    summarise,
)
from mink_local.evals.stats import holm, paired_test, share
from mink_local.evals.tables import ENDS
from tests.support.made_run import change, judge, records, write_run

MIN_K, SIGMA = "min-k:tau=3", "top-n-sigma:n=1"
FIRST, LAST = "top-p:p=0.9,order=temperature-first", "top-p:p=0.9,order=temperature-last"


def make(folder: Path, **options: Any) -> Path:
    """Write a run of four methods at T = 1 and 10, with two responses to each of 30 questions of GSM8K."""
    chosen = {"tasks": ("gsm8k",), "samplers": (MIN_K, SIGMA, FIRST, LAST), "temperatures": (1.0, 10.0)}
    return write_run(folder, **chosen | options)


def summary_of(folder: Path, *against: Any) -> Summary:
    return summarise(read_run(folder), against or None)


def marks(summary: Summary, kind: str = "sampler", by: str = "sampler") -> dict[str, str]:
    """Return for each method, at ascending temperatures: better +, worse -, or no difference found 0."""
    found: dict[str, str] = {}
    for row in summary.comparisons.itertuples():
        if row.kind == kind:
            name = getattr(row, by)
            found[name] = found.get(name, "") + ("+" if row.better else "-" if row.worse else "0")
    return found


def test_every_number_of_a_cell_is_that_of_its_records(tmp_path: Path) -> None:
    summary = summary_of(make(tmp_path, n_questions=8))
    lines = records(tmp_path)
    assert len(summary.cells) == 4 * 2
    for row in summary.cells.itertuples():
        cell = [r for r in lines if (r["sampler"], r["temperature"]) == (row.sampler, row.temperature)]
        for scoring, name in (("flexible", "accuracy"), ("strict", "strict_accuracy")):
            right: dict[str, list[bool]] = {}
            for r in cell:
                right.setdefault(r["question_id"], []).append(r[scoring]["correct"])
            expected = share([sum(one) / 2 for one in right.values()])
            assert tuple(getattr(row, f"{name}{end}") for end in ENDS) == expected
        assert row.tokens == sum(r["n_tokens"] for r in cell)
        assert (row.questions, row.responses, row.complete) == (8, 16, True)
        assert row.no_answer == pytest.approx(sum(r["flexible"]["answer"] is None for r in cell) / 16)
        assert row.truncated == sum(r["finish_reason"] == "length" for r in cell) / 16
        assert row.mean_tokens == pytest.approx(sum(r["n_tokens"] for r in cell) / 16)
        sizes = sorted(k for r in cell for k in r["k"])
        assert row.k_is_1 == pytest.approx(sizes.count(1) / len(sizes))
        assert row.k_max == sizes[-1]
        assert sum(k <= row.k_95 for k in sizes) >= 0.95 * len(sizes) > sum(k < row.k_95 for k in sizes)


def test_greedy_has_a_column_of_its_own(tmp_path: Path) -> None:
    """It was run once, and is compared with the others at each temperature and repeat."""
    summary = summary_of(make(tmp_path, samplers=(MIN_K, "greedy")))
    cells = summary.cells
    greedy = cells[cells["sampler"] == "greedy"]
    assert greedy["temperature"].tolist() == [0.0]
    assert cells["complete"].all()
    assert greedy["responses"].tolist() == [30]
    assert greedy["spread"].isna().all()
    assert cells[cells["sampler"] == MIN_K]["spread"].notna().all()
    assert summary.comparisons[["sampler", "temperature", "repeats"]].to_numpy().tolist() == [
        ["greedy", 1.0, 2],
        ["greedy", 10.0, 2],
    ]
    for row in summary.comparisons.itertuples():
        of_greedy, others = {}, dict[str, int]()
        for r in records(tmp_path):
            if r["sampler"] == "greedy":
                of_greedy[r["question_id"]] = r["flexible"]["correct"]
            elif r["temperature"] == row.temperature:
                others[r["question_id"]] = others.get(r["question_id"], 0) + r["flexible"]["correct"]
        gains = [2 * right - others[name] for name, right in of_greedy.items()]
        assert (row.difference, row.p) == (
            pytest.approx(sum(gains) / 60), pytest.approx(paired_test(gains, 2).p)
        )  # fmt: skip
    alone = summary_of(change(tmp_path, lambda r: r["sampler"] == "greedy")).cells
    assert alone["temperature"].unique().tolist() == [0.0]


def test_the_correction_is_over_a_task_and_model(tmp_path: Path) -> None:
    """Six questions won of six lost none is p = 0.03: significant alone, not among three samplers.

    Another task does not change that, nor do other models.
    """

    def right(r: dict[str, Any]) -> bool:
        lucky = (r["sampler"], r["task"]) == (SIGMA, "gsm8k")
        return int(r["question_id"]) < (21 if lucky else 15)

    make(tmp_path, tasks=("gsm8k", "aqua"), temperatures=(1.0,))
    assert set(marks(summary_of(judge(tmp_path, right))).values()) == {"00"}
    alone = change(tmp_path, lambda r: r["task"] == "aqua" or r["sampler"] in (MIN_K, SIGMA))
    assert marks(summary_of(alone))[SIGMA] == "0+"


def test_a_comparison_is_the_paired_test_of_common_repeats(tmp_path: Path) -> None:
    """A question that is being answered is left out: its short responses come first."""
    make(tmp_path, samplers=(MIN_K, SIGMA), temperatures=(1.0,), n_questions=9)
    change(tmp_path, lambda r: (r["sampler"], r["question_id"], r["repeat"]) != (SIGMA, "3", 1))
    gains = [0] * 9
    for r in records(tmp_path):
        gains[int(r["question_id"])] += r["flexible"]["correct"] * (1 if r["sampler"] == SIGMA else -1)
    [row] = summary_of(tmp_path).comparisons.itertuples()
    expected = paired_test(gains[:3] + gains[4:], 2)
    difference = (row.difference, row.difference_low, row.difference_high)
    assert (row.common_questions, difference, row.won, row.lost, row.p) == (
        8, expected.difference, expected.won, expected.lost, expected.p,
    )  # fmt: skip
    rights = {
        (r["question_id"], r["sampler"], r["repeat"]): r["flexible"]["correct"] for r in records(tmp_path)
    }
    pairs = itertools.product("01245678", (0, 1), (0, 1))
    differ = [rights[one, SIGMA, i] != rights[one, MIN_K, j] for one, i, j in pairs]
    assert (row.repeats, row.disagreement) == (2, pytest.approx(sum(differ) / len(differ)))


def test_models_are_compared_side_by_side_and_greedy_once(tmp_path: Path) -> None:
    """The first model of the run is what others are compared with, in each task at its own temperatures."""
    make(tmp_path, models=("q8", "q4"), samplers=(MIN_K, "greedy"), tasks=("gsm8k", "aqua"), n_questions=12)
    change(tmp_path, lambda r: r["task"] != "aqua" or r["temperature"] != 1)
    summary = summary_of(judge(tmp_path, lambda r: r["model"] == "q8"))
    models = summary.comparisons[summary.comparisons["kind"] == "model"]
    assert set(models["model"]) == {"q4"}
    places = models[["task", "sampler", "temperature"]]
    assert places.to_numpy().tolist() == [
        ["aqua", MIN_K, 10.0], ["aqua", "greedy", 0.0],
        ["gsm8k", MIN_K, 1.0], ["gsm8k", MIN_K, 10.0], ["gsm8k", "greedy", 0.0],
    ]  # fmt: skip
    assert models["worse"].all()
    assert set(models["difference"]) == {-1}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("model", "q4", {"q8": "++++"}),
        ("temperature", 10.0, {1.0: "0000"}),
        ("sampler", SIGMA, {MIN_K: "0000"}),
    ],
)
def test_anything_can_be_compared_with(
    tmp_path: Path, kind: str, value: object, expected: dict[str, str]
) -> None:
    make(tmp_path, models=("q8", "q4"), samplers=(MIN_K, SIGMA), n_questions=30)
    judge(tmp_path, lambda r: r["model"] == "q8" or int(r["question_id"]) < 15)
    summary = summary_of(tmp_path, kind, value)
    assert marks(summary, kind, kind) == expected
    assert set(summary.comparisons["kind"]) == {kind}


def test_every_pair_of_samplers_is_compared_once_in_one_family(tmp_path: Path) -> None:
    make(tmp_path, samplers=(MIN_K, SIGMA, LAST, "greedy"), n_questions=9)
    found = summary_of(tmp_path, "sampler", EVERY).comparisons
    assert len(found) == 6 * 2
    assert not (found["sampler"] == found["against"]).any()
    by_pair = found.assign(pair=[frozenset(pair) for pair in found[["sampler", "against"]].to_numpy()])
    assert (by_pair.groupby("pair").size() == 2).all()
    assert found["p_holm"].tolist() == pytest.approx(holm(found["p"].tolist()))
    for row in summary_of(tmp_path, "sampler", SIGMA).comparisons.itertuples():
        pair = by_pair[
            (by_pair["pair"] == {row.sampler, SIGMA}) & (by_pair["temperature"] == row.temperature)
        ]
        assert (abs(pair["difference"].iloc[0]), pair["p"].iloc[0]) == (abs(row.difference), row.p)


def test_without_min_k_samplers_are_not_compared(tmp_path: Path) -> None:
    summary = summary_of(make(tmp_path, samplers=(SIGMA, LAST), n_questions=2))
    assert (summary.baselines, summary.baseline, len(summary.comparisons)) == ([], None, 0)
    other = summary_of(make(tmp_path, samplers=("min-k:tau=9", LAST), n_questions=2))
    assert other.baseline == "min-k:tau=9"


# pass@k against all subsets


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_attempts_are_those_of_all_subsets(rights: list[bool]) -> None:
    for k in range(1, len(rights) + 1):
        subsets = list(itertools.combinations(rights, k))
        assert pass_at(len(rights), sum(rights), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_sizes_are_powers_of_two_and_all() -> None:
    assert [attempt_sizes(n) for n in (2, 6, 8)] == [[1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_attempts_are_those_of_questions_with_every_repeat(tmp_path: Path) -> None:
    """Others are being answered; two of a method are not the four of others, and greedy has one."""
    samplers = (MIN_K, FIRST, "greedy")
    make(tmp_path, samplers=samplers, temperatures=(1.0,), repeats=4, n_questions=5)
    missing = [(MIN_K, "1", 3), (MIN_K, "4", 0), *((FIRST, str(i), n) for i in range(5) for n in (2, 3))]
    change(tmp_path, lambda r: (r["sampler"], r["question_id"], r["repeat"]) not in missing)
    summary = summary_of(tmp_path)
    found = summary.attempts[summary.attempts["sampler"] == MIN_K]
    assert (found["k"].tolist(), set(found["questions"])) == ([1, 2, 4], {3})
    is_kept = (summary.judged["sampler"] == MIN_K) & summary.judged["question_id"].isin(["0", "2", "3"])
    right = summary.judged[is_kept].groupby("question_id")["correct"]
    assert found["passed"].iloc[0] == pytest.approx(right.mean().mean())
    assert found["passed"].iloc[-1] == pytest.approx(right.max().mean())
    assert set(summary.attempts["sampler"]) == {MIN_K}
    assert set(summary.cells.dropna(subset=["distinct"])["sampler"]) == {MIN_K}


def test_open_ended_responses_have_diversity_alone(tmp_path: Path) -> None:
    make(tmp_path, samplers=(MIN_K,), temperatures=(1.0,), n_questions=2)
    summary = summary_of(change(tmp_path, lambda r: r.update(strict=None, flexible=None)))
    assert summary.cells["distinct"].notna().all()
    assert summary.attempts.empty


def test_a_loop_is_in_reasoning_or_after_it() -> None:
    loop, end = "The answer is 20. " * 20, "\n</think>\n\nIt is 20."
    assert has_loop(loop)
    assert has_loop(f"<think>\n{loop}{end}")
    assert has_loop(f"<think>\nWell.{end}{loop}")
    assert not has_loop(f"<think>\n{loop[:90]}{end}{loop[:90]}")
