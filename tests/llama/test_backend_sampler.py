"""The graph form: its nodes on any logits, its cut on the steps of a real model, its draws, its end."""

import ctypes
import gc
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from scipy import stats

from mink_local import load_model
from mink_local.errors import GenerationError, MinkError
from mink_local.generation.model import Model
from mink_local.llama import backend_sampler as graph
from mink_local.llama import ggml
from mink_local.llama.backend_sampler import BackendSampler, Chain, has_backend_form
from mink_local.llama.context import Context, Segment
from mink_local.llama.weights import Weights
from mink_local.models.catalog import resolve
from mink_local.samplers import (
    Eta,
    Greedy,
    MinK,
    MinP,
    Mirostat,
    Order,
    PLess,
    Sampler,
    TopK,
    TopNSigma,
    TopP,
)
from tests.conftest import SHARED, forget

FLOAT32_MAX = float(np.finfo(np.float32).max)

Row = NDArray[np.float32]

_compute = ggml.function(
    "ggml_graph_compute_with_ctx", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
)
_data = ggml.function("ggml_get_data", ctypes.c_void_p, ctypes.c_void_p)


def as_array(node: ggml.Node, ctype: type[ctypes.c_float] | type[ctypes.c_int32]) -> NDArray[Any]:
    return np.ctypeslib.as_array((ctype * node.size).from_address(_data(node.pointer))).copy()


def run(sampler: Sampler, logits: Row, temperature: float = 1.0) -> tuple[float, list[int]]:
    """The report of a cut (k, or 0 or NaN where it is not certain) and the ids that stand in it, on
    ggml's CPU backend."""
    chain = Chain(sampler, temperature, seed=1, keep_rows=True)
    with ggml.Scratch(256, n_bytes=64 * logits.nbytes + 2**20) as scratch:
        row = ggml.Node.new(scratch.context, logits.size)
        ctypes.memmove(_data(row.pointer), np.ascontiguousarray(logits).ctypes.data, logits.nbytes)
        data = C.llama_sampler_data(logits=row.pointer)
        chain._cut(scratch.context, data)
        left, report = (ggml.Node.wrap(scratch.context, tensor) for tensor in (data.logits, data.probs))
        ids = ggml.Node.wrap(scratch.context, data.candidates) if data.candidates else None
        for node in (left, report, ids or left):
            scratch.expand(node)
        assert _compute(scratch.context, scratch.graph, 1) == 0
        order = as_array(ids, ctypes.c_int32) if ids else np.arange(left.size)
        standing = order[as_array(left, ctypes.c_float) > -np.inf]
        result = float(as_array(report, ctypes.c_float)[0]), sorted(standing.tolist())
    chain.free()
    return result


def kept(sampler: Sampler, logits: Row, temperature: float = 1.0) -> list[int]:
    """What the kernel keeps."""
    return sorted(sampler.candidates(logits, temperature)[0].tolist())


# The nodes on any logits


@pytest.mark.skipif(not (SHARED / "logits").exists(), reason="the shared test data is not here")
@pytest.mark.parametrize(
    "sampler", [MinK(), MinK(0), MinK(300), MinK(5000), Greedy(), TopK(1), TopK(20), TopK(3000)], ids=str
)
def test_real_logits_are_cut_with_certainty_and_as_by_the_kernel(sampler: Sampler) -> None:
    rows = [
        logits for file in sorted((SHARED / "logits").glob("*.npz")) for logits in np.load(file)["logits"]
    ]
    assert len(rows) == 24
    for logits in rows:
        expected = kept(sampler, logits)
        report, standing = run(sampler, logits)
        assert report == len(expected)
        assert standing == expected


@pytest.mark.skipif(not (SHARED / "logits").exists(), reason="the shared test data is not here")
@pytest.mark.parametrize("temperature", [0.7, 1.0, 5.0])
@pytest.mark.parametrize(
    "sampler",
    [
        *(kind(p, order) for kind in (TopP, MinP) for p in (0.1, 0.9) for order in get_args(Order)),
        *(kind(order=order) for kind in (Eta, PLess) for order in get_args(Order)),
        *(TopNSigma(n) for n in (0.5, 1.0, 2.0)),
        TopP(1),
        TopP(0),
        MinP(0),
        MinP(1),
        TopK(10**6),
    ],
    ids=str,
)
def test_thresholds_are_met_but_for_the_rounding_of_float32(sampler: Sampler, temperature: float) -> None:
    for file in sorted((SHARED / "logits").glob("*.npz")):
        for logits in np.load(file)["logits"][:1]:
            expected = kept(sampler, logits, temperature)
            report, standing = run(sampler, logits, temperature)
            assert report == len(standing)
            assert np.argmax(logits) in standing
            differing = list(set(expected) ^ set(standing))
            edge = logits[expected].min()
            assert np.abs(logits[differing] - edge).max(initial=0) <= 1e-4 * temperature


def test_only_a_sampler_with_the_same_nodes_has_a_graph() -> None:
    assert has_backend_form(MinK(0.5))
    assert not has_backend_form(MinK(alpha=2))
    assert not has_backend_form(MinK(normalize=False))
    assert not has_backend_form(Mirostat())


@pytest.mark.parametrize("n", [2, 3, 100, graph.WIDTH, graph.WIDTH + 1, 40_000])
@pytest.mark.parametrize("sampler", [MinK(), MinK(0), MinK(40), Greedy()], ids=str)
def test_random_logits_are_cut_as_by_the_kernel(sampler: Sampler, n: int) -> None:
    rng = np.random.default_rng(n)
    certain = 0
    for _ in range(20):
        logits = rng.normal(scale=rng.uniform(0.1, 10), size=n).astype(np.float32)
        report, standing = run(sampler, logits)
        if report > 0:
            certain += 1
            assert (report, standing) == (len(kept(sampler, logits)), kept(sampler, logits))
    assert certain >= 10 or n < 40  # where tau may ask for more tokens than there are


hostile = st.one_of(
    st.floats(width=32),
    st.integers(-3, 3).map(float),
    st.sampled_from([0.0, -0.0, 1e-45, 3e38, FLOAT32_MAX, -FLOAT32_MAX]),
)


@settings(deadline=None, max_examples=300)
@given(
    logits=st.one_of(
        hnp.arrays(np.float32, st.integers(2, 40), elements=hostile),
        hnp.arrays(np.float32, st.integers(2, 40), elements=st.floats(-50, 50, width=32)),
    ),
    sampler=st.one_of(
        st.floats(0, 1e300).map(MinK), st.floats(0, 100).map(MinK), st.just(MinK()), st.just(Greedy())
    ),
)
def test_a_certain_cut_is_the_kernels_whatever_the_logits(logits: Row, sampler: Sampler) -> None:
    report, standing = run(sampler, logits)
    if report > 0:
        assert (report, standing) == (len(kept(sampler, logits)), kept(sampler, logits))


def row(logits: list[float]) -> Row:
    return np.array(logits, np.float32)


FALLING = -(np.arange(3000, dtype=np.float32) ** 0.5)


@pytest.mark.parametrize(
    ("sampler", "logits", "why"),
    [
        (MinK(0), row([4, 3, 1, 1]), "two drops of one weight: 1 / 1 and 2 / 2"),
        (MinK(), np.full(50, 7, np.float32), "all logits equal"),
        (MinK(), row([1, np.nan, 5, 2]), "a NaN"),
        (MinK(), row([1, -np.inf, 5, 2]), "a banned token"),
        (MinK(), row([1, np.inf, 5, 2]), "an overflow"),
        (MinK(), np.full(9, np.nan, np.float32), "nothing but NaN"),
        (MinK(), np.full(9, -np.inf, np.float32), "nothing finite"),
        (MinK(0), np.repeat(row([1, 0]), [2000, 1000]), "a cliff behind the last logit looked at"),
        (MinK(2000 * 54.8), FALLING, "a fallback behind it"),
        (MinK(4), row([0, 1, 1.5, 2]), "a fallback of exactly 2"),
        (MinK(5), row([28, 26, 26]), "a fallback between two equal logits"),
        (TopK(2), row([1, 3, 2, 2]), "equal logits on both sides of the cut"),
        (TopK(2), row([1, np.nan, 2, 2]), "a NaN"),
        (TopP(), row([1, -np.inf, 2, 2]), "a banned token"),
        (TopNSigma(), row([1, np.nan, 2, 2]), "a NaN"),
        (Greedy(), row([1, 3, 2, 3]), "two largest logits"),
        (Greedy(), row([1, np.nan, 2]), "a NaN"),
        (Greedy(), np.full(9, -np.inf, np.float32), "nothing finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_float32_or_a_fixed_shape_cannot_settle_is_not_certain(
    sampler: Sampler, logits: Row, why: str
) -> None:
    report, _ = run(sampler, logits)
    assert not report > 0, why


# A real model's steps


@pytest.fixture(scope="module")
def weights() -> Weights:
    return Weights(resolve("smollm2-135m").path)


PROMPT = "Once upon a time"


class Streams:
    """Sequences that write at once, each with a chain, and one more without, on whose account llama.cpp
    hands out the raw logits of all of them beside what their graphs made of these."""

    def __init__(self, weights: Weights, chains: list[Chain]) -> None:
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 4096, 512, 512
        params.n_seq_max = params.n_outputs_max = len(chains) + 1
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = 1
        self.handle = C.llama_init_from_model(weights.handle, params)
        self.chains, self.n_vocab = chains, weights.n_vocab
        self.position = 0
        self.batch = C.llama_batch_init(512, 0, 1)
        for seq_id, chain in enumerate(chains):
            assert C.llama_set_sampler(self.handle, seq_id, chain.handle)
            assert chain.offloaded

    def close(self) -> None:
        for seq_id, chain in enumerate(self.chains):
            C.llama_set_sampler(self.handle, seq_id, None)
            chain.free()
        C.llama_batch_free(self.batch)
        C.llama_free(self.handle)

    def feed(self, tokens: list[int]) -> list[tuple[Row, list[int], float, int]]:
        """One token to every sequence; for each with a chain the raw logits, the ids that its cut left,
        the report and the token drawn."""
        for i, token in enumerate([*tokens, tokens[0]]):
            self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, self.position, 1
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, i
        self.batch.n_tokens = len(tokens) + 1
        assert C.llama_decode(self.handle, self.batch) == 0
        self.position += 1
        return [self._outcome(i) for i in range(len(tokens))]

    def _outcome(self, i: int) -> tuple[Row, list[int], float, int]:
        # Not by llama_get_logits_ith, which gives what a sampler left of them.
        raw = np.ctypeslib.as_array(C.llama_get_logits(self.handle), (i + 1, self.n_vocab))[i]
        n = C.llama_get_sampled_logits_count_ith(self.handle, i)
        left = np.ctypeslib.as_array(C.llama_get_sampled_logits_ith(self.handle, i), (n,))
        ids = np.ctypeslib.as_array(C.llama_get_sampled_candidates_ith(self.handle, i), (n,))
        standing = sorted(ids[left > -np.inf].tolist())
        report = C.llama_get_sampled_probs_ith(self.handle, i)[0]
        return raw, standing, report, C.llama_get_sampled_token_ith(self.handle, i)


HOW = [(MinK(tau), temperature) for tau in (0, 3, 100, 1000) for temperature in (0.5, 1, 5, 10)]


def compare_steps(weights: Weights, n_steps: int, seed: int = 0) -> tuple[int, int]:
    """Let len(HOW) sequences write; (steps compared, steps that the graph was not certain of).

    A draw from a cut that is not certain is not used: the sequence goes on with a candidate of the kernel.
    """
    chains = [Chain(sampler, t, seed + i, keep_rows=True) for i, (sampler, t) in enumerate(HOW)]
    streams = Streams(weights, chains)
    uncertain = 0
    tokens = [weights.tokenize(PROMPT, add_special=True, parse_special=False)[0]] * len(HOW)
    for _ in range(n_steps):
        outcomes = streams.feed(tokens)
        for i, ((sampler, _t), (raw, standing, report, token)) in enumerate(zip(HOW, outcomes, strict=True)):
            expected = sampler.candidates(raw)[0].tolist()
            if report > 0:
                assert (report, standing) == (len(expected), sorted(expected))
                assert token in expected
            else:
                uncertain += 1
            tokens[i] = token if report > 0 else expected[0]
    streams.close()
    return n_steps * len(HOW), uncertain


def test_the_steps_of_a_real_model_are_cut_as_by_the_kernel(weights: Weights) -> None:
    steps, uncertain = compare_steps(weights, 30)
    assert steps == 480
    assert uncertain <= 3


# Draws


@pytest.mark.parametrize(
    "sampler",
    [MinK(300), TopK(8), TopP(0.4), MinP(0.1), TopNSigma(1.5)],
    ids=str,
)
def test_the_draws_follow_the_distribution_of_the_candidates(weights: Weights, sampler: Sampler) -> None:
    temperature, n_draws = 1.2, 250
    context = Context(weights, 512, 1)
    prompt = weights.tokenize("The", add_special=True, parse_special=False)
    context.decode(Segment(prompt, 0))
    ids, logits = sampler.candidates(context.logits(), temperature)
    assert 7 <= ids.size <= 17
    draw = BackendSampler(sampler, temperature, 7, context)
    assert draw.attach()
    counts = dict.fromkeys(ids.tolist(), 0)
    for _ in range(n_draws):
        context.truncate(len(prompt) - 1)
        context.decode(Segment(prompt[-1:], len(prompt) - 1))
        token = draw.next()
        assert token is not None
        counts[token] += 1  # KeyError: drawn from outside the cut
        assert draw.k == ids.size
    p = np.exp((logits - logits[0]).astype(np.float64) / temperature)
    assert stats.chisquare(list(counts.values()), n_draws * p / p.sum()).pvalue > 1e-3


def test_only_an_output_spends_a_random_number(weights: Weights) -> None:
    def draws(attach_first: bool) -> list[int | None]:
        context = Context(weights, 512, 1)
        draw = BackendSampler(MinK(1000), 5.0, 7, context)
        if attach_first:
            assert draw.attach()
        context.decode(Segment([1, 2], 0, n_outputs=0))
        context.decode(Segment([3, 4], 2, n_outputs=0))
        if not attach_first:
            assert draw.attach()
        tokens: list[int | None] = []
        for position in range(4, 16):
            context.decode(Segment([5], position))
            tokens.append(draw.next())
        return tokens

    expected = draws(attach_first=False)
    assert len(set(expected)) > 3
    assert draws(attach_first=True) == expected


# In a conversation


def ask(model: Model, text: str = "Tell me a story about a cat.", **options: Any) -> tuple[str, list[int]]:
    """An answer and its k, with nothing in the KV cache: what is there changes the logits a little."""
    forget(model)
    options = {"temperature": 5.0, "seed": 3, "max_tokens": 16, **options}
    reply = model.chat([{"role": "user", "content": text}], **options)
    return "".join(reply), reply.k


@pytest.fixture(scope="module")
def in_graph() -> Model:
    return load_model("smollm2-135m", n_ctx=2048, backend_sampling=True, n_gpu_layers=0, n_threads=1)


@pytest.fixture(scope="module")
def on_host() -> Model:
    return load_model("smollm2-135m", n_ctx=2048, n_gpu_layers=0, n_threads=1)


def test_a_seed_gives_one_text(in_graph: Model) -> None:
    long = "Remember this. " * 180  # more than one batch
    first = ask(in_graph, long)
    assert len(first[1]) == 16
    assert min(first[1]) >= 1
    assert ask(in_graph, long) == first
    assert ask(in_graph, sampler=MinK(300), seed=3) != ask(in_graph, sampler=MinK(300), seed=4)


def test_greedy_in_the_graph_writes_what_greedy_on_the_host_writes(in_graph: Model, on_host: Model) -> None:
    expected = ask(on_host, temperature=0)
    assert ask(in_graph, temperature=0) == expected
    assert ask(in_graph, sampler=Greedy(), temperature=3.0) == expected


def test_a_step_that_the_graph_is_not_certain_of_goes_on_on_the_host(
    in_graph: Model, on_host: Model, caplog: pytest.LogCaptureFixture
) -> None:
    wide = MinK(tau=1e6)  # keeps more than the graph looks at, at every step
    assert ask(in_graph, sampler=wide) == ask(on_host, sampler=wide)
    assert [record.message.partition(":")[0] for record in caplog.records] == ["step 1"]


def test_what_has_no_graph_form_is_drawn_on_the_host_and_says_so(
    in_graph: Model, on_host: Model, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(in_graph, sampler=Mirostat()) == ask(on_host, sampler=Mirostat())
    assert [record.message for record in caplog.records] == [
        f"{Mirostat()} has no backend form: sampling on the CPU"
    ]


def test_an_answer_begun_but_not_read_to_its_end_leaves_nothing_behind(in_graph: Model) -> None:
    expected = ask(in_graph)
    abandoned = in_graph.chat([{"role": "user", "content": "Hello"}], seed=1)
    next(abandoned)
    assert ask(in_graph) == expected
    with pytest.raises(GenerationError, match="was cancelled: the model was asked again"):
        list(abandoned)
    del abandoned
    gc.collect()
    assert ask(in_graph) == expected


# Faults and lifetimes


def test_a_function_that_ggml_lacks_names_the_versions_that_have_it() -> None:
    with pytest.raises(MinkError, match="has no ggml_nonsense: install a version"):
        ggml.function("ggml_nonsense", None)


def fail(*_: object) -> graph.Cut:
    raise KeyError("in a callback")


def test_an_exception_in_a_callback_is_raised_by_the_caller(
    in_graph: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(graph, "GRAPHS", {MinK: fail})
        with pytest.raises(GenerationError, match="could not be built") as caught:
            ask(in_graph)
    assert isinstance(caught.value.__cause__, KeyError)
    assert ask(in_graph)[0]


def test_an_exception_while_a_batch_is_built_is_raised_by_the_next_draw(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(weights, 64, 1)
    draw = BackendSampler(MinK(), 1.0, 1, context)
    assert draw.attach()
    monkeypatch.setattr(graph, "GRAPHS", {MinK: fail})
    context.decode(Segment([1, 2, 3], 0))
    with pytest.raises(GenerationError, match="could not be built"):
        draw.next()


def test_a_device_without_an_operation_means_the_host(
    in_graph: Model, on_host: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(graph, "supported", lambda *_: False)
        assert ask(in_graph) == ask(on_host)
    assert [record.message for record in caplog.records] == [
        "this device lacks an operation of the backend form of min-k:tau=3: sampling on the CPU"
    ]


@pytest.fixture
def small(weights: Weights) -> Context:
    return Context(weights, 64, 1)


def test_a_chain_may_outlive_its_context_and_the_other_way_round(weights: Weights) -> None:
    for attach in (True, False):
        context = Context(weights, 64, 1)
        draw = BackendSampler(MinK(), 1.0, 1, context)
        if attach:
            assert draw.attach()
        del context
        gc.collect()
        del draw
        gc.collect()


def test_a_second_chain_takes_the_place_of_the_first(small: Context) -> None:
    first, second = (BackendSampler(MinK(), 1.0, seed, small) for seed in (1, 2))
    assert first.attach()
    small.decode(Segment([1, 2], 0))
    assert second.attach()
    del first
    gc.collect()
    small.decode(Segment([3], 2))
    assert second.next() is not None
    second.detach()
    small.decode(Segment([4], 3))
    assert np.isfinite(small.logits()).all()
    with pytest.raises(GenerationError, match="no token"):
        second.next()


def test_ten_thousand_chains_come_and_go(small: Context) -> None:
    for seed in range(10_000):
        BackendSampler(MinK(), 1.0, seed, small)
    assert BackendSampler(MinK(), 1.0, 0, small).attach()


def test_a_clone_of_a_chain_cuts_too(small: Context) -> None:
    chain = Chain(MinK(), 1.0, 1)
    clone = C.llama_sampler_clone(chain.handle)
    chain.free()
    small.attach(clone)
    assert chain.offloaded
    small.decode(Segment([1, 2], 0))
    token, report = small.sampled()
    assert report >= 1
    assert token >= 0
    small.detach(clone)
    C.llama_sampler_free(clone)
