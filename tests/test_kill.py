"""kill -9 at any moment loses nothing that was recorded, and the same command finishes the work.

Killed chats are in tests/chat; a killed download leaves what a broken connection leaves.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.effort import FACTOR

KILLS = 3 * FACTOR
START_SECONDS, RUN_SECONDS = 60, 120
N_QUESTIONS, REPEATS = 4, 4


@pytest.fixture
def start(tiny_path: Path, tmp_path: Path) -> Callable[[], "subprocess.Popen[bytes]"]:
    """Starts `mink-eval run`, all questions greedily and with repeats."""
    questions = tmp_path / "questions.jsonl"
    rows = [{"question": f"{i} + {i}?", "answer": f"#### {2 * i}"} for i in range(N_QUESTIONS)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable, "-m", "mink_local.evals.cli", "run", "gsm8k", "--data", questions, "--temp", 5,
        "--max-tokens", 25, "--repeats", REPEATS, "--parallel", 1, "--threads", 1, "--model", tiny_path,
        "--out", tmp_path / "run",
    ]  # fmt: skip
    words = [*map(str, command)]

    def begun() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    return begun


def recorded(folder: Path) -> set[str]:
    """Return the whole lines of the records."""
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return {line for line in lines if line.endswith("\n")}


@pytest.mark.slow
@pytest.mark.usefixtures("own_files")
def test_a_killed_run_loses_nothing(start: Callable[[], "subprocess.Popen[bytes]"], tmp_path: Path) -> None:
    seed = random.randrange(2**32) if FACTOR > 1 else 0
    kept: set[str] = set()
    for number in range(KILLS):
        process, end = start(), time.monotonic() + START_SECONDS
        while process.poll() is None and recorded(tmp_path / "run") == kept and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(random.Random(seed + number).uniform(0, 0.5))  # after its first record
        before = recorded(tmp_path / "run")
        process.kill()
        process.communicate()
        assert kept <= before <= recorded(tmp_path / "run"), f"seed {seed + number}"
        kept = before
    finished = start()
    _, errors = finished.communicate(timeout=RUN_SECONDS)
    assert finished.returncode == 0, errors.decode()
    lines = recorded(tmp_path / "run")
    assert kept <= lines
    names = ("question_id", "sampler", "temperature", "repeat")
    keys = {tuple(json.loads(line)[name] for name in names) for line in lines}
    assert len(keys) == len(lines) == N_QUESTIONS * (1 + REPEATS)
