"""The report of a run: its tables and sentences, its figures, its files, and its errors."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mink_local.evals.figures import GREY, accuracy_figure, look
from mink_local.evals.report.report import Report
from mink_local.evals.run.records import read_run
from mink_local.evals.run.report import run_report, settings_table
from mink_local.evals.run.summary import CELL, summarise
from mink_local.evals.tables import Table
from tests.support.made_run import change, judge, write_run
from tests.support.made_run import records as lines_of
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished, run_python

MIN_K, SIGMA = "min-k:tau=3", "top-n-sigma:n=1"
FIRST, LAST = "top-p:p=0.9,order=temperature-first", "top-p:p=0.9,order=temperature-last"
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
    assert table.rows[0][2].below.startswith("31.3–68.7")  # Clopper and Pearson's interval of 15 in 30
    said = sentences(report)
    assert f"better than {MIN_K}: {SIGMA} at T = 10." in said
    assert f"worse than {MIN_K}: {SIGMA} at T = 1; top-p:p=0.9 (T last) at T = 1." in said
    assert "4 comparisons" in said


def test_categories_are_rows_with_the_accuracies_of_their_questions(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, **SMALL | {"n_questions": 4}))
    for key, question in run.questions.items():
        parity = "odd" if int(question.id) % 2 else "even"
        run.questions[key] = structs.replace(question, category=f"{parity}\nall")
    names = [
        f"{category} ({n}) · {sampler}"
        for category, n in (("all", 4), ("even", 2), ("odd", 2))
        for sampler in (MIN_K, SIGMA)
    ]
    assert [row[0].text for row in table_of(run_report(run), "by category").rows] == names
    summary = summarise(run)
    for row in summary.categories.itertuples():
        own = summary.judged[(summary.judged[CELL] == [getattr(row, name) for name in CELL]).all(axis=1)]
        if row.category != "all":
            own = own[own["question_id"].astype(int) % 2 == (row.category == "odd")]
        assert (row.questions, row.accuracy) == (
            own["question_id"].nunique(),
            pytest.approx(own["correct"].mean()),
        )


@pytest.mark.parametrize(
    ("made", "kept", "said"),
    [
        ({}, "True", "30 questions, 2 responses each, 2 methods at T = 1 and 10."),
        ({"tasks": ("aqua",)}, "True", "Guessing gets 20.0%"),
        ({}, "True", "With 30 questions answered 2 times each"),
        ({"tasks": ("essay",)}, "True", "Open-ended"),
        ({}, "flexible.update(answer=None) or True", "no answer was found in 100.0%"),
        ({"samplers": (SIGMA, LAST)}, "True", "no Min-k"),
        ({"models": ("q8", "q4")}, "True", "with q8 by the same method"),
        ({"n_questions": 6}, "int(question_id) < 4", "2 questions of the run"),
        ({"n_questions": 10}, "sampler[:3] != 'top' or int(question_id) < 4", "2 of 4 cells, marked *"),
        ({"n_questions": 2}, "(sampler[:3] == 'top') == (temperature == 10)", f"compare with {MIN_K}."),
    ],
)
def test_what_to_know_before_the_numbers_is_said(
    tmp_path: Path, made: dict[str, Any], kept: str, said: str
) -> None:
    """Of runs in which these records are kept."""
    write_run(tmp_path, **SMALL | made)
    change(tmp_path, lambda r: bool(eval(kept, {}, r)))
    report = report_of(tmp_path)
    assert said in sentences(report)
    assert ("marked *" in said) == any("*" in c.text for row in report.printed[0].rows for c in row)


def test_how_much_cut_off_responses_decide_is_shown(tmp_path: Path) -> None:
    """Top-nσ is cut off where Min-k is right at T = 10: it could be right there, too."""
    write_run(tmp_path, **SMALL)

    def edit(r: dict[str, Any]) -> None:
        is_cut = r["sampler"] == SIGMA and r["temperature"] == 10 and int(r["question_id"]) < 15
        r["finish_reason"] = "length" if is_cut else "stop"

    change(tmp_path, edit)
    report = report_of(judge(tmp_path, lambda r: r["finish_reason"] == "stop"))
    said = sentences(report)
    assert f"{SIGMA} at T = 10 50.0%" in said
    assert f"Could turn if the responses that were cut off were right: {SIGMA} at T = 10." in said
    cells = {row[0].text: row[2] for row in table_of(report, "· accuracy, %").rows}
    assert "cut off" not in cells[MIN_K].below
    assert cells[SIGMA].below.endswith("; cut off 50.0, at most 100.0")
    compared = table_of(report, "at the same temperature").rows
    assert [[cell.text for cell in row[-2:]] for row in compared] == [["0.0", "0.0"], ["50.0", "0.0"]]
    change(tmp_path, lambda r: r.update(finish_reason="stop"))
    assert "cut off" not in sentences(report_of(judge(tmp_path, lambda r: r["question_id"] == "1"))).lower()


@pytest.mark.parametrize("kept", ["True", "temperature == 1"])
def test_prompts_that_all_overflow_are_reported(tmp_path: Path, mink_eval: MinkEval, kept: str) -> None:
    """In each cell, or beside cells with responses."""
    write_run(tmp_path, **SMALL | {"n_questions": 3})
    nothing = {"response": "", "n_tokens": 0, "k": [], "finish_reason": "overflow", "seconds": 0.0}
    change(tmp_path, lambda r: r.update(nothing) if eval(kept, {}, r) else None)
    assert "0.0" in mink_eval("report", tmp_path).succeeded().stdout


def test_settings_are_a_row_each_and_so_are_environments() -> None:
    start = {"started": "2026-01-01", "executor": "local", "n_parallel": 4}
    manifest = {
        "format": 1,
        "ctx": None,
        "models": {"q4": {"path": "odd\udcff.gguf"}},
        "asked": [{"samplers": [MIN_K, "greedy"], "questions": {"gsm8k": 4}}],
        "sessions": [start, {**start, "started": "2026-01-02"}, {**start, "n_parallel": 8}],
    }
    rows = [[cell.text for cell in row] for row in settings_table(manifest).rows]
    assert [name for name, _ in rows] == ["ctx", "models q4 path", "asked", "started with", "started with"]
    assert rows[1][1] == "odd\ufffd.gguf"  # what is not UTF-8 cannot be written


def test_a_panel_has_a_method_in_both_orders_and_the_baseline(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"samplers": (MIN_K, "greedy", FIRST, LAST), "n_questions": 6})
    summary = summarise(read_run(tmp_path))
    figure = accuracy_figure(summary.cells, summary.baseline)
    assert [axis.get_title() for axis in figure.axes] == ["greedy", "top-p:p=0.9"]
    lines: list[Any] = list(figure.axes[1].lines)
    shown = {line.get_label(): line for line in lines if not line.get_label().startswith("_")}
    assert list(shown) == [MIN_K, "top-p:p=0.9 (T first)", "top-p:p=0.9 (T last)"]
    assert shown[MIN_K].get_color() == GREY
    for sampler, line in zip((MIN_K, FIRST, LAST), shown.values(), strict=True):
        cells = summary.cells
        accuracies = cells[cells["sampler"] == sampler]["accuracy"]
        assert line.get_xydata().tolist() == [[t, 100 * a] for t, a in zip((1, 10), accuracies, strict=True)]
        assert line.get_linestyle() == look(sampler)["linestyle"]


@pytest.mark.parametrize(
    ("temperatures", "edit", "stems"),
    [
        ((1.0, 5.0), {}, {"1-accuracy"}),
        ((1.0,), {}, set()),
        ((1.0, 5.0), {"strict": None, "flexible": None}, set()),
    ],
)
def test_there_is_a_picture_for_what_is_known(
    tmp_path: Path, temperatures: tuple[float, ...], edit: dict[str, Any], stems: set[str]
) -> None:
    write_run(tmp_path, **SMALL | {"samplers": (MIN_K,), "temperatures": temperatures, "n_questions": 1})
    found = report_of(change(tmp_path, lambda r: r.update(edit))).pictures
    assert {picture.stem for picture in found} == stems
    for picture in found:
        assert b"<svg" in picture.svg
        assert picture.description.endswith("gsm8k with tiny-model")
        assert picture.data is not None


ONE_T: dict[str, Any] = {
    "tasks": ("gsm8k",),
    "samplers": (MIN_K, SIGMA),
    "temperatures": (1.0,),
    "n_questions": 5,
    "repeats": 1,
}


def table_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "report" / "table.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_a_run_has_one_report_with_every_file(tmp_path: Path, mink_eval: MinkEval) -> None:
    write_run(tmp_path, **ONE_T | {"repeats": 2, "temperatures": (1.0, 5.0)})
    out = tmp_path / "report"
    out.mkdir()
    (out / "mine.csv").write_text("the user's")
    printed = mink_eval("report", tmp_path).stdout
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(files) == {
        *("report.html", "report.md", "report.json", "mine.csv"),
        *("table.csv", "comparisons.csv", "repeats.csv"),
        *("1-accuracy.svg", "1-accuracy.pdf", "1-accuracy.csv"),
    }
    markdown = files["report.md"].decode()
    assert str(out / "report.html") in printed.replace("\n", "")
    in_json = json.loads(files["report.json"])
    for row, line in zip(table_rows(tmp_path), in_json["table"], strict=True):
        accuracy = f"{100 * float(row['accuracy']):.1f}±"
        assert accuracy in markdown
        assert line["accuracy"] == pytest.approx(float(row["accuracy"]), abs=1e-5)
        assert float(row["accuracy_low"]) <= float(row["accuracy"]) <= float(row["accuracy_high"])
        assert accuracy in printed
    order = (
        *(
            "(1-accuracy.svg)",
            "5 questions, 2 responses",
            "accuracy, %",
            "by strict scoring",
            "tokens; cut off",
        ),
        *("distinct responses", "steps with one candidate", "any of k"),
        "## How to read this",
    )
    places = [markdown.index(part) for part in order]  # a picture after its table, and the first one first
    assert places == sorted(places)
    page = re.sub(r'src="[^"]+"', "", files["report.html"].decode())
    assert page.index("Accuracy against temperature") < page.index("5 questions") < page.index("<table")
    mink_eval("report", tmp_path)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


@pytest.mark.parametrize(
    ("samplers", "edit"),
    [
        ((MIN_K,), {"k": []}),
        ((MIN_K,), {"sampler": "$\\frac{:p=_1", "temperature": 0}),
        ((MIN_K, "greedy"), {"response": "", "finish_reason": "overflow"}),
        ((MIN_K,), {"k": [], "strict": None, "flexible": None}),
    ],
)
def test_the_least_that_a_run_can_be(
    tmp_path: Path, mink_eval: MinkEval, samplers: tuple[str, ...], edit: dict[str, Any]
) -> None:
    """One question, one temperature, no candidates, nothing to compare with, a name that is no sampler's."""
    write_run(tmp_path, **ONE_T | {"samplers": samplers, "n_questions": 1})
    result = mink_eval("report", change(tmp_path, lambda r: r.update(edit)))
    name = edit.get("sampler", samplers[0])
    assert name in result.succeeded().stdout
    assert table_rows(tmp_path)[0]["sampler"] == name


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"response": "<think>\nHm.", "finish_reason": "stop"}, "6 responses stopped within the reasoning"),
        ({"response": "It is 5.\n\nQ: Why?\nA: 6"}, "6 responses went on to a further question"),
        ({"finish_reason": "content_filter"}, "6 responses ended by content_filter"),
        ({"response": "It is 5.", "finish_reason": "stop"}, None),
    ],
)
def test_how_responses_end_is_said(tmp_path: Path, edit: dict[str, str], said: str | None) -> None:
    write_run(tmp_path, **ONE_T | {"samplers": (MIN_K,), "n_questions": 3, "repeats": 2})
    found = sentences(run_report(read_run(change(tmp_path, lambda r: r.update(edit)))))
    if said:
        assert said in found
    else:
        assert not any(words in found for words in ("within the reasoning", "further question", "ended by"))


def printed(result: Finished) -> str:
    """Return what a report says, without the terminal's line breaks."""
    return " ".join(result.succeeded().stdout.split())


def test_lines_left_out_are_named(tmp_path: Path, mink_eval: MinkEval) -> None:
    path = write_run(tmp_path, **ONE_T) / "records.jsonl"
    n = len(lines_of(tmp_path))
    first = path.read_bytes().splitlines()[0]
    with path.open("ab") as stream:
        stream.write(b"[" * 100_000 + b'\n\xff\xfe\n[]\n"text"\n\n' + first + b"\n" + first[:-30])
    with (tmp_path / "questions.jsonl").open("a") as questions:
        questions.write("{}\n")
    result = mink_eval("report", tmp_path, "--against", "top-n-sigma")
    out = tmp_path / "report-against-top-n-sigma-n=1"  # that of the usual report is left as it is
    assert f"against {SIGMA}" in (out / "report.md").read_text(encoding="utf-8")
    page = (out / "report.html").read_text(encoding="utf-8")
    for said in (printed(result), page):
        for line in ("questions.jsonl, line 6: ", *(f"records.jsonl, line {n + i}: " for i in (1, 2, 3, 4))):
            assert line in said
        assert "and 2 more" in said  # a second one with the same key, and one that is cut short
    assert len(read_run(tmp_path).responses) == n


@pytest.mark.parametrize(
    ("against", "status", "named"),
    [
        ("top-q", 2, "top-q"),
        ("temp=hot", 2, "hot"),
        ("model=q4", 1, "tiny-model"),
        ("temp=3", 1, "T = 1"),
        ("top-p", 1, SIGMA),
    ],
)
def test_what_is_not_in_the_run_cannot_be_compared_with(
    tmp_path: Path, mink_eval: MinkEval, against: str, status: int, named: str
) -> None:
    mink_eval("report", write_run(tmp_path, **ONE_T), "--against", against).refused(status, named)


def test_wrong_use_is_refused_in_a_sentence(tmp_path: Path, mink_eval: MinkEval) -> None:
    run = write_run(tmp_path / "run", **ONE_T)
    mink_eval("report", tmp_path / "nothing").refused(2, "nothing")
    mink_eval("report", tmp_path).refused(1, str(tmp_path))
    (run / "report").write_text("a file where the folder should be", encoding="utf-8")
    mink_eval("report", run).refused(1, str(run / "report"))
    (run / "report").unlink()
    (run / "report" / "report.md").mkdir(parents=True)
    mink_eval("report", run).refused(1, str(run / "report"))
    (run / "records.jsonl").write_text(json.dumps({"response": 1}) + "\n", encoding="utf-8")
    mink_eval("report", run).refused(1, "records.jsonl, line 1")
    (run / "records.jsonl").write_text("", encoding="utf-8")
    mink_eval("report", run).refused(1, "no responses")
    (run / "questions.jsonl").unlink()
    (run / "questions.jsonl").mkdir()
    mink_eval("report", run).refused(1, "questions.jsonl")


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, **ONE_T)
    program = "import sys; sys.modules['statsmodels'] = None; from mink_local.evals.cli import main; main()"
    run_python("-c", program, "report", tmp_path).refused(2, "mink-local[eval]")
