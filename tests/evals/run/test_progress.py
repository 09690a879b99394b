"""What one sees of a run: bars in a terminal, lines in a log, a summary."""

import io
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, Group

from mink_local.evals.run.progress import Progress, summary
from mink_local.evals.run.records import Response, read_responses
from mink_local.evals.tasks.base import Verdict
from tests.support.mink_eval import MINK_EVAL, MinkEval, count_lines, responses
from tests.support.records import RESPONSE


@pytest.mark.terminal
def test_ctrl_c_says_how_to_go_on(tmp_path: Path, here: list[object]) -> None:
    out = tmp_path / "run"
    arguments = ["run", "gsm8k", *map(str, here), "--repeats", "40", "-n", "48", "-o", str(out)]
    pexpect = pytest.importorskip("pexpect")
    terminal = pexpect.spawn(
        MINK_EVAL[0], [*MINK_EVAL[1:], *arguments], dimensions=(24, 80), encoding="utf-8", timeout=60
    )
    terminal.expect(r"[1-9]\d* of 492")
    terminal.sendintr()
    terminal.expect(r"(\d+) of 492 responses are in")
    assert terminal.match is not None
    recorded = int(terminal.match[1])
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    assert recorded == len(responses(out)) > 0
    assert all(record.finish_reason != "interrupted" for record in read_responses(out))


@pytest.mark.posix
def test_a_run_that_is_terminated_keeps_its_records(tmp_path: Path, here: list[object]) -> None:
    out = tmp_path / "run"
    command = [*MINK_EVAL, "run", "gsm8k", *map(str, here), "--repeats", "40", "-n", "48", "-o", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not count_lines(out):
        time.sleep(0.01)
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"{len(responses(out))} of 492 responses are in {out}; the same command" in output
    assert "Traceback" not in errors


def test_a_log_is_plain_lines(tmp_path: Path, here: list[object], mink_eval: MinkEval) -> None:
    loud = mink_eval("run", "gsm8k", *here, "-n", 2, "-o", tmp_path / "run")
    assert "gsm8k, tiny: 24 of 24 responses (100%), first 12 questions: strict 0.0% flex" in loud.stderr
    assert re.search(r"^greedy +0 +12 +0.0%", loud.stdout, re.M)
    assert re.search(r"^min-k:tau=3 +1 +12 +0.0%", loud.stdout, re.M)
    assert f"Next: mink-eval report {tmp_path / 'run'}" in loud.stdout
    assert "\x1b" not in loud.stdout + loud.stderr
    assert mink_eval("run", "gsm8k", *here, "-n", 2, "-o", tmp_path / "other", "--quiet").stderr == ""


KEYS = [
    RESPONSE.key._replace(question_id=question, sampler=sampler)
    for question in "0123"
    for sampler in ("greedy", "min-k:tau=3")
]


def answered(question: str, sampler: str, correct: bool = False) -> Response:
    return replace(RESPONSE, question_id=question, sampler=sampler, flexible=Verdict("1", correct))


def test_accuracy_is_that_of_the_first_questions_which_are_complete() -> None:
    """Short answers come first, and are right more often: they do not count before those they overtook."""
    progress = Progress(KEYS)
    (task,) = progress.tasks.values()
    for question, sampler, correct, counted in [
        ("1", "greedy", True, 0),
        ("1", "min-k:tau=3", True, 0),
        ("0", "min-k:tau=3", True, 0),
        ("0", "greedy", False, 2),
        ("3", "greedy", True, 2),
    ]:
        progress.add(answered(question, sampler, correct), new=False)
        assert (task.questions, progress.total.questions) == (counted, counted)
    assert (task.done, task.counted, task.shares[1]) == (5, 4, "75.0%")
    text = rendered(summary(progress))
    assert "gsm8k · tiny (shares of the first 2 questions)" in text
    assert re.search(r"^greedy +5 +3/4 +0\.0% +50\.0%", text, re.M)
    for question, sampler in [("3", "min-k:tau=3"), ("2", "greedy"), ("2", "min-k:tau=3")]:
        progress.add(answered(question, sampler), new=False)
    assert (task.counted, task.shares[1]) == (8, "50.0%")
    assert "shares of" not in rendered(summary(progress))


def test_open_ended_responses_have_no_accuracy() -> None:
    progress = Progress(KEYS)
    for key in KEYS:
        response = replace(answered(key.question_id, key.sampler), strict=None, flexible=None)
        progress.add(response, new=False)
    assert progress.total.shares == ("–", "–", "–", "0.0%")


def test_a_summary_longer_than_the_terminal_has_a_line_for_every_task() -> None:
    temperatures = [key._replace(temperature=float(t)) for key in KEYS for t in range(10)]
    progress = Progress([*temperatures, *(key._replace(task="aqua") for key in temperatures)])
    assert len(rendered(summary(progress)).splitlines()) == 44
    assert len(rendered(summary(progress, height=44)).splitlines()) == 44
    folded = rendered(summary(progress, height=43)).splitlines()
    assert folded[0].split() == ["task", "·", "model", "n", "strict", "flexible", "no", "answer", "truncated"]
    assert [line.split()[:4] for line in folded[1:]] == [
        ["gsm8k", "·", "tiny", "0/80"],
        ["aqua", "·", "tiny", "0/80"],
    ]


def test_a_narrow_terminal_has_every_number() -> None:
    samplers = ("llama-default:k=40,p=0.95,min_p=0.05", "top-p:p=0.9,order=temperature-first")
    keys = [
        KEYS[0]._replace(sampler=s, temperature=10.0, question_id=str(q))
        for s in samplers
        for q in range(100)
    ]
    lines = rendered(summary(Progress(keys))).splitlines()
    assert [line.split()[-6:-4] for line in lines[2:]] == [["10", "0/100"]] * 2


def rendered(summary: Group) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(summary)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
