"""Everybody who has a slot gets on: prompts beside answers, and requests that wait for a slot."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mink_local import load_model
from mink_local.generation.answer import Answer
from mink_local.generation.engine.budget import PromptBudget
from mink_local.generation.engine.engine import Engine
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from tests.conftest import forget
from tests.generation.conftest import run, submit
from tests.support.tiny import write_recurrent_model


def on_a_machine(monkeypatch: pytest.MonkeyPatch, step: float, token: float) -> list[int]:
    """Have the engine's budget learn the times of a machine with these seconds a step and a prompt token.

    Returns a list that grows: the number of prompt tokens that each step reads.
    """
    read: list[int] = []
    note = PromptBudget.note

    def known(self: PromptBudget, seconds: float, n_answers: int, n_prompt: int) -> None:  # noqa: ARG001
        note(self, step + token * n_prompt, n_answers, n_prompt)
        read.append(n_prompt)

    monkeypatch.setattr(PromptBudget, "note", known)
    return read


@pytest.fixture
def engine(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that knows nothing of its machine yet."""
    engine = forget(model).core.engine
    monkeypatch.setattr(engine, "_budget", PromptBudget())
    yield engine
    engine.cancel()


def unread(engine: Engine) -> dict[object, int]:
    """Return how many tokens of the prompts with a slot are still to be read; 1 if at most the last is."""
    return {slot.job: max(1, engine.unevaluated(slot.job.answer)) for slot in engine.slots if slot.job}


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


@pytest.mark.parametrize(("step", "token"), [(0.01, 0.0001), (0.02, 0.006), (0.9, 0.05)])
@pytest.mark.parametrize("seed", range(3))
def test_every_prompt_gets_on_in_every_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, step: float, token: float, seed: int
) -> None:
    """By 16 tokens together, unless one has been read; also beside answers that nobody watches.

    Each gets on, but in a burst: there, some are read before others, and all answers start after that.
    """
    read = on_a_machine(monkeypatch, step, token)
    choice = random.Random(seed)
    answers: list[Answer] = []
    for n_steps in range(300):
        if choice.random() < (0.3 if n_steps % 60 < 20 else 0.03):
            prompt = [choice.randrange(1000, 9000) for _ in range(choice.choice([3, 40, 200, 450]))]
            params = SamplingParams(max_tokens=choice.randint(2, 60), ignore_eos=True, seed=seed)
            answers.append(submit(engine, Request(prompt, params)))
        before = unread(engine)
        is_burst = not any(slot.has_begun for slot in engine.slots)
        engine.step()
        now = unread(engine)
        n_read = [n - now[each] for each, n in before.items() if each in now and n > 1]
        assert all(n_read) or (is_burst and any(n_read))
        is_read = any(n == 1 and before.get(each) != 1 for each, n in now.items())
        assert is_read or not n_read or read[-1] > 16 - len(n_read)  # in equal parts
    run(engine)
    assert all(answer.finish_reason == "length" for answer in answers)


@pytest.mark.parametrize(("step", "token"), [(0.01, 0.0001), (0.02, 0.006), (0.9, 0.05)])
@pytest.mark.parametrize("seed", range(3))
def test_a_prompt_waits_only_for_those_before_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, step: float, token: float, seed: int
) -> None:
    """Beside a running answer, of prompts as long as each other: each later one takes a token of a step."""
    read = on_a_machine(monkeypatch, step, token)
    choice = random.Random(seed)
    length, due, n_read = 150, dict[object, int](), 0
    submit(engine, endless(300))
    run(engine, 3)
    for n_steps in range(300):
        if choice.random() < 0.1 and n_steps < 250:
            prompt = [choice.randrange(1000, 9000) for _ in range(length)]
            submit(engine, Request(prompt, SamplingParams(max_tokens=2, ignore_eos=True)))
        before, n_before = unread(engine), len(read)
        engine.step()
        first_here, n_read = n_read, n_read + sum(read[n_before:])
        waiting = {each: n for each, n in unread(engine).items() if n > 1}
        new = [each for each in waiting if each not in before]
        older = sum(n for n in before.values() if n > 1)
        due |= {each: first_here + older + length * len(new) for each in new}
        for each in waiting:
            due[each] += len(waiting) - 1
            assert n_read < due[each]
    assert due


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
