"""Programs that write what must not be lost: what is killed, cramped, confused and doubled."""

import json
import os
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from mink_local.chat.store import ConversationStore, Outcome, SamplingInfo
from mink_local.evals.run.records import read_responses
from mink_local.models.catalog import resolve
from scripts.faults.kind import FaultError
from tests.support.hub import COMMIT, REPOSITORY, Hub, serve
from tests.support.tiny import write_model

ROOT = Path(__file__).parents[2]
SECONDS = 120.0  # of one run of a program
N_QUESTIONS, REPEATS, RESPONSES = 4, 4, 20  # with greedy: one more a question


class Subject(ABC):
    """One user's folder `home`, and a program that writes to it.

    Attributes:
        window: Seconds after the first record within which the program is killed.
    """

    window: ClassVar[float] = 0.5

    def __init__(self, shared: Path, home: Path) -> None:
        self.shared, self.home = shared, home
        self.env = {**os.environ, **{f"XDG_{kind}_HOME": str(home / kind) for kind in ("DATA", "CONFIG")}}
        self.env["PYTHONPATH"] = str(ROOT)
        self._n_started = 0

    @abstractmethod
    def prepare(self, rng: Random) -> None:
        """Write what is there before the program starts."""

    @abstractmethod
    def arguments(self) -> Sequence[object]:
        """Return Python's arguments for the program."""

    @abstractmethod
    def recorded(self) -> dict[str, str]:
        """Return what is in the folder by name; a later value begins with an earlier one."""

    @abstractmethod
    def complete(self) -> bool:
        """Return if all is there that the program was to write."""

    def start(self, logs: Path, **options: Any) -> "subprocess.Popen[bytes]":
        self._n_started += 1
        with (
            (logs / f"{self._n_started}.out").open("wb") as out,
            (logs / f"{self._n_started}.err").open("wb") as err,
        ):
            command = [sys.executable, *map(str, self.arguments())]
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                **{"env": self.env, **options},
            )

    def check_lost(self, before: dict[str, str]) -> None:
        """Raise FaultError unless all that was recorded is still there."""
        try:
            after = self.recorded()
        except (ValueError, sqlite3.Error) as error:
            raise FaultError("loss", f"unreadable: {error}") from error
        for name, value in before.items():
            if not after.get(name, "\0").startswith(value):
                raise FaultError("loss", f"{name}: {value[-200:]!r} became {after.get(name, '')[-200:]!r}")

    def finish(self, logs: Path) -> None:
        """Run the program to its end, which must do all that is left."""
        before = self.recorded()
        status = ended(self.start(logs), logs)
        if status or not self.complete():
            raise FaultError("loss", f"the next start ends with {status}: {last_error(logs)}")
        self.check_lost(before)


def ended(process: "subprocess.Popen[bytes]", logs: Path, allowed: Sequence[int] = (0, 1, 2)) -> int:
    """Return the exit status of a program that ends as it must: no traceback, and a sentence if it fails."""
    try:
        status = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise FaultError("hang", f"{process.args!r} took more than {SECONDS:g} s") from None
    errors = [path.read_text(errors="replace") for path in sorted(logs.glob("*.err"))]
    if status not in allowed or any("Traceback" in text for text in errors) or (status and not any(errors)):
        raise FaultError("death", f"exit status {status}:\n" + "\n".join(errors)[-3000:])
    return status


def last_error(logs: Path) -> str:
    newest = max(logs.glob("*.err"), key=lambda path: path.stat().st_mtime_ns)
    return newest.read_text(errors="replace")[-2000:]


def model(shared: Path) -> Path:
    path = shared / "tiny.gguf"
    return path if path.exists() else write_model(path, resolve("smollm2-135m").path)


class Evaluation(Subject):
    """`mink-eval run` of 20 responses of a tiny model."""

    def prepare(self, rng: Random) -> None:
        rows = [
            {"question": f"{rng.randrange(99)} + {i}?", "answer": f"#### {i}"} for i in range(N_QUESTIONS)
        ]
        (self.home / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def arguments(self) -> Sequence[object]:
        return [
            "-m", "mink_local.evals.cli", "run", "gsm8k", "--data", self.home / "questions.jsonl", "-n", 25,
            "-t", 5, "--repeats", REPEATS, "--parallel", 1, "--threads", 1, "--model", model(self.shared),
            "--out", self.home / "run",
        ]  # fmt: skip

    def recorded(self) -> dict[str, str]:
        records = self.home / "run" / "records.jsonl"
        text = records.read_text(encoding="utf-8") if records.exists() else ""
        lines = text.splitlines(keepends=True)
        return {line: "" for line in lines if line.endswith("\n")}

    def complete(self) -> bool:
        keys = [record.key for record in read_responses(self.home / "run")]
        return len(keys) == len(set(keys)) == RESPONSES


def said(path: Path) -> dict[str, str]:
    """Return the text of every message of a store, by its number; raise ValueError if the file is damaged."""
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path, timeout=30)) as db:
        if (verdict := db.execute("PRAGMA integrity_check").fetchone()) != ("ok",):
            raise ValueError(f"the store is damaged: {verdict}")
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'message'").fetchone():
            return {}
        db.execute("BEGIN")
        texts = {
            f"message {key}": text for key, text in db.execute("SELECT id, content FROM message ORDER BY id")
        }
        for key, text in db.execute("SELECT message, text FROM piece WHERE NOT thinking ORDER BY id"):
            texts[f"message {key}"] += text
        return texts


def fill(store: ConversationStore, rng: Random) -> None:
    """Begin a conversation of a few turns."""
    conversation = store.begin("tiny", None)
    parent = None
    for turn in range(rng.randrange(1, 4)):
        user = store.add(conversation, parent, "user", f"Question {turn}")
        parent = store.add(conversation, user, "assistant", how=SamplingInfo("tiny", "min-k:tau=3", 5.0, 7))
        store.append(parent, "An answer, " * rng.randrange(50))
        store.finish(parent, Outcome("stop"))


class Chat(Subject):
    """`mink-chat --continue --prompt`, which adds a turn to a conversation."""

    def __init__(self, shared: Path, home: Path) -> None:
        super().__init__(shared, home)
        self.store = home / "DATA" / "mink-local" / "conversations.db"

    def prepare(self, rng: Random) -> None:
        with closing(ConversationStore(self.store)) as store:
            fill(store, rng)

    def arguments(self) -> Sequence[object]:
        return [
            "-m", "mink_local.chat", "--continue", "--prompt", "Tell me more", "-t", 5, "-n", 80, "--seed", 1,
            "--threads", 1, "--model", model(self.shared),
        ]  # fmt: skip

    def recorded(self) -> dict[str, str]:
        return said(self.store)

    def complete(self) -> bool:
        with closing(ConversationStore(self.store)) as store:
            head = store.branch(store.latest().head)[-1]
        return head.role == "assistant" and head.outcome is not None


UPGRADE = """
import sys
from pathlib import Path
import mink_local.chat.lists
from mink_local.chat.cli import main
Path(sys.argv.pop()).touch()
main()
"""


class Upgrade(Subject):
    """A store of an earlier version, or none, that `mink-chat --list` opens."""

    window = 0.05

    def __init__(self, shared: Path, home: Path) -> None:
        super().__init__(shared, home)
        self.store = home / "DATA" / "mink-local" / "conversations.db"

    def prepare(self, rng: Random) -> None:
        if rng.random() < 0.2:
            return
        with closing(ConversationStore(self.store)) as store:
            fill(store, rng)
        with closing(sqlite3.connect(self.store, isolation_level=None)) as db:  # as before it had a version
            for statement in ("journal_mode = DELETE", "user_version = 0"):
                db.execute(f"PRAGMA {statement}")
            for index in ("message_parent", "piece_message"):
                db.execute(f"DROP INDEX {index}")

    def arguments(self) -> Sequence[object]:
        return ["-c", UPGRADE, "--list", self.home.parent / "ready"]

    def recorded(self) -> dict[str, str]:
        started = {"ready": ""} if (self.home.parent / "ready").exists() else {}
        return said(self.store) | started

    def complete(self) -> bool:
        with closing(sqlite3.connect(self.store)) as db:
            return bool(db.execute("PRAGMA user_version").fetchone()[0])


class Catalogue(Subject):
    """`mink-models add`, another name each time."""

    window = 0.1

    def prepare(self, rng: Random) -> None:
        (self.home / "a.gguf").touch()
        self.path = self.home / "CONFIG" / "mink-local" / "models.txt"
        self.path.parent.mkdir(parents=True)
        names = [
            f"name-{i} | file | {self.home / 'a.gguf'} | - | - | - | - | -\n"
            for i in range(rng.randrange(500))
        ]
        self.path.write_text("# the user's own\n" + "".join(names))

    def arguments(self) -> Sequence[object]:
        program = "from mink_local.models.cli import main; main()"
        return ["-c", program, "add", f"added-{self._n_started}", self.home / "a.gguf"]

    def recorded(self) -> dict[str, str]:
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        if not lines[-1].endswith("\n"):
            raise FaultError("loss", "half a line")
        return dict.fromkeys(lines, "")

    def complete(self) -> bool:
        return any(line.startswith(f"added-{self._n_started} |") for line in self.recorded())


CONTENT = Random(0).randbytes(20_000_000)


class Pull(Subject):
    """`mink-models pull` from a server on this machine."""

    window = 0.15

    def __init__(self, shared: Path, home: Path) -> None:
        super().__init__(shared, home)
        self.env |= {"HF_HUB_CACHE": str(home / "hub"), "HF_ENDPOINT": hub().url}
        self.folder = home / "hub" / ("models--" + REPOSITORY.replace("/", "--"))

    def prepare(self, rng: Random) -> None:
        pass

    def arguments(self) -> Sequence[object]:
        program = "from mink_local.models.cli import main; main()"
        return ["-c", program, "pull", f"hf:{REPOSITORY}:big.gguf"]

    def recorded(self) -> dict[str, str]:
        pointer = self.folder / "snapshots" / COMMIT / "big.gguf"
        if pointer.exists() and pointer.read_bytes() != CONTENT:
            raise FaultError("loss", "a file is in place and is not whole")
        parts = {path.name.removesuffix(".incomplete"): path for path in self.folder.glob("blobs/*")}
        return {name: path.read_bytes().decode("latin-1") for name, path in parts.items()}

    def complete(self) -> bool:
        return (self.folder / "snapshots" / COMMIT / "big.gguf").read_bytes() == CONTENT


_SERVING = ExitStack()


@cache
def hub() -> Hub:
    """Return this process's server, which serves until the process ends."""
    return _SERVING.enter_context(serve(Hub({"big.gguf": CONTENT})))


SUBJECTS: dict[str, type[Subject]] = {
    "evaluation": Evaluation,
    "chat": Chat,
    "pull": Pull,
    "upgrade": Upgrade,
    "catalogue": Catalogue,
}
