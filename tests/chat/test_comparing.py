"""What a sampler is compared with, and tokens sampled with common random numbers."""

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.chat.comparing import CommonNumbers, compared_with
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.samplers import MinK, MinP, Mirostat, Sampler, TopK, TopP, Workspace
from tests.conftest import forget


def test_a_sampler_takes_the_place_of_its_like() -> None:
    own = TopP(p=0.5, order="temperature-last")
    samplers = compared_with(own)
    assert samplers[:2] == [own, TopP(p=0.5)]
    assert [sampler.name for sampler in samplers].count("top-p") == 2
    assert len(samplers) == len(compared_with(MinK()))
    assert Mirostat() not in samplers
    assert compared_with(Mirostat())[1:] == [MinK(), *compared_with(MinK())[1:]]


# Common random numbers: the right distribution, and answers that differ only where their samplers do


def sampled(sampler: Sampler, rows: NDArray[np.float32], temperature: float, seed: int) -> CommonNumbers:
    """Return the sampler after a token of each row."""
    common = CommonNumbers(sampler, seed)
    workspace = Workspace(rows.shape[1])
    select = common.selector(temperature, workspace)
    for row in rows:
        assert select(row) == 1
        assert workspace.ids[0] == common.steps[-1].token
    return common


def test_tokens_are_sampled_from_the_softmax_of_the_candidates() -> None:
    row = np.array([2.0, -np.inf, 1.0, 0.5, -8.0], np.float32)
    common = sampled(TopK(3), np.tile(row, (20_000, 1)), 2.0, 1)
    counts = np.bincount([step.token for step in common.steps], minlength=5)
    weights = np.exp(np.array([2.0, 1.0, 0.5]) / 2)
    assert counts[[0, 2, 3]] / counts.sum() == pytest.approx(weights / weights.sum(), abs=0.015)
    assert {(step.token, step.rank, step.k) for step in common.steps} == {(0, 1, 3), (2, 2, 3), (3, 3, 3)}


def test_methods_differ_only_in_tokens_that_one_of_them_cuts(logits: NDArray[np.float32]) -> None:
    rows = np.tile(logits, (5, 1))
    for temperature in (0.5, 5.0):
        few = sampled(MinK(), rows, temperature, 7)
        for other in (MinP(), MinP(order="temperature-last"), TopP(), TopK(40)):
            for one, two in zip(few.steps, sampled(other, rows, temperature, 7).steps, strict=True):
                assert one.token == two.token or one.rank > two.k or two.rank > one.k


def test_a_temperature_near_zero_takes_the_largest_logit(logits: NDArray[np.float32]) -> None:
    common = sampled(TopP(order="temperature-last"), logits, 1e-300, 1)
    assert [step.rank for step in common.steps] == [1] * len(logits)


def test_a_broken_row_is_refused() -> None:
    common = CommonNumbers(MinK(), 1)
    assert common.selector(1.0, Workspace(2))(np.array([np.nan, 1], np.float32)) < 0
    assert common.steps == []


def test_answers(smollm2: Model) -> None:
    """One seed gives one text, whatever is generated beside it; the token that ends it is a step too."""
    messages = [{"role": "user", "content": "Say hello."}]
    samplers = [MinK(), MinP(), MinK(), TopK(1)]
    common = [CommonNumbers(sampler, 3) for sampler in samplers]
    requests = [
        Request(messages, SamplingParams(sampler=sampler, temperature=2.0, max_tokens=12))
        for sampler in common
    ]
    answers = sorted(forget(smollm2).answer_all(requests), key=lambda answer: answer.index)
    assert answers[0].tokens == answers[2].tokens != answers[1].tokens
    for answer, sampler in zip(answers, common, strict=True):
        tokens = [step.token for step in sampler.steps]
        assert tokens[: answer.n_tokens] == answer.tokens
        assert len(tokens) == answer.n_tokens + (answer.finish_reason == "stop")
    assert all(step.k == step.rank == 1 for step in common[3].steps)
