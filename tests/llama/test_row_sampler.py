"""Answers sampled together: the tokens, candidates and errors are those of sampling them one by one."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.llama.constraints import Constrainer, Constraints
from mink_local.llama.row_sampler import RowSampler
from mink_local.llama.token_sampler import TokenSampler
from mink_local.llama.weights import Weights
from mink_local.samplers import Chain, Greedy, MinK, Sampler, TopK, Xtc, default_samplers
from tests.support.methods import JIT

Row = NDArray[np.float32]

INF, NAN = float("inf"), float("nan")
XTC = Xtc(probability=0.7, threshold=0.01, order="temperature-last")
SAMPLERS = [*default_samplers(), Chain(TopK(50), XTC, MinK()), Chain(XTC, XTC, TopK(3))]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"repeat_penalty": 1.3, "presence_penalty": 0.5, "penalty_last_n": 5},
    {"frequency_penalty": 0.4, "logit_bias": {5: 3.0, 77: -INF, 9: -100.0}, "dry_multiplier": 0.8},
    {"regex": "[a-z ]{20,90}", "repeat_penalty": 1.1},
    {"choice": ["yes indeed it is", "no", "not today"]},
    {"regex": r"[^é]{40,}"},
]

needs_jit = pytest.mark.skipif(not JIT, reason="without the JIT, rows are sampled one by one")


def sampler(weights: Weights, i: int) -> TokenSampler:
    """One of many samplers; the same for the same number."""
    choice = random.Random(i)
    constrainer = Constrainer(Constraints(**OPTIONS[i % len(OPTIONS)]), weights, [5, 9, 9, 100, 5, 77] * 9)
    own = SAMPLERS[i % len(SAMPLERS)]
    temperature = 1.0 if own == Greedy() else choice.choice([0.3, 1.0, 5.0])
    made = TokenSampler(own, temperature, i, weights.n_vocab, constrainer)
    if choice.random() < 0.3:
        made.banned = np.array(choice.sample(range(weights.n_vocab), 20), np.int32)
    return made


def alone(sampler: TokenSampler, row: Row) -> tuple[int, int] | str:
    """The token and k; or the kind of error."""
    try:
        return sampler(row, 1), sampler.k
    except GenerationError as error:
        return type(error).__name__


def together(sample: RowSampler, rows: Row, samplers: Sequence[TokenSampler]) -> list[tuple[int, int] | str]:
    """The same, of many; where there is an error, it is that of the row alone."""
    sample.fill_masks(samplers)
    found: list[tuple[int, int] | str] = []
    for i, (token, k) in enumerate(zip(*sample(rows, range(len(rows)), list(samplers)), strict=True)):
        if k > 0:
            samplers[i].took(token, k)
        found.append((token, k) if k > 0 else alone(samplers[i], rows[i]))
    return found


@needs_jit
@pytest.mark.parametrize("n_threads", [1, 4])
def test_real_rows(weights: Weights, rows: Row, n_threads: int) -> None:
    """64 answers of every sampler and kind of constraint, some of which end, for ten steps."""
    one, many = ([sampler(weights, i) for i in range(64)] for _ in range(2))
    assert all(each.program is not None for each in many)
    sample = RowSampler(weights.n_vocab, n_threads)
    for step in range(10):
        of_step = np.ascontiguousarray(rows[(np.arange(len(one)) + step) % len(rows)])
        found = together(sample, of_step, many)
        assert found == [alone(each, row) for each, row in zip(one, of_step, strict=True)]
        going = [i for i, each in enumerate(found) if not isinstance(each, str) and not one[i].is_over]
        one, many = ([each[i] for i in going] for each in (one, many))
    assert len(one) > 20


@dataclass(frozen=True)
class Few(Sampler):
    """A sampler with a kernel of its own."""

    name = "few"
    kernel = staticmethod(lambda logits, options, work, ids: 1)  # noqa: ARG005


class Mine(Xtc):
    """One that overrides only its selector."""

    name = "mine"

    def selector(self, *arguments: Any) -> Any:
        return MinK().selector(*arguments)


def test_what_only_python_can_do_is_left_to_it() -> None:
    others = [TokenSampler(other, 1.0, 1, 8) for other in (Few(), Mine(), Chain(TopK(3), Mine()))]
    assert [other.program for other in others] == [None] * 3
    assert (TokenSampler(MinK(), 1.0, 1, 8).program is None) == (not JIT)


hostile = st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45]) | st.floats(-30, 30, width=32)


@needs_jit
@given(st.lists(st.lists(hostile, min_size=40, max_size=40), min_size=1, max_size=6), st.integers(0, 10**6))
def test_hostile_rows(values: list[list[float]], first: int) -> None:
    """NaN, infinities, equal logits, rows without a finite one."""
    rows = np.array(values, np.float32)
    numbers = range(first, first + len(rows))
    one, many = ([TokenSampler(SAMPLERS[i % len(SAMPLERS)], 1.0, i, 40) for i in numbers] for _ in range(2))
    for each in (*one[1::2], *many[1::2]):
        each.banned = np.array([3, 30], np.int32)
    for _ in range(2):
        found = together(RowSampler(40, 2), rows, many)
        assert found == [alone(each, row) for each, row in zip(one, rows, strict=True)]
