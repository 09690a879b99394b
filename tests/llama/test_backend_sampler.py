"""Backend sampling: Min-k's nodes on any logits, every form on chosen logits and on a real model's steps."""

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from mink_local.errors import GenerationError
from mink_local.llama import backend_sampler
from mink_local.llama.backend_sampler import WIDTH, BackendSampler, Kept, has_backend_form, min_k
from mink_local.llama.context import Context, Segment
from mink_local.llama.graph import Graph
from mink_local.llama.weights import Weights
from mink_local.samplers import Eta, Greedy, MinK, MinP, Mirostat, PLess, Sampler, TopK, TopNSigma, TopP
from tests.llama.conftest import computed, filled
from tests.support.memory import grown
from tests.support.tiny import write_chosen_logits

FLOAT32_MAX = float(np.finfo(np.float32).max)
NAN, INF = float("nan"), float("inf")

Row = NDArray[np.float32]
Chosen = Callable[..., Context]


def run(sampler: MinK, logits: Row) -> tuple[float, list[int]]:
    """Return k of Min-k's nodes, 0 if it is not certain, and the ids that they keep."""
    with Graph(256, n_bytes=64 * logits.nbytes + 2**20) as graph:
        kept = min_k(sampler, filled(graph, logits))
        k, left, ids = computed(graph, kept.k, kept.logits, kept.ids)
    return float(k[0]), sorted(ids.view(np.int32)[left > -np.inf].tolist())


def kept_by_kernel(sampler: Sampler, logits: Row, temperature: float = 1.0) -> list[int]:
    return sorted(sampler.candidates(logits, temperature)[0].tolist())


# Min-k's nodes on any logits


@pytest.mark.parametrize("tau", [0.0, 3.0, 300.0, 5000.0])
@pytest.mark.parametrize("floor", [0.0, 0.5, 1.0, 2.3])
def test_real_logits_are_decided_as_by_the_kernel(logits: Row, tau: float, floor: float) -> None:
    for row in logits:
        expected = kept_by_kernel(MinK(tau, floor), row)
        assert run(MinK(tau, floor), row) == (len(expected), expected)


def test_a_drop_that_overflows_is_not_certain() -> None:
    """The drop after rank 100 is infinite in float32, and smaller than the first one in float64."""
    logits = np.repeat([3e38, 2.9e38, -3e38], [1, 99, 50]).astype(np.float32)
    assert kept_by_kernel(MinK(0), logits) == [0]
    assert not run(MinK(0), logits)[0] > 0


hostile = st.one_of(
    st.floats(-(2.0**127), 2.0**127, width=32),
    st.integers(-3, 3).map(float),
    st.sampled_from([float(np.float32(x)) for x in (0.0, -0.0, 1e-45, 1.5e38, -1.5e38)]),
)


@settings(max_examples=200)
@given(
    logits=st.one_of(
        hnp.arrays(np.float32, st.integers(2, 40), elements=hostile),
        hnp.arrays(np.float32, st.integers(2, 40), elements=st.floats(-50, 50, width=32)),
    ),
    sampler=st.builds(
        MinK,
        st.one_of(st.floats(0, 1e38), st.floats(0, 100), st.just(3.0)),
        st.one_of(st.floats(1e-30, 1e38), st.floats(0.5, 9), st.sampled_from([0.0, 1.0, 2.0])),
    ),
)
def test_what_is_certain_is_the_kernels_whatever_the_logits(logits: Row, sampler: MinK) -> None:
    k, ids = run(sampler, logits)
    if k > 0:
        assert (k, ids) == (len(ids), kept_by_kernel(sampler, logits))


@pytest.mark.parametrize(("samplers", "expected"), [
    ((MinK(0.5), MinK(floor=1.0), Greedy(), TopK(20), TopP(0.9), MinP(0.1)), True),
    ((MinK(alpha=2), MinK(normalize=False), MinK(1e300), MinK(floor=1e300), MinK(floor=1e-40)), False),
    ((Mirostat(), TopNSigma(), Eta(), PLess(), TopK(10**6)), False),
])  # fmt: skip
def test_only_what_llama_cpp_or_min_k_keeps_has_a_backend_form(
    samplers: tuple[Sampler, ...], expected: bool
) -> None:
    assert {has_backend_form(sampler) for sampler in samplers} == {expected}


# All forms, in llama.cpp's graph, on chosen logits


@pytest.fixture
def chosen(tmp_path: Path) -> Chosen:
    """`chosen(rows)` is a context that has, after token i alone, the logits `rows[i]`."""

    def make(rows: Row) -> Context:
        path = write_chosen_logits(tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", rows)
        return Context(Weights(path), 64, 1)

    return make


def attached(sampler: Sampler, context: Context, temperature: float = 1.0, seed: int = 1) -> BackendSampler:
    backend = BackendSampler(sampler, temperature, seed, context)
    backend.attach()
    return backend


def sample(backend: BackendSampler, context: Context, token: int) -> int | None:
    """The token that follows this one, alone in its sequence."""
    context.clear()
    context.decode(Segment([token], 0))
    return backend.next()


FORMS = [
    *(MinK(tau) for tau in (0.0, 3.0, 40.0)),
    *(MinK(floor=floor) for floor in (0.3, 2.0)),
    Greedy(),
    *(TopK(k) for k in (1, 7, 2000)),
    *(TopP(p, order) for p in (0.0, 0.5, 0.95, 1.0) for order in ("temperature-first", "temperature-last")),
    *(MinP(p, order) for p in (0.0, 0.02, 0.5) for order in ("temperature-first", "temperature-last")),
]


def check_kept(sampler: Sampler, row: Row, temperature: float, token: int, k: int) -> None:
    """Compare a token and k with the kernel: for top-p and min-p, up to rounding at the threshold."""
    ids, logits = sampler.candidates(row, temperature)
    if isinstance(sampler, TopP | MinP):
        assert abs(k - ids.size) <= np.count_nonzero(np.abs(row - logits[-1]) <= 1e-3 * temperature)
        assert row[token] >= logits[-1] - 1e-3 * temperature
    else:
        assert k == ids.size
        assert token in ids


@pytest.mark.parametrize("temperature", [0.7, 5.0])
@pytest.mark.parametrize("n_vocab", [64, WIDTH, WIDTH + 1, 3000])
def test_random_rows_have_the_kernels_candidates(chosen: Chosen, n_vocab: int, temperature: float) -> None:
    rng = np.random.default_rng(n_vocab)
    rows = (rng.normal(size=(32, n_vocab)) * rng.uniform(0.5, 8, (32, 1))).astype(np.float32)
    context = chosen(rows)
    for sampler in FORMS:
        backend = attached(sampler, context, temperature)
        decided = 0
        for i, row in enumerate(rows):
            if (token := sample(backend, context, i)) is not None:
                check_kept(sampler, row, temperature, token, backend.k)
                decided += 1
        assert decided >= 24, sampler
        backend.detach()


FALLING = -(np.arange(3000, dtype=np.float32) ** 0.5)


@pytest.mark.parametrize(
    ("sampler", "logits", "why"),
    [
        (MinK(0), [4, 3, 1, 1], "two drops of one weight: 1 / 1 and 2 / 2"),
        (MinK(), np.full(50, 7), "all logits equal"),
        (MinK(0), np.repeat([1, 0], [2000, 1000]), "a cliff behind the last logit that is sorted"),
        (MinK(2000 * 54.8), FALLING, "a fallback behind it"),
        (MinK(4), [0, 1, 1.5, 2], "a fallback of exactly 2"),
        (MinK(5), [28, 26, 26], "a fallback between two equal logits"),
        (MinK(floor=2), [28, 26, 26, 0], "a logit at the floor itself"),
        (MinK(floor=60), FALLING, "a floor behind the last logit that is sorted"),
        (MinK(0, 9), [28, 26, 25], "a floor that keeps everything"),
        (TopK(2), [1, 3, 2, 2], "equal logits on both sides of the cutoff"),
        (TopK(1), [1, 3, 2, 3], "two largest logits"),
        (Greedy(), [1, 3, 2, 3], "two largest logits"),
        (TopP(0.5), [0, 0, 0, 0], "equal logits on both sides of the cutoff"),
        (TopP(0.3), [2, 5, 5, 1], "two largest logits"),
        (MinP(1), [1, 3, 2, 0], "a token exactly at the threshold, which llama.cpp drops"),
        *(
            (sampler, row, why)
            for sampler in (MinK(), Greedy(), TopK(2), TopP(), MinP())
            for row, why in (
                ([1, NAN, 5, 2], "a NaN"),
                ([1, -INF, 5, 2], "a banned token"),
                ([1, INF, 5, 2], "an overflow"),
                ([NAN] * 9, "nothing but NaN"),
                ([-INF] * 9, "nothing finite"),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value) if isinstance(value, Sampler) else "",
)
def test_what_a_graph_cannot_decide_is_left_to_the_host(
    chosen: Chosen, sampler: Sampler, logits: list[float] | Row, why: str
) -> None:
    context = chosen(np.array(logits, np.float32)[None])
    assert sample(attached(sampler, context), context, 0) is None, why


@pytest.mark.parametrize(
    "p", [TopP(1.0), TopP(1.0, "temperature-last"), MinP(0.0), MinP(0.0, "temperature-last")]
)
def test_probabilities_that_are_no_numbers_are_left_to_the_host(chosen: Chosen, p: Sampler) -> None:
    """Divided by a low temperature, the two largest logits are infinite, and softmax gives NaN."""
    row = np.array([1, 2e9, 3, 1e9, 2], np.float32)
    context = chosen(row[None])
    backend = attached(p, context, 1e-30)
    assert sample(backend, context, 0) is None
    assert np.isnan(context.sampled()[1])


@pytest.mark.parametrize("temperature", [1e-38, 1e-45, 1e-300])
def test_the_lowest_temperatures_have_the_kernels_candidates(chosen: Chosen, temperature: float) -> None:
    row = np.random.default_rng(0).normal(scale=4, size=3000).astype(np.float32)
    context = chosen(row[None])
    for sampler in FORMS:
        backend = attached(sampler, context, temperature)
        if sample(backend, context, 0) is not None:
            assert backend.k == sampler.cutoff(row, temperature), sampler
        backend.detach()


@pytest.mark.parametrize(
    ("sampler", "logits", "k"),
    [
        (Greedy(), [1, 3, 2, 2], 1),
        (TopK(3), [1, 3, 2, 2], 3),
        (TopK(4), [2, 2, 2, 2], 4),
        (TopP(0.4), [3, 3, 1, 1], 1),
        (TopP(0.95), [3, 3, 0, 1], 3),
        (TopP(1), [2, 2, 2, 2], 4),
        (MinP(0.5), [3, 3, 0, 1], 2),
        (MinP(0), [2, 2, 2, 2], 4),
    ],
    ids=str,
)
def test_ties_away_from_the_cutoff_do_no_harm(
    chosen: Chosen, sampler: Sampler, logits: list[float], k: int
) -> None:
    row = np.array(logits, np.float32)
    assert sampler.cutoff(row) == k
    context = chosen(row[None])
    backend = attached(sampler, context)
    token = sample(backend, context, 0)
    if sampler == TopP(0.4):  # either of the two largest reaches p: a tie at the cutoff after all
        assert token is None
    else:
        assert token in kept_by_kernel(sampler, row)
        assert backend.k == k


@pytest.mark.parametrize(
    "sampler",
    [
        MinK(30),
        MinK(floor=2.5),
        TopK(8),
        TopP(0.8),
        TopP(0.8, "temperature-last"),
        MinP(0.1),
        MinP(0.1, "temperature-last"),
    ],
    ids=str,
)
def test_the_tokens_follow_the_distribution_of_the_candidates(chosen: Chosen, sampler: Sampler) -> None:
    temperature, n = 1.5, 1500
    row = np.concatenate([np.linspace(3, 0.1, 9), np.linspace(-5, -9, 191)]).astype(np.float32)
    np.random.default_rng(5).shuffle(row)
    ids, logits = sampler.candidates(row, temperature)
    assert 4 <= ids.size <= 12
    context = chosen(row[None])
    backend = attached(sampler, context, temperature, seed=7)
    counts = Counter(sample(backend, context, 0) for _ in range(n))
    assert set(counts) == set(ids.tolist())
    assert backend.k == ids.size
    p = np.exp((logits - logits[0]).astype(np.float64) / temperature)
    assert stats.chisquare([counts[i] for i in ids.tolist()], n * p / p.sum()).pvalue > 1e-3


@pytest.mark.parametrize("sampler", [MinK(30), Greedy(), TopK(8), TopP(0.8), MinP(0.1)], ids=str)
def test_a_random_number_of_1_gives_no_token_outside_the_candidates(chosen: Chosen, sampler: Sampler) -> None:
    """The first random number of this seed is 1 - 4e-9, which is 1 in float32: no cumulative sum exceeds it.

    llama.cpp's `dist` takes the last entry then, which top-p and min-p have dropped.
    """
    row = np.concatenate([np.linspace(3, 0.1, 9), np.linspace(-5, -9, 191)]).astype(np.float32)
    context = chosen(row[None])
    backend = attached(sampler, context, 1.5, seed=2180022)
    token = sample(backend, context, 0)
    candidates = kept_by_kernel(sampler, row, 1.5)
    if isinstance(sampler, TopP | MinP):
        assert context.sampled()[0] not in candidates
        assert token is None
    else:
        assert token in candidates


def test_only_an_output_takes_a_random_number(tiny_weights: Weights) -> None:
    """However much of the prompt is evaluated with the sampler attached."""

    def sampled(n_attached: int) -> list[int | None]:
        context = Context(tiny_weights, 512, 1)
        backend = BackendSampler(MinK(1000), 5.0, 7, context)
        for position in range(4):
            if position == 4 - n_attached:
                backend.attach()
            context.decode(Segment([position], position, n_outputs=0))
        if not n_attached:
            backend.attach()
        tokens = []
        for position in range(4, 16):
            context.decode(Segment([5], position))
            tokens.append(backend.next())
        return tokens

    assert len(set(sampled(0))) > 3
    assert sampled(4) == sampled(2) == sampled(0)


# Faults and lifetimes


def fail(*_: object) -> Kept:
    raise KeyError("in a callback")


def test_an_exception_in_a_callback_is_raised_by_attach_or_by_the_next_token(
    small: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_sampler, "min_k", fail)
    with pytest.raises(GenerationError, match="graph") as caught:
        BackendSampler(MinK(), 1.0, 1, small).attach()
    assert isinstance(caught.value.__cause__, KeyError)
    monkeypatch.undo()
    backend = attached(MinK(), small)
    assert sample(backend, small, 3) is not None
    monkeypatch.setattr(backend_sampler, "min_k", fail)
    small.decode(Segment([1, 2, 3], 1))  # of another shape, for which the graph is built again
    with pytest.raises(GenerationError, match="graph"):
        backend.next()


@pytest.fixture
def small(tiny_weights: Weights) -> Context:
    return Context(tiny_weights, 64, 1)


@pytest.mark.slow
@pytest.mark.parametrize("attach", [True, False])
@pytest.mark.parametrize("close", [True, False])
def test_a_sampler_may_outlive_its_context(tiny_weights: Weights, attach: bool, close: bool) -> None:
    context = Context(tiny_weights, 64, 1)
    backend = BackendSampler(MinK(), 1.0, 1, context)
    if attach:
        backend.attach()
    if close:
        context.close()
    del context
    gc.collect()
    del backend
    gc.collect()


def test_a_second_sampler_takes_the_place_of_the_first(small: Context) -> None:
    first, second = (BackendSampler(MinK(), 1.0, seed, small) for seed in (1, 2))
    first.attach()
    small.decode(Segment([1, 2], 0))
    second.attach()
    del first
    gc.collect()
    small.decode(Segment([3], 2))
    assert second.next() is not None
    second.detach()
    small.decode(Segment([4], 3))
    assert np.isfinite(small.logits()).all()
    with pytest.raises(GenerationError, match="token"):
        second.next()


def test_samplers_come_and_go(small: Context) -> None:
    """One llama.cpp `dist` is 5 kB, and one chain with its callbacks more: a tenth leaked would show."""
    assert grown(lambda: BackendSampler(MinK(), 1.0, 1, small), 1000) < 1e6
    BackendSampler(MinK(), 1.0, 0, small).attach()
