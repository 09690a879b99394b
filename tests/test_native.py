"""`native_sampler`: a sampler as a `llama_sampler` in a chain of llama.cpp's."""

import gc
from collections.abc import Callable

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import GenerationError, OptionError
from mink_local.llama.token_sampler import TokenSampler
from mink_local.native import check, native_sampler
from mink_local.samplers import MinK, Mirostat, Sampler, TopK, Xtc, parse
from tests.support.chain import SamplerChain
from tests.support.logits import embedded_logits
from tests.support.memory import grown
from tests.support.methods import EXAMPLES, Near
from tests.support.python import output_of

SAMPLES = [sampler for sampler in EXAMPLES if not sampler.comes_last]
MANY = MinK(tau=10_000.0)  # keeps hundreds of tokens of a row whose range is about 30
INF = float("inf")
NAN = float("nan")

Row = NDArray[np.float32]


WRONG: list[Callable[[], object]] = [
    lambda: parse(None),  # type: ignore[arg-type]
    lambda: native_sampler(MinK, 5),  # type: ignore[arg-type]
    *(lambda t=t: native_sampler(MANY, 5, t) for t in (0, -1.0, NAN, INF, "x", None)),
    lambda: native_sampler(MANY, -1),
    lambda: native_sampler(MANY, 5, seed=-1),
    lambda: MANY.at(1.0, seed="x"),  # type: ignore[arg-type]
    lambda: native_sampler(Mirostat(), 10),
]


@pytest.mark.parametrize("make", WRONG)
def test_arguments_of_no_use_are_refused_by_name(make: Callable[[], object]) -> None:
    with pytest.raises(
        (OptionError, TypeError), match=r"^(text|sampler|n_vocab|seed|temperature) must be|^mirostat"
    ):
        make()


def test_texts_and_functions_are_taken_as_everywhere(rows: Row) -> None:
    row = rows[0]
    for sampler in ("top-k:k=3", TopK(3), lambda row: row >= np.sort(row)[-3]):
        records, _ = SamplerChain(native_sampler(sampler, row.size)).apply(np.arange(row.size), row)
        assert records["id"].tolist() == sorted(TopK(3).candidates(row)[0].tolist())


@pytest.fixture(scope="module")
def rows() -> Row:
    """Logits of the real model over the steps of a text, (20, V)."""
    return embedded_logits()


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.7, marks=pytest.mark.slow), pytest.param(5.0, marks=pytest.mark.slow), 2.0]
)
@pytest.mark.parametrize("sampler", [MANY, *SAMPLES], ids=str)
def test_every_method_samples_the_same_in_every_form(rows: Row, sampler: Sampler, temperature: float) -> None:
    """The logits processor does not know the temperature: it selects at 1, as does `temperature-last`."""
    direct = TokenSampler(sampler, temperature, 9, rows.shape[1])
    native = native_sampler(sampler, rows.shape[1], temperature)
    chain = SamplerChain(native, C.llama_sampler_init_temp(temperature), C.llama_sampler_init_dist(9))
    processed = SamplerChain(C.llama_sampler_init_temp(temperature), C.llama_sampler_init_dist(9))
    tokens = set()
    for row in rows:
        token = direct(row, 1)
        tokens.add(token)
        assert chain.sample(row) == token
        assert check(native, 1) == direct.k
        assert direct.k > 100 or sampler is not MANY
        if sampler.order != "temperature-first":
            assert processed.sample(sampler([], row)) == token
    assert len(tokens) > 12 or sampler is not MANY


@pytest.mark.parametrize("sampler", SAMPLES, ids=str)
def test_candidates_are_the_kernels_in_any_order_of_records(rows: Row, sampler: Sampler) -> None:
    random = np.random.default_rng(1)
    chain = SamplerChain(native := native_sampler(sampler, rows.shape[1]))
    for row in rows:
        row = row.copy()
        row[random.integers(0, row.size, 1000)] = -INF
        order, gone = np.split(random.permutation(row.size), [-1000])  # another sampler has dropped those
        row[gone] = -INF
        records, selected = chain.apply(order, row[order])
        ids, _ = sampler.candidates(row)
        assert records["id"].tolist() == sorted(ids.tolist())
        assert np.array_equal(records["logit"], row[records["id"]])
        assert selected == -1
        assert check(native, 1) == len(ids)


def test_what_is_left_to_chance_has_a_stream_of_the_seed(rows: Row) -> None:
    """The same in every form, again after a reset, and in a clone from where it is."""
    sampler, n_vocab = Xtc(0.5, 0.01, "temperature-last"), rows.shape[1]
    direct = TokenSampler(sampler, 1.0, 9, n_vocab)
    process, native = sampler.at(1.0, 9), native_sampler(sampler, n_vocab, seed=9)
    chain = SamplerChain(native)

    def kept(chain: SamplerChain) -> list[int]:
        return [len(chain.apply(np.arange(n_vocab), row)[0]) for row in rows]

    k = [(direct(row, 1), direct.k)[1] for row in rows]
    assert kept(chain) == k == [int((process([], row) > -INF).sum()) for row in rows]
    assert {n - len(sampler.candidates(row)[0]) == 0 for n, row in zip(k, rows, strict=True)} == {True, False}
    other = TokenSampler(sampler, 1.0, 10, n_vocab)
    assert k != [(other(row, 1), other.k)[1] for row in rows]
    C.llama_sampler_reset(chain.handle)
    assert kept(chain) == k
    clone = SamplerChain(C.llama_sampler_clone(native))
    assert kept(clone) == kept(chain)


def test_an_error_stays_until_reset() -> None:
    chain = SamplerChain(native := native_sampler(MinK(), 4))
    good = np.array([4, 1, 0, -1], np.float32)
    chain.apply(np.arange(4), np.full(4, NAN, np.float32))
    chain.apply(np.arange(4), good)
    with pytest.raises(GenerationError, match="step 9"):
        check(native, step=9)
    C.llama_sampler_reset(chain.handle)
    chain.apply(np.arange(4), good)
    assert check(native, 1) == 1


@pytest.mark.parametrize("token", [4, -1, 2**31 - 1])
def test_refuses_tokens_outside_its_vocabulary(token: int) -> None:
    chain = SamplerChain(native := native_sampler(MinK(), 4))
    records, _ = chain.apply(np.array([0, token]), np.array([1, 2], np.float32))
    assert records["id"].tolist() == [0, token]
    with pytest.raises(GenerationError, match="4"):
        check(native, 1)


def test_a_sampler_of_ones_own_and_its_clone(rows: Row) -> None:
    """A kernel and a dataclass are enough for every form; a clone outlives its original."""
    own = TokenSampler(Near(2.0), 1.5, 4, rows.shape[1])
    first = SamplerChain(native_sampler(Near(2.0), rows.shape[1], 1.5))
    clone = C.llama_sampler_clone(first.handle)
    assert C.llama_sampler_name(C.llama_sampler_chain_get(clone, 0)) == b"mink-local"
    chain = SamplerChain(clone, C.llama_sampler_init_temp(1.5), C.llama_sampler_init_dist(4))
    del first
    gc.collect()
    for row in rows:
        assert chain.sample(row) == own(row, 1)
        assert own.k == np.count_nonzero(row >= row.max() - 3.0)


def test_native_samplers_come_and_go(rows: Row) -> None:
    def cycle() -> None:
        chain = SamplerChain(native_sampler(MinK(), rows.shape[1]), C.llama_sampler_init_dist(1))
        clone = C.llama_sampler_clone(chain.handle)
        chain.apply(np.arange(8), rows[0, :8])
        C.llama_sampler_free(clone)

    assert grown(cycle, 1_000) < 1e6


def test_samplers_that_are_alive_when_the_interpreter_ends() -> None:
    program = """
from llama_cpp import llama_cpp as C
from mink_local.llama.token_sampler import TokenSampler
from mink_local.native import native_sampler
from mink_local.samplers import MinK

class Holder:
    def __init__(self):
        self.chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        C.llama_sampler_chain_add(self.chain, native_sampler(MinK(), 1000))
        self.free = C.llama_sampler_free
    def __del__(self):
        self.free(self.chain)
        print("freed", flush=True)

holder, sampler = Holder(), TokenSampler(MinK(), 1.0, 1, 1000)
holder.itself = holder  # only the last collection of all finds it
"""
    assert output_of("-c", program) == "freed\n"
