"""One step: its candidates, what each method keeps, and tokens sampled with common random numbers."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.generation.common_numbers import CommonNumbers
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.sampling_step import compared_with, sampling_step
from mink_local.generation.text import visible
from mink_local.samplers import (
    SAMPLERS,
    Chain,
    Greedy,
    LlamaDefault,
    MinK,
    MinP,
    Mirostat,
    Sampler,
    TopK,
    TopP,
    Workspace,
    Xtc,
    parse,
)
from tests.conftest import forget


def test_by_hand() -> None:
    """R = 6; weights (1/6)/1, (4/6)/2, (1/6)/3: the cliff is after the second."""
    step = sampling_step(np.array([1, 5, 0, 6, -np.inf, np.nan], np.float32), sampled=0, temperature=2.0)
    assert step.ids.tolist() == [3, 1, 0, 2]
    assert step.weights == pytest.approx([1 / 6, 4 / 6 / 2, 1 / 6 / 3, np.nan], nan_ok=True)
    assert step.cliff == step.kept[MinK()] == 2
    assert step.sampled == 2
    assert step.p.sum() == pytest.approx(1)
    assert step.shown_ranks(3) == [0, 1, 2]
    assert step.shown_ranks(2) == [0, 2]  # the sampled one is always shown
    assert sampling_step(np.zeros(4, np.float32), 2, 5.0).entropy == pytest.approx(2)  # in bits


def test_the_probability_that_a_token_is_sampled_with() -> None:
    """After the cut, at the temperature."""
    row = np.array([2, 1, 0, -8], np.float32)
    step = sampling_step(row, sampled=1, temperature=2.0, sampler=TopK(2))
    weights = np.exp([1, 0.5])
    assert step.k == 2
    assert step.p_sampled == pytest.approx([*weights / weights.sum(), 0, 0])
    greedy = sampling_step(row, sampled=0, temperature=0, sampler=TopK(2))
    assert (greedy.k, greedy.sampler, greedy.temperature) == (1, Greedy(), 1)
    assert greedy.p_sampled.tolist() == [1, 0, 0, 0]
    mirostat = sampling_step(row, sampled=0, temperature=1, sampler=Mirostat(), k=3)
    assert (mirostat.k, mirostat.kept[Mirostat()], mirostat.p_sampled[3]) == (3, 3, 0)


def test_another_temperature_is_the_same_as_from_the_beginning(logits: NDArray[np.float32]) -> None:
    for sampler in (MinK(), MinP(), MinP(order="temperature-last"), Greedy()):
        moved = sampling_step(logits[0], 0, 1.0, sampler=sampler).at(7.0)
        fresh = sampling_step(logits[0], 0, 7.0, sampler=sampler)
        assert (moved.k, moved.kept, moved.sampled) == (fresh.k, fresh.kept, fresh.sampled)
        assert np.array_equal(moved.p_sampled, fresh.p_sampled)


@pytest.mark.parametrize("sampler", [MinK(tau=0, alpha=0.1), MinK(tau=0, alpha=3), MinK(tau=0, decay="log")])
def test_the_cliff_is_the_samplers(logits: NDArray[np.float32], sampler: MinK) -> None:
    """Also where another sampler is looked at first."""
    for row in logits:
        for step in (sampling_step(row, 0, 1.0, sampler=sampler), sampling_step(row, 0, 1.0).of(sampler)):
            assert step.cliff == step.k == sampler.cutoff(row)


def test_both_orders_are_told_apart_where_they_differ(logits: NDArray[np.float32]) -> None:
    row, own = logits[0], TopP(p=0.5)
    last = replace(own, order="temperature-last")
    at_1, at_5 = (sampling_step(row, 0, t, sampler=own) for t in (1.0, 5.0))
    cuts = {name: kept for name, *kept in at_1.cuts}
    assert list(cuts) == [
        own.name,
        *(one for one in SAMPLERS if one != own.name and not parse(one).is_stateful),
    ]
    assert cuts["top-p"] == [at_1.k, None]  # one's own, not the default's
    cuts = {name: kept for name, *kept in at_5.cuts}
    assert cuts["top-p"] == [last.cutoff(row), own.cutoff(row, 5.0)] == [at_1.k, at_5.k]
    assert cuts["min-k"] == [MinK().cutoff(row), None]


def test_a_chain_shows_what_is_left_after_each_member(logits: NDArray[np.float32]) -> None:
    for sampler in (parse("top-k:k=40+top-p:p=0.9+min-k"), LlamaDefault()):
        step = sampling_step(logits[0], 0, 5.0, sampler=sampler)
        members = sampler.members
        left = [Chain(*members[:i]).cutoff(logits[0], 5.0) for i in (1, 2, 3)]
        assert [last or first for _, last, first in step.cuts[:3]] == left
        assert left[-1] == step.k == step.at(1.0).at(5.0).k
        assert "top-k" in [name for name, *_ in step.cuts[3:]]


def test_a_cut_may_drop_the_most_probable_tokens(logits: NDArray[np.float32]) -> None:
    xtc = Xtc(1.0, 0.05, "temperature-last")
    step = next(one for row in logits if (one := sampling_step(row, row.argmin(), 2.0, sampler=xtc)).first)
    kept, _ = xtc.candidates(step.row)
    assert [rank for rank in range(len(step.ids)) if step.keeps(rank)] == np.flatnonzero(
        step.p_sampled
    ).tolist()
    assert step.ids[step.first : step.first + step.k].tolist() == kept.tolist()
    assert step.p_sampled.sum() == pytest.approx(1)
    uncut = sampling_step(step.row, int(step.ids[0]), 2.0, sampler=xtc, k=len(step.ids))
    assert (uncut.first, uncut.k) == (0, len(step.ids))  # as recorded: it did not cut in this step


def test_a_sampler_takes_the_place_of_its_like() -> None:
    own = TopP(p=0.5, order="temperature-last")
    samplers = compared_with(own)
    assert samplers[:2] == [own, TopP(p=0.5)]
    assert [sampler.name for sampler in samplers].count("top-p") == 2
    assert len(samplers) == len(compared_with(MinK()))
    assert Mirostat() not in samplers
    assert compared_with(Mirostat())[1:] == [MinK(), *compared_with(MinK())[1:]]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("äé 😀".encode(), "äé 😀"),
        ("é".encode()[:1], "<0xC3>"),
        (b" \x98\x80a\xf0\x9f", " <0x98><0x80>a<0xF0><0x9F>"),
        (b"", ""),
    ],
)
def test_parts_of_characters_are_visible(data: bytes, text: str) -> None:
    assert visible(data) == text


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
