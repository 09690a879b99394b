"""Run a module of this package in a child process, with a limit of time and memory.

The parent keeps both limits: it watches the child's clock and resident memory and kills it, which works in
the same way on Linux, macOS and Windows, also while the child is inside C code.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

_INTERVAL = 0.05  # seconds between two looks at a child
_ROOT = Path(__file__).parents[1]  # -m looks here first, so that no other package of the name is found
_GIB = 1 << 30


class SandboxError(Exception):
    """A child process did not answer; the text ends a sentence whose subject is what the child was given."""


class ChildTimeoutError(SandboxError):
    """A child process took too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:.0f} s")


class ChildMemoryError(SandboxError):
    """A child process took too much memory."""

    def __init__(self, memory: int) -> None:
        super().__init__(f"took more than {memory / _GIB:.0f} GiB of memory")


class ChildCrashError(SandboxError):
    """A child process ended without an answer.

    Attributes:
        status: Its exit status; the negative number of the signal that ended it on POSIX.
        stderr: What it wrote to standard error.
    """

    def __init__(self, status: int, stderr: str = "") -> None:
        super().__init__(f"ended its process (status {status})")
        self.status = status
        self.stderr = stderr

    @property
    def crashed(self) -> bool:
        """Whether the operating system ended it: a signal, or a Windows exception code."""
        return self.status < 0 or self.status >= 0xC0000000


@dataclass(frozen=True)
class Finished:
    """What a child process left: its exit status and its output."""

    status: int
    stdout: bytes
    stderr: str


def run(module: str, *arguments: str, text: bytes = b"", seconds: float, memory: int) -> Finished:
    """Run `python -m module arguments` to its end, with `text` on its standard input.

    Args:
        module: Name of a module of this package.
        seconds: Limit of time.
        memory: Limit of resident memory, in bytes.

    Raises:
        ChildTimeoutError: It took longer than `seconds`.
        ChildMemoryError: It took more than `memory`.
    """
    child = _start(module, arguments, subprocess.PIPE)
    try:
        with _Watch(child, seconds, memory) as watch:
            stdout, stderr = child.communicate(text)
    finally:
        _end(child)
    if watch.verdict is not None:
        raise watch.verdict
    return Finished(child.returncode, stdout, stderr.decode("utf-8", "replace"))


class Server:
    """A child process that answers one question after the other, as `serve` does in the module it runs.

    The child starts with the first question. After an error or an interrupt it is killed, and the next
    question starts another. Several threads may ask: one at a time is answered.

    Args:
        module: Name of a module of this package, which calls `serve`.
        memory: Limit of the child's resident memory, in bytes.
        first: What every new child is told first; `serve` hands it to the module.
        start_seconds: What starting the child may take.
    """

    def __init__(self, module: str, *, memory: int, first: Any = None, start_seconds: float = 60) -> None:
        self._module, self._memory, self._first = module, memory, first
        self._start_seconds = start_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._finalizer: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def ask(self, question: Any, seconds: float) -> Any:
        """Return the child's answer; question and answer are JSON values.

        Args:
            question: What the child is asked.
            seconds: Limit of time for this answer, the start of the child not included.

        Raises:
            SandboxError: There is no answer; the next question starts another child.
        """
        with self._lock:
            if self._child is None:
                self._begin()
            return self._exchange(question, seconds)

    def close(self) -> None:
        """End the child process, if there is one."""
        self._finalizer()
        self._child = None

    def _begin(self) -> None:
        self._child = _start(self._module, (), subprocess.DEVNULL)
        self._finalizer = weakref.finalize(self, _end, self._child)
        self._exchange(self._first, self._start_seconds)

    def _exchange(self, question: Any, seconds: float) -> Any:
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with _Watch(child, seconds, self._memory) as watch:
                with contextlib.suppress(OSError):  # the child has ended: reading from it tells
                    child.stdin.write(json.dumps(question).encode() + b"\n")
                    child.stdin.flush()
                line = child.stdout.readline()
        except BaseException:  # an answer that nobody waited for would be taken for the next one
            self.close()
            raise
        if line.endswith(b"\n"):
            return json.loads(line)
        status = child.wait()
        self.close()
        raise watch.verdict or ChildCrashError(status)


def serve(begin: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Answer the questions of a `Server`, in the child process.

    Args:
        begin: Gets what `Server` was given as `first`; returns the function that answers a question.
    """
    replies = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no answer
    answer: Callable[[Any], Any] | None = None
    for line in sys.stdin.buffer:
        value = json.loads(line)
        if answer is None:
            answer, reply = begin(value), None
        else:
            reply = answer(value)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


class _Watch:
    """Kills a child that takes too long or too much memory, while it is entered; `verdict` says which."""

    def __init__(self, child: "subprocess.Popen[bytes]", seconds: float, memory: int) -> None:
        self.verdict: SandboxError | None = None
        self._child, self._seconds, self._memory = child, seconds, memory
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sandbox", daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        end = time.monotonic() + self._seconds
        while not self._done.wait(_INTERVAL):
            if time.monotonic() > end:
                self.verdict = ChildTimeoutError(self._seconds)
            elif _memory_of(self._child.pid) > self._memory:
                self.verdict = ChildMemoryError(self._memory)
            if self.verdict is not None:
                self._child.kill()
                return


def _memory_of(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:  # it has ended
        return 0


def _start(module: str, arguments: tuple[str, ...], stderr: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        # Ctrl-C in the terminal is not meant for the child.
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    for stream in _streams(child):
        with contextlib.suppress(OSError):
            stream.close()
    child.wait()


def _streams(child: "subprocess.Popen[bytes]") -> Iterator[Any]:
    return (stream for stream in (child.stdin, child.stdout, child.stderr) if stream is not None)
