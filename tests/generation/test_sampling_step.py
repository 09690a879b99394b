"""One step: its candidates, what each method keeps, and tokens sampled with common random numbers."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.chat.comparing import compared_with
from mink_local.generation.format.text import visible
from mink_local.generation.sampling_step import sampling_step
from mink_local.samplers import (
    SAMPLERS,
    Chain,
    Greedy,
    LlamaDefault,
    MinK,
    MinP,
    Mirostat,
    TopK,
    TopP,
    Xtc,
    parse,
)


def test_by_hand() -> None:
    """R = 6; weights (1/6)/1, (4/6)/2, (1/6)/3: the cliff is after the second."""
    step = sampling_step(np.array([1, 5, 0, 6, -np.inf, np.nan], np.float32), sampled=0, temperature=2.0)
    assert step.ids.tolist() == [3, 1, 0, 2]
    assert step.weights == pytest.approx([1 / 6, 4 / 6 / 2, 1 / 6 / 3, np.nan], nan_ok=True)
    assert step.cliff == 2
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
    mirostat = sampling_step(row, 0, 1, [Mirostat()], sampler=Mirostat(), k=3)
    assert (mirostat.k, mirostat.kept[Mirostat()], mirostat.p_sampled[3]) == (3, 3, 0)


def test_another_temperature_is_the_same_as_from_the_beginning(logits: NDArray[np.float32]) -> None:
    for sampler in (MinK(), MinP(), MinP(order="temperature-last"), Greedy()):
        compared = compared_with(sampler)
        moved = sampling_step(logits[0], 0, 1.0, compared, sampler=sampler).at(7.0)
        fresh = sampling_step(logits[0], 0, 7.0, compared, sampler=sampler)
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
    at_1, at_5 = (sampling_step(row, 0, t, compared_with(own), sampler=own) for t in (1.0, 5.0))
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
        step = sampling_step(logits[0], 0, 5.0, compared_with(sampler), sampler=sampler)
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
