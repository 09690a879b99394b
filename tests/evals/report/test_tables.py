"""Tables against plain counting, in a terminal of any width, as Markdown and as CSV."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.summary import SCORINGS, Summary, summarise
from mink_local.evals.report.tables import (
    ReportTable,
    TableEntry,
    accuracy_table,
    attempts_table,
    comparisons_table,
    grid_tables,
    made_with_table,
    repeats_to_csv,
    to_csv,
)
from tests.support.made_run import change, judge, records, write_run

MIN_K, SIGMA = "min-k:tau=3", "top-n-sigma:n=1"
FIRST, LAST = "top-p:p=0.9,order=temperature-first", "top-p:p=0.9,order=temperature-last"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Summary]:
    """The records of a run and its summary."""
    folder = write_run(
        tmp_path_factory.mktemp("run"),
        tasks=("gsm8k",),
        n_questions=40,
        samplers=(MIN_K, "greedy", FIRST, LAST),
        temperatures=(1.0, 10.0),
    )
    return records(folder), summarise(read_run(folder))


def csv_rows(summary: Summary) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(summary))))


def cell_of(lines: list[dict[str, Any]], row: dict[str, str]) -> list[dict[str, Any]]:
    """Return the records of a row; greedy was run once, at temperature 0."""
    temperature = 0.0 if row["sampler"] == "greedy" else float(row["temperature"])
    return [r for r in lines if (r["sampler"], r["temperature"]) == (row["sampler"], temperature)]


def test_cells_are_what_counting_says(made: tuple[list[dict[str, Any]], Summary]) -> None:
    lines, summary = made
    rows = csv_rows(summary)
    assert len(rows) == 4 * 2 * 2  # methods, temperatures, scorings
    [costs] = [t.markdown() for t in grid_tables(summary.tasks[0]) if "tokens per correct" in t.title]
    tables: dict[str, str] = {s: accuracy_table(summary.tasks[0], s).markdown() for s in SCORINGS}
    for row in rows:
        cell = cell_of(lines, row)
        n = len(cell)
        assert n == (40 if row["sampler"] == "greedy" else 80)
        assert int(row["questions"]) == 40
        assert (row["spread"] == "") == (row["sampler"] == "greedy")
        right = sum(r[row["scoring"]]["correct"] for r in cell)
        none = sum(r[row["scoring"]]["answer"] is None for r in cell)
        n_steps = sum(len(r["k"]) for r in cell)
        assert float(row["accuracy"]) == pytest.approx(right / n)
        assert float(row["no_answer"]) == pytest.approx(none / n)
        assert float(row["truncated"]) == pytest.approx(sum(r["finish_reason"] == "length" for r in cell) / n)
        assert float(row["k_is_1"]) == pytest.approx(sum(r["k"].count(1) for r in cell) / n_steps)
        tokens = sum(r["n_tokens"] for r in cell)
        assert float(row["mean_tokens"]) == pytest.approx(tokens / n)
        assert float(row["mean_seconds"]) == pytest.approx(0.5)
        assert float(row["tokens_per_correct"] or "inf") == pytest.approx(
            tokens / right if right else math.inf
        )
        if row["scoring"] == "strict":
            below = f"({tokens / right:,.0f}, 0.5 s)" if right else "(–, 0.5 s)"
            assert f" {tokens / n:.1f} {below} " in costs
        after = "" if row["sampler"] == "greedy" else "±"
        assert f" {100 * float(row['accuracy']):.1f}{after}" in tables[row["scoring"]]


def right_answers(lines: list[dict[str, Any]], row: dict[str, str]) -> dict[str, int]:
    """Return how many of two responses to each question are correct."""
    times = 2 if row["sampler"] == "greedy" else 1
    right: dict[str, int] = {}
    for r in cell_of(lines, row):
        right[r["question_id"]] = right.get(r["question_id"], 0) + times * r[row["scoring"]]["correct"]
    return right


def test_comparisons_are_what_counting_says(made: tuple[list[dict[str, Any]], Summary]) -> None:
    lines, summary = made
    compared = [row for row in csv_rows(summary) if row["against"]]
    assert {row["sampler"] for row in compared} == {"greedy", FIRST, LAST}
    shown = [
        [*(entry.text for entry in row[2:6]), row[3].below]
        for scoring in SCORINGS
        for row in comparisons_table(summary.tasks[0], scoring, summary.against).rows
    ]
    for row in compared:
        assert row["against"] == MIN_K
        right, usual = right_answers(lines, row), right_answers(lines, row | {"sampler": MIN_K})
        gains = [right[question] - usual[question] for question in right]
        won, lost = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
        assert (int(row["won"]), int(row["lost"])) == (won, lost)
        assert float(row["difference"]) == pytest.approx(sum(gains) / 80)
        low, high = 100 * float(row["difference_low"]), 100 * float(row["difference_high"])
        assert low < 100 * sum(gains) / 80 < high
        texts = (f"{100 * sum(gains) / 80:+.1f}", str(won), str(lost), f"{low:+.1f} to {high:+.1f}")
        assert ["40", *(text.replace("-", "−") for text in texts)] in shown


def test_marks_are_in_the_table(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), samplers=(MIN_K, SIGMA, LAST), temperatures=(1.0, 10.0))

    def right(r: dict[str, Any]) -> bool:
        return {MIN_K: 15, SIGMA: 30 if r["temperature"] == 10 else 0, LAST: 15}[r["sampler"]] > int(
            r["question_id"]
        )

    judge(tmp_path, right)
    change(tmp_path, lambda r: r["sampler"] != LAST or r["question_id"] != "7" or r["temperature"] == 1)
    table = accuracy_table(summarise(read_run(tmp_path)).tasks[0], "strict")
    assert [[(e.text, e.bold) for e in row] for row in table.rows] == [
        [(MIN_K, False), ("50.0±0.0", False), ("50.0±0.0", False)],
        [("top-p:p=0.9", False), ("50.0±0.0", False), ("48.3±0.0*", False)],
        [(SIGMA, False), ("0.0±0.0▼", False), ("100.0±0.0▲", True)],
    ]
    assert table.rows[1][0].below == "T last"
    assert table.rows[0][1].below == "33.2–66.8"  # Wilson's interval of 15 in 30


def test_without_repeats_there_is_no_diversity(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=5, repeats=1, samplers=(MIN_K,))
    summary = summarise(read_run(tmp_path))
    titles = " ".join(table.title for table in grid_tables(summary.tasks[0]))
    assert "EAD" not in titles
    assert "responses" not in titles
    assert (
        csv_rows(summary)[0]["ead"] == csv_rows(summary)[0]["answers"] == csv_rows(summary)[0]["spread"] == ""
    )
    assert repeats_to_csv(summary) is None


def test_attempts_are_in_tables_and_csv(made: tuple[list[dict[str, Any]], Summary]) -> None:
    lines, summary = made
    task = summary.tasks[0]
    table = attempts_table(task, "flexible")
    assert table.columns == ["method", "T", "k = 1", "k = 2"]
    temperatures = [(row[0].text, row[1].text) for row in table.rows]
    assert ("greedy", "all") in temperatures
    assert len(temperatures) == 2 * 3 + 1
    rows = list(csv.DictReader(io.StringIO(repeats_to_csv(summary) or "")))
    assert len(rows) == 4 * 2 * 2 * 2  # methods, temperatures, scorings, k
    printed = " ".join(grid.markdown() for grid in grid_tables(task))
    for row in rows:
        right = right_answers(lines, row)
        k = int(row["k"])
        passed = [right[q] >= 1 if k == 2 else right[q] / 2 for q in right]
        assert float(row["pass"]) == pytest.approx(sum(passed) / 40)
        for name in ("pass", "maj"):
            assert 0 <= float(row[f"{name}_low"]) <= float(row[name]) < float(row[f"{name}_high"]) <= 1
        texts = f"{100 * float(row['pass']):.1f} / {100 * float(row['maj']):.1f}"
        assert (texts in printed) or k == 1
        assert row["scoring"] == "strict" or texts in table.markdown()


def test_diversity_is_in_table_and_csv(made: tuple[list[dict[str, Any]], Summary]) -> None:
    lines, summary = made
    [table] = [table for table in grid_tables(summary.tasks[0]) if "EAD" in table.title]
    for row in csv_rows(summary):
        texts: dict[str, set[str]] = {}
        for r in cell_of(lines, row):
            texts.setdefault(r["question_id"], set()).add(r["response"])
        assert float(row["distinct"]) == pytest.approx(sum(map(len, texts.values())) / 80)
        assert 0 <= float(row["answers"]) <= 2
        below = f"({float(row['self_bleu']):.1f}, {float(row['answers']):.1f})"
        shown = f"{100 * float(row['ead']):.1f} {below}"
        assert shown in table.markdown() or row["scoring"] == "flexible"


@pytest.mark.parametrize(("width", "n_tables"), [(30, 8), (40, 4), (80, 2), (200, 1)])
def test_a_narrow_terminal_gets_more_tables_and_every_number(width: int, n_tables: int) -> None:
    columns = ["method", *(f"T = {t}" for t in range(1, 9))]
    row = [
        TableEntry("top-p:p=0.9", "T first"),
        *(TableEntry(f"{t}2.3±4.{t}▼", f"{t}0.1–{t}9.9") for t in range(1, 9)),
    ]
    console = Console(width=width, file=io.StringIO(), record=True)
    parts = list(ReportTable("a title", columns, [row]).rich(width))
    for part in parts:
        console.print(part)
    printed = console.export_text()
    assert max(map(len, printed.split("\n"))) <= width
    for entry in row:
        assert entry.text in printed
        assert entry.below in printed
    assert printed.count("a title") == 1
    assert len(parts) == 1 + n_tables


def test_markdown() -> None:
    table = ReportTable("t", ["n", "v"], [[TableEntry("a|b"), TableEntry("1", "2", bold=True)]])
    assert table.markdown() == "| n | v |\n| --- | --: |\n| a\\|b | **1** (2) |"


def test_settings_are_a_row_each_and_starts_of_one_environment_one_row() -> None:
    local = {"model": "q4", "executor": "local", "n_parallel": 4}
    starts = [{"started": f"2026-01-0{day}", **local} for day in (1, 2, 3)]
    manifest = {
        "format": 1,
        "versions": {"mink-local": "0.1.0", "llama.cpp": "b1"},
        "ctx": None,
        "models": {"q4": {"sha256": "ab", "template_sha256": "cd"}},
        "tasks": {"gsm8k": {"max_tokens": 64}},
        "asked": [{"samplers": ["min-k:tau=3", "greedy"], "limit": None, "questions": {"gsm8k": 4}}],
        "sessions": [*starts, {**starts[2], "n_parallel": 8}],
    }
    table = made_with_table(manifest)
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["versions", "mink-local 0.1.0; llama.cpp b1"],
        ["ctx", "not given"],
        ["model q4", "sha256 ab; template sha256 cd"],
        ["task gsm8k", "max tokens 64"],
        ["asked for", "samplers min-k:tau=3, greedy; limit not given; questions gsm8k 4"],
        ["started 3 times", "2026-01-01 to 2026-01-03: model q4; executor local; n parallel 4"],
        ["started 1 time", "2026-01-03: model q4; executor local; n parallel 8"],
    ]
    assert table.markdown().splitlines()[1] == "| --- | --- |"
    assert made_with_table({"sessions": [None, 1], "models": 3, "asked": {}}).rows  # a damaged manifest
