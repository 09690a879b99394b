"""Records without a model, and full disks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from mink_local.evals.run.records import Response
from mink_local.evals.tasks.base import Verdict

RESPONSE = Response(
    model="tiny",
    task="gsm8k",
    sampler="min-k:tau=3",
    temperature=5.0,
    order=None,
    repeat=0,
    question_id="7",
    seed=1,
    prompt_sha256="00",
    prompt_tokens=20,
    response="Four\nand\u2028“20”: \U0001f600",
    n_tokens=9,
    finish_reason="stop",
    k=[1, 2, 300],
    seconds=0.5,
    strict=Verdict(None, False),
    flexible=Verdict("20", True),
)
FOUR = [replace(RESPONSE, question_id=str(i)) for i in range(4)]


@contextmanager
def disk_of(n_bytes: int) -> Iterator[None]:
    """Let no file become longer than `n_bytes`."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
