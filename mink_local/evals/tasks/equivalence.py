"""Compare two mathematical expressions by math-verify, in a child process, which runs this module, too.

A few characters (9^9^9^9) send SymPy into a computation without end, and math-verify's own time limit works
in the main thread only and stops no C code.
"""

import importlib.util
from collections.abc import Callable
from functools import lru_cache

from mink_local.errors import DataError
from mink_local.sandbox import GIB, SandboxError, Server, serve

SECONDS = 5  # for one comparison
_LONGEST = 2000  # characters; no answer is that long

_verifier = Server("mink_local.evals.tasks.equivalence", memory=2 * GIB)


def require() -> None:
    """Raise DataError if math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise DataError(
            "math500 needs math-verify to compare answers, which is not installed: "
            'type  python -m pip install "mink-local[eval]"'
        )


@lru_cache(maxsize=100_000)
def equivalent(gold: str, answer: str) -> bool:
    """Return if `answer` (LaTeX, without $) means the same as `gold`. May be called from any thread.

    An answer that takes math-verify longer than SECONDS, or too much memory, is not the same. Raises
    DataError if math-verify is not installed, and ChildStartError if it does not start.
    """
    if len(answer) > _LONGEST:
        return False
    require()
    try:
        return bool(_verifier.ask([gold, answer], SECONDS))
    except SandboxError:
        return False


def _begin(_: object) -> Callable[[tuple[str, str]], bool]:
    """Return what the child answers with."""
    import math_verify

    def verify(expressions: tuple[str, str]) -> bool:
        gold, answer = (math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in expressions)
        return bool(math_verify.verify(gold, answer, timeout_seconds=None))

    return verify


if __name__ == "__main__":
    serve(_begin)
