# ruff: noqa: ARG001  (kernels have four arguments)
"""Samplers of others: whatever their code returns, writes or raises, the process goes on and says so.

All four places that call a kernel refuse the same: `candidates`, the logits processor, the engine, and
`native_sampler`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llama_cpp import llama_cpp as C

from mink_local.errors import GenerationError, OptionError
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.token_sampler import TokenSampler
from mink_local.native import check, native_sampler
from mink_local.samplers import Chain, MinK, Sampler, TopK
from mink_local.samplers.compile import compiled
from tests.support.chain import SamplerChain
from tests.support.methods import JIT

ROW = np.array([1, 5, -np.inf, 4, np.nan, 3], np.float32)
USABLE = {0, 1, 3, 5}
INTS = {np.dtype(kind).type for kind in "bBhHiIlLqQ"}


@dataclass(frozen=True, eq=False)
class Told(Sampler):
    """A sampler whose kernel, in plain Python, writes some ids and returns something."""

    ids: Any
    result: Any

    name = "told"

    def kernel_options(self, temperature: float) -> Any:  # noqa: ARG002
        return np.zeros(1)

    @property
    def kernel(self) -> Any:  # type: ignore[override]
        def kernel(logits: Any, options: Any, work: Any, ids: Any) -> Any:
            ids[:] = -1
            ids[: len(self.ids)] = self.ids
            if isinstance(self.result, Exception):
                raise self.result
            return self.result

        return kernel


class ToldBySelector(Told):
    """The same without a kernel."""

    def selector(self, temperature: float, workspace: Any, random: Any = None) -> Any:  # noqa: ARG002
        return lambda row: self.kernel(row, None, None, workspace.ids)


numbers = st.integers(-3, 9) | st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=3)
scalars = st.builds(
    lambda kind, n: np.dtype(kind).type(n), st.sampled_from("bBhHiIlLqQefdgFD?"), st.integers(0, 7)
)
arrays = st.builds(lambda kind, n: np.full(n, 2, kind), st.sampled_from("ifb"), st.integers(0, 3))
results = numbers | scalars | arrays | st.sampled_from([np.array(2), [2], (1,), Exception("x"), ValueError()])
written = st.lists(st.sampled_from(sorted(USABLE)), unique=True, max_size=4) | st.lists(
    st.integers(-9, 9) | st.sampled_from([2**31 - 1, -(2**31)]), max_size=6
)


def is_right(ids: list[int], result: Any) -> bool:
    """Whether the first `result` ids are candidates; the oracle, which knows nothing of arrays."""
    if type(result) is not int and type(result) not in INTS:
        return isinstance(result, np.ndarray) and result.shape == () and result == 2 and is_right(ids, 2)
    kept = ids[: max(0, int(result))]
    return 0 < int(result) == len(kept) and len({*kept}) == len(kept) and {*kept} <= USABLE


def places(sampler: Sampler) -> list[tuple[Callable[[], Any], type[Exception] | tuple[type[Exception], ...]]]:
    """The four places, each with the kind of its error for a kernel that returns what is none."""
    chain = SamplerChain(native := native_sampler(sampler, ROW.size))

    def in_chain() -> Any:
        found = chain.apply(np.arange(ROW.size), ROW)[0]["id"].tolist()
        check(native, 1)
        return found

    engine = TokenSampler(sampler, 1.0, 1, ROW.size)
    return [
        (lambda: sampler.candidates(ROW)[0].tolist(), Exception),
        (lambda: np.flatnonzero(sampler([], ROW) > -np.inf).tolist(), Exception),
        (lambda: [engine(ROW.copy(), 1)], Exception),
        (in_chain, GenerationError),
    ]


@pytest.mark.parametrize("kind", [Told, ToldBySelector])
@given(ids=written, result=results)
@example(ids=[1, 3], result=2)
@example(ids=[1, 1, 1, 1, 1, 1], result=6)
@example(ids=[0, 2], result=2)
@example(ids=[1], result=True)
@example(ids=[1], result=np.float64(1))
def test_only_candidates_are_taken_for_candidates(kind: type[Told], ids: list[int], result: Any) -> None:
    if type(result) is int and result in (-1, -2):  # a kernel's own errors
        return
    for call, error in places(kind(ids, result)):
        if is_right(ids, result):
            assert {*call()} <= {*ids[: int(result)]}
        else:
            with pytest.raises(error):
                call()


@pytest.mark.parametrize("error", [-1, -2, np.int64(-1)])
@pytest.mark.parametrize("kind", [Told, ToldBySelector])
def test_a_kernels_own_errors_are_kept(kind: type[Told], error: int) -> None:
    for call, expected in places(kind([], error)):
        with pytest.raises(expected, match=r"finite|NaN|no token"):
            call()


# Compiled ones, which can read and write anywhere


@compiled
def too_many(logits, options, work, ids):  # type: ignore[no-untyped-def]
    return logits.shape[0] + 5


@compiled
def a_float(logits, options, work, ids):  # type: ignore[no-untyped-def]
    ids[0] = 5
    return 1.0 * 1


@compiled
def zero(logits, options, work, ids):  # type: ignore[no-untyped-def]
    return 0


@compiled
def strangers(logits, options, work, ids):  # type: ignore[no-untyped-def]
    ids[0], ids[1] = -7, 10**6
    return 2


@compiled
def outside(logits, options, work, ids):  # type: ignore[no-untyped-def]
    for i in range(100 * ids.size):
        ids[i] = i
    return 1


@compiled
def raising(logits, options, work, ids):  # type: ignore[no-untyped-def]
    raise ValueError("not today")


@dataclass(frozen=True)
class Own(Sampler):
    number: int = 0

    name = "own"

    @property
    def kernel(self) -> Any:  # type: ignore[override]
        return WRONG[self.number]


WRONG = [too_many, a_float, zero, strangers, outside, raising]


@pytest.mark.skipif(not JIT, reason="without the JIT these are plain Python")
@pytest.mark.parametrize("number", range(len(WRONG)), ids=[each.__name__ for each in WRONG])
def test_a_compiled_kernel_that_is_wrong_ends_its_answer_alone(smollm2: Model, number: int) -> None:
    for sampler in (Own(number), Chain(Own(number), MinK()), Chain(TopK(5), Own(number))):
        for call, error in places(sampler):
            with pytest.raises(error):
                call()
        wrong, right = (SamplingParams(sampler=each, max_tokens=2, seed=1) for each in (sampler, MinK()))
        answers = [*smollm2.answer_all([Request("Hi", wrong), Request("Hi", right)], ordered=True)]
        assert answers[0].finish_reason == "error"
        assert str(answers[0].error)
        assert answers[1].finish_reason == "length"
        with pytest.raises(GenerationError):
            smollm2.chat("Hi", wrong).read()


def test_the_sentence_names_the_sampler_and_what_it_returned(smollm2: Model) -> None:
    with pytest.raises(OptionError, match=r"told .*1\.5"):
        Told([0], 1.5).cutoff(ROW)
    with pytest.raises(GenerationError, match=r"told .*1\.5"):
        smollm2.chat("Hi", sampler=Told([0], 1.5), max_tokens=1).read()


def test_a_clone_of_a_failed_sampler_has_failed_too() -> None:
    chain = SamplerChain(native := native_sampler(Told([0], 9), ROW.size))
    chain.apply(np.arange(ROW.size), ROW)
    clone = C.llama_sampler_clone(native)
    with pytest.raises(GenerationError):
        check(clone, 1)
    C.llama_sampler_reset(clone)
    assert check(clone, 1) == 0
    C.llama_sampler_free(clone)
