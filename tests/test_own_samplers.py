# ruff: noqa: ARG001  (kernels have four arguments)
"""Samplers of others: whatever their code returns, writes or raises, the process goes on and says so.

All four places that call a kernel refuse the same: `candidates`, the logits processor, the engine, and
`native_sampler`.
"""

import pickle
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
from mink_local.samplers import Chain, MinK, Mirostat, Sampler, TopK, TopP, as_sampler, base
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


def places(sampler: Sampler) -> list[Callable[[], list[int]]]:
    """The places that raise for what is none; each returns ids."""
    chain = SamplerChain(native := native_sampler(sampler, ROW.size))
    engine = TokenSampler(sampler, 1.0, 1, ROW.size)

    def in_chain() -> list[int]:
        found: list[int] = chain.apply(np.arange(ROW.size), ROW)[0]["id"].tolist()
        check(native, 1)
        return found

    return [lambda: sampler.candidates(ROW)[0].tolist(), lambda: [engine(ROW.copy(), 1)], in_chain]


def processed(sampler: Sampler) -> list[int]:
    """What it leaves as a logits processor, whose errors llama.cpp would swallow."""
    return np.flatnonzero(sampler([], ROW) > -np.inf).tolist()


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
    sampler = kind(ids, result)
    if is_right(ids, result):
        assert sorted(ids[: int(result)]) == processed(sampler)
        assert all({*call()} <= {*ids[: int(result)]} for call in places(sampler))
        return
    assert processed(sampler) == [int(np.nanargmax(ROW))]
    for call in places(sampler):
        with pytest.raises(Exception):  # noqa: B017, PT011  (one that it raises itself comes through)
            call()


@pytest.mark.parametrize("error", [-1, -2, np.int64(-1)])
@pytest.mark.parametrize("kind", [Told, ToldBySelector])
def test_a_kernels_own_errors_are_kept(kind: type[Told], error: int) -> None:
    for call in places(kind([], error)):
        with pytest.raises((ValueError, GenerationError), match=r"finite|NaN|no token"):
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
        for call in places(sampler):
            with pytest.raises((ValueError, IndexError, GenerationError)):
                call()
        wrong, right = (SamplingParams(sampler=each, max_tokens=2, seed=1) for each in (sampler, MinK()))
        answers = [*smollm2.answer_all([Request("Hi", wrong), Request("Hi", right)], ordered=True)]
        assert answers[0].finish_reason == "error"
        assert str(answers[0].error)
        assert answers[1].finish_reason == "length"
        with pytest.raises((GenerationError, OptionError)):
            smollm2.chat("Hi", wrong).read()


def test_the_sentence_names_the_sampler_and_what_it_returned(smollm2: Model) -> None:
    with pytest.raises(OptionError, match=r"told .*1\.5"):
        Told([0], 1.5).cutoff(ROW)
    with pytest.raises(OptionError, match=r"told .*1\.5"):
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


# Plain functions

returned = (
    results
    | st.lists(numbers, max_size=6)
    | st.lists(st.booleans(), min_size=6, max_size=6).map(np.array)
    | written
    | st.sampled_from([[[0]], [[0], [1, 2]], {0}, "0", b"0", np.ma.array([0, 1]), np.zeros((6, 6), bool)])
)


def named(found: Any) -> set[int] | None:
    """The ids that a function's result names, or None if it names none; the oracle."""
    if isinstance(found, np.ndarray) and found.dtype == bool:
        return {*np.flatnonzero(found).tolist()} if found.shape == (6,) else None
    flat = found.tolist() if isinstance(found, np.ndarray) else found
    ids = [*flat] if isinstance(flat, list | tuple) else [flat]
    if ids and all(type(each) is bool for each in ids):
        return {i for i, each in enumerate(ids) if each} if len(ids) == 6 else None
    kinds = {type(each) for each in ids}  # a bool among ints becomes one
    return {*map(int, ids)} if kinds and kinds <= {int, bool, *INTS} else None


@given(returned)
def test_a_function_names_tokens_or_is_refused(found: Any) -> None:
    """Tokens with logit -inf are none; what is none of this row is refused."""
    row = np.nan_to_num(ROW, nan=2.0, neginf=-np.inf)
    try:
        ids = as_sampler(lambda _: found).candidates(row)[0].tolist()
    except (ValueError, TypeError):
        ids = []
    wanted = named(found)
    is_row = wanted is not None and all(0 <= each < row.size for each in wanted)
    assert {*ids} == ({each for each in wanted if row[each] > -np.inf} if wanted and is_row else set())


def test_a_function_is_a_sampler_everywhere(smollm2: Model) -> None:
    def best(logits: Any) -> Any:
        return logits.argmax()

    def changing(logits: Any) -> Any:
        logits[0] = 0

    options: dict[str, Any] = {"temperature": 5.0, "max_tokens": 5, "seed": 1}
    greedy = smollm2.chat("Hi", temperature=0, max_tokens=5).read()
    assert smollm2.chat("Hi", sampler=best, **options).read() == greedy
    assert smollm2.chat("Hi", sampler=Chain(TopK(5), best), **options).read() == greedy
    assert str(Chain(TopK(5), best)) == "top-k:k=5+best"
    with pytest.raises(GenerationError, match="read-only"):
        smollm2.chat("Hi", sampler=changing, **options).read()
    answer = smollm2.chat("Hi", sampler=lambda row: row.argmax(), **options).answer
    assert pickle.loads(pickle.dumps(answer)).request.params.sampler.name == "<lambda>"


@pytest.mark.parametrize("wrong", [MinK, 5, 0.5, None, [MinK()], b"min-k", {"top_p": 1}])
def test_what_is_no_sampler_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="sampler must"):
        as_sampler(wrong)


def test_a_sampler_without_a_kernel_says_what_it_needs() -> None:
    class Mine(Sampler):
        def candidates(self, logits: Any, temperature: float = 1.0) -> Any:  # noqa: ARG002
            return np.array([5]), logits[[5]]

    with pytest.raises(OptionError, match="kernel or a selector"):
        Mine().cutoff(ROW)


# As logits processors: llama.cpp swallows what they raise


@pytest.mark.parametrize(
    ("sampler", "why"),
    [(TopP(0.5), "sampler.at(temperature)"), (Mirostat(), "llama.cpp"), (Told([], 0), "told")],
)
def test_what_cannot_decide_leaves_the_largest_logit_and_says_why_once(
    sampler: Sampler, why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_WARNED", set())
    for _ in range(3):
        assert processed(sampler) == [1]
    [record] = caplog.records
    assert why in record.getMessage()
    if isinstance(sampler, Mirostat):
        with pytest.raises(TypeError, match=r"llama\.cpp"):
            sampler.at(1.0)


def test_masked_logits_are_no_candidates() -> None:
    row = np.ma.array([5.0, 1, 2], mask=[True, False, False])
    assert MinK(tau=1e6).candidates(row)[0].tolist() == [2, 1]
