"""The child process in which math-verify compares expressions; `equivalence` starts it.

`python -m mink_local.evals.tasks.verifier`: a JSON list `[gold, answer, seconds]` a line in, TRUE or FALSE a
line out.
"""

import json
import resource
import signal
import sys
from typing import Any

READY, TRUE, FALSE = b"ready\n", b"true\n", b"false\n"

_START_SECONDS = 120  # for the import of SymPy on a busy machine
_MEMORY = 2 << 30


def serve() -> None:
    """Answer what comes in. The alarms are not caught: they end this process, whatever it is doing."""
    replies = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no reply
    signal.alarm(_START_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import math_verify

    reply = READY
    while True:
        signal.alarm(0)
        replies.write(reply)
        replies.flush()
        line = sys.stdin.readline()
        if not line:
            return
        gold, answer, seconds = json.loads(line)
        signal.alarm(seconds)
        parsed = [_parsed(math_verify, text) for text in (gold, answer)]
        reply = TRUE if math_verify.verify(*parsed, timeout_seconds=None) else FALSE


def _parsed(math_verify: Any, latex: str) -> list[Any]:
    expressions: list[Any] = math_verify.parse(f"\\boxed{{{latex}}}", parsing_timeout=None)
    return expressions


if __name__ == "__main__":
    serve()
