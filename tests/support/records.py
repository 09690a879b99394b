"""Records, and folders that hold them, without a model."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mink_local.evals.run.folder import RunFolder
from mink_local.evals.run.manifest import Manifest
from mink_local.evals.run.records import Response
from mink_local.evals.tasks.base import Question, Verdict

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
QUESTION = Question("0", "What is 1 + 1?", "2")
WANTED: dict[str, Any] = {
    "seed": 0,
    "ctx": None,
    "stop": [],
    "asked": {
        "models": ["tiny"],
        "samplers": ["min-k:tau=3"],
        "temperatures": [5.0],
        "repeats": 1,
        "limit": None,
        "questions": {"gsm8k": 4},
    },
    "models": {"tiny": {"path": "/models/tiny.gguf", "sha256": "aa"}},
    "tasks": {"gsm8k": {"data": "gsm8k.jsonl", "data_sha256": "bb", "max_tokens": 64}},
}


def write_records(folder: Path, responses: Sequence[Response]) -> None:
    """Open the folder as a run does, and append the responses."""
    with closing(RunFolder(folder)) as opened:
        Manifest(opened, WANTED, {"gsm8k": [QUESTION]})
        for response in responses:
            opened.append(response)


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
