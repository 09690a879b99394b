"""A module for `sandbox.Server` that does what it is asked, however bad."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mink_local.sandbox import serve


def begin(first: Any) -> Callable[[Any], Any]:
    if first == "fail":
        raise ValueError("no beginning")
    if first == "sleep":
        time.sleep(60)

    def answer(question: Any) -> Any:
        action, argument = question
        return ACTIONS[action](argument) if action != "first" else first

    return answer


def loop(_: object) -> None:
    while True:
        pass


def loop_in_c(_: object) -> None:
    9**9**9**9  # holds the interpreter's lock


def take_memory(n_bytes: int) -> None:
    taken = []
    while True:
        taken.append(b"x" * (n_bytes // 100))
        time.sleep(0.001)


def close_stdout(_: object) -> None:
    os.closerange(1, 64)
    loop(_)


def write_to_stdout(text: str) -> str:
    print(text)
    sys.stdout.flush()
    os.write(1, text.encode())
    return text


def begin_and_sleep(path: str) -> None:
    Path(path).touch()
    time.sleep(60)


def fail(text: str) -> None:
    raise RuntimeError(text)


ACTIONS: dict[str, Callable[[Any], Any]] = {
    "echo": lambda value: value,
    "pid": lambda _: os.getpid(),
    "sleep": time.sleep,
    "loop": loop,
    "loop in C": loop_in_c,
    "memory": take_memory,
    "abort": lambda _: os.abort(),
    "exit": os._exit,
    "close": close_stdout,
    "print": write_to_stdout,
    "begin": begin_and_sleep,
    "fail": fail,
    "variable": os.environ.get,
}

if __name__ == "__main__":
    serve(begin)
