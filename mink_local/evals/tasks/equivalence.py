"""Whether two mathematical expressions are the same, by math-verify in a child process.

A few characters (9^9^9^9) send SymPy into a computation without end, and math-verify's own time limit
works in the main thread only and stops no C code. So one child, `verifier`, does the comparisons, under a
limit of memory and, for each of them, an alarm by which the kernel ends it;
the next comparison starts another.
"""

import atexit
import importlib.util
import json
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from mink_local.errors import MathVerifyError
from mink_local.evals.tasks.verifier import READY, TRUE

SECONDS = 5  # for one comparison, a whole number
_LONGEST = 2000  # characters; no answer is that long


def require() -> None:
    """Raise MathVerifyError where math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise MathVerifyError(
            "math500 needs math-verify to compare answers, which is not installed: "
            'type  python -m pip install "mink-local[eval]"'
        )


@lru_cache(maxsize=100_000)
def equivalent(gold: str, answer: str) -> bool:
    """Whether `answer` (LaTeX, without $) means the same as `gold`. From any thread.

    An answer that takes the child longer than SECONDS, or too much memory, is not the same.
    Raises MathVerifyError.
    """
    if len(answer) > _LONGEST:
        return False
    require()
    with _lock:
        return _ask(gold, answer)


_lock = threading.Lock()
_child: subprocess.Popen[bytes] | None = None


def _ask(gold: str, answer: str) -> bool:
    child = _running_child()
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(json.dumps([gold, answer, SECONDS]).encode() + b"\n")
        child.stdin.flush()
        reply = child.stdout.readline()
    except BaseException:  # Ctrl-C: a reply that comes now would be taken for the next one's
        stop()
        raise
    if not reply:  # the alarm, or the memory limit
        stop()
    return reply == TRUE


def _running_child() -> subprocess.Popen[bytes]:
    global _child
    if _child is not None and _child.poll() is None:
        return _child
    stop()
    _child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "mink_local.evals.tasks.verifier"],
        cwd=Path(__file__).parents[3],  # -m looks there first: nothing else is to be found
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the parent
    )
    assert _child.stdout is not None
    if _child.stdout.readline() != READY:
        stop()
        raise MathVerifyError(
            "math-verify is installed and does not start: try  python -c 'import math_verify'  to see why"
        )
    return _child


@atexit.register
def stop() -> None:
    """End the child, if there is one."""
    global _child
    if _child is not None:
        _child.kill()
        _child.communicate()
        _child = None
