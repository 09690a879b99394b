"""kill -9 at any moment loses nothing that was recorded, and the same command finishes the work.

Killed chats are in tests/chat.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.effort import FACTOR
from tests.support.hub import COMMIT, REPOSITORY, Hub, serve

pytestmark = [pytest.mark.slow, pytest.mark.posix]

KILLS = 3 * FACTOR
START_SECONDS, RUN_SECONDS = 60, 120
N_QUESTIONS, REPEATS = 4, 4
DOWNLOAD = b"GGUF" + random.Random(0).randbytes(20_000_000)


@dataclass
class Victim:
    """A program whose records must not be lost.

    Attributes:
        arguments: Of Python.
        recorded: Returns what is on the disk, by name. A later value begins with an earlier one.
        is_complete: Whether the program has done all its work.
        window: Seconds after the first record within which the program is killed.
    """

    arguments: Sequence[object]
    recorded: Callable[[], dict[str, str]]
    is_complete: Callable[[], bool]
    window: float

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, *map(str, self.arguments)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def kill(self, rng: random.Random) -> dict[str, str]:
        """Start the program, kill it soon after its next record, and return what it had recorded by then."""
        before, end = self.recorded(), time.monotonic() + START_SECONDS
        process = self.start()
        while process.poll() is None and self.recorded() == before and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, self.window))
        recorded = self.recorded()
        process.kill()
        process.communicate()
        return recorded

    def lost(self, before: dict[str, str]) -> dict[str, str]:
        """Return what was recorded before and is missing now."""
        now = self.recorded()
        return {name: value for name, value in before.items() if not now.get(name, "\0").startswith(value)}


def evaluation(home: Path, model: Path) -> Victim:
    """`mink-eval run`, all questions greedily and with repeats."""
    questions, records = home / "questions.jsonl", home / "run" / "records.jsonl"
    rows = [{"question": f"{i} + {i}?", "answer": f"#### {2 * i}"} for i in range(N_QUESTIONS)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        "-m", "mink_local.evals.cli", "run", "gsm8k", "--data", questions, "--max-tokens", 25, "--temp", 5,
        "--repeats", REPEATS, "--parallel", 1, "--threads", 1, "--model", model, "--out", home / "run",
    ]  # fmt: skip

    def recorded() -> dict[str, str]:
        lines = records.read_text().splitlines(keepends=True) if records.exists() else []
        return {line: "" for line in lines if line.endswith("\n")}

    def is_complete() -> bool:
        names = ("question_id", "sampler", "temperature", "repeat")
        keys = [tuple(json.loads(line)[name] for name in names) for line in recorded()]
        return len(keys) == len(set(keys)) == N_QUESTIONS * (1 + REPEATS)

    return Victim(arguments, recorded, is_complete, window=0.5)


def download(home: Path, _: Path) -> Victim:
    """`mink-models pull` from a server on this machine."""
    folder = home / "hub" / ("models--" + REPOSITORY.replace("/", "--"))
    pointer = folder / "snapshots" / COMMIT / "big.gguf"

    def recorded() -> dict[str, str]:
        assert not pointer.exists() or pointer.read_bytes() == DOWNLOAD
        parts = {path.name.removesuffix(".incomplete"): path for path in folder.glob("blobs/*")}
        return {name: path.read_bytes().decode("latin-1") for name, path in parts.items()}

    program = "from mink_local.models.cli import main; main()"
    arguments = ["-c", program, "pull", f"hf:{REPOSITORY}:big.gguf"]
    return Victim(arguments, recorded, pointer.exists, window=0.15)


@pytest.fixture
def hub(user_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(Hub({"big.gguf": DOWNLOAD})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(user_folders / "hub"))
        yield hub


@pytest.mark.parametrize("victim", [evaluation, download])
@pytest.mark.usefixtures("hub", "own_files")
def test_a_killed_program_loses_nothing(
    victim: Callable[[Path, Path], Victim], user_folders: Path, tiny_path: Path
) -> None:
    killed = victim(user_folders, tiny_path)
    seed = random.randrange(2**32) if FACTOR > 1 else 0
    for number in range(KILLS):
        before = killed.kill(random.Random(seed + number))
        assert killed.lost(before) == {}, f"seed {seed + number}"
    finished = killed.start()
    _, errors = finished.communicate(timeout=RUN_SECONDS)
    assert finished.returncode == 0, errors.decode()
    assert killed.is_complete()
    assert killed.lost(before) == {}
