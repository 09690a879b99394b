"""Fixtures of the tests of generation."""

import pytest

from mink_local.generation.engine import Engine
from mink_local.llama.context import Context, Segment


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Segment, ...]]:
    """The batches that are evaluated."""
    batches: list[tuple[Segment, ...]] = []
    decode = Context.decode

    def watched(self: Context, *parts: Segment) -> bool:
        batches.append(parts)
        return decode(self, *parts)

    monkeypatch.setattr(Context, "decode", watched)
    return batches


def run(engine: Engine, steps: int = 10_000) -> None:
    """Take so many steps, or as many as there are."""
    for _ in range(steps):
        if engine.idle:
            return
        engine.step()
