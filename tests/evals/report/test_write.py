"""`mink-eval report`: its files, its output and its errors."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mink_local.evals.cli import cli, main
from mink_local.evals.report.recorded_run import read_run
from tests.support.made_run import change, judge, records, write_run

MIN_K, SIGMA = "min-k:tau=3", "top-n-sigma:n=1"
SMALL: dict[str, Any] = {
    "tasks": ("gsm8k",),
    "samplers": (MIN_K, SIGMA),
    "temperatures": (1.0,),
    "n_questions": 5,
    "repeats": 1,
}


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)], catch_exceptions=False)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "report" / "table.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_a_run_has_one_report_with_every_file(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL | {"repeats": 2, "temperatures": (1.0, 5.0)})
    out = tmp_path / "report"
    out.mkdir()
    for stale in ("1-attempts.svg", "ablations.csv", "notes.txt"):
        (out / stale).write_text("of an earlier report, or the user's")
    printed = invoke(tmp_path).output
    pictures = ["1-accuracy.svg", "1-diversity.svg", "1-k.svg"]
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(files) == {
        *("report.html", "report.md", "report.json", "notes.txt"),
        *("table.csv", "comparisons.csv", "repeats.csv", *pictures),
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
        assert line["accuracy"][0] == pytest.approx(float(row["accuracy"]), abs=1e-5)
        assert float(row["accuracy_low"]) <= float(row["accuracy"]) <= float(row["accuracy_high"])
        assert row["scoring"] == "strict" or accuracy in printed
    order = (
        *("(1-accuracy.svg)", "5 questions, 2 responses", "flexible accuracy, %", "tokens per correct"),
        *("accuracy of 2", "self-BLEU", "(1-diversity.svg)", "steps with one candidate", "(1-k.svg)"),
        "## How to read this",
    )
    places = [markdown.index(part) for part in order]  # a picture after its table, and the first one first
    assert places == sorted(places)
    page = re.sub(r'src="[^"]+"', "", files["report.html"].decode())
    assert page.index("Accuracy against temperature") < page.index("5 questions") < page.index("<table")
    invoke(tmp_path)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


@pytest.mark.parametrize(
    ("samplers", "edit"),
    [
        ((MIN_K,), {"k": []}),
        (("$\\frac{:p=_1",), {"temperature": 0}),
        ((MIN_K, "greedy"), {"response": "", "finish_reason": "overflow"}),
        ((MIN_K,), {"k": [], "strict": None, "flexible": None}),
    ],
)
def test_the_least_that_a_run_can_be(tmp_path: Path, samplers: tuple[str, ...], edit: dict[str, Any]) -> None:
    """One question, one temperature, no candidates, nothing to compare with, a name that is no sampler's."""
    write_run(tmp_path, **SMALL | {"samplers": samplers, "n_questions": 1})
    result = invoke(change(tmp_path, lambda r: r.update(edit)))
    assert result.exit_code == 0
    assert samplers[0] in result.output
    assert rows(tmp_path)[0]["sampler"] == samplers[0]


def test_verdicts_are_judged_again_and_those_that_differ_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL)
    assert "recorded verdicts" not in invoke(tmp_path).stderr
    recorded = {r.key: bool(r.strict and r.strict.correct) for r in read_run(tmp_path).responses}
    judge(tmp_path, lambda r: r["question_id"] == "3")
    before = (tmp_path / "records.jsonl").read_bytes()
    again = invoke(tmp_path)
    differ = re.search(r"(\d+) flexible and (\d+) strict of 10 recorded verdicts differ", again.stderr)
    assert differ
    assert int(differ[1]) > 0
    assert differ[0] in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "records.jsonl").read_bytes() == before
    [row] = [r for r in rows(tmp_path) if (r["sampler"], r["scoring"]) == (SIGMA, "strict")]
    right = [correct for key, correct in recorded.items() if key.sampler == SIGMA]
    assert float(row["accuracy"]) == pytest.approx(sum(right) / len(right))


def test_lines_left_out_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL)
    with (tmp_path / "records.jsonl").open("a") as stream:
        stream.write("[]\n" * 6)
    n = len(records(tmp_path)) - 6
    result = invoke(tmp_path, "--against", "top-n-sigma")
    assert f"against {SIGMA}" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert f"records.jsonl, line {n + 1}: " in result.stderr
    assert f"line {n + 6}" not in result.stderr  # the first five are enough
    assert f"records.jsonl, line {n + 1}: " in (tmp_path / "report" / "report.html").read_text(
        encoding="utf-8"
    )


def test_wrong_use_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(status: int, *arguments: object) -> str:
        """Run the program, which must end with this status and one line; return the line."""
        monkeypatch.setattr("sys.argv", ["mink-eval", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == status
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    write_run(tmp_path / "run", **SMALL)
    for status, named, arguments in (
        (2, "nothing", (tmp_path / "nothing",)),
        (1, str(tmp_path), (tmp_path,)),
        (2, "top-q", (tmp_path / "run", "--against", "top-q")),
        (2, "hot", (tmp_path / "run", "--against", "temp=hot")),
        (1, "tiny-model", (tmp_path / "run", "--against", "model=q4")),
        (1, SIGMA, (tmp_path / "run", "--against", "top-p")),
    ):
        assert named in fail(status, *arguments)
    out = tmp_path / "run" / "report"
    out.write_text("a file where the folder should be", encoding="utf-8")
    assert str(out) in fail(1, tmp_path / "run")
    out.unlink()
    (out / "report.md").mkdir(parents=True)
    assert str(out) in fail(1, tmp_path / "run")
    (tmp_path / "run" / "records.jsonl").write_text(json.dumps({"response": 1}) + "\n", encoding="utf-8")
    assert "records.jsonl, line 1" in fail(1, tmp_path / "run")


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL)
    program = "import sys; sys.modules['statsmodels'] = None; from mink_local.evals.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "report", tmp_path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "mink-local[eval]" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_open_ended_responses_have_no_accuracy(tmp_path: Path) -> None:
    """Beside a task with verdicts, and alone."""
    write_run(tmp_path, **SMALL | {"tasks": ("gsm8k", "essay")})
    shown = invoke(tmp_path).output
    assert re.search("gsm8k .* flexible accuracy", shown)
    assert re.search("essay .* mean tokens", shown)
    assert not re.search("essay .* accuracy", shown)
    assert {row["scoring"] for row in rows(tmp_path) if row["task"] == "essay"} == {""}
    assert {row["accuracy"] for row in rows(tmp_path) if row["task"] == "essay"} == {""}
    for against in ("min-k", "temp=1", "model=tiny-model"):
        alone = change(tmp_path, lambda record: record["task"] == "essay")
        shown = invoke(alone, "--against", against).output
        assert "accuracy, %" not in shown
        assert "Open-ended" in shown
