"""Tokens that a constraint leaves no choice about: appended without sampling, evaluated together."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mink_local import Constraints, Request, SamplingParams
from mink_local.generation.model import Model
from mink_local.llama.context import Segment
from mink_local.llama.guide import Guide
from tests.generation.conftest import answered, logits_alone

RHYME = "Jack and Jill went up the hill to fetch a pail of water."
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 1, "maximum": 20}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
ONE = Constraints(choice=[RHYME])


PET: dict[str, Any] = {"messages": "Invent a pet.", "temperature": 3.0, "seed": 1}


def test_what_is_forced_is_what_sampling_would_give(real: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    constraints = Constraints(json_schema=SCHEMA)
    forced = answered(real, **PET, constraints=constraints)
    one_by_one = answered(real, **PET, constraints=constraints, logprobs=2)
    assert (forced.tokens, forced.k, forced.text) == (one_by_one.tokens, one_by_one.k, one_by_one.text)
    assert forced.k.count(0) > len(forced.k) / 2
    assert len(one_by_one.logprobs) == len(one_by_one.top_logprobs) == one_by_one.n_tokens
    monkeypatch.setattr(Guide, "forced", lambda _: [])
    sampled = answered(real, **PET, constraints=ONE)
    assert 0 not in sampled.k
    monkeypatch.undo()
    seen: list[int] = []  # every step is watched
    answer = answered(real, **PET, constraints=ONE, watch=lambda logits: seen.append(logits.size))
    assert answer.text == sampled.text == RHYME
    assert len(seen) == answer.n_tokens


def test_they_take_one_step(real: Model, decoded: list[tuple[Segment, ...]]) -> None:
    reply = real.chat("Recite.", constraints=ONE, seed=1)
    pieces = list(reply)
    assert "".join(pieces) == RHYME
    assert [piece.token for piece in pieces] == reply.tokens == real.tokenize(RHYME)
    assert set(reply.k) == {0}
    assert reply.finish_reason == "stop"
    assert len(decoded) <= 2


@pytest.fixture
def wide(real: Model) -> Iterator[Model]:
    """The embedded model, whose batches yield many rows of logits."""
    real.reserve(512, 4, 64)
    yield real
    real.reserve(512, 4)


def test_those_that_are_looked_at_take_one_step_too(wide: Model, decoded: list[tuple[Segment, ...]]) -> None:
    rows: list[Any] = []
    reply = answered(wide, "Recite.", constraints=ONE, seed=1, logprobs=1, watch=rows.append)
    assert (reply.text, set(reply.k), reply.finish_reason) == (RHYME, {0}, "stop")
    assert [part.n_outputs for part in decoded[-1]] == [reply.n_tokens]
    tokens = [*reply.answer.prompt, *reply.tokens]
    alone = logits_alone(wide, tokens[:-1], reply.prompt_tokens - 1)
    assert np.stack(rows) == pytest.approx(np.stack(alone), abs=0.1)
    total = np.log(np.exp(np.stack(rows).astype(float)).sum(1))
    expected = [row[token] for row, token in zip(rows, reply.tokens, strict=True)] - total
    assert reply.logprobs == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("options", [{}, {"logprobs": 0}])
@pytest.mark.parametrize("n_tokens", [1, 3, 7])
def test_a_limit_in_the_middle(wide: Model, n_tokens: int, options: dict[str, Any]) -> None:
    answer = answered(wide, **PET, constraints=ONE, max_tokens=n_tokens, **options)
    assert (answer.n_tokens, answer.finish_reason) == (n_tokens, "length")
    assert RHYME.startswith(answer.text)
    assert len(answer.logprobs) == n_tokens * len(options)


@pytest.mark.parametrize("options", [{}, {"logprobs": 0}])
def test_a_stop_string_in_the_middle(wide: Model, options: dict[str, Any]) -> None:
    """It ends the answer only where what precedes it conforms."""
    answer = answered(wide, **PET, constraints=ONE, stop=["the hill"], **options)
    assert (answer.text, answer.finish_reason, answer.stopped_by) == (RHYME, "stop", None)
    either = Constraints(regex=f"{RHYME[:22]}({RHYME[22:-1]}[.])?")
    answer = answered(wide, **PET, constraints=either, stop=["the hill"], ignore_eos=True, **options)
    assert (answer.text, answer.finish_reason, answer.stopped_by) == (RHYME[:22], "stop", "the hill")
    assert wide.n_cached < answer.prompt_tokens + answer.n_tokens


def test_answers_to_the_same_prompt(real: Model) -> None:
    """Some with the same constraint, some with others, and one without; all are as they should be."""
    choices = [[RHYME], [RHYME, "Jack Sprat could eat no fat."], ["Jack and Jill"], ["x"]]
    made = [Constraints(choice=one) for one in choices] * 2
    params = [
        SamplingParams(constraints=c, temperature=5.0, seed=i, max_tokens=40) for i, c in enumerate(made)
    ]
    params.append(SamplingParams(max_tokens=12, temperature=0.0))
    answers = list(real.answer_all((Request("Recite.", one) for one in params), ordered=True))
    for answer, choice in zip(answers, choices * 2, strict=False):
        assert answer.text in choice
        assert answer.finish_reason == "stop"
    assert answers[-1].text == real.complete("Recite.", params[-1]).read()


def test_a_long_text_beside_others(real: Model) -> None:
    """Longer than what a step evaluates of prompts, and than a batch."""
    long = " ".join(f"{i} bottles of beer" for i in range(80))
    params = [
        SamplingParams(constraints=Constraints(choice=[long]), max_tokens=400),
        *(SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True) for _ in range(3)),
    ]
    requests = (Request(f"Count {i}.", one) for i, one in enumerate(params))
    first, *others = real.answer_all(requests, ordered=True)
    assert long.startswith(first.text)
    assert first.n_tokens == 400
    assert {answer.n_tokens for answer in others} == {30}


def test_what_follows_forced_tokens_sees_them(real: Model) -> None:
    """The rest of the answer is that of a prompt that ends with them."""
    constraints = Constraints(regex=f"{RHYME[:-1]}[^?]*")
    asked = SamplingParams(constraints=constraints, temperature=0.0)
    answer = answered(real, "Recite.", asked, max_tokens=30)
    n_forced = next(i for i, k in enumerate(answer.k) if k)
    assert n_forced > 5
    rest = answered(real, "Recite.", asked, max_tokens=30 - n_forced, prefix=answer.tokens[:n_forced])
    assert rest.tokens == answer.tokens[n_forced:]
