"""An engine whose requests come and go in a random order: every answer is that of its own past."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.generation.answer import Answer
from mink_local.generation.engine import Engine
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.context import Context, Segment
from mink_local.samplers import TopP

SHARED = "Answer in one sentence. "
PROMPTS = ["One, two,", SHARED + "Who?", SHARED + "Why?", SHARED * 3, "word " * 40]


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Model:
    return load_model(str(tiny_path), n_ctx=128, n_parallel=3, trust=True)


class Watched:
    """A request with the logits that its tokens were sampled from."""

    def __init__(self, engine: Engine, choice: random.Random) -> None:
        self.rows: list[NDArray[np.float32]] = []
        options: dict[str, Any] = {"prompt_logprobs": 0} if choice.random() < 0.2 else {}
        params = SamplingParams(
            sampler=TopP(0.9),
            temperature=choice.choice([0.0, 1.0, 10.0]),
            max_tokens=choice.randint(1, 12),
            seed=choice.randint(0, 3),  # a small number, so that answers share slots for a while
            **options,
        )
        prompt = choice.choice(PROMPTS)
        watch = (lambda row: self.rows.append(row.copy())) if choice.random() < 0.5 else None
        self.decoding = engine.prepare(Request(prompt, params, watch=watch))

    @property
    def answer(self) -> Answer:
        return self.decoding.answer


def logits_alone(model: Model, tokens: list[int], first: int) -> list[NDArray[np.float32]]:
    """The logits after each of `tokens` from number `first` on, in a context of their own."""
    context = Context(model.weights, 128, 1, n_outputs=128)
    context.decode(Segment(tokens, 0, n_outputs=len(tokens)))
    return [context.logits(i).copy() for i in range(first, len(tokens))]


def run(engine: Engine) -> None:
    for _ in range(2000):
        if engine.idle:
            return
        engine.step()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_requests_that_come_and_go(model: Model, seed: int) -> None:
    """Waiting, in prefill, sharing a slot, diverged and without one: cancelled anywhere, and no other is."""
    choice = random.Random(seed)
    engine = model.engine
    model.forget()
    taken: list[Watched] = []
    cancelled: set[Answer] = set()
    for _ in range(150):
        action = choice.random()
        if action < 0.3 and len(taken) < 40:
            taken.append(Watched(engine, choice))
            engine.enqueue(taken[-1].decoding)
        elif action < 0.4 and taken:
            answer = choice.choice(taken).answer
            if answer.finish_reason is None:
                cancelled.add(answer)
            engine.cancel(answer)
        else:
            engine.step()
    run(engine)
    assert engine.n_busy == engine.n_waiting == 0
    assert len(cancelled) > 2
    for watched in taken:
        answer = watched.answer
        assert answer.finish_reason in (("interrupted",) if answer in cancelled else ("length", "stop"))
        prompt = list(watched.decoding.prompt)
        alone = logits_alone(model, prompt + answer.tokens, len(prompt) - 1)
        for here, there in zip(watched.rows, alone, strict=False):
            assert np.abs(here - there).max() < 0.02 * np.ptp(there)
        if answer.request.params.prompt_logprobs is not None and answer not in cancelled:
            assert len(answer.prompt_logprobs) == len(prompt)


def test_a_finished_run_leaves_every_slot_to_the_next(model: Model) -> None:
    engine = model.engine
    model.forget()
    params = SamplingParams(temperature=0.0, max_tokens=6)
    first = [engine.submit(Request(prompt, params)) for prompt in PROMPTS]
    run(engine)
    again = [engine.submit(Request(prompt, params)) for prompt in PROMPTS]
    run(engine)
    assert [answer.tokens for answer in again] == [answer.tokens for answer in first]
