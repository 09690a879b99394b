"""Compares mathematical expressions with math-verify, in a child process that runs this module too.

A few characters (9^9^9^9) can send SymPy into an endless computation, and math-verify's own time limit works
only in the main thread and cannot stop C code.
"""

import importlib.util
from collections.abc import Callable
from functools import lru_cache

from mink_local.errors import DataError
from mink_local.sandbox import GIB, SandboxError, Server, serve

SECONDS = 5  # per comparison
_LONGEST = 2000  # characters; no real answer is that long

_verifier = Server("mink_local.evals.tasks.equivalence", memory=2 * GIB)


@lru_cache(maxsize=100_000)
def equivalent(gold: str, answer: str) -> bool:
    """Return whether `answer` (LaTeX, without $) is equivalent to `gold`; thread-safe.

    False if math-verify takes longer than SECONDS, or too much memory. Raises DataError if math-verify is not
    installed, and ChildStartError if its process does not start.
    """
    if len(answer) > _LONGEST:
        return False
    if importlib.util.find_spec("math_verify") is None:
        raise DataError(
            "comparing answers needs math-verify, which is not installed: "
            'type  python -m pip install "mink-local[eval]"'
        )
    try:
        return bool(_verifier.ask([gold, answer], SECONDS))
    except SandboxError:
        return False


def _begin(_: object) -> Callable[[tuple[str, str]], bool]:
    """Return the function with which the child answers."""
    import math_verify

    def verify(expressions: tuple[str, str]) -> bool:
        gold, answer = (math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in expressions)
        return bool(math_verify.verify(gold, answer, timeout_seconds=None))

    return verify


if __name__ == "__main__":
    serve(_begin)
