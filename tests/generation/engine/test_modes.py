"""Random requests, answered together in every mode of the engine, are answered as alone."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mink_local import Constraints, load_model
from mink_local.chat.comparing import CommonNumbers
from mink_local.generation.answer import Answer
from mink_local.generation.engine.engine import Engine
from mink_local.generation.format.harmony import splitter_of
from mink_local.generation.format.template import ChatTemplate
from mink_local.generation.format.text import Marks, ReasoningSplitter
from mink_local.generation.request import Request, SamplingParams
from mink_local.samplers import Chain, MinK, TopK, TopP, Xtc, default_samplers
from tests.generation.conftest import run, submit
from tests.support.architectures import write_architecture

SHARED = list(range(300, 360))
CONSTRAINTS: list[dict[str, Any]] = [
    {"repeat_penalty": 1.3, "penalty_last_n": 5},
    {"frequency_penalty": 0.4, "logit_bias": {5: 3.0, 77: -float("inf")}, "dry_multiplier": 0.8},
    {"regex": "[a-z ]{9,40}"},
    {"regex": "[0-9] apples and pears, [a-z]{9}", "presence_penalty": 0.5},
    {"choice": ["yes", "no, never"]},
    {"json_schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}},
]
MANY = 1000  # candidates
SAMPLERS = [*default_samplers(), Chain(TopK(50), Xtc(probability=0.7), MinK()), Chain(TopP(0.9), MinK())]


def ignore(_: object) -> None:
    """Watch and do nothing."""


def made(seed: int) -> Request:
    """A random request, always the same for a seed: no sampler in Python remembers an answer."""
    choice = random.Random(seed)
    sampler = choice.choice(SAMPLERS)
    if choice.random() < 0.1:
        sampler = CommonNumbers(TopP(0.9), choice.randint(0, 3))
    options: dict[str, Any] = {
        "sampler": sampler,
        "temperature": 0.0 if sampler.name == "greedy" else choice.choice([0.3, 1.0, 5.0]),
        "max_tokens": choice.randint(1, 24),
        "seed": choice.randint(0, 5),
    }
    if choice.random() < 0.4:
        options["constraints"] = Constraints(**choice.choice(CONSTRAINTS))
    if choice.random() < 0.3:
        options["stop"] = [choice.choice("aeiou")]
    if choice.random() < 0.1:
        options["stop_token_ids"] = [choice.randrange(1000) for _ in range(20)]
    if choice.random() < 0.2:
        options["min_tokens"] = choice.randint(1, options["max_tokens"])
    if choice.random() < 0.1:
        options["ignore_eos"] = True
    if choice.random() < 0.15:
        options["logprobs"] = choice.randint(0, 2)
    prompt = SHARED[: choice.choice([2, 30, 60])] + [
        choice.randrange(1000) for _ in range(choice.randint(0, 9))
    ]
    watch = ignore if choice.random() < 0.15 else None
    choice = random.Random(seed + 1000)
    if choice.random() < 0.4:
        options["reasoning_sampler"] = choice.choice(SAMPLERS)
        options["reasoning_temperature"] = choice.choice([0.0, 0.7, 1.0])
        options["temperature"] = min(options["temperature"], 1.0)
    return Request(prompt, SamplingParams(**options), watch=watch)


def reasoning(
    self: ChatTemplate, request: Request, prompt: Sequence[int], usual: Any = ChatTemplate.reasoning
) -> tuple[ReasoningSplitter, str]:
    """Have those with phases reason from every "a" to the next "e"."""
    if request.params.has_phases:
        return splitter_of(Marks("a", "e", is_repeated=True)), ""
    found: tuple[ReasoningSplitter, str] = usual(self, request, prompt)
    return found


def result(answer: Answer) -> tuple[Any, ...]:
    ends = answer.finish_reason, answer.stopped_by, str(answer.error)
    return answer.tokens, answer.text, answer.phase_borders, *ends


def has_ks_of(answer: Answer, expected: Answer) -> bool:
    """Return whether an answer's tokens had as many candidates; of several, one may be on the border."""
    return all(
        k == other or (min(k, other) > 2 and abs(k - other) == 1)
        for k, other in zip(answer.k, expected.k, strict=False)
    )


def together(
    engine: Engine, requests: list[Request], choice: random.Random
) -> tuple[list[Answer], set[Answer]]:
    """Answer requests that come at random; return which were cancelled. Some batches are given up."""
    waiting, answers, cancelled = list(requests), list[Answer](), set[Answer]()
    while waiting or not engine.idle:
        while waiting and choice.random() < 0.5:
            answers.append(submit(engine, waiting.pop(0)))
        running = [answer for answer in answers if answer.finish_reason is None]
        if running and choice.random() < 0.1:
            cancelled.add(choice.choice(running))
            engine.cancel(cancelled)
        engine.context.interrupted = choice.random() < 0.1
        engine.step()
        engine.context.interrupted = False
    run(engine)
    return answers, cancelled


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["mamba2", "qwen35"])
def test_four_modes_of_models_with_states(
    tmp_path: Path, smollm2_path: Path, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_architecture(tmp_path / f"{arch}.gguf", arch, smollm2_path, scale=8.0)
    test_four_modes(lambda **_: path, 40, monkeypatch)


@pytest.mark.parametrize("n_requests", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_four_modes(tiny: Callable[..., Path], n_requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 64 or 5 slots, told late or at once; some requests are cancelled, and some batches given up.

    Rounding depends on what is evaluated together; it changes tokens only where nearly all are candidates.
    """
    monkeypatch.setattr(ChatTemplate, "reasoning", reasoning)
    path = tiny(scale=8.0)
    with load_model(path, n_ctx=256, n_parallel=1, trust=True, n_threads=1) as model:
        alone = []
        for seed in range(n_requests):
            alone.append(submit(model.core.engine, made(seed)))
            run(model.core.engine)
            model.forget()
    for n_parallel, tells_late in ((5, False), (64, False), (5, True), (64, True)):
        with load_model(path, n_ctx=256, n_parallel=n_parallel, trust=True, n_threads=1) as model:
            engine = model.core.engine
            engine.tells_late = tells_late
            requests = [made(seed) for seed in range(n_requests)]
            answers, cancelled = together(engine, requests, random.Random(n_parallel + tells_late))
            compared = [
                (answer, expected)
                for answer, expected in zip(answers, alone, strict=True)
                if max(expected.k, default=0) < MANY
            ]
            for answer, expected in compared:
                is_cut = answer in cancelled and answer.tokens == expected.tokens[: answer.n_tokens]
                assert is_cut or result(answer) == result(expected)
                assert has_ks_of(answer, expected)
            assert len(compared) > 0.7 * n_requests
            assert sum(len(answer.phase_borders) > 1 for answer in alone) > n_requests / 10
            assert len(cancelled) >= n_requests / 40
            assert engine.n_busy == engine.n_waiting == 0
