"""`mink-eval report`: its files, its output and its errors."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mink_local.evals.run import records
from mink_local.evals.run.records import read_run, rescore
from tests.support.made_run import change, judge, write_run
from tests.support.made_run import records as lines_of
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished, run_python

MIN_K, SIGMA = "min-k:tau=3", "top-n-sigma:n=1"
SMALL: dict[str, Any] = {
    "tasks": ("gsm8k",),
    "samplers": (MIN_K, SIGMA),
    "temperatures": (1.0,),
    "n_questions": 5,
    "repeats": 1,
}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "report" / "table.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_a_run_has_one_report_with_every_file(tmp_path: Path, mink_eval: MinkEval) -> None:
    write_run(tmp_path, **SMALL | {"repeats": 2, "temperatures": (1.0, 5.0)})
    out = tmp_path / "report"
    out.mkdir()
    for name in ("1-attempts.svg", "mine.csv", "notes.txt"):
        (out / name).write_text("of an earlier report, or the user's")
    (out / "report.json").write_text('{"files": ["1-attempts.svg", "report.md", "../records.jsonl"]}')
    printed = mink_eval("report", tmp_path).stdout
    pictures = ["1-accuracy.svg", "1-k.svg"]
    beside = [name.replace("svg", ending) for name in pictures for ending in ("pdf", "csv")]
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(files) == {
        *("report.html", "report.md", "report.json", "notes.txt", "mine.csv"),
        *("table.csv", "comparisons.csv", "repeats.csv", *pictures, *beside),
    }
    markdown = files["report.md"].decode()
    for name in pictures:
        assert b"<svg" in files[name]
        assert f"]({name})" in markdown
    assert str(out / "report.html") in printed.replace("\n", "")
    in_json = json.loads(files["report.json"])
    for row, line in zip(rows(tmp_path), in_json["table"], strict=True):
        accuracy = f"{100 * float(row['accuracy']):.1f}±"
        assert accuracy in markdown
        assert line["accuracy"] == pytest.approx(float(row["accuracy"]), abs=1e-5)
        assert float(row["accuracy_low"]) <= float(row["accuracy"]) <= float(row["accuracy_high"])
        assert accuracy in printed
    order = (
        *("(1-accuracy.svg)", "5 questions, 2 responses", "accuracy, %", "tokens; cut off"),
        *("any of 2", "distinct responses", "(1-k.svg)", "steps with one candidate"),
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
    write_run(tmp_path, **SMALL | {"samplers": samplers, "n_questions": 1})
    result = mink_eval("report", change(tmp_path, lambda r: r.update(edit)))
    name = edit.get("sampler", samplers[0])
    assert name in result.succeeded().stdout
    assert rows(tmp_path)[0]["sampler"] == name


def printed(result: Finished) -> str:
    """Return what a report says, without the terminal's line breaks."""
    return " ".join(result.succeeded().stdout.split())


def test_verdicts_are_judged_again_and_those_that_differ_are_counted(
    tmp_path: Path, mink_eval: MinkEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, **SMALL)
    assert "recorded verdicts" not in printed(mink_eval("report", tmp_path))
    recorded = read_run(tmp_path).responses
    judge(tmp_path, lambda r: r["question_id"] == "3")
    before = (tmp_path / "records.jsonl").read_bytes()
    again = mink_eval("report", tmp_path)
    differ = re.search(r"(\d+) flexible and (\d+) strict of 10 recorded verdicts differ", printed(again))
    assert differ
    assert int(differ[1]) > 0
    assert differ[0] in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "records.jsonl").read_bytes() == before
    monkeypatch.setattr(records, "CHUNK", 3)  # of 10 responses, which other processes judge then
    assert rescore(read_run(tmp_path)).responses == recorded
    [row] = [r for r in rows(tmp_path) if r["sampler"] == SIGMA]
    right = [bool(r.strict and r.strict.correct) for r in recorded if r.sampler == SIGMA]
    assert float(row["strict_accuracy"]) == pytest.approx(sum(right) / len(right))


def test_lines_left_out_are_named(tmp_path: Path, mink_eval: MinkEval) -> None:
    path = write_run(tmp_path, **SMALL) / "records.jsonl"
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
        ("temp=3", 1, "1.0"),
        ("top-p", 1, SIGMA),
    ],
)
def test_what_is_not_in_the_run_cannot_be_compared_with(
    tmp_path: Path, mink_eval: MinkEval, against: str, status: int, named: str
) -> None:
    mink_eval("report", write_run(tmp_path, **SMALL), "--against", against).refused(status, named)


def test_every_pair_has_files_of_its_own(tmp_path: Path, mink_eval: MinkEval) -> None:
    write_run(tmp_path, **SMALL)
    mink_eval("report", tmp_path).succeeded()
    before = {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()}
    assert "1 comparison of two samplers" in printed(mink_eval("report", tmp_path, "--against", "all"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()} == before
    with (tmp_path / "report-against-every-sampler" / "comparisons.csv").open(encoding="utf-8") as stream:
        assert [(row["sampler"], row["against"]) for row in csv.DictReader(stream)] == [(SIGMA, MIN_K)]


def test_wrong_use_is_refused_in_a_sentence(tmp_path: Path, mink_eval: MinkEval) -> None:
    run = write_run(tmp_path / "run", **SMALL)
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
    write_run(tmp_path, **SMALL)
    program = "import sys; sys.modules['statsmodels'] = None; from mink_local.evals.cli import main; main()"
    run_python("-c", program, "report", tmp_path).refused(2, "mink-local[eval]")


@pytest.mark.slow
def test_open_ended_responses_have_no_accuracy(tmp_path: Path, mink_eval: MinkEval) -> None:
    """Beside a task with verdicts, and alone."""
    write_run(tmp_path, **SMALL | {"tasks": ("gsm8k", "essay")})
    shown = mink_eval("report", tmp_path).stdout
    assert re.search("gsm8k .* accuracy", shown)
    assert re.search("essay .* tokens", shown)
    assert not re.search("essay .* accuracy", shown)
    assert {row["accuracy"] for row in rows(tmp_path) if row["task"] == "essay"} == {""}
    for against in ("min-k", "temp=1", "model=tiny-model"):
        alone = change(tmp_path, lambda record: record["task"] == "essay")
        shown = mink_eval("report", alone, "--against", against).stdout
        assert "accuracy, %" not in shown
        assert "Open-ended" in shown
