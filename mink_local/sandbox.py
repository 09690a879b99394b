"""Run a module of this package in a child process, with a limit of time and memory.

The parent keeps both limits by watching and killing the child, which works on every system, also while the
child is inside C code. Questions and answers are JSON, one value a line.
"""

import contextlib
import faulthandler
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from mink_local.errors import MinkError

GIB = 1 << 30

_INTERVAL = 0.05  # seconds between two looks at a child
_ORPHAN_SECONDS = 5  # how much longer than its limit a child works whose parent was killed
_ROOT = Path(__file__).parents[1]  # -m looks here first, so that no other package of the name is found
_OWN_SESSION: dict[str, Any] = {  # Ctrl-C in the terminal is not meant for the child
    "start_new_session": True,
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    | getattr(subprocess, "CREATE_NO_WINDOW", 0),
}


class SandboxError(Exception):
    """A child process did not answer; the text ends a sentence about the program in the child."""


class ChildTimeoutError(SandboxError):
    """A child process took too long."""


class ChildStartError(MinkError):
    """No child process can be started; that says nothing about what it was to be asked."""


class Server:
    """A child process that answers one question after the other.

    The child starts with the first question. After an error or an interrupt it is killed, and the next
    question starts another. Several threads may ask: one at a time is answered.

    `module` is the name of a module of this package, which calls `serve` and so gets `first`. `memory` limits
    the child's memory, in bytes, and `start_seconds` the time of its start.
    """

    def __init__(self, module: str, *, memory: int, first: Any = None, start_seconds: float = 120) -> None:
        self._module, self._memory, self._first = module, memory, first
        self._start_seconds = start_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def ask(self, question: Any, seconds: float) -> Any:
        """Return the child's answer; question and answer are JSON values.

        `seconds` limits the time, the start of the child not included. Raises SandboxError if there is no
        answer: the next question starts another child. Raises ChildStartError if the child does not start.
        """
        with self._lock:
            try:
                if self._child is None or self._child.poll() is not None:
                    self._begin()
                return self._exchange(question, seconds)
            except BaseException:  # an answer that nobody waited for would be taken for the next one
                self._discard()
                raise

    def close(self) -> None:
        """End the child process, if there is one; a question of another thread gets SandboxError."""
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            self._discard()

    def _discard(self) -> None:
        self._end()
        self._child = None

    def _begin(self) -> None:
        self._discard()
        if getattr(sys, "frozen", False):
            raise ChildStartError("a frozen program has no Python for child processes: load with trust=True")
        try:
            self._child = subprocess.Popen(
                [str(sys.executable), "-W", "ignore", "-m", self._module],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                **_OWN_SESSION,
            )
            self._end = weakref.finalize(self, _end, self._child)
            self._exchange(self._first, self._start_seconds)
        except (SandboxError, OSError) as error:
            raise ChildStartError(
                f"the child process {self._module} does not start, it {error}: "
                f"try  {sys.executable} -m {self._module}  to see why"
            ) from None

    def _exchange(self, question: Any, seconds: float) -> Any:
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        with _limits(child, seconds, self._memory):
            with contextlib.suppress(OSError):  # the child has ended: reading from it tells
                child.stdin.write(json.dumps([seconds, question]).encode() + b"\n")
                child.stdin.flush()
            line = child.stdout.readline()
            status = None if line.endswith(b"\n") else child.wait()
        if status is not None:
            raise SandboxError(f"crashed ({_cause(status)})")
        answer, failure = json.loads(line)
        if failure is not None:
            raise SandboxError(f"failed ({failure})")
        return answer


def ask(module: str, question: Any, *, seconds: float, memory: int) -> Any:
    """Return the answer of a child process that is started for this one question: see `Server.ask`."""
    with contextlib.closing(Server(module, memory=memory)) as server:
        return server.ask(question, seconds)


def serve(begin: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Answer the questions of a `Server`, in the child process.

    `begin` gets what `Server` was given as `first`, and returns the function that answers a question.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    answer: Callable[[Any], Any] | None = None
    for line in sys.stdin.buffer:
        seconds, question = json.loads(line)
        faulthandler.dump_traceback_later(seconds + _ORPHAN_SECONDS, exit=True)
        reply = failure = None
        try:
            if answer is None:
                answer = begin(question)
            else:
                reply = answer(question)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps([reply, failure]).encode() + b"\n")
        answers.flush()


@contextlib.contextmanager
def _limits(child: "subprocess.Popen[bytes]", seconds: float, memory: int) -> Iterator[None]:
    """Kill a child that takes too long or too much memory in this block; then raise SandboxError."""
    verdicts: list[SandboxError] = []
    done = threading.Event()

    def watch() -> None:
        end = time.monotonic() + seconds
        while not verdicts and not done.wait(_INTERVAL):
            if time.monotonic() > end:
                verdicts.append(ChildTimeoutError(f"timed out after {seconds:g} s"))
            elif _memory_of(child.pid) > memory:
                verdicts.append(SandboxError(f"took more than {memory / GIB:g} GiB of memory"))
        if verdicts:
            child.kill()

    thread = threading.Thread(target=watch, name="sandbox", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if verdicts:
        raise verdicts[0]


def _memory_of(pid: int) -> int:
    """Return the bytes that a process has in memory; on Windows also those that it has only reserved."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:  # it has ended
        return 0
    return int(max(memory.rss, getattr(memory, "private", 0)))


def _cause(status: int) -> str:
    """Return an exit status in words: the number of a signal on POSIX, an exception's code on Windows."""
    if status < 0:
        return f"signal {-status}"
    return f"status {status:#x}" if status > 255 else f"status {status}"


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    for stream in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):  # what is still to be flushed has no reader
            stream.close()  # type: ignore[union-attr]
    child.wait()
