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
from mink_local.evals.report.summary import SCORINGS
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
    write_run(tmp_path, **SMALL | {"repeats": 2})
    out = tmp_path / "report"
    printed = invoke(tmp_path).output
    names = [f"{name}-{s}" for name in ("accuracy", "attempts", "diversity") for s in SCORINGS]
    pictures = [f"1-{name}.svg" for name in (*names, "k")]
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(files) == {"report.html", "report.md", "table.csv", "repeats.csv", *pictures}
    markdown = files["report.md"].decode()
    for name in pictures:
        assert b"<svg" in files[name]
        assert f"]({name})" in markdown
    assert str(out / "report.html") in printed.replace("\n", "")
    for row in rows(tmp_path):
        accuracy = f"{100 * float(row['accuracy']):.1f}±"
        assert accuracy in printed
        assert accuracy in markdown
    order = (
        *("strict accuracy, %", "flexible accuracy, %", "(1-accuracy-flexible.svg)", "tokens per correct"),
        *("strict accuracy of 2", "(1-attempts-strict.svg)", "EAD, %", "(1-diversity-strict.svg)"),
        *("steps with one candidate", "(1-k.svg)", "## How to read this"),
    )
    places = [markdown.index(part) for part in order]  # a picture after its table
    assert places == sorted(places)
    invoke(tmp_path)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


@pytest.mark.parametrize("tasks", [("gsm8k",), ("gsm8k", "aqua")])
@pytest.mark.parametrize("first", SCORINGS)
def test_a_report_opens_with_the_picture_then_words_then_the_table(
    tmp_path: Path, tasks: tuple[str, ...], first: str
) -> None:
    write_run(tmp_path, **SMALL | {"tasks": tasks, "n_questions": 10})
    silent = {"response": "The correct option is B. Result: 2"} if first == "flexible" else {}
    invoke(change(tmp_path, lambda r: r.update(silent)))
    out = tmp_path / "report"
    markdown = (out / "report.md").read_text(encoding="utf-8")
    page = re.sub(r'src="[^"]+"', "", (out / "report.html").read_text(encoding="utf-8"))
    picture = f"{first.capitalize()} accuracy against temperature, {min(tasks)} with tiny-model"
    for text in (markdown, page[page.index("<main>") :]):
        places = [text.index(part) for part in (picture, "10 questions, 1 response", f"{first} accuracy, %")]
        assert places == sorted(places)
        assert text.count(picture) == (1 if text is markdown else 2)
        assert text.index("What this run shows") < places[0]
        assert not re.search(r"<table|^\|", text[: places[1]], re.MULTILINE)


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
    differ = re.search(r"(\d+) strict and (\d+) flexible of 10 recorded verdicts differ", again.stderr)
    assert differ
    assert int(differ[1]) > 0
    assert differ[0] in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "records.jsonl").read_bytes() == before
    [row] = [r for r in rows(tmp_path) if (r["sampler"], r["scoring"]) == (SIGMA, "strict")]
    right = [correct for key, correct in recorded.items() if key.sampler == SIGMA]
    assert float(row["accuracy"]) == pytest.approx(sum(right) / len(right))


def test_a_task_that_this_version_does_not_have_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL)
    for path in (tmp_path / "records.jsonl", tmp_path / "questions.jsonl"):
        path.write_text(path.read_text(encoding="utf-8").replace('"gsm8k"', '"gsm9k"'), encoding="utf-8")
    said = invoke(tmp_path).stderr
    assert "This version does not have the task gsm9k: the recorded verdicts are shown." in said


def test_lines_left_out_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL)
    with (tmp_path / "records.jsonl").open("a") as stream:
        stream.write("[]\n" * 6)
    n = len(records(tmp_path)) - 6
    result = invoke(tmp_path, "--against", "top-n-sigma")
    assert {row["against"] for row in rows(tmp_path)} == {SIGMA, ""}
    invoke(tmp_path, "--against", "temp=1.0")
    assert {row["against"] for row in rows(tmp_path)} == {""}
    assert f"6 lines left out: records.jsonl, line {n + 1}: not a JSON object; " in result.stderr
    assert "and 1 more." in result.stderr
    assert "6 lines left out" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


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

    assert "nothing" in fail(2, tmp_path / "nothing")
    assert "holds no questions.jsonl" in fail(1, tmp_path)
    write_run(tmp_path, **SMALL)
    assert "unknown sampler 'top-q'" in fail(2, tmp_path, "--against", "top-q")
    assert "'hot' is not a valid float" in fail(2, tmp_path, "--against", "temp=hot")
    assert "model=q4 is not in this run" in fail(1, tmp_path, "--against", "model=q4")
    assert "top-p:p=0.9,order=temperature-last is not in this run" in fail(
        1, tmp_path, "--against", "top-p:p=0.9,order=temperature-last"
    )
    (tmp_path / "report").write_text("a file where the folder should be", encoding="utf-8")
    assert f"cannot be written to {tmp_path / 'report'}" in fail(1, tmp_path)
    (tmp_path / "report").unlink()
    (tmp_path / "report" / "report.md").mkdir(parents=True)
    assert f"cannot be written to {tmp_path / 'report'}" in fail(1, tmp_path)
    (tmp_path / "records.jsonl").write_text(json.dumps({"response": 1}) + "\n", encoding="utf-8")
    assert 'holds no responses that can be used: records.jsonl, line 1: no "model"' in fail(1, tmp_path)


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, **SMALL)
    program = "import sys; sys.modules['statsmodels'] = None; from mink_local.evals.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "report", tmp_path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr == (
        'mink-eval: this needs statsmodels: type  python -m pip install "mink-local[eval]"\n'
    )


@pytest.mark.slow
def test_open_ended_responses_have_no_accuracy(tmp_path: Path) -> None:
    """Beside a task with verdicts, and alone."""
    write_run(tmp_path, **SMALL | {"tasks": ("gsm8k", "essay")})
    shown = invoke(tmp_path).output
    assert "gsm8k · tiny-model · strict accuracy, %" in shown
    assert "does not have the task" not in shown
    assert "essay · tiny-model · mean tokens; cut off" in shown
    assert "essay · tiny-model · strict accuracy, %" not in shown
    assert "essay with tiny-model: 5 questions, 1 response each" in shown.replace("\n", " ")
    assert {row["scoring"] for row in rows(tmp_path) if row["task"] == "essay"} == {""}
    assert {row["accuracy"] for row in rows(tmp_path) if row["task"] == "essay"} == {""}
    assert (tmp_path / "report" / "1-k.svg").exists()
    assert not (tmp_path / "report" / "1-accuracy-strict.svg").exists()  # tasks are sorted: essay is 1
    for against in ("min-k", "temp=1", "model=tiny-model"):
        alone = change(tmp_path, lambda record: record["task"] == "essay")
        shown = invoke(alone, "--against", against).output
        assert "accuracy, %" not in shown
        assert "Open-ended: its responses have no verdicts, and there is no accuracy." in shown.replace(
            "\n", " "
        )
