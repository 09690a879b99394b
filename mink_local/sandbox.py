"""Runs a module of this package in a child process with limits on time and memory.

The parent watches the child and kills it at a limit, which works on every OS, even while the child is inside
C code. Questions and answers are lines of JSON.
"""

import contextlib
import faulthandler
import json
import os
import re
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

_LONGEST_COMPLAINT = 300  # characters; a complaint may quote a whole schema, grammar or conversation
_INTERVAL = 0.05  # seconds between checks of a child
_ORPHAN_SECONDS = 5  # how long a child outlives its time limit if its parent was killed
# Runs a module of this package, not of another one of that name. Unlike -m, it does not look for the standard
# library beside the package: site-packages may have old backports of modules such as pathlib.
_PROGRAM = """
import runpy, sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

root, module = sys.argv[1:]
sys.path.append(root)
spec = PathFinder.find_spec("mink_local", [root])
sys.modules["mink_local"] = package = module_from_spec(spec)
spec.loader.exec_module(package)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_ROOT = Path(__file__).parents[1]
_INHERITED = re.compile(  # variables a child needs; others may hold secrets such as API keys
    r"PATH|HOME|USERPROFILE|(LOCAL)?APPDATA|SYSTEM(ROOT|DRIVE)|TEMP|TMP|TMPDIR|LANG|LC_\w+|"
    r"(LD|DYLD|PYTHON|NUMBA|OMP|GGML|LLAMA_CPP|LLAMA_GRAPH|CUDA|HIP|ROCR|VK)\w*"
)
_OWN_SESSION: dict[str, Any] = {  # so that Ctrl-C in the terminal does not reach the child
    "start_new_session": True,
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    | getattr(subprocess, "CREATE_NO_WINDOW", 0),
}


def in_a_line(complaint: str) -> str:
    """Shorten a complaint about someone's text to one short line."""
    line = " ".join(complaint.split())
    return line if len(line) <= _LONGEST_COMPLAINT else f"{line[:_LONGEST_COMPLAINT]}…"


class SandboxError(Exception):
    """A child process did not answer; the text is a predicate, such as "crashed (signal 6)"."""


class ChildStartError(MinkError):
    """Child processes cannot be started, whatever the question."""


class Child:
    """A child process that answers questions, one at a time, from any thread: the parent's side of it.

    The child starts with the first question. After an error or an interrupt it is killed, and the
    next question starts a new one.

    Args:
        module: Name of a module of this package that calls `serve`.
        memory: Memory limit of the child in bytes.
        first: Passed to the function that `serve` is given.
        start_seconds: Time limit for starting the child.
    """

    def __init__(self, module: str, *, memory: int, first: Any = None, start_seconds: float = 120) -> None:
        self._first = first
        self._module, self._memory, self._start_seconds = module, memory, start_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def ask(self, question: Any, seconds: float) -> Any:
        """Return the child's answer; question and answer are JSON values.

        Args:
            seconds: Time limit, not counting the child's start.

        Raises:
            SandboxError: The child did not answer. The next question starts a new one.
            ChildStartError: The child does not start.
        """
        with self._lock:
            try:
                self._begin()
                return self._exchange(question, seconds)
            except BaseException:  # a late answer would be taken for the next question's
                self._discard()
                raise

    def close(self) -> None:
        """End the child process, if any; a question pending in another thread raises SandboxError."""
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            self._discard()

    def _discard(self) -> None:
        self._end()
        self._child = None

    def _start(self) -> None:
        self._discard()
        if getattr(sys, "frozen", False):
            raise ChildStartError("a frozen program cannot start child processes: load with trust=True")
        inherited = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
        try:
            self._child = subprocess.Popen(
                [str(sys.executable), "-P", "-W", "ignore", "-c", _PROGRAM, str(_ROOT), self._module],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=inherited | {"GGML_NO_BACKTRACE": "1"},  # a crash in llama.cpp starts no debugger
                **_OWN_SESSION,
            )
        except OSError as error:
            raise self._start_error(error) from None
        self._end = weakref.finalize(self, _end, self._child)

    def _begin(self) -> None:
        """Make sure that a child is running and has received `first`."""
        if self._child is None or self._child.poll() is not None:
            self._start()
            try:
                self._exchange(self._first, self._start_seconds)
            except SandboxError as error:
                raise self._start_error(error) from None

    def _start_error(self, error: Exception) -> ChildStartError:
        return ChildStartError(
            f"child process {self._module} does not start ({error}): "
            f"run  {sys.executable} -m {self._module}  to see why"
        )

    def _exchange(self, question: Any, seconds: float) -> Any:
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        with _limits(child, seconds, self._memory):
            with contextlib.suppress(OSError):  # the child has ended: readline shows it
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
    """Ask a single question in a new child process and return the answer; see `Child.ask`."""
    with contextlib.closing(Child(module, memory=memory)) as child:
        return child.ask(question, seconds)


def serve(begin: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Answer the questions of a `Child`; called in the child process.

    Args:
        begin: Takes the `first` of `Child`; returns a function that answers a question.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps library output out of the answers
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
    """Kill a child that exceeds a limit within this block, then raise SandboxError."""
    verdicts: list[SandboxError] = []
    done = threading.Event()

    def watch() -> None:
        end = time.monotonic() + seconds
        while not verdicts and not done.wait(_INTERVAL):
            if time.monotonic() > end:
                verdicts.append(SandboxError(f"timed out after {seconds:g} s"))
            elif _memory_of(child.pid) > memory:
                verdicts.append(SandboxError(f"used more than {memory / GIB:g} GiB of memory"))
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
    """Return a process's resident bytes; on Windows, including those only reserved."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:  # it has ended
        return 0
    return int(max(memory.rss, getattr(memory, "private", 0)))


def _cause(status: int) -> str:
    """Return an exit status as text."""
    return f"signal {-status}" if status < 0 else f"status {status}"


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    with contextlib.suppress(OSError), child:  # unflushed data has no reader left
        pass  # its end closes the pipes and waits
