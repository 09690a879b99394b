"""From logits to a token: one seed gives one text in every form, alone and together; mirostat, lifetimes."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import Llama, LogitsProcessorList
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.llama.constraints import Constrainer, Constraints
from mink_local.llama.token_data import SamplingBuffers
from mink_local.llama.token_sampler import RowSampler, TokenSampler
from mink_local.llama.weights import Weights
from mink_local.samplers import (
    AdaptiveP,
    Chain,
    DynamicTemperature,
    Greedy,
    MinK,
    MinP,
    Mirostat,
    Sampler,
    TopK,
    TopP,
    Xtc,
    default_samplers,
)
from tests.llama.conftest import Generate
from tests.support.chain import SamplerChain
from tests.support.effort import examples
from tests.support.memory import grown
from tests.support.methods import JIT, twin_of

PROMPT = "Once upon a time, there was a robot who"
INF = float("inf")
NAN = float("nan")

Row = NDArray[np.float32]


@pytest.fixture(scope="module")
def llama(smollm2_path: Path) -> Iterator[Llama]:
    """The same model in llama-cpp-python's own class, with the context options of ours: logits of
    other options (flash attention, batch size, threads) differ in their last bits."""
    options = {"n_ctx": 512, "n_batch": 512, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True}
    model = Llama(str(smollm2_path), verbose=False, **options)
    yield model
    model.close()


@pytest.fixture
def prompt(weights: Weights) -> list[int]:
    return weights.tokenize(PROMPT, add_special=True, parse_special=False)


@pytest.mark.parametrize(
    ("temperature", "seed"),
    [(1.0, 7), (5.0, 4294967294), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((0.5, 0), (20.0, 3)))],
)
def test_every_form_samples_the_same_tokens(
    weights: Weights, llama: Llama, generate: Generate, prompt: list[int], temperature: float, seed: int
) -> None:
    """The logits processor in llama-cpp-python, and our own loop."""
    answer: Any = llama.create_completion(
        prompt,
        max_tokens=40,
        temperature=temperature,
        seed=seed,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        logits_processor=LogitsProcessorList([MinK()]),
    )
    tokens = generate(TokenSampler(MinK(), temperature, seed, weights.n_vocab), prompt, 40)
    assert len(tokens) >= 20
    assert b"".join(map(weights.piece, tokens)).decode("utf-8", "replace") == answer["choices"][0]["text"]


def test_a_certain_token_takes_a_random_number_too(rows: Row) -> None:
    """So one seed gives one text here and in llama.cpp, whose `dist` does not know which token is certain."""
    certain = rows[0].copy()
    certain[5] = 1000

    def after(n: int) -> list[int]:
        sampler = TokenSampler(TopK(500), 20.0, 3, certain.size)
        assert all(sampler(certain, 1) == 5 for _ in range(n)) or n == 0
        return [sampler(rows[0], 1) for _ in range(12)]

    one, two = after(1), after(2)
    assert one[1:] == two[:-1]
    assert one != two


@pytest.mark.parametrize("temperature", [1e-45, 1e-42, 1e-38, 1e-37, 1e-31, 1e-20])
@pytest.mark.parametrize("sampler", [TopK(40), Chain(TopK(40), DynamicTemperature(0.0, 1.0))])
def test_near_zero_the_largest_logit_is_taken(rows: Row, sampler: Sampler, temperature: float) -> None:
    for row in rows:
        assert TokenSampler(sampler, temperature, 1, row.size)(row, 1) == row.argmax()


# What llama.cpp's own samplers do after the cuts


@pytest.mark.parametrize(
    ("last", "temperature", "choice"),
    [
        (
            DynamicTemperature(0.6, 0.5),
            C.llama_sampler_init_temp_ext(1.5, 0.6, 0.5),
            C.llama_sampler_init_dist(5),
        ),
        (AdaptiveP(0.3, 0.8), C.llama_sampler_init_temp(1.5), C.llama_sampler_init_adaptive_p(0.3, 0.8, 5)),
    ],
    ids=lambda value: value.name if isinstance(value, Sampler) else "",
)
def test_what_comes_last_is_llama_cpps(rows: Row, last: Sampler, temperature: Any, choice: Any) -> None:
    cut = MinP(0.02, "temperature-last")
    chain = SamplerChain(C.llama_sampler_init_min_p(cut.p, 1), temperature, choice)
    sample = TokenSampler(Chain(cut, last), 1.5, 5, rows.shape[1])
    plain = TokenSampler(cut, 1.5, 5, rows.shape[1])
    theirs, ours, others = [], [], []
    for row in [*rows, *rows]:
        theirs.append(chain.sample(row))
        C.llama_sampler_accept(chain.handle, theirs[-1])
        ours.append(sample(row, 1))
        others.append(plain(row, 1))
        assert sample.k == plain.k
    assert ours == theirs != others


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_is_llama_cpps(
    weights: Weights, llama: Llama, generate: Generate, prompt: list[int], version: int
) -> None:
    """llama-cpp-python's own mirostat has no temperature, which is 1."""
    answer: Any = llama.create_completion(
        prompt, max_tokens=30, seed=5, temperature=1.0, mirostat_mode=version
    )
    sampler = TokenSampler(Mirostat(version=version), 1.0, 5, weights.n_vocab)
    k = []

    def sample(logits: Row, step: int) -> int:
        token = sampler(logits, step)
        k.append(sampler.k)
        return token

    tokens = generate(sample, prompt, 30)
    assert b"".join(map(weights.piece, tokens)).decode("utf-8", "replace") == answer["choices"][0]["text"]
    assert len(set(k)) > 5
    assert all(1 <= n <= weights.n_vocab for n in k)


# Answers sampled together: the tokens, candidates and errors are those of sampling them one by one

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


def made(weights: Weights, i: int, buffers: SamplingBuffers) -> TokenSampler:
    """One of many samplers; the same for the same number."""
    choice = random.Random(i)
    constrainer = Constrainer(Constraints(**OPTIONS[i % len(OPTIONS)]), weights, [5, 9, 9, 100, 5, 77] * 9)
    own = SAMPLERS[i % len(SAMPLERS)]
    temperature = 1.0 if own == Greedy() else choice.choice([0.3, 1.0, 5.0])
    found = TokenSampler(own, temperature, i, weights.n_vocab, constrainer, buffers)
    if choice.random() < 0.3:
        found.banned = np.array(choice.sample(range(weights.n_vocab), 20), np.int32)
    return found


def alone(sampler: TokenSampler, row: Row) -> tuple[int, int] | str:
    """The token and k; or the kind of error."""
    try:
        return sampler(row, 1), sampler.k
    except GenerationError as error:
        return type(error).__name__


def together(
    sample: RowSampler, rows: Row, numbers: Sequence[int], samplers: Sequence[TokenSampler]
) -> list[tuple[int, int] | str]:
    """The same, of many, given the row of each; where there is an error, it is that of the row alone."""
    sample.fill_masks([each.constrainer.guide for each in samplers if each.constrainer.guide])
    before = rows.copy()
    found: list[tuple[int, int] | str] = []
    for i, (token, k) in enumerate(zip(*sample(rows, numbers, list(samplers)), strict=True)):
        if k > 0:
            samplers[i].took(token, k)
        found.append((token, k) if k > 0 else alone(samplers[i], rows[numbers[i]]))
    np.testing.assert_array_equal(rows, before)
    return found


@needs_jit
@pytest.mark.parametrize("n_threads", [1, 4])
def test_real_rows(weights: Weights, rows: Row, n_threads: int) -> None:
    """64 answers of every sampler and kind of constraint, some of which end, for ten steps.

    In every other step, some are sampled from the same row. Those sampled one by one share their buffers.
    """
    buffers = SamplingBuffers(weights.n_vocab)
    one, many = ([made(weights, i, buffers) for i in range(64)] for _ in range(2))
    assert all(each.program is not None for each in many)
    sample = RowSampler(weights.n_vocab, n_threads)
    for step in range(10):
        numbers = [(i + step) % len(rows) for i in range(len(one))]
        of_step = rows[numbers]
        if step % 2:
            found = together(sample, rows.copy(), numbers, many)
        else:
            found = together(sample, of_step, range(len(one)), many)
        assert found == [alone(each, row) for each, row in zip(one, of_step, strict=True)]
        going = [
            i for i, each in enumerate(found) if not isinstance(each, str) and not one[i].constrainer.is_over
        ]
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
    others = [TokenSampler(other, 1.0, 1, 8) for other in (Few(), Mine(), Chain(TopK(3), Few()))]
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
        found = together(RowSampler(40, 2), rows, range(len(rows)), many)
        assert found == [alone(each, row) for each, row in zip(one, rows, strict=True)]


# What a constraint allows: nearly all tokens, many, few


@needs_jit
@examples(40)
@given(st.data())
def test_candidates_of_the_allowed_tokens(weights: Weights, rows: Row, data: st.DataObject) -> None:
    """They are those of a row in which the others are banned; a NaN counts, whether or not it is allowed."""
    characters = data.draw(st.text(" \n0123456789abcdefghijklmnopqrstuvwxyz,.", min_size=1))
    pattern = f"[{data.draw(st.sampled_from(['', '^']))}{characters}]+"
    row = rows[data.draw(st.integers(0, len(rows) - 1))].copy()
    places = data.draw(st.lists(st.integers(0, row.size - 1), max_size=9))
    row[places] = data.draw(hostile)
    own, temperature = data.draw(st.sampled_from([MinK(), MinK(floor=2.0), TopP(0.9), TopK(30)])), 2.0
    one, sampler = (
        TokenSampler(own, temperature, 1, row.size, Constrainer(Constraints(regex=pattern), weights))
        for _ in range(2)
    )
    assert one.constrainer.guide is not None
    is_allowed = np.unpackbits(one.constrainer.guide.mask().view(np.uint8), bitorder="little")[: row.size] > 0
    [found] = together(RowSampler(row.size, 1), row[None], [0], [sampler])
    assert found == alone(one, row)
    if np.isnan(row).any() or not (row[is_allowed] > -INF).any():
        assert isinstance(found, str)
    else:
        twin = twin_of(own, np.where(is_allowed, row, np.float32(-INF)), temperature)
        assert len(twin.must) <= sampler.k <= len(twin.may)
        assert found[0] in twin.may


# Lifetimes


def test_samplers_come_and_go(rows: Row) -> None:
    """One sampler is 2.1 MB at this vocabulary and one llama.cpp `dist` 5 kB: a tenth leaked would show."""
    assert grown(lambda: TokenSampler(MinK(), 1.0, 1, rows.shape[1])(rows[0], 1), 1000) < 5e5
