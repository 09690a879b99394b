"""`mink-eval run` with a real model: what is asked for is recorded once, however the run is stopped."""

import json
import random
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
import pytest

from mink_local.evals.cli import main
from mink_local.evals.run.grid import seed_of
from mink_local.evals.run.records import RECORDS, read_responses
from mink_local.samplers.compile import CACHE

MINK_EVAL = [sys.executable, "-m", "mink_local.evals.cli"]
GRID = ["--sampler", "min-k", "--sampler", "top-p", "--temp", "1", "--temp", "5", "--max-tokens", "24"]


def ask(*arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`mink-eval run` on gsm8k in a process of its own."""
    return subprocess.run(
        [*MINK_EVAL, "run", "gsm8k", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=120, **options,
    )  # fmt: skip


class Run(NamedTuple):
    status: object
    stdout: str
    stderr: str


@pytest.fixture
def mink_eval(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """mink-eval as its program runs it, in this process."""

    def run(*arguments: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["mink-eval", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return Run(exit_.value.code, *capsys.readouterr())

    return run


@pytest.fixture(autouse=True)
def compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test has a cache of its own for models, the kernels need not be compiled anew."""
    if CACHE is not None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(CACHE))


@pytest.fixture
def questions(tmp_path: Path) -> list[object]:
    """Options for 12 questions, and one response at a time."""
    data = tmp_path / "gsm8k.jsonl"
    rows = [{"question": f"What is {i} + {i}?", "answer": f"It is\n#### {2 * i}"} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--data", data, "--parallel", 1]


@pytest.fixture
def here(questions: list[object], tiny: Callable[..., Path]) -> list[object]:
    """The same with a small model."""
    return [*questions, "--model", tiny(), "--threads", 1]


def responses(folder: Path) -> dict[object, tuple[object, ...]]:
    """What does not depend on the clock, by key; fails where a key is there twice."""
    records = list(read_responses(folder))
    lines = (folder / RECORDS).read_bytes().splitlines()
    assert len(records) == len(lines)
    return {record.key: (record.response, record.k, record.seed, record.finish_reason) for record in records}


def test_killed_runs_lose_and_repeat_nothing(
    tmp_path: Path, questions: list[object], mink_eval: Callable[..., Run]
) -> None:
    """With the embedded model: that of one layer does not show it when a response depends on what was in the
    KV cache before."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = ["run", "gsm8k", *questions, "-s", "min-k", "-s", "top-p", "-t", 5, "-n", 20]
    assert mink_eval(*command, "--out", whole).status == 0
    assert len(responses(whole)) == 24
    chance = random.Random(1)
    for last in (0, 3, 8, 9, 17):
        process = subprocess.Popen(
            [*MINK_EVAL, *map(str, command), "--out", str(killed)], stderr=subprocess.DEVNULL
        )
        while process.poll() is None and count_lines(killed) < last:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.3) if last else 0.5)
        assert process.poll() is None, "it ended before it was killed"
        process.kill()
        process.wait()
    assert 17 <= count_lines(killed) < 24
    done = mink_eval(*command, "--out", killed)
    assert done.status == 0, done.stderr
    assert responses(killed) == responses(whole)
    again = mink_eval(*command, "--out", killed)
    assert "All 24 responses are in" in again.stdout
    assert "tokens/s" not in again.stdout  # nothing was generated


def count_lines(folder: Path) -> int:
    path = folder / RECORDS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_what_is_added_is_all_that_runs(
    tmp_path: Path, here: list[object], mink_eval: Callable[..., Run]
) -> None:
    out = tmp_path / "run"
    base = ["--max-tokens", 4, "--out", out]
    steps: list[tuple[list[object], int]] = [
        (["--limit", 2], 2),
        (["--limit", 5], 3),
        (["--limit", 2, "--sampler", "min-k", "--sampler", "min-k:tau=3", "--sampler", "greedy"], 2),
        (["--limit", 2, "--temp", 1, "--temp", 5, "--temp", 5.0, "--temp", 0], 2),
        (["--limit", 2, "--temp", 2, "--repeats", 3], 6),
    ]
    for options, new in steps:
        result = mink_eval("run", "gsm8k", *here, *base, *options)
        assert result.status == 0, result.stderr
        assert f"{new} responses of" in result.stdout
    records = list(read_responses(out))
    assert Counter((r.sampler, r.temperature, r.repeat) for r in records) == {
        ("min-k:tau=3", 1.0, 0): 5, ("greedy", 0.0, 0): 2, ("min-k:tau=3", 5.0, 0): 2,
        ("min-k:tau=3", 2.0, 0): 2, ("min-k:tau=3", 2.0, 1): 2, ("min-k:tau=3", 2.0, 2): 2,
    }  # fmt: skip
    seeds = {(r.question_id, r.repeat, r.seed) for r in records}
    assert len(seeds) == len({(r.question_id, r.repeat) for r in records})  # one for all methods
    assert len(seeds) == len({r.seed for r in records})


def test_records_say_all(tmp_path: Path, here: list[object], mink_eval: Callable[..., Run]) -> None:
    assert (
        mink_eval(
            "run",
            "gsm8k",
            *here,
            "-n",
            4,
            "--limit",
            1,
            "-s",
            "top-p:order=temperature-last",
            "-o",
            tmp_path / "run",
        ).status
        == 0
    )
    (record,) = read_responses(tmp_path / "run")
    assert (record.model, record.task, record.question_id) == ("tiny", "gsm8k", "0")
    assert record.sampler == "top-p:p=0.9,order=temperature-last"
    assert record.order == "temperature-last"
    assert record.seed == seed_of(0, "gsm8k", "0", 0)
    assert (record.n_tokens, record.finish_reason, len(record.k)) == (4, "length", 4)
    assert record.prompt_tokens > 20
    assert not record.strict.correct
    assert not record.flexible.correct


def test_the_report_reads_the_run(tmp_path: Path, here: list[object], mink_eval: Callable[..., Run]) -> None:
    assert mink_eval("run", "gsm8k", *here, *GRID, "-s", "greedy", "-o", tmp_path / "run").status == 0
    report = mink_eval("report", tmp_path / "run")
    assert report.status == 0, report.stderr
    assert "gsm8k with tiny" in report.stdout
    assert "12 questions, 1 response each, 3 methods" in report.stdout
    assert (tmp_path / "run" / "report" / "report.html").exists()
    assert (
        "All 60 responses"
        in mink_eval("run", "gsm8k", *here, *GRID, "-s", "greedy", "-o", tmp_path / "run").stdout
    )


def test_a_prompt_that_does_not_fit_is_recorded_and_the_run_goes_on(
    tmp_path: Path, tiny: Callable[..., Path], mink_eval: Callable[..., Run]
) -> None:
    data = tmp_path / "gsm8k.jsonl"
    rows = [{"question": "word " * n, "answer": "#### 1"} for n in (5, 600, 6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = mink_eval(
        "run",
        "gsm8k",
        "--model",
        tiny(),
        "--data",
        data,
        "-n",
        8,
        "--ctx",
        256,
        "-o",
        tmp_path / "run",
        "--parallel",
        2,
    )
    assert result.status == 0, result.stderr
    assert "1 prompts did not fit the context" in result.stdout
    by_id = {record.question_id: record for record in read_responses(tmp_path / "run")}
    assert [by_id[i].finish_reason for i in "012"] == ["length", "overflow", "length"]
    assert (by_id["1"].response, by_id["1"].n_tokens) == ("", 0)


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, here: list[object]) -> None:
    out = tmp_path / "run"
    arguments = ["run", "gsm8k", *map(str, here), "--repeats", "40", "-n", "48", "-o", str(out)]
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


def test_a_log_is_plain_lines(tmp_path: Path, here: list[object], mink_eval: Callable[..., Run]) -> None:
    loud = mink_eval("run", "gsm8k", *here, "-n", 2, "-o", tmp_path / "run")
    assert "gsm8k, tiny: 12 of 12 responses (100%), strict 0.0%" in loud.stderr
    assert re.search(r"^min-k:tau=3 +1 12 +0.0%", loud.stdout, re.M)
    assert f"Next: mink-eval report {tmp_path / 'run'}" in loud.stdout
    assert "\x1b" not in loud.stdout + loud.stderr
    assert mink_eval("run", "gsm8k", *here, "-n", 2, "-o", tmp_path / "other", "--quiet").stderr == ""


def test_a_full_disk_stops_the_run_and_a_later_one_goes_on(
    tmp_path: Path, here: list[object], mink_eval: Callable[..., Run]
) -> None:
    command = [*here, *GRID, "--out", tmp_path / "run"]
    mink_eval("run", "gsm8k", *command, "--limit", 1)  # so that what is kept elsewhere is there

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))

    full = ask(*command, preexec_fn=small_disk)
    assert full.returncode == 1
    assert re.search(r"mink-eval: .*records.jsonl cannot be written: File too large\. What", full.stderr)
    assert "Traceback" not in full.stderr
    assert 4 < len(responses(tmp_path / "run")) < 48
    assert mink_eval("run", "gsm8k", *command).status == 0
    assert mink_eval("run", "gsm8k", *here, *GRID, "--out", tmp_path / "whole").status == 0
    assert responses(tmp_path / "run") == responses(tmp_path / "whole")


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["run", "gsm9k"], 2, "unknown task 'gsm9k'"),
        (["run"], 2, "Missing argument"),
        (["run", "gsm8k", "--sampler", "max-k"], 2, "unknown sampler 'max-k': the samplers are min-k"),
        (["run", "gsm8k", "--model", "parrot"], 2, "unknown model 'parrot'"),
        (["run", "gsm8k", "--temp", "nan"], 2, "nan is not a finite number"),
        (["run", "gsm8k", "--temp", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["run", "gsm8k", "--limit", "0"], 2, "0 is not in the range x>=1"),
        (["run", "gsm8k", "--parallel", "0"], 2, "'0' is neither auto nor a number from 1"),
        (["run", "gsm8k", "--parallel", "many"], 2, "'many' is neither auto nor a number from 1"),
        (["run", "gsm8k", "--data", "no/such"], 1, "there is no file no/such"),
        (["run", "gsm8k", "aqua", "--data", __file__], 2, "does not say of which task: write TASK="),
        (["run", "gsm8k", "--data", f"aqua={__file__}"], 2, "is for a task that is not run"),
        (["run", "gsm8k", "--data", __file__, "--data", __file__], 2, "--data is given twice for gsm8k"),
        (["run", "gsm8k", "--workers", "2"], 2, "are Ray's: give --executor ray too"),
        (["run", "gsm8k", "--data", __file__], 1, f"{__file__}, line 1"),
        (["run", "sample-math", "--out", __file__], 1, "cannot be written: File exists"),
        (["run", "sample-math", "--model", __file__], 1, "is not a GGUF file"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    arguments: list[str],
    status: int,
    complaint: str,
    mink_eval: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = mink_eval(*arguments)
    assert (result.status, result.stdout) == (status, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("mink-eval: ")
    assert complaint in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_models_of_one_name_are_refused(
    tmp_path: Path, tiny: Callable[..., Path], mink_eval: Callable[..., Run]
) -> None:
    (tmp_path / "other").mkdir()
    one, two = tiny(), tiny("other/tiny.gguf")
    result = mink_eval("run", "gsm8k", "--model", one, "--model", two)
    assert result.status == 2
    assert "have the same name: rename one" in result.stderr
