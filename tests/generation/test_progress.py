"""Everybody who has a slot gets on: prompts beside answers, and requests that wait for a slot."""

from collections.abc import Iterator

import pytest

from mink_local.generation.engine import Engine
from mink_local.generation.model import Model
from mink_local.generation.prompt_budget import PromptBudget
from mink_local.generation.request import Request, SamplingParams
from tests.conftest import forget
from tests.generation.conftest import run, submit


def on_a_machine(monkeypatch: pytest.MonkeyPatch, step: float, token: float) -> None:
    """Have the engine's budget learn the times of a machine with these seconds a step and a prompt token."""
    note = PromptBudget.note

    def known(self: PromptBudget, seconds: float, n_answers: int, n_prompt: int) -> None:  # noqa: ARG001
        note(self, step + token * n_prompt, n_answers, n_prompt)

    monkeypatch.setattr(PromptBudget, "note", known)


@pytest.fixture
def engine(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that knows nothing of its machine yet."""
    engine = forget(model).core.engine
    monkeypatch.setattr(engine, "_budget", PromptBudget())
    yield engine
    engine.cancel()


def endless(n: int) -> Request:
    return Request([n, n + 1, n + 2], SamplingParams(max_tokens=400, ignore_eos=True, seed=n))


def test_a_long_prompt_is_read_beside_an_answer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not wait for the end of an answer that nobody watches."""
    on_a_machine(monkeypatch, step=0.01, token=0.01)
    running = submit(engine, endless(300))
    run(engine, 5)
    late = submit(engine, Request(list(range(300, 700)), SamplingParams(max_tokens=1)))
    run(engine, 40)
    assert late.finish_reason is not None
    assert running.finish_reason is None
