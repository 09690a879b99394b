"""Fixtures of the tests of generation."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Reply, load_model
from mink_local.generation.answer import Answer
from mink_local.generation.engine.engine import Engine
from mink_local.generation.model import Model
from mink_local.generation.request import Request
from mink_local.llama.context import NOTHING, Context, Next, Segment

STORY = [{"role": "user", "content": "Tell me a story about a dog named Max."}]
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Iterator[Model]:
    """A small random model with four slots, whose logits depend on every token before."""
    with load_model(tiny_path, n_ctx=512, n_parallel=4, trust=True) as model:
        yield model


@pytest.fixture(scope="module")
def real() -> Iterator[Model]:
    """The embedded model with four slots."""
    with load_model("smollm2-135m", n_ctx=512, n_parallel=4) as model:
        yield model


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Segment, ...]]:
    """The batches that are evaluated."""
    batches: list[tuple[Segment, ...]] = []
    decode = Context.decode

    def watched(self: Context, *parts: Segment, following: Next = NOTHING) -> bool:
        nexts = (Segment([token], *place) for token, *place in zip(*following, strict=True))
        batches.append(tuple(sorted([*nexts, *parts], key=lambda part: part.seq_id)))
        return decode(self, *parts, following=following)

    monkeypatch.setattr(Context, "decode", watched)
    return batches


def answered(model: Model, *asked: Any, **options: Any) -> Reply:
    """What `model.chat` returns, read to its end."""
    reply: Reply = model.chat(*asked, **options)
    reply.read()
    return reply


def submit(engine: Engine, request: Request) -> Answer:
    """Have a request answered."""
    decoding = engine.prepare(request)
    engine.enqueue(decoding)
    return decoding.answer


def run(engine: Engine, steps: int = 10_000) -> None:
    """Take so many steps, or as many as there are."""
    for _ in range(steps):
        if engine.idle:
            return
        engine.step()


def logits_alone(model: Model, tokens: Sequence[int], first: int) -> list[NDArray[np.float32]]:
    """The logits after each of `tokens` from number `first` on, token by token in another context."""
    context = Context(model.weights, 1024, 2)
    context.decode(Segment(tokens[: first + 1], 0))
    rows = [context.rows[-1].copy()]
    for i in range(first + 1, len(tokens)):
        context.decode(Segment([tokens[i]], i))
        rows.append(context.rows[-1].copy())
    return rows
