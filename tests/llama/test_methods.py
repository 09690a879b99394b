"""The methods beside llama.cpp's own samplers, and as logits processors of llama-cpp-python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp import LogitsProcessorList
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from scipy.special import log_softmax

from mink_local.samplers import (
    Chain,
    LlamaDefault,
    MinK,
    MinP,
    Order,
    Sampler,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
)
from tests.support.chain import SamplerChain

INF = float("inf")

Row = NDArray[np.float32]
Floats = NDArray[np.float64]


def kept_by_llamacpp(row: Row, *handles: Any) -> NDArray[np.int64]:
    """Return the sorted token ids that a chain of llama.cpp samplers leaves above -inf."""
    chain = SamplerChain(*handles)
    kept, _ = chain.apply(np.arange(row.size), row)
    return np.sort(kept["id"][kept["logit"] > -np.inf]).astype(np.int64)


def check_sum(kept: NDArray[np.integer], rank: Floats, margin: float, p: Floats) -> None:
    """Check that `kept` are the first tokens by rank that sum to a probability of 0.9.

    llama.cpp's sum of the exponentials, a float32, was seen to be off by 5e-4 over 262,144 of them.

    Args:
        margin: By how much a rank may be off.
        p: Probability of each token.
    """
    left = np.setdiff1d(np.arange(rank.size), kept)
    last = kept[rank[kept].argmax()]
    assert rank[last] <= rank[left].min() + margin
    assert p[kept].sum() >= 0.999 * 0.9
    assert p[kept].sum() - p[last] <= 1.001 * 0.9


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_keeps_what_llamacpp_keeps(logits: Row, temperature: float) -> None:
    """llama.cpp, behind its own `temp` for temperature-first, keeps the same tokens.

    It computes in float32: its threshold may fall on the other side of a logit that is within 1e-5 of
    it, and its order of equal logits is any. For what sums over the vocabulary, see `check_sum`.
    """
    for row in logits[:4]:
        scaled = row / np.float32(temperature)
        pairs: list[tuple[Sampler, object]] = [
            (TopK(20), C.llama_sampler_init_top_k(20)),
            (TopK(300), C.llama_sampler_init_top_k(300)),
            (MinP(0.1), C.llama_sampler_init_min_p(0.1, 1)),
            (TopNSigma(1.0), C.llama_sampler_init_top_n_sigma(1.0)),
        ]
        for sampler, handle in pairs:
            ours = sampler.candidates(row, temperature)[0]
            theirs = kept_by_llamacpp(scaled, handle)
            differing = np.setxor1d(ours, theirs)
            np.testing.assert_allclose(row[differing], row[ours[-1]], rtol=0, atol=1e-5 * temperature)
            assert ours.size == theirs.size or not isinstance(sampler, TopK)
        surprise = -log_softmax(scaled.astype(np.float64))
        p = np.exp(-surprise)
        entropy = p @ surprise
        for kept in (
            TopP(0.9).candidates(row, temperature)[0],
            kept_by_llamacpp(scaled, C.llama_sampler_init_top_p(0.9, 1)),
        ):
            check_sum(kept, surprise, 1e-5, p)
        for kept in (
            Typical(0.9).candidates(row, temperature)[0],
            kept_by_llamacpp(scaled, C.llama_sampler_init_typical(0.9, 1)),
        ):
            check_sum(kept, np.abs(surprise - entropy), 1e-3 * entropy, p)
        theirs = kept_by_llamacpp(scaled, C.llama_sampler_init_xtc(1.0, 0.05, 1, 1))
        ours = Xtc(1.0, 0.05).candidates(row, temperature)[0]
        np.testing.assert_array_equal(np.sort(row[theirs])[::-1], row[ours])


LAST: Order = "temperature-last"
TOP_P, MIN_P = TopP(0.95, LAST), MinP(0.05, LAST)


@pytest.mark.parametrize(
    "sampler",
    [
        LlamaDefault(),
        Chain(TopK(), TOP_P),
        Chain(TopNSigma(2), TopK(), MIN_P),
        Chain(TOP_P, TopK(5)),
        Chain(TopK(40), Typical(0.9, LAST), TOP_P, MIN_P, Xtc(1.0, 0.1, LAST)),
    ],
    ids=str,
)
def test_chains_keep_what_llamacpps_keep(logits: Row, sampler: Sampler) -> None:
    """The first is llama.cpp's default."""
    makers: dict[type[Sampler], Callable[[Any], Any]] = {
        TopK: lambda cut: C.llama_sampler_init_top_k(cut.k),
        TopP: lambda cut: C.llama_sampler_init_top_p(cut.p, 1),
        MinP: lambda cut: C.llama_sampler_init_min_p(cut.p, 1),
        TopNSigma: lambda cut: C.llama_sampler_init_top_n_sigma(cut.n),
        Typical: lambda cut: C.llama_sampler_init_typical(cut.p, 1),
        Xtc: lambda cut: C.llama_sampler_init_xtc(cut.probability, cut.threshold, 1, 1),
    }
    for row in logits:
        theirs = kept_by_llamacpp(row, *(makers[type(cut)](cut) for cut in sampler.members))
        _, ours = sampler.candidates(row)
        np.testing.assert_array_equal(np.sort(row[theirs])[::-1], ours)


def test_logits_processor_in_llama_cpp_python(smollm2_path: Path) -> None:
    """The one line that your own program needs: every token sampled at T = 5 was a candidate."""
    llama = llama_cpp.Llama(str(smollm2_path), n_ctx=256, verbose=False, seed=1)
    masked: list[list[int]] = []

    class Watched(MinK):
        def __call__(self, input_ids: object, scores: Row) -> Row:
            kept = super().__call__(input_ids, scores)
            masked.append(np.flatnonzero(kept > -INF).tolist())
            return kept

    answer = llama.create_chat_completion(
        [{"role": "user", "content": "Tell me a long story about a dragon."}],
        logits_processor=LogitsProcessorList([Watched()]),
        temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=24, seed=1,
    )  # fmt: skip
    sampled = llama.input_ids[answer["usage"]["prompt_tokens"] : llama.n_tokens].tolist()
    assert len(sampled) >= 20
    assert any(len(ids) > 1 for ids in masked)
    assert all(token in ids for token, ids in zip(sampled, masked, strict=False))
    llama.close()
