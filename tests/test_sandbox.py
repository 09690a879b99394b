"""The child process: limits of time and memory, crashes, interrupts, threads, and what is left behind."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from mink_local import sandbox
from mink_local.sandbox import (
    Child,
    ChildStartError,
    SandboxError,
    ask,
)
from tests.support.http import until

CHILD = "tests.support.child"
MEMORY = 300 << 20


@pytest.fixture
def server() -> Iterator[Child]:
    with contextlib.closing(Child(CHILD, memory=MEMORY, first={"told": "first"})) as server:
        yield server


def pid(server: Child) -> int:
    return int(server.ask(["pid", None], 10))


def gone(pid: int, seconds: float = 10) -> bool:
    """Wait for the end of a process, and return whether it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        psutil.Process(pid).wait(seconds)
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "日本語 \ud800 \n\r",
        [1, {"a": 2.5}],
        {"x": None},
        pytest.param("é" * 3_000_000, id="megabytes"),
    ],
)
def test_questions_and_answers_are_json(server: Child, value: Any) -> None:
    assert server.ask(["echo", value], 30) == value
    assert server.ask(["first", None], 10) == {"told": "first"}


@pytest.mark.parametrize(
    ("question", "seconds", "cause"),
    [
        (["sleep", 60], 0.3, r"0\.3 s"),
        (["loop", None], 0.3, r"0\.3 s"),
        (["loop in C", None], 0.3, r"0\.3 s"),
        (["close", None], 0.3, r"0\.3 s"),
        (["memory", MEMORY], 60, r"0\.29\d* GiB"),
        (["fail", "too bad"], 10, "RuntimeError: too bad"),
        (["exit", 0], 10, "status 0"),
        (["exit", 3], 10, "status 3"),
        pytest.param(["abort", None], 10, "signal 6", marks=pytest.mark.posix),
    ],
)
def test_one_child_answers_until_a_question_fails(
    server: Child, question: Any, seconds: float, cause: str
) -> None:
    first = pid(server)
    assert pid(server) == first
    begin = time.monotonic()
    with pytest.raises(SandboxError, match=cause):
        server.ask(question, seconds)
    assert time.monotonic() - begin < seconds + 30  # and not as long as the child sleeps
    assert gone(first)
    assert pid(server) not in (first, os.getpid())


def test_a_child_that_cannot_begin() -> None:
    for _ in range(2):
        with pytest.raises(ChildStartError, match="ValueError: no beginning"):
            Child(CHILD, memory=MEMORY, first="fail").ask(["echo", 1], 10)
    with pytest.raises(ChildStartError, match="-m no_such_module "):
        ask("no_such_module", 1, seconds=10, memory=MEMORY)
    with pytest.raises(ChildStartError, match=r"0\.1 s"):
        Child(CHILD, memory=MEMORY, first="sleep", start_seconds=0.1).ask(["echo", 1], 10)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        *(("executable", value, CHILD) for value in ("", "/no/such/python", None)),
        ("frozen", True, "trust=True"),
    ],
)
def test_without_a_python_there_is_no_child(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, named: str
) -> None:
    monkeypatch.setattr(sys, name, value, raising=False)
    with pytest.raises(ChildStartError, match=named):
        ask(CHILD, 1, seconds=10, memory=MEMORY)


@pytest.mark.posix
def test_backports_beside_the_package_are_not_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like `pathlib`, which pip still installs into site-packages."""
    for folder in ("mink_local", "tests"):
        (tmp_path / folder).symlink_to(sandbox._ROOT / folder)
    for name in ("pathlib", "json", "typing", "runpy"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a backport')")
    monkeypatch.setattr(sandbox, "_ROOT", tmp_path)
    assert ask(CHILD, ["first", None], seconds=10, memory=MEMORY) is None


def test_what_is_printed_is_no_answer(server: Child) -> None:
    for text in ("hello\n", "[1, null]\n", "x" * 100_000):
        assert server.ask(["print", text], 10) == text
    assert server.ask(["echo", 1], 10) == 1


def test_secrets_in_the_environment_are_not_inherited(server: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert server.ask(["variable", "OPENAI_API_KEY"], 10) is None
    assert server.ask(["variable", "PATH"], 10) == os.environ["PATH"]


def ask_until(server: Child, begun: Path, act: Callable[[], object]) -> None:
    """Ask a question that takes a minute, act once the child works on it, and expect a crash."""

    def wait_and_act() -> None:
        until(begun.exists)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    with pytest.raises(SandboxError, match=r"^crashed"):
        server.ask(["begin", str(begun)], 60)
    thread.join()


def test_a_child_that_was_killed_is_replaced(server: Child, tmp_path: Path) -> None:
    child = psutil.Process(pid(server))
    child.kill()
    assert gone(child.pid)
    assert server.ask(["echo", "x" * 1_000_000], 10) == "x" * 1_000_000
    ask_until(server, tmp_path / "begun", psutil.Process(pid(server)).kill)
    assert server.ask(["echo", 1], 10) == 1


def test_threads_get_their_own_answers(server: Child) -> None:
    """Even if the child crashes on others."""

    def answer(i: int) -> object:
        try:
            return server.ask(["exit", 1] if i % 50 == 7 else ["echo", i], 30)
        except SandboxError:
            return "crash"

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, range(200))) == ["crash" if i % 50 == 7 else i for i in range(200)]


def test_closing_ends_a_question_of_another_thread(server: Child, tmp_path: Path) -> None:
    child = pid(server)
    ask_until(server, tmp_path / "begun", server.close)
    assert gone(child)
    assert server.ask(["echo", 1], 10) == 1


@pytest.mark.posix
@pytest.mark.parametrize("begun", [True, False])
def test_ctrl_c_leaves_no_answer_for_the_next_question(server: Child, begun: bool) -> None:
    first = pid(server) if begun else None
    interrupt = [threading.get_ident(), signal.SIGINT]
    timer = threading.Timer(0.3 if begun else 0.01, signal.pthread_kill, interrupt)

    def ask_interrupted() -> None:
        timer.start()
        server.ask(["sleep", 30], 60)

    with pytest.raises(KeyboardInterrupt):
        ask_interrupted()
    assert server.ask(["echo", "mine"], 10) == "mine"
    assert first is None or gone(first)


def test_a_server_that_nobody_holds_leaves_no_child() -> None:
    server = Child(CHILD, memory=MEMORY)
    child = pid(server)
    del server
    gc.collect()
    assert gone(child)
    child = ask(CHILD, ["pid", None], seconds=10, memory=MEMORY)
    assert gone(child)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "action", ["echo", pytest.param("loop", marks=SLOW), pytest.param("loop in C", marks=SLOW)]
)
def test_a_child_does_not_outlive_its_parent(action: str) -> None:
    code = f"""
import threading
from mink_local import sandbox
server = sandbox.Child({CHILD!r}, memory={MEMORY})
print(server.ask(["pid", None], 10), flush=True)
threading.Thread(target=server.ask, args=([{action!r}, None], 1)).start()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code + "import time; time.sleep(60)"], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.2)
        parent.kill()
    assert gone(child, 20)


@pytest.mark.posix
def test_ctrl_c_in_the_terminal_does_not_reach_the_child(server: Child) -> None:
    assert os.getpgid(pid(server)) != os.getpgid(0)
