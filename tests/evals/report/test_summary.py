"""The cells of the grid, their comparisons and winners, on runs whose verdicts are chosen."""

from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import ReportError
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.summary import Method, Scoring, Summary, TaskResult, summarise
from tests.support.made_run import change, judge, write_run

MIN_K, SIGMA = "min-k:tau=3", "top-n-sigma:n=1"
FIRST, LAST = "top-p:p=0.9,order=temperature-first", "top-p:p=0.9,order=temperature-last"


def make(folder: Path, **options: Any) -> Path:
    """Write a run of four methods at T = 1 and 10, with two responses to each of 30 questions of GSM8K."""
    chosen = {"tasks": ("gsm8k",), "samplers": (MIN_K, SIGMA, FIRST, LAST), "temperatures": (1.0, 10.0)}
    return write_run(folder, **chosen | options)


def summary_of(folder: Path) -> Summary:
    return summarise(read_run(folder))


def marks(task: TaskResult, scoring: Scoring = "strict") -> dict[str, str]:
    """Return for each method, at T = 1 and 10: better +, worse -, in bold !; no sign."""
    found = {}
    for method in task.methods:
        text = []
        for cell in task.row(method):
            comparison = cell.comparisons.get(scoring)
            bold = "!" if method in task.winners(scoring, cell.temperature) else ""
            sign = ("+" if comparison.better else "-" if comparison.worse else "") if comparison else ""
            text.append(sign + bold)
        found[method.sampler] = " ".join(text)
    return found


def test_methods_are_named() -> None:
    first, greedy = Method(FIRST, "temperature-first"), Method("greedy", None)
    assert (str(first), first.name, first.short_order) == ("top-p:p=0.9 (T first)", "top-p:p=0.9", "T first")
    assert (str(greedy), greedy.name, greedy.short_order) == ("greedy", "greedy", "")


def test_greedy_is_repeated_at_every_temperature(tmp_path: Path) -> None:
    """It was run once, at temperature 0; alone it is a run at temperature 0."""
    make(tmp_path, samplers=(MIN_K, "greedy"))
    task = summary_of(tmp_path).tasks[0]
    assert task.temperatures == [1.0, 10.0]
    assert task.incomplete == []
    cold, hot = task.cells["greedy", 1.0], task.cells["greedy", 10.0]
    assert cold.accuracy == hot.accuracy
    assert hot.spread("strict") is None
    assert task.cells[MIN_K, 10.0].spread("strict")
    alone = summary_of(change(tmp_path, lambda r: r["sampler"] == "greedy")).tasks[0]
    assert (alone.temperatures, alone.n_repeats) == ([0.0], 1)


def test_only_significant_winners_are_bold(tmp_path: Path) -> None:
    """Top-nσ beats Min-k at T = 10 alone; the others are as good as Min-k, or a little better."""

    def right(r: dict[str, Any]) -> bool:
        if r["sampler"] == SIGMA and r["temperature"] == 10:
            return True
        lucky = r["sampler"] == LAST and r["question_id"] in ("20", "21")
        return int(r["question_id"]) < 15 or lucky

    summary = summary_of(judge(make(tmp_path), right))
    assert marks(summary.tasks[0]) == {MIN_K: " ", SIGMA: " +!", FIRST: " ", LAST: " "}
    [better] = [c for c in summary.family("strict") if c.better]
    assert better.paired.difference == 0.5
    assert len(summary.family("strict")) == 6


def test_min_k_is_bold_if_it_beats_all(tmp_path: Path) -> None:
    def right(r: dict[str, Any]) -> bool:
        as_good = r["sampler"] == LAST and r["temperature"] == 10
        return r["sampler"] == MIN_K or as_good or int(r["question_id"]) < 10

    task = summary_of(judge(make(tmp_path), right)).tasks[0]
    assert marks(task) == {MIN_K: "! ", SIGMA: "- -", FIRST: "- -", LAST: "- "}


def test_more_comparisons_ask_for_more_evidence(tmp_path: Path) -> None:
    """Six questions won and none lost is p = 2 / 2^6 = 0.031: significant alone, not among four."""

    def right(r: dict[str, Any]) -> bool:
        return r["sampler"] == SIGMA and r["temperature"] == 1 and int(r["question_id"]) < 6

    alone = make(tmp_path / "a", samplers=(MIN_K, SIGMA), temperatures=(1.0,))
    four = make(tmp_path / "b", samplers=(MIN_K, SIGMA, LAST))
    assert marks(summary_of(judge(alone, right)).tasks[0])[SIGMA] == "+!"
    assert marks(summary_of(judge(four, right)).tasks[0])[SIGMA] == " "


def test_a_cell_with_fewer_responses_is_incomplete(tmp_path: Path) -> None:
    make(tmp_path, n_questions=10)
    change(tmp_path, lambda r: r["sampler"] != LAST or r["temperature"] == 1 or int(r["question_id"]) < 4)
    task = summary_of(tmp_path).tasks[0]
    assert [(cell.method.sampler, cell.temperature) for cell in task.incomplete] == [(LAST, 10.0)]
    assert task.n_questions == 10
    comparison = task.cells[LAST, 10.0].comparisons["strict"]
    assert comparison.paired.n_questions == 4


def test_cells_over_different_questions_are_incomplete_however_many_they_have(tmp_path: Path) -> None:
    make(tmp_path, n_questions=10, temperatures=(1.0,))
    left_out = {(MIN_K, "3"), (SIGMA, "4"), (FIRST, "5"), (LAST, "6")}
    change(tmp_path, lambda r: (r["sampler"], r["question_id"]) not in left_out)
    task = summary_of(tmp_path).tasks[0]
    assert (len(task.incomplete), task.n_questions) == (4, 10)


def test_models_are_compared_by_the_same_method_at_the_same_temperature(tmp_path: Path) -> None:
    """The second model is right on 10 questions more, at T = 10; greedy, generated once, is compared once."""

    def right(r: dict[str, Any]) -> bool:
        more = r["model"] == "q8" and r["temperature"] == 10
        return int(r["question_id"]) < (20 if more else 10)

    make(tmp_path, models=("q4", "q8"), samplers=(MIN_K, "greedy"))
    run = read_run(judge(tmp_path, right))
    summary = summarise(run, "model=q4")
    small, large = summary.tasks
    assert small.comparisons("strict") == []
    compared = [
        (cell.method.sampler, cell.temperature, round(comparison.paired.difference, 3), comparison.better)
        for cell, comparison in large.comparisons("strict")
    ]
    assert compared == [(MIN_K, 1, 0, False), (MIN_K, 10, 0.333, True), ("greedy", 1, 0, False)]
    assert large.winners("strict", 10.0) == {Method(MIN_K, None)}
    assert (summary.baseline, str(summary.against)) == (None, "q4")
    worse = summarise(run, "model=q8").tasks[0]
    assert worse.cells[MIN_K, 10.0].comparisons["strict"].worse
    assert worse.winners("strict", 10.0) == set()
    with pytest.raises(ReportError, match="model=q5 is not in this run: its models are q4, q8"):
        summarise(run, "model=q5")


def test_temperatures_are_compared_by_the_same_method(tmp_path: Path) -> None:
    make(tmp_path, samplers=(SIGMA, FIRST, "greedy"))
    judge(tmp_path, lambda r: int(r["question_id"]) < (r["temperature"] if r["sampler"] == SIGMA else 10))
    run = read_run(tmp_path)
    task = summarise(run, "temp=1").tasks[0]
    compared = [
        (cell.method.sampler, cell.temperature, round(comparison.paired.difference, 3))
        for cell, comparison in task.comparisons("strict")
    ]
    assert compared == [(FIRST, 10, 0), (SIGMA, 10, 0.3)]
    with pytest.raises(ReportError, match="temp=3 is not in this run: its temperatures are 1, 10"):
        summarise(run, "temp=3")


def test_flexible_comes_first_if_strict_finds_nearly_nothing(tmp_path: Path) -> None:
    """A model that never writes the sentence that the prompt asks for."""

    def unstated(n: int) -> Any:
        none = {"answer": None, "correct": False}
        return lambda r: int(r["question_id"]) < n or r.update(strict=none)

    make(tmp_path, samplers=(MIN_K,), temperatures=(1.0,))
    judge(tmp_path, lambda r: int(r["question_id"]) < 15)
    summary = summary_of(change(tmp_path, unstated(4)))
    assert (summary.tasks[0].strict_is_silent, summary.scorings) == (False, ("strict", "flexible"))
    summary = summary_of(change(tmp_path, unstated(2)))
    assert summary.tasks[0].no_answer == {"strict": pytest.approx(28 / 30), "flexible": 0}
    assert (summary.tasks[0].strict_is_silent, summary.scorings) == (True, ("flexible", "strict"))


def test_chance_is_that_of_the_choices(tmp_path: Path) -> None:
    tasks = summary_of(write_run(tmp_path, n_questions=2, samplers=(MIN_K,))).tasks
    assert {task.task: task.chance for task in tasks} == {"aqua": 0.2, "gsm8k": None}


@pytest.mark.slow
def test_the_baseline_is_min_k_or_chosen(tmp_path: Path) -> None:
    run = read_run(make(tmp_path, n_questions=5, repeats=1))
    assert summarise(run).baseline == MIN_K
    assert summarise(run, SIGMA).baseline == SIGMA
    assert summarise(run, SIGMA).tasks[0].methods[0].sampler == SIGMA
    assert MIN_K in {cell.method.sampler for cell, _ in summarise(run, SIGMA).tasks[0].comparisons("strict")}
    with pytest.raises(ReportError, match="eta is not in this run: its samplers are min-k:tau=3, top-p"):
        summarise(run, "eta")
    without = summary_of(change(tmp_path, lambda r: not r["sampler"].startswith("min-k")))
    assert (without.baseline, without.family("strict")) == (None, [])
    change(tmp_path, lambda r: r.update(sampler="min-k:tau=0" if r["sampler"] == SIGMA else r["sampler"]))
    assert summary_of(tmp_path).baseline == "min-k:tau=0"
