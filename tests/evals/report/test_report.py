"""`mink-eval report` on runs that no model made: its numbers against plain counting, its files and errors."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from mink_local.cli import run as run_program
from mink_local.errors import ReportError
from mink_local.evals.report.cli import report
from mink_local.evals.report.findings import findings
from mink_local.evals.report.reading import read_run
from mink_local.evals.report.rescore import rescore
from mink_local.evals.report.summary import SCORINGS, Summary, summarise
from mink_local.evals.report.tables import Entry, Table, accuracy_table, escape
from tests.support.made_run import write_run

FIRST, LAST = "top-p:p=0.9,order=temperature-first", "top-p:p=0.9,order=temperature-last"
SIGMA = "top-n-sigma:n=1"
SMALL: dict[str, Any] = {"samplers": ("min-k:tau=3", SIGMA, FIRST, LAST), "temperatures": (1.0, 10.0)}


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(report, list(map(str, arguments)), catch_exceptions=False)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_bytes().splitlines()]


def write_records(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """Edit every record in place; one for which `edit` returns False is dropped."""
    write_records(folder, [line for line in records(folder) if edit(line) is not False])
    return folder


def summary_of(folder: Path) -> Summary:
    return summarise(read_run(folder))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with its report, and what the report printed."""
    folder = write_run(
        tmp_path_factory.mktemp("run"),
        tasks=("gsm8k",),
        n_questions=40,
        samplers=("min-k:tau=3", "greedy", FIRST, LAST),
        temperatures=(1.0, 10.0),
    )
    return folder, invoke(folder).output


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / "report" / "table.csv").read_text())))


def cell_of(folder: Path, row: dict[str, str]) -> list[dict[str, Any]]:
    """A table's cell, picked from the records; greedy was run once, at temperature 0."""
    temperature = 0.0 if row["sampler"] == "greedy" else float(row["temperature"])
    return [r for r in records(folder) if (r["sampler"], r["temperature"]) == (row["sampler"], temperature)]


def test_the_table_is_what_counting_says(made: tuple[Path, str]) -> None:
    folder, printed = made
    markdown = (folder / "report" / "report.md").read_text()
    table = rows(folder)
    assert len(table) == 4 * 2 * 2  # methods, temperatures, scorings
    for row in table:
        cell = cell_of(folder, row)
        n = len(cell)
        assert n == (40 if row["sampler"] == "greedy" else 80)
        assert int(row["questions"]) == 40
        right = sum(r[row["scoring"]]["correct"] for r in cell)
        none = sum(r[row["scoring"]]["answer"] is None for r in cell)
        steps = sum(len(r["k"]) for r in cell)
        assert float(row["accuracy"]) == pytest.approx(right / n)
        assert float(row["no_answer"]) == pytest.approx(none / n)
        assert float(row["truncated"]) == pytest.approx(sum(r["finish_reason"] == "length" for r in cell) / n)
        assert float(row["k_is_1"]) == pytest.approx(sum(r["k"].count(1) for r in cell) / steps)
        shown = f"{100 * float(row['accuracy']):.1f}±"
        assert shown in printed
        assert shown in markdown


def right_answers(folder: Path, row: dict[str, str]) -> dict[str, int]:
    """Of two responses to every question, how many are right."""
    times = 2 if row["sampler"] == "greedy" else 1
    right: dict[str, int] = {}
    for r in cell_of(folder, row):
        right[r["question_id"]] = right.get(r["question_id"], 0) + times * r[row["scoring"]]["correct"]
    return right


def test_comparisons_are_what_counting_says(made: tuple[Path, str]) -> None:
    folder, _ = made
    for row in rows(folder):
        if row["sampler"] == "min-k:tau=3":
            assert row["against"] == ""
            continue
        right, usual = right_answers(folder, row), right_answers(folder, row | {"sampler": row["against"]})
        gains = [right[question] - usual[question] for question in right]
        assert int(row["won"]) == sum(gain > 0 for gain in gains)
        assert int(row["lost"]) == sum(gain < 0 for gain in gains)
        assert float(row["difference"]) == pytest.approx(sum(gains) / 80)


def test_greedy_stands_at_every_temperature(tmp_path: Path) -> None:
    """It was run once, at temperature 0, and alone it is a run at temperature 0."""
    write_run(tmp_path, tasks=("gsm8k",), samplers=("min-k:tau=3", "greedy"), temperatures=(1.0, 10.0))
    group = summary_of(tmp_path).groups[0]
    assert group.temperatures == [1.0, 10.0]
    assert group.incomplete == []
    cold, hot = group.cells["greedy", 1.0], group.cells["greedy", 10.0]
    assert cold.accuracy == hot.accuracy
    assert (hot.accuracy["strict"].spread, hot.distinct) == (0, 0.5)
    alone = summary_of(change(tmp_path, lambda r: r["sampler"] == "greedy")).groups[0]
    assert (alone.temperatures, alone.n_repeats) == ([0.0], 1)


def test_every_file_is_there(made: tuple[Path, str]) -> None:
    folder, printed = made
    out = folder / "report"
    pictures = [f"1-{name}" for s in SCORINGS for name in (f"accuracy-{s}", f"diversity-{s}")] + ["1-k"]
    for name in pictures:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (out / f"{name}.svg").read_bytes()
        assert f"({name}.svg)" in (out / "report.md").read_text()
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "report.md",
        "table.csv",
        *(f"{name}.{kind}" for name in pictures for kind in ("png", "svg")),
    }
    assert str(out / "report.html") in printed.replace("\n", "")


def test_one_run_has_one_report(made: tuple[Path, str]) -> None:
    folder, printed = made
    before = {path.name: path.read_bytes() for path in (folder / "report").iterdir()}
    assert invoke(folder).output == printed
    assert {path.name: path.read_bytes() for path in (folder / "report").iterdir()} == before


def always(folder: Path, right: Callable[[dict[str, Any]], bool]) -> Path:
    def judge(line: dict[str, Any]) -> None:
        line["strict"] = line["flexible"] = {"answer": "1", "correct": right(line)}

    return change(folder, judge)


def marks(summary: Summary) -> dict[str, list[str]]:
    """Of the strict table: the text of every entry without its figures, bold ones in stars."""
    table = accuracy_table(summary, summary.groups[0], "strict")
    found = {}
    for name, *entries in table.rows:
        texts = [re.sub(r"[\d.±]", "", entry.text) for entry in entries]
        both = zip(texts, entries, strict=True)
        found[f"{name.text} {name.below}".strip()] = [f"**{t}**" if e.bold else t for t, e in both]
    return found


def test_only_significant_winners_are_bold(tmp_path: Path) -> None:
    """Top-nσ beats Min-k at T = 10 alone; the others are as good as Min-k, or a little better."""
    write_run(tmp_path, tasks=("gsm8k",), **SMALL)

    def right(r: dict[str, Any]) -> bool:
        if r["sampler"] == SIGMA and r["temperature"] == 10:
            return True
        lucky = r["sampler"] == LAST and r["question_id"] in ("20", "21")
        return int(r["question_id"]) < 15 or lucky

    summary = summary_of(always(tmp_path, right))
    assert marks(summary) == {
        "min-k:tau=3": ["", ""],
        SIGMA: ["", "**▲**"],
        "top-p:p=0.9 T first": ["", ""],
        "top-p:p=0.9 T last": ["", ""],
    }
    text = "\n".join(sentence for sentences in findings(summary).values() for sentence in sentences)
    assert "of 6 comparisons with min-k:tau=3 at the same temperature, the other method" in text
    assert "significantly better in 1 and significantly worse in 0; in 5 no difference was found" in text
    assert "better than min-k:tau=3: top-n-sigma:n=1 at T = 10 (+50.0 points). Worse: none." in text


def test_min_k_is_bold_where_it_beats_all(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), **SMALL)

    def right(r: dict[str, Any]) -> bool:
        as_good = r["sampler"] == LAST and r["temperature"] == 10
        return r["sampler"].startswith("min-k") or as_good or int(r["question_id"]) < 10

    assert marks(summary_of(always(tmp_path, right))) == {
        "min-k:tau=3": ["****", ""],
        SIGMA: ["▼", "▼"],
        "top-p:p=0.9 T first": ["▼", "▼"],
        "top-p:p=0.9 T last": ["▼", ""],
    }


def test_more_comparisons_ask_for_more_evidence(tmp_path: Path) -> None:
    """Six questions won and none lost is p = 2 / 2^6 = 0.031: significant alone, not among four."""

    def right(r: dict[str, Any]) -> bool:
        return r["sampler"] == SIGMA and r["temperature"] == 1 and int(r["question_id"]) < 6

    alone = write_run(tmp_path / "a", tasks=("gsm8k",), samplers=("min-k:tau=3", SIGMA), temperatures=(1.0,))
    four = write_run(
        tmp_path / "b", tasks=("gsm8k",), samplers=("min-k:tau=3", SIGMA, LAST), temperatures=(1.0, 10.0)
    )
    assert marks(summary_of(always(alone, right)))[SIGMA] == ["**▲**"]
    assert marks(summary_of(always(four, right)))[SIGMA] == ["", ""]


def test_guessing_and_truncation_are_told(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("aqua",), n_questions=50, **SMALL)

    def guess(r: dict[str, Any]) -> None:
        right = int(r["question_id"]) % 5 == 0
        r["strict"] = r["flexible"] = {"answer": "A", "correct": right}
        r["finish_reason"] = "length" if r["sampler"] == FIRST else "stop"

    text = "\n".join(findings(summary_of(change(tmp_path, guess)))["aqua with tiny-model"])
    assert "guessing gets 20.0%; the intervals of 8 of 8 cells include that, and 0 lie below it" in text
    assert "counted as wrong, mean over the cells: 25.0%" in text
    assert "top-p:p=0.9, T first at T = 1, 100.0%" in text


def test_a_run_that_goes_on_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=10, **SMALL)
    change(tmp_path, lambda r: r["sampler"] != LAST or r["temperature"] == 1 or int(r["question_id"]) < 4)
    summary = summary_of(tmp_path)
    assert marks(summary)["top-p:p=0.9 T last"] == ["", "*"]
    comparison = summary.groups[0].comparisons["strict"][LAST, 10.0]
    assert comparison.paired.n_questions == 4
    assert "Not complete yet: top-p:p=0.9, T last at T = 10." in findings(summary)["gsm8k with tiny-model"][0]


def test_without_repeats_there_is_no_diversity(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=5, repeats=1, **SMALL)
    assert "--repeats 2" in findings(summary_of(tmp_path))["gsm8k with tiny-model"][-1]
    invoke(tmp_path)
    assert not list((tmp_path / "report").glob("*diversity*"))
    assert rows(tmp_path)[0]["distinct"] == rows(tmp_path)[0]["spread"] == ""


@pytest.mark.parametrize(
    ("samplers", "edit"),
    [
        (("min-k:tau=3",), {"k": []}),
        (("$\\frac{:p=_1",), {"temperature": 0}),
        (("min-k:tau=3", "greedy"), {"response": "", "finish_reason": "overflow"}),
    ],
)
def test_the_least_that_a_run_can_be(tmp_path: Path, samplers: tuple[str, ...], edit: dict[str, Any]) -> None:
    """One question, one temperature, no candidates, nothing to compare with, a name that is no sampler's."""
    write_run(tmp_path, tasks=("gsm8k",), samplers=samplers, temperatures=(1.0,), n_questions=1)
    result = invoke(change(tmp_path, lambda r: r.update(edit)))
    assert result.exit_code == 0
    assert samplers[0] in result.output
    assert rows(tmp_path)[0]["sampler"] == samplers[0]


def test_against_whom(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=5, repeats=1, **SMALL)
    run = read_run(tmp_path)
    assert summarise(run).baseline == "min-k:tau=3"
    assert summarise(run, SIGMA).baseline == SIGMA
    assert summarise(run, SIGMA).groups[0].methods[0].sampler == SIGMA
    with pytest.raises(ReportError, match="eta is not in this run: its samplers are min-k:tau=3, top-p"):
        summarise(run, "eta")
    without = summary_of(change(tmp_path, lambda r: not r["sampler"].startswith("min-k")))
    assert without.baseline is None
    assert "no Min-k" in findings(without)["The whole run"][0]
    change(tmp_path, lambda r: r.update(sampler="min-k:tau=0" if r["sampler"] == SIGMA else r["sampler"]))
    assert summary_of(tmp_path).baseline == "min-k:tau=0"


@pytest.mark.parametrize("n_questions", [10, 60])  # in this process, and in several
def test_stored_responses_are_judged_again(tmp_path: Path, n_questions: int) -> None:
    write_run(tmp_path, n_questions=n_questions, **SMALL)
    recorded = read_run(tmp_path)

    def misjudge(r: dict[str, Any]) -> None:
        if int(r["question_id"]) < 5:
            r["strict"] = {"answer": "nonsense", "correct": not r["strict"]["correct"]}

    changed = read_run(change(tmp_path, misjudge))
    assert changed.responses != recorded.responses
    assert rescore(changed).responses == recorded.responses


def test_judging_again_tells_and_changes_no_record(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=10, **SMALL)
    always(tmp_path, lambda r: r["question_id"] == "3")
    before = (tmp_path / "records.jsonl").read_bytes()
    again = invoke(tmp_path, "--rescore")
    differ = re.search(r"Judged again: (\d+) strict and (\d+) flexible of 160 verdicts differ", again.stderr)
    assert differ
    assert int(differ[1]) > 0
    assert (tmp_path / "records.jsonl").read_bytes() == before
    judged = summarise(rescore(read_run(tmp_path))).groups[0].cells[SIGMA, 1.0].accuracy["strict"].value
    [row] = [
        r for r in rows(tmp_path) if (r["sampler"], r["temperature"], r["scoring"]) == (SIGMA, "1", "strict")
    ]
    assert float(row["accuracy"]) == pytest.approx(judged)


def spoil(folder: Path, number: int, **changes: Any) -> None:
    lines = (folder / "records.jsonl").read_text().split("\n")
    line = json.loads(lines[number - 1]) | changes
    lines[number - 1] = json.dumps({name: value for name, value in line.items() if value is not ...})
    (folder / "records.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"k": ...}, 'no "k"'),
        ({"k": [1, -1]}, '"k" cannot be -1'),
        ({"k": [1, 2.5]}, '"k" cannot be 2.5'),
        ({"temperature": float("nan")}, '"temperature" cannot be NaN'),
        ({"temperature": "hot"}, '"temperature" cannot be "hot"'),
        ({"repeat": True}, '"repeat" cannot be true'),
        ({"repeat": 10**30}, '"repeat" cannot be 1000'),
        ({"strict": {"answer": None}}, 'no "correct"'),
        ({"strict": None}, '"strict" cannot be null'),
        ({"response": 7}, '"response" cannot be 7'),
        ({"model": "a\x1b[2Jb"}, '"model" cannot be "a\\u001b[2Jb"'),
        ({"question_id": "99"}, "question 99 of gsm8k is not in questions.jsonl"),
    ],
)
def test_a_bad_record_is_named_and_left_out(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=2, **SMALL)
    spoil(tmp_path, 3, **changes)
    run = read_run(tmp_path)
    assert len(run.responses) == len(records(tmp_path)) - 1
    assert len(run.problems) == 1
    assert run.problems[0].startswith(f"records.jsonl, line 3: {problem}")


def test_lines_that_are_no_records_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=2, **SMALL)
    path = tmp_path / "records.jsonl"
    whole = path.read_bytes()
    first = whole.split(b"\n")[0]
    bad = b"[" * 100_000 + b'\n\xff\xfe\n[]\n"text"\n\n' + first + b"\n" + first[:-30]
    path.write_bytes(whole + bad)
    (tmp_path / "notes.jsonl").write_text('{"note": "no records here"}\n')
    n = whole.count(b"\n")
    assert read_run(tmp_path).problems == [
        f"records.jsonl, line {n + 1}: not JSON",
        f"records.jsonl, line {n + 2}: not JSON",
        f"records.jsonl, line {n + 3}: not a JSON object",
        f"records.jsonl, line {n + 4}: not a JSON object",
        f"records.jsonl, line {n + 6}: its response was there already",
        f"records.jsonl, line {n + 7}: cut short",
    ]
    result = invoke(tmp_path)
    assert f"6 lines left out: records.jsonl, line {n + 1}: not JSON; " in result.stderr
    assert "and 1 more." in result.stderr
    assert "6 lines left out" in (tmp_path / "report" / "report.html").read_text()


def test_records_may_lie_in_several_files(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("gsm8k",), n_questions=2, **SMALL)
    lines = (tmp_path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_bytes(b"".join(lines[:5]))
    (tmp_path / "worker-2.jsonl").write_bytes(b"".join(lines[5:]))
    assert len(read_run(tmp_path).responses) == len(lines)


def fail(
    arguments: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """The exit status and what is on standard error, as a user of the program has them."""
    monkeypatch.setattr("sys.argv", ["mink-eval", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_program(report, "mink-eval")
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_what_is_no_run_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, said = fail([tmp_path / "nothing"], capsys, monkeypatch)
    assert (status, said.count("\n")) == (2, 1)
    assert "nothing" in said
    status, said = fail([tmp_path], capsys, monkeypatch)
    assert (status, said.count("\n")) == (1, 1)
    assert "holds no questions.jsonl" in said
    write_run(tmp_path, n_questions=1, **SMALL)
    status, said = fail([tmp_path, "--against", "top-q"], capsys, monkeypatch)
    assert status == 2
    assert "unknown sampler 'top-q'" in said
    (tmp_path / "report").write_text("a file where the folder should be")
    status, said = fail([tmp_path], capsys, monkeypatch)
    assert (status, said.count("\n")) == (1, 1)
    assert f"cannot be written to {tmp_path / 'report'}" in said
    (tmp_path / "records.jsonl").write_text("")
    assert "holds no responses: run mink-eval run" in fail([tmp_path], capsys, monkeypatch)[1]
    (tmp_path / "records.jsonl").write_text('{"response": 1}')
    assert (
        'holds no responses (records.jsonl, line 1: no "model")' in fail([tmp_path], capsys, monkeypatch)[1]
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_narrow_terminal_gets_more_tables_and_every_number(width: int) -> None:
    columns = ["method", *(f"T = {t}" for t in range(1, 9))]
    row = [Entry("top-p:p=0.9", "T first"), *(Entry(f"{t}2.3±4.{t}▼", f"{t}0.1–{t}9.9") for t in range(1, 9))]
    console = Console(width=width, file=io.StringIO(), record=True)
    parts = list(Table("a title", columns, [row]).rich(width))
    for part in parts:
        console.print(part)
    printed = console.export_text()
    assert max(map(len, printed.split("\n"))) <= width
    for entry in row:
        assert entry.text in printed
        assert entry.below in printed
    assert printed.count("a title") == 1
    assert len(parts) == 1 + {40: 4, 80: 2, 200: 1}[width]


def test_markdown_shows_what_was_written() -> None:
    assert escape("a|b_c<i>*x*\n`y`[z]") == "a\\|b\\_c\\<i\\>\\*x\\* \\`y\\`\\[z\\]"
    table = Table("t", ["n", "v"], [[Entry("a|b"), Entry("1", "2", bold=True)]])
    assert table.markdown() == "| n | v |\n| --- | --: |\n| a\\|b | **1** (2) |"
