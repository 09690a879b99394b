"""The sentences on a whole run."""

import json
from pathlib import Path
from typing import Any

import pytest

from mink_local.evals.report.findings import findings, task_findings
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.summary import summarise
from tests.support.made_run import change, judge, write_run

SIGMA = "top-n-sigma:n=1"
SMALL: dict[str, Any] = {"samplers": ("min-k:tau=3", SIGMA), "temperatures": (1.0, 10.0)}


def sentences(folder: Path) -> list[str]:
    return findings(summarise(read_run(folder)))


def test_comparisons_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL)

    def right(r: dict[str, Any]) -> bool:
        return int(r["question_id"]) < 15 or (r["sampler"] == SIGMA and r["temperature"] == 10)

    aqua, gsm8k, strict, flexible = sentences(judge(tmp_path, right))
    assert strict.startswith(
        "Strict: of 4 comparisons with min-k:tau=3 at the same temperature, the other method is "
        "significantly better in 2 and significantly worse in 0; in 2 no difference was found, which does "
        "not show that there is none: 95% intervals reach from −8.7 to +8.7 points. A difference of "
    )
    assert strict.endswith(
        " points, depending on the comparison, would have been found with a chance of 80%."
    )
    assert flexible == strict.replace("Strict", "Flexible")
    assert aqua == (
        "aqua with tiny-model: 30 questions, 2 responses each, 2 methods at T = 1 and 10. "
        "Guessing gets 20.0%. Significantly better than min-k:tau=3 (strict): top-n-sigma:n=1 at T = 10."
    )
    assert "Guessing" not in gsm8k


@pytest.mark.parametrize(
    ("against", "said"),
    [
        ("model=q4", "with q4 by the same method at the same temperature, the other model is"),
        ("temp=1", "with T = 1 by the same method, the other temperature is"),
    ],
)
def test_models_and_temperatures_are_compared(tmp_path: Path, against: str, said: str) -> None:
    write_run(tmp_path, models=("q4", "q8"), tasks=("gsm8k",), n_questions=4, **SMALL)
    *_, strict, _ = findings(summarise(read_run(tmp_path), against))
    assert strict.startswith(f"Strict: of 4 comparisons {said} significantly better in 0")


def test_too_few_questions_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=5, repeats=1, **SMALL)
    size, strict, _ = sentences(tmp_path)
    assert strict.endswith("With so few questions none could have been found.")
    assert "5 questions, 1 response each" in size
    assert "--repeats 2" in size


def test_incomplete_cells_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=10, **SMALL)
    change(tmp_path, lambda r: r["sampler"] != SIGMA or int(r["question_id"]) < 4)
    assert "Not complete yet: top-n-sigma:n=1 at T = 1 and 10." in sentences(tmp_path)[0]


def test_many_incomplete_cells_are_counted(tmp_path: Path) -> None:
    temperatures = (1.0, 2.0, 5.0, 10.0)
    write_run(tmp_path, **SMALL | {"temperatures": temperatures}, tasks=("gsm8k",), n_questions=2)
    change(
        tmp_path,
        lambda r: (r["temperature"], r["question_id"]) not in {(1, "0"), (2, "1"), (5, "0"), (10, "1")},
    )
    assert "Not complete yet: 8 of 8 cells, marked *. Accuracies" in sentences(tmp_path)[0]


def test_cells_that_differ_are_named_in_the_order_of_the_table(tmp_path: Path) -> None:
    samplers = ("min-k:tau=3", "top-p:p=0.9,order=temperature-last", SIGMA)
    write_run(tmp_path, tasks=("gsm8k",), samplers=samplers, temperatures=(10.0, 2.0, 1.0))

    def right(r: dict[str, Any]) -> bool:
        last = 30 if "top-p" in r["sampler"] and r["temperature"] == 1 else 15
        return int(r["question_id"]) < (0 if r["sampler"] == SIGMA and r["temperature"] > 1 else last)

    size, better, worse = task_findings(
        summary := summarise(read_run(judge(tmp_path, right))), summary.tasks[0]
    )
    assert size == "30 questions, 2 responses each, 3 methods at T = 1, 2 and 10."
    assert better == "Significantly better than min-k:tau=3 (strict): top-p:p=0.9 (T last) at T = 1."
    assert worse == "Significantly worse than min-k:tau=3 (strict): top-n-sigma:n=1 at T = 2 and 10."


def test_a_scoring_that_finds_no_answer_says_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=4, **SMALL)

    def edit(r: dict[str, Any]) -> None:
        answer = None if r["question_id"] == "3" else "1"
        r.update(strict={"answer": None, "correct": False}, flexible={"answer": answer, "correct": False})

    size, first, second = sentences(change(tmp_path, edit))
    assert first.startswith("Flexible: ")
    assert second.startswith("Strict: ")
    assert (
        "Strict finds no answer in 100.0% of the responses, flexible in 25.0%: strict says nothing about "
        "this model."
    ) in size


def test_a_run_without_comparisons_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=2, **SMALL)
    change(tmp_path, lambda r: r["sampler"] == SIGMA or r["temperature"] == 1)
    change(tmp_path, lambda r: r["sampler"] != SIGMA or r["temperature"] == 10)
    assert sentences(tmp_path)[-1] == (
        "There is no other method to compare with min-k:tau=3 at the same temperature."
    )
    assert "no Min-k" in sentences(change(tmp_path, lambda r: r["sampler"] == SIGMA))[-1]


def test_responses_that_are_still_to_come_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"samplers": ("min-k:tau=3", "greedy")}, tasks=("gsm8k",), n_questions=5)
    grid = {"models": ["tiny-model"], "samplers": ["min-k:tau=3"], "temperatures": [1.0, 10.0], "repeats": 2}
    for n, said in ((5, ""), (12, "25 of 60 responses asked for are there: ")):
        asked = [{**grid, "limit": n, "questions": {"gsm8k": n}}]
        (tmp_path / "manifest.json").write_text(json.dumps({"asked": asked}))
        first = sentences(tmp_path)[0]
        assert ("asked for" in first) == bool(said)
        assert said in first


def test_a_model_that_is_cut_off_in_most_responses_is_warned_of(tmp_path: Path) -> None:
    """At the lowest temperature: at high ones, samplers are cut off and not the model."""
    write_run(tmp_path, tasks=("gsm8k",), n_questions=10, **SMALL)

    def cut_off(hot: int, cold: int) -> str:
        def edit(r: dict[str, Any]) -> None:
            last = hot if r["temperature"] > 1 else cold
            r.update(finish_reason="length" if int(r["question_id"]) < last else "stop")

        return sentences(change(tmp_path, edit))[0]

    assert "cut off" not in cut_off(hot=10, cold=5)
    assert "At T = 1 60.0% of the responses were cut off at the token limit and count as wrong: " in cut_off(
        hot=0, cold=6
    )
