"""What one sees of a run: bars in a terminal, lines in a log, a summary."""

import re
import subprocess
import time
from pathlib import Path

import pytest

from mink_local.evals.run.records import read_responses
from tests.support.mink_eval import MINK_EVAL, MinkEval, count_lines, responses


@pytest.mark.terminal
def test_ctrl_c_says_how_to_go_on(tmp_path: Path, here: list[object]) -> None:
    out = tmp_path / "run"
    arguments = ["run", "gsm8k", *map(str, here), "--repeats", "40", "-n", "48", "-o", str(out)]
    pexpect = pytest.importorskip("pexpect")
    terminal = pexpect.spawn(
        MINK_EVAL[0], [*MINK_EVAL[1:], *arguments], dimensions=(24, 80), encoding="utf-8", timeout=60
    )
    terminal.expect(r"[1-9]\d* of 480")
    terminal.sendintr()
    terminal.expect(r"(\d+) of 480 responses are in")
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
    assert f"{len(responses(out))} of 480 responses are in {out}; the same command" in output
    assert "Traceback" not in errors


def test_a_log_is_plain_lines(tmp_path: Path, here: list[object], mink_eval: MinkEval) -> None:
    loud = mink_eval("run", "gsm8k", *here, "-n", 2, "-o", tmp_path / "run")
    assert "gsm8k, tiny: 12 of 12 responses (100%), strict 0.0%" in loud.stderr
    assert re.search(r"^min-k:tau=3 +1 +12 +0.0%", loud.stdout, re.M)
    assert f"Next: mink-eval report {tmp_path / 'run'}" in loud.stdout
    assert "\x1b" not in loud.stdout + loud.stderr
    assert mink_eval("run", "gsm8k", *here, "-n", 2, "-o", tmp_path / "other", "--quiet").stderr == ""
