"""Everybody who has a slot gets on: prompts beside answers, and requests that wait for a slot."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mink_local import load_model
from mink_local.generation.engine import Engine
from mink_local.generation.model import Model
from mink_local.generation.prompt_budget import PromptBudget
from mink_local.generation.request import Request, SamplingParams
from tests.conftest import forget
from tests.generation.conftest import run, submit
from tests.support.tiny import write_recurrent_model


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


@pytest.fixture(scope="module")
def recurrent_path(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Path:
    """A model that cannot forget just the end of a sequence."""
    return write_recurrent_model(tmp_path_factory.mktemp("recurrent") / "mamba.gguf", smollm2_path)


@pytest.mark.parametrize("tells_late", [False, True])
@pytest.mark.parametrize("n_slots", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["recurrent", "usual"])
def test_nobody_waits_for_a_slot_that_is_free(
    recurrent_path: Path, tiny_path: Path, kind: str, n_slots: int, tells_late: bool
) -> None:
    """Not for a beginning that the slot seems about to hold, after a stop string has ended its answer."""
    shots = list(range(300, 380))
    params = SamplingParams(max_tokens=20, stop=["e", "a", "i", "o"])
    path = {"recurrent": recurrent_path, "usual": tiny_path}[kind]
    with load_model(path, n_ctx=256, n_parallel=n_slots, trust=True) as model:
        engine = model.core.engine
        engine.tells_late = tells_late
        answers = [submit(engine, Request([*shots, 900 + i], replace(params, seed=i))) for i in range(12)]
        for _ in range(12 * (len(shots) + 20)):
            engine.step()
            assert not any(slot.pending for slot in engine.slots if slot.job is None)
        assert engine.idle
    assert "stop" in {answer.finish_reason for answer in answers}
    assert all(answer.finish_reason in ("stop", "length") for answer in answers)
