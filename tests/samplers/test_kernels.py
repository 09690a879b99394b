"""The candidates of every method: those of its float64 full-sort twin, and worked out by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from mink_local.samplers import (
    SAMPLERS,
    Eta,
    Greedy,
    MinK,
    MinP,
    Order,
    PLess,
    Sampler,
    TopK,
    TopNSigma,
    TopP,
    Workspace,
    kernels,
    parse,
)  # fmt: skip
from tests.support.effort import examples
from tests.support.methods import EXAMPLES, JIT, LARGEST, METHODS, TEMPERATURES, Row, check, large_row, rows

INF = float("inf")
NAN = float("nan")


def test_every_method_is_in_the_table() -> None:
    assert list(METHODS) == list(SAMPLERS.values())


# Any row


@pytest.mark.parametrize("kind", METHODS)
@examples(120 if JIT else 25)
@given(st.data())
def test_agrees_with_its_twin(kind: type[Sampler], data: st.DataObject) -> None:
    sampler = data.draw(METHODS[kind].samplers)
    check(sampler, data.draw(rows()), data.draw(st.sampled_from(TEMPERATURES) | st.floats(0.01, 100)))


def test_a_probability_below_the_smallest_float() -> None:
    check(MinP(5e-324), np.array([-2.5, math.inf, math.inf], np.float32), 1e-300)


@examples(50 if JIT else 10)
@given(st.integers(0, 2**32 - 1), st.floats(0.5, 1), st.floats(0.5, 20))
def test_top_p_of_many_candidates(seed: int, p: float, temperature: float) -> None:
    """Thousands of them: quickselect divides the entries many times over."""
    check(TopP(p), large_row(seed, 20_000 if JIT else 3_000), temperature)


# Real logits


@pytest.mark.parametrize("n_rows", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampler", EXAMPLES, ids=str)
def test_agrees_with_its_twin_on_real_logits(logits: Row, sampler: Sampler, n_rows: int) -> None:
    for temperature in (0.3, 1.0, 5.0, 10.0) if sampler.order == "temperature-first" else (1.0,):
        for row in logits[:n_rows]:
            check(sampler, row, temperature)


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.0, 3.0, 100.0, 1e4, 1e30])
@pytest.mark.parametrize("scale", [1.0, 0.01, 1e-7, 1e30])
def test_min_k_of_real_logits_at_any_scale(logits: Row, tau: float, scale: float) -> None:
    for row in logits[:2]:
        check(MinK(tau), row * np.float32(scale))
        for floor in (1.0, 5.0, 1e30):
            check(MinK(tau, floor * scale), row * np.float32(scale))


def test_min_k_does_not_depend_on_temperature(logits: Row) -> None:
    for row in logits:
        for temperature in (0.25, 4.0):  # powers of two: the division does not round
            assert MinK(0).cutoff(row / np.float32(temperature)) == MinK(0).cutoff(row)


def test_fallback_is_idle_on_real_models(logits: Row) -> None:
    """The range is 30 or so, as the docstring of tau says, so floor(3 / R) is 0."""
    for row in logits:
        assert math.floor(3.0 / float(row.max() - row.min())) == 0


# Hard rows


def _flat(n: int, _: np.random.Generator) -> Row:
    return np.full(n, 1.5, np.float32)


def _ramp(n: int, random: np.random.Generator) -> Row:
    return random.permutation(np.linspace(-10, 20, n)).astype(np.float32)


def _steps(n: int, random: np.random.Generator) -> Row:
    return random.integers(-5, 6, n).astype(np.float32)


def _deep_cliff(n: int, random: np.random.Generator) -> Row:
    """The heaviest weight is in the middle of the row."""
    levels = np.linspace(20, 20.001, n // 2), np.linspace(0, 0.1, n - n // 2)
    return random.permutation(np.concatenate(levels)).astype(np.float32)


def _near_ties(n: int, random: np.random.Generator) -> Row:
    """Drops that grow with the position: every weight is the same except for rounding."""
    return random.permutation(-np.arange(n, dtype=float) * np.arange(1, n + 1) / 2).astype(np.float32)


def _crowded_block(n: int, random: np.random.Generator) -> Row:
    """All that matters is in one block of the first pass, and the other logits are equal."""
    row = np.full(n, -4.0, np.float32)
    row[:200] = random.normal(10, 1, min(n, 200))
    return row


def _one_of_each_block(n: int, random: np.random.Generator) -> Row:
    """The heaviest weight is right below what every block of the first pass reaches, though not by much."""
    row = random.normal(-5, 0.01, n).astype(np.float32)
    row[::256] = random.normal(10, 0.001, row[::256].size)
    row[0] += 10 / row[::256].size  # of 15 below
    return row


_SHAPES = _flat, _ramp, _steps, _deep_cliff, _near_ties, _crowded_block, _one_of_each_block


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 5000, 40_000])
def test_hard_shapes(shape: Callable[[int, np.random.Generator], Row], n: int) -> None:
    row = shape(n if JIT else min(n, 2000), np.random.default_rng(n))
    floors = (MinK(floor=floor) for floor in (1e-3, 1.0, 19.99, 1e30))
    for sampler in (MinK(0.0), MinK(3.0), MinK(500.0), *floors, TopP(0.5), TopK(n // 2 + 1), Greedy()):
        check(sampler, row)


@pytest.mark.parametrize("name", SAMPLERS)
def test_nearly_everything_banned(name: str) -> None:
    """As by a grammar: most blocks of logits have no finite one."""
    row = np.full(20_000, -np.inf, np.float32)
    row[[9_000, 500, 19_999]] = [1.0, 1.1, 1.2]
    ids, _ = parse(name).candidates(row)
    everything = [19_999, 500, 9_000]
    narrow = ("greedy", "top-n-sigma", "p-less")
    assert ids.tolist() == {"xtc": [9_000]}.get(name, everything[:1] if name in narrow else everything)


def test_top_p_reaches_into_a_flat_tail() -> None:
    """The tail weighs 0.14 beside the largest logit's 1: of the whole 1.14, 0.9 is not reached without
    two ninths of it. In every block one logit is larger, so that the first look sees no more."""
    row = np.full(20_000, math.log(0.14 / 20_000), np.float32)
    row[::256] += 0.001
    row[12_345] = 0.0
    check(TopP(0.9), row)
    assert TopP(0.9).cutoff(row) == pytest.approx(20_000 * (0.9 * 1.14 - 1) / 0.14, rel=1e-2)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("nan", [NAN, -NAN])
def test_broken_rows(name: str, nan: float) -> None:
    workspace = Workspace(600)
    select = parse(name).selector(1.0, workspace)
    row = np.full(600, -INF, np.float32)
    assert select(row) == kernels.NO_FINITE_LOGIT
    row[[7, 500]] = 2.0, nan
    assert select(row) == kernels.HAS_NAN
    row[500] = -INF
    assert (select(row), workspace.ids[0]) == (1, 7)


# By hand

QUARTERS = np.log([0.5, 0.25, 0.125, 0.125])
DROPS = [16.0, 13.0, 9.0, 0.0]  # after positions 1 to 3 they are 3, 4, 9, of a range of 16


@pytest.mark.parametrize(("sampler", "row", "k"), [
    (MinK(3.0), [5.0], 1),  # one token
    (MinK(3.0), [2.0, 2.0, 2.0], 3),  # R = 0: everything
    (MinK(0.0), [2.0, 2.0, 2.0], 1),  # and nothing but the first without the fallback
    (MinK(3.0), [9.0, 8.0, 1.0, 0.0], 2),  # w = 1/9, 7/18, 1/27
    (MinK(3.0), [10.0, 6.0, 0.0], 1),  # w = 0.4, 0.3
    (MinK(3.0), [10.0, 7.0, 1.0], 1),  # w = 3/9 and 6/18: a tie, the smaller position
    (MinK(3.0), [10.0, 7.0, 0.999], 2),  # which a hair decides
    (MinK(3.0), [1.0, 0.9, 0.5], 3),  # R = 0.5: the fallback asks for 5 of 3
    (MinK(1.0), [1.0, 0.9, 0.5], 2),  # and for 1, the cliff for 2: w = 0.2, 0.4
    (MinK(3.0), [3.0, -INF, 1.0, -INF], 1),  # banned tokens count for nothing: R = 2
    (MinK(3.0), [NAN, 3.0, 2.9, NAN, 0.0], 2),
    (MinK(3.0), [INF, 0.0, INF, -1.0], 2),  # +inf is the largest finite float32
    (MinK(3.0), [INF, LARGEST, 0.0], 2),
    (MinK(3.0), [-INF, -INF, -5.0], 1),
    (MinK(3.0), [0.0, -0.0, -9.0], 2),  # equal
    (MinK(3.0), [LARGEST, -LARGEST], 1),
    (MinK(floor=0.0), [9.0, 9.0, 5.0, 0.0], 2),  # the cliff's
    (MinK(floor=0.0), [9.0, 9.0, 9.0, 5.0, 0.0], 3),
    (MinK(floor=0.0), [9.0, 9.0, 7.0, 0.0], 3),
    (MinK(floor=3.9), [9.0, 5.0, 5.0, 5.0, 4.9, 0.0], 1),
    (MinK(floor=4.0), [9.0, 5.0, 5.0, 5.0, 4.9, 0.0], 4),  # at the floor itself, and all of equal logits
    (MinK(floor=5.0), [9.0, 5.0, 5.0, 5.0, 4.9, 0.0], 5),
    (MinK(floor=0.05), [9.0, 8.9, 5.0, 0.0], 2),  # the cliff's are more
    (MinK(floor=1.0), [5.0], 1),
    (MinK(floor=5e-324), [9.0, 9.0, 0.0, 0.0], 2),
    (MinK(floor=1.0), [1e30, 9.9e29, 0.0, -INF], 2),  # what it keeps without it
    (MinK(floor=2.0**100), [2.0**100, 0.0, -(2.0**100), -INF], 2),
    (MinK(floor=1e30), [1e8, 0.0, -1e8, -INF], 3),  # all that are finite
    (MinK(floor=1.8e38), [INF, LARGEST, 1.5e38, 1.4e38, -INF], 2),  # +inf is the largest finite float32
    (MinK(floor=1.95e38), [INF, LARGEST, 1.5e38, 1.4e38, -INF], 3),
    (MinK(floor=1e300), [INF, 1.0, -LARGEST], 3),
    (MinK(floor=1.0), [NAN, 3.0, 2.9, NAN, 2.0, 0.0], 3),
    (MinK(floor=2.0), [3.0, -INF, 1.0, 0.0, -INF], 2),
    (MinK(floor=9.0), [0.0, -0.0, -9.0, -30.0], 3),
    (MinK(0), DROPS, 1),  # 3, 2, 3: the smallest position on a tie
    (MinK(0, alpha=0), DROPS, 3),  # 3, 4, 9
    (MinK(0, alpha=0.5), DROPS, 3),  # 3, 2.83, 5.20
    (MinK(0, alpha=2), DROPS, 1),  # 3, 1, 1
    (MinK(0, decay="log"), DROPS, 3),  # 4.33, 3.64, 6.49
    (MinK(3, normalize=False), DROPS, 3),  # floor(3), not floor(3 / 16)
    (MinK(3), DROPS, 1),
    (TopP(0.6), QUARTERS, 2),  # 0.5 does not reach it, 0.75 does
    (TopP(0.0), QUARTERS, 1),
    (TopP(1.0), QUARTERS, 4),
    (MinP(0.3), QUARTERS, 2),  # 0.15
    (PLess(), QUARTERS, 1),  # 1/4 + 1/16 + 2/64 = 0.34
    (PLess(), QUARTERS / 4, 2),  # 0.32, 0.27, 0.22, 0.22, or squared and summed 0.26
    (Eta(0.2), QUARTERS, 2),  # H = 1.75 log(2): sqrt(0.2) * 2**-1.75 = 0.133
    (Eta(0.05), QUARTERS, 4),  # 0.05 is below sqrt(0.05) * 2**-1.75 = 0.066
    (Eta(0.2), np.log([0.5, 0.25, 0.15, 0.1]), 3),  # sqrt(0.2) * exp(-1.21) = 0.134
    (TopK(3), QUARTERS, 3),
    (TopNSigma(1), [4.0, 2.0, 0.0, 2.0], 1),  # σ = sqrt(2): from 2.59 on
    (TopNSigma(1.5), [4.0, 2.0, 0.0, 2.0], 3),  # from 1.88 on
    (Greedy(), [1.0, INF, LARGEST, -INF], 1),
])  # fmt: skip
def test_by_hand(sampler: Sampler, row: ArrayLike, k: int) -> None:
    assert sampler.cutoff(row) == k
    check(sampler, np.asarray(row, np.float32))


@pytest.mark.parametrize(("order", "k"), [("temperature-first", 2), ("temperature-last", 1)])
def test_the_order_decides_what_temperature_a_cut_sees(order: Order, k: int) -> None:
    assert PLess(order).cutoff(QUARTERS, 4.0) == k


@pytest.mark.parametrize("floor", [0.3, 2.0, 60.0])
def test_a_floor_keeps_what_min_p_keeps_of_temperature_last(logits: Row, floor: float) -> None:
    """And the tokens before the cliff."""
    min_p = MinP(math.exp(-floor), order="temperature-last")
    for row in logits:
        assert MinK(floor=floor).cutoff(row) == max(MinK().cutoff(row), min_p.cutoff(row))
