"""Chains: each cut on what the one before has left, as their twins and llama.cpp have it."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mink_local.samplers import Chain, MinK, MinP, Mirostat, Order, Sampler, TopK, TopP
from tests.support.methods import ANY_CHAIN, JIT, LARGEST, TEMPERATURES, Row, rows, twin_of

LAST: Order = "temperature-last"


def kept_in_turn(chain: Chain, row: Row, temperature: float) -> set[int]:
    """What the twins of the cuts keep, each of a row in which nothing else is left; or no example."""
    left = row
    for cut in chain.cuts:
        twin = twin_of(cut, left, temperature)
        assume(len(twin.must) == len(twin.may))  # no rounding at a threshold decides
        kept = twin.must
        left = np.full_like(row, -math.inf)
        left[kept] = np.minimum(row[kept], np.float32(LARGEST))
    return set(kept.tolist())


@settings(max_examples=300 if JIT else 30)
@given(ANY_CHAIN, rows(), st.sampled_from(TEMPERATURES) | st.floats(0.01, 100))
def test_each_cut_sees_what_the_one_before_has_left(chain: Chain, row: Row, temperature: float) -> None:
    expected = kept_in_turn(chain, row, temperature)
    ids, logits = chain.candidates(row, temperature)
    assert set(ids.tolist()) == expected
    assert chain.cutoff(row, temperature) == len(expected) > 0
    np.testing.assert_array_equal(logits, np.minimum(row[ids], np.float32(LARGEST)))


def test_min_k_in_a_chain_has_the_range_of_its_candidates() -> None:
    """Of logits from 10 to -10, R is 20; of the three largest it is 2, and tau / R may keep more than one."""
    row = np.arange(10, -11, -1, dtype=np.float32)
    assert MinK(tau=5).cutoff(row) == 1
    assert Chain(TopK(3), MinK(tau=5)).cutoff(row) == 2
    assert Chain(TopK(3), MinK(tau=7)).cutoff(row) == 3


def test_a_chain_of_chains_is_one() -> None:
    inner = Chain(TopK(9), TopP(0.5))
    assert Chain(inner, MinK()).cuts == (TopK(9), TopP(0.5), MinK())
    with pytest.raises(ValueError, match="cut"):
        Chain()
    with pytest.raises(ValueError, match="mirostat"):
        Chain(Mirostat(), TopK())
    assert Chain(TopK(), Mirostat()).is_stateful


@pytest.mark.parametrize(
    ("cuts", "order"),
    [
        ([MinK(), TopK()], None),
        ([TopK(), TopP(order=LAST)], LAST),
        ([TopP(order=LAST), MinP()], "temperature-first"),
    ],
)
def test_the_order_of_a_chain(cuts: list[Sampler], order: str | None) -> None:
    assert Chain(*cuts).order == order
