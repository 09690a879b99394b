"""A sampler and a temperature for each phase: reasoning and answer."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Constraints, load_model
from mink_local.generation.answer import Answer
from mink_local.generation.format.harmony import splitter_of
from mink_local.generation.format.template import ChatTemplate
from mink_local.generation.format.text import THINK, THINK_END, Marks, ReasoningSplitter
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.constraints import Constrainer
from mink_local.llama.token_sampler import TokenSampler
from mink_local.samplers import AdaptiveP, Chain, Greedy, MinK, Mirostat, TopK, TopP, Xtc
from tests.generation.conftest import answered, run, submit
from tests.support.tiny import write_scripted

TURNS = "{% for m in messages %}{{ m.content }}{% endfor %}"
OPENED, OPENS = f"{TURNS}<think>", f"{TURNS}<assistant>{{# <think> #}}"
THOUGHTS, REPLY = [" one", " two.", " thr", "ee"], ["Well", ",", " four", "."]
SIDEWAYS = Marks("a", "e", is_repeated=True)  # a random model writes these often
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PHASES: dict[str, Any] = {"sampler": TopK(2), "reasoning_sampler": "top-k:k=5"}


@pytest.fixture(scope="module", params=[OPENED, OPENS], ids=["the template opens", "the model opens"])
def thinker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model that reasons with THOUGHTS, then answers with REPLY."""
    script = [*THOUGHTS, THINK_END, *REPLY]
    scripts = {THINK: script} if request.param == OPENED else {"<assistant>": [THINK, *script]}
    path = write_scripted(tmp_path_factory.mktemp("thinker") / "x.gguf", request.param, scripts)
    with load_model(path, n_ctx=256, n_parallel=3, n_threads=1) as model:
        yield model


@pytest.mark.parametrize("tells_late", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"logprobs": 2},
        {"watch": lambda _: None},
        {"edit": lambda _: None},
        {"min_tokens": 7},
        {"constraints": Constraints(repeat_penalty=1.1)},
        {"reasoning_budget": 100},
        {"reasoning_sampler": lambda row: np.argsort(row)[-5:]},
    ],
    ids=lambda options: ",".join(options),
)  # fmt: skip
def test_each_token_is_sampled_as_its_phase_wants(
    thinker: Model, options: dict[str, Any], tells_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and beside others."""
    monkeypatch.setattr(thinker.core.engine, "tells_late", tells_late)
    n_opening = 0 if thinker.opens_reasoning([{"role": "user", "content": "x"}]) else 1
    reasons = [False] * n_opening + [True] * (len(THOUGHTS) + 1) + [False] * len(REPLY)
    alone = answered(thinker, "x", **PHASES | options)
    several = thinker.generate(["x"] * 3, **PHASES | options)
    for answer in (alone, *several):
        assert (answer.reasoning, answer.content) == ("".join(THOUGHTS).strip(), "".join(REPLY))
        assert answer.k == [5 if each else 2 for each in reasons]
        assert [answer.is_reasoning(i) for i in range(answer.n_tokens)] == reasons


def test_a_forced_closing_belongs_to_neither(thinker: Model) -> None:
    answer = answered(thinker, "x", **PHASES, reasoning_budget=2, max_tokens=200, ignore_eos=True)
    n_opening = 0 if thinker.opens_reasoning([{"role": "user", "content": "x"}]) else 1
    n_forced = answer.k.count(0)
    n_after = answer.n_tokens - n_opening - 2 - n_forced
    assert answer.reasoning_cut
    assert n_after > 0
    assert answer.k == [2] * n_opening + [5] * 2 + [0] * n_forced + [2] * n_after


def test_what_is_constrained_belongs_to_the_answer(thinker: Model) -> None:
    constraints = Constraints(regex="Wel[a-z],? fo[a-z]r")
    answer = answered(thinker, "x", **PHASES, constraints=constraints)
    kinds = {answer.k[i] for i in range(answer.n_tokens) if answer.is_reasoning(i)}
    assert kinds == {5}
    assert answer.reasoning == "".join(THOUGHTS).strip()
    assert max(k for i, k in enumerate(answer.k) if not answer.is_reasoning(i)) <= 2


@pytest.mark.parametrize("closing", [THINK_END, ""])
def test_calls_belong_to_the_answer(tmp_path: Path, closing: str) -> None:
    """Also one in reasoning that does not end."""
    mark, rest = "<tool_call>", '{"name": "f", "arguments": {}}</tool_call>'
    path = write_scripted(tmp_path / "x.gguf", OPENED, {THINK: [" hm", *filter(None, [closing]), mark, rest]})
    with load_model(path, n_ctx=1024, n_threads=1) as model:
        answer = answered(model, [{"role": "user", "content": "x"}], **PHASES, tools=[TOOL])
    assert [each["function"]["name"] for each in answer.tool_calls] == ["f"]
    is_closed = bool(closing)
    assert answer.k == [5, 5, 2] + [2] * is_closed


def by_hand(model: Model, answer: Answer, rows: Sequence[NDArray[np.float32]]) -> list[int]:
    """The tokens that a sampler for each phase samples from the rows, one by one."""
    params, weights = answer.request.params, model.weights
    constrainer = Constrainer(params.constraints, weights, answer.prompt)
    seeds = params.seed or 0, ((params.seed or 0) + RANDOM_SEED // 2) % RANDOM_SEED
    of_answer, of_reasoning = (
        TokenSampler(each.effective_sampler, each.temperature, seed, weights.n_vocab, constrainer)
        for each, seed in zip((params, params.while_reasoning), seeds, strict=True)
    )
    splitter, found = splitter_of(SIDEWAYS), list[int]()
    for row in rows:
        sampler = of_reasoning if splitter.in_reasoning else of_answer
        found.append(sampler(row, len(found) + 1))
        splitter.feed(weights.piece(found[-1]).decode(errors="replace"))
    return found


@pytest.mark.parametrize("tells_late", [False, True])
def test_they_are_those_of_two_samplers_in_turn(
    tiny: Callable[..., Path], tells_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any kinds, with penalties that see the tokens of both, while others come and go."""

    def reasoning(*_: object) -> tuple[ReasoningSplitter, str]:
        return splitter_of(SIDEWAYS), ""

    monkeypatch.setattr(ChatTemplate, "reasoning", reasoning)
    samplers = [MinK(), TopP(0.9), Greedy(), Mirostat(), AdaptiveP(), Chain(TopK(40), Xtc(probability=0.7))]
    choice = random.Random(0)
    with load_model(tiny(scale=8.0), n_ctx=256, n_parallel=5, trust=True, n_threads=1) as model:
        model.core.engine.tells_late = tells_late
        asked: list[tuple[Answer, list[NDArray[np.float32]]]] = []
        for i in range(24):
            own, other = choice.sample(samplers, 2)
            constraints = Constraints(repeat_penalty=1.3, frequency_penalty=0.5) if i % 3 == 0 else None
            params = SamplingParams(
                sampler=own,
                temperature=choice.choice([0.5, 1.0]),
                reasoning_sampler=other,
                reasoning_temperature=choice.choice([0.0, 2.0]),
                max_tokens=40,
                ignore_eos=False,
                seed=i,
                constraints=constraints,
            )
            rows: list[NDArray[np.float32]] = []
            prompt = [choice.randrange(300, 1000) for _ in range(5)]
            watched = submit(model.core.engine, Request(prompt, params, watch=rows.append))
            asked.append((watched, rows))
            free = submit(model.core.engine, Request(prompt, params))
            asked.append((free, rows))
            run(model.core.engine, choice.randint(0, 20))
        run(model.core.engine)
        assert sum(len(answer.phase_borders) > 3 for answer, _ in asked) > 10
        for answer, rows in asked:
            expected = by_hand(model, answer, rows)[: answer.n_tokens]
            assert answer.tokens == expected


def test_the_answers_own_setting_is_no_phase(thinker: Model) -> None:
    asked = SamplingParams(sampler=TopP(0.9), temperature=0.7, seed=3)
    for same in (TopP(0.9), None):
        other = answered(thinker, "x", asked, reasoning_sampler=same, reasoning_temperature=0.7)
        assert not other.request.params.has_phases
    cold = SamplingParams(temperature=0, reasoning_sampler=MinK())
    assert not cold.has_phases
    assert SamplingParams(temperature=0, reasoning_temperature=1).while_reasoning.effective_sampler == MinK()


def test_a_model_that_does_not_reason_says_so_once(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    asked = SamplingParams(temperature=2.0, seed=5, max_tokens=20)
    assert not model.can_reason
    caplog.set_level(logging.INFO, "mink_local")
    texts = [answered(model, "Hi", asked, reasoning_temperature=0.1).text for _ in range(2)]
    assert texts == [answered(model, "Hi", asked).text] * 2
    [said] = [each.message for each in caplog.records if "reasoning_temperature" in each.message]
    assert model.name in said
