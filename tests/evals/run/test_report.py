"""The tables and sentences of a report."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mink_local.evals.report.report import Report
from mink_local.evals.run.records import read_run
from mink_local.evals.run.report import run_report, settings_table
from mink_local.evals.run.summary import EVERY, summarise
from mink_local.evals.tables import Table, percent
from tests.support.made_run import change, judge, write_run

MIN_K, SIGMA = "min-k:tau=3", "top-n-sigma:n=1"
LAST = "top-p:p=0.9,order=temperature-last"
SMALL: dict[str, Any] = {"tasks": ("gsm8k",), "samplers": (MIN_K, SIGMA), "temperatures": (1.0, 10.0)}


def report_of(folder: Path, *against: Any) -> Report:
    """Return the report of a run, by the verdicts in its records."""
    return run_report(read_run(folder), against or None)


def sentences(report: Report) -> str:
    return "\n".join([*(one for section in report.sections for one in section.findings), *report.findings])


def table_of(report: Report, title: str) -> Table:
    parts = [part for section in report.sections for part in (*section.parts, *section.more)]
    [found] = [part for part in parts if isinstance(part, Table) and title in part.title]
    return found


def test_accuracies_have_intervals_marks_and_bold_winners(tmp_path: Path) -> None:
    """Top-nσ is better at T = 10, and loses like all others to Min-k at T = 1."""
    write_run(tmp_path, **SMALL | {"samplers": (MIN_K, SIGMA, LAST)})

    def right(r: dict[str, Any]) -> bool:
        if r["temperature"] == 1:
            return bool(r["sampler"] == MIN_K)
        return int(r["question_id"]) < 15 or bool(r["sampler"] == SIGMA)

    report = report_of(judge(tmp_path, right))
    table = table_of(report, "· accuracy, %")
    assert table.columns == ["method", "T = 1", "T = 10"]
    rows = {row[0].text: [(cell.text, cell.bold) for cell in row[1:]] for row in table.rows}
    assert rows == {
        MIN_K: [("100.0±0.0", True), ("50.0±0.0", False)],
        "top-p:p=0.9 (T last)": [("0.0±0.0▼", False), ("50.0±0.0", False)],
        SIGMA: [("0.0±0.0▼", False), ("100.0±0.0▲", True)],
    }
    assert table.rows[0][2].below == "31.3–68.7"  # Clopper and Pearson's interval of 15 in 30
    said = sentences(report)
    assert f"better than {MIN_K}: {SIGMA} at T = 10." in said
    assert f"worse than {MIN_K}: {SIGMA} at T = 1; top-p:p=0.9 (T last) at T = 1." in said
    assert "4 comparisons" in said
    assert "Strict scoring" not in said  # it is the same


def test_variants_have_a_table_and_no_intervals_are_joined(tmp_path: Path) -> None:
    """Those of Min-k, which are tested among the samplers, too."""
    variants = ("min-k:tau=1", "top-n-sigma:n=2")
    document = report_of(write_run(tmp_path, **SMALL | {"samplers": (MIN_K, SIGMA, *variants)}))
    table = table_of(document, "sampler's default options")
    assert {row[0].text for row in table.rows} == set(variants)
    assert "95% intervals" not in sentences(document)


def test_strict_accuracy_is_in_a_table_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"n_questions": 4})
    change(tmp_path, lambda r: r.update(strict={"answer": None, "correct": False}))
    report = report_of(tmp_path)
    assert {cell.text for row in table_of(report, "strict accuracy").rows for cell in row[1:]} == {"0.0"}
    assert "Strict scoring differs" in sentences(report)


def test_the_terminal_shows_the_tests_beside_the_accuracies(tmp_path: Path) -> None:
    report = report_of(write_run(tmp_path, **SMALL | {"n_questions": 4, "samplers": (MIN_K, SIGMA, LAST)}))
    titles = [table.title for table in report.printed]
    assert "accuracy" in titles[0]
    assert f"against {MIN_K}" in titles[1]
    assert report.printed[1].columns[2:] == ["questions", "difference", "won", "lost", "p", "p, Holm"]
    every = report_of(tmp_path, "sampler", EVERY)
    assert "every pair" in every.printed[1].title
    assert every.folder != report.folder == "report"


def test_categories_are_rows(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, **SMALL | {"n_questions": 4}))
    for key, question in run.questions.items():
        run.questions[key] = structs.replace(question, category="odd" if int(question.id) % 2 else "even")
    table = table_of(run_report(run), "by category")
    assert table.columns == ["method", "T = 1", "T = 10"]
    names = [f"{category} (2) · {sampler}" for category in ("even", "odd") for sampler in (MIN_K, SIGMA)]
    assert [row[0].text for row in table.rows] == names


def test_models_are_side_by_side_with_their_difference(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"models": ("q8", "q4")})
    judge(tmp_path, lambda r: r["model"] == "q8" or int(r["question_id"]) < 15)
    report = report_of(tmp_path)
    table = table_of(report, "difference from q8")
    assert table.columns == ["method", "T", "model", "accuracy", "q8", "difference", "p, Holm"]
    assert len(table.rows) == 4
    *cells, p_value = (cell.text for cell in table.rows[0])
    assert cells == [MIN_K, "1", "q4", "50.0", "100.0", "−50.0"]
    assert p_value.endswith("▼")
    assert "q8" in report.sections[0].findings[0]
    flips = table_of(report, "flipped")
    assert [cell.text for cell in flips.rows[0][2:]] == ["q4", ", ".join(map(str, range(15, 30))), ""]
    titles = [section.title for section in report_of(tmp_path, "sampler", SIGMA).sections]
    assert titles == ["gsm8k with q8", "gsm8k with q4", "How to read this"]  # nothing else than was asked for


@pytest.mark.parametrize(
    ("temperatures", "edit", "said"),
    [
        ((1.0, 10.0), {}, "30 questions, 2 responses each, 2 methods at T = 1 and 10."),
        ((1.0,), {"repeats": 1}, "--repeats 2"),
        ((1.0,), {"tasks": ("aqua",)}, "Guessing gets 20.0%"),
        ((1.0,), {"tasks": ("essay",)}, "Open-ended"),
        ((1.0,), {"samplers": (SIGMA, LAST)}, "no Min-k"),
    ],
)
def test_what_to_know_before_the_numbers_is_said(
    tmp_path: Path, temperatures: tuple[float, ...], edit: dict[str, Any], said: str
) -> None:
    write_run(tmp_path, **SMALL | {"temperatures": temperatures} | edit)
    assert said in sentences(report_of(tmp_path))


def test_incomplete_cells_are_marked_and_counted(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"n_questions": 10})
    change(tmp_path, lambda r: r["sampler"] != SIGMA or int(r["question_id"]) < 4)
    report = report_of(tmp_path)
    assert "2 of 4 cells" in sentences(report)
    assert "*" in table_of(report, "· accuracy, %").rows[1][1].text


def test_nothing_to_compare_with_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"n_questions": 2})
    change(tmp_path, lambda r: (r["sampler"] == SIGMA) == (r["temperature"] == 10))
    assert sentences(report_of(tmp_path)).splitlines()[-1].endswith(f"{MIN_K}.")


def test_questions_that_are_still_to_come_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"n_questions": 6})
    assert "of the run" not in sentences(report_of(tmp_path))
    change(tmp_path, lambda r: int(r["question_id"]) < 4)
    assert "2 questions of the run" in sentences(report_of(tmp_path))


def test_a_model_that_is_cut_off_in_most_responses_is_warned_of(tmp_path: Path) -> None:
    """At the lowest temperature: at high ones, samplers are cut off and not the model."""
    write_run(tmp_path, **SMALL | {"n_questions": 10})

    def cut_off(hot: int, cold: int) -> str:
        def edit(r: dict[str, Any]) -> None:
            last = hot if r["temperature"] > 1 else cold
            r.update(finish_reason="length" if int(r["question_id"]) < last else "stop")

        return sentences(report_of(change(tmp_path, edit)))

    assert "--max-tokens" not in cut_off(hot=10, cold=5)
    assert "60.0%" in cut_off(hot=0, cold=6)


def test_attempts_and_diversity_have_tables(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"samplers": (MIN_K, "greedy")})
    report = report_of(tmp_path)
    run = summarise(read_run(tmp_path))
    attempts = table_of(report, "any of k responses right")
    assert attempts.columns == ["method", "k = 1", "k = 2"]
    assert len(attempts.rows) == 4
    shown = percent(run.attempts.loc[run.attempts["k"] == 2, "passed"].iloc[0])
    assert attempts.rows[0][2].text == table_of(report, "any of 2 responses").rows[0][1].text == shown
    assert table_of(report, "distinct").rows[1][1].text == "50.0"


def test_settings_are_a_row_each_and_starts_of_one_environment_one_row() -> None:
    local = {"model": "q4", "executor": "local", "n_parallel": 4}
    starts = [{"started": f"2026-01-0{day}", **local} for day in (1, 2, 3)]
    manifest = {
        "format": 1,
        "versions": {"mink-local": "0.1.0", "llama.cpp": "b1"},
        "ctx": None,
        "models": {"q4": {"path": "odd\udcff.gguf", "sha256": "ab", "template_sha256": "cd"}},
        "tasks": {"gsm8k": {"max_tokens": 64}},
        "asked": [{"samplers": [MIN_K, "greedy"], "limit": None, "questions": {"gsm8k": 4}}],
        "sessions": [*starts, {**starts[2], "n_parallel": 8}],
    }
    table = settings_table(manifest)
    rows = {row[0].text: row[1].text for row in table.rows}
    assert set(rows) == {
        *("versions mink-local", "versions llama.cpp", "ctx", "models q4 path", "models q4 sha256"),
        *("models q4 template_sha256", "tasks gsm8k max_tokens", "asked"),
        *("started 3 times", "started 1 time"),
    }
    assert rows["ctx"] == "not given"
    assert rows["models q4 path"] == "odd\ufffd.gguf"  # what is not UTF-8 cannot be written
    assert rows["started 3 times"].startswith("2026-01-01 to 2026-01-03: ")
    assert rows["started 1 time"].endswith("8")
