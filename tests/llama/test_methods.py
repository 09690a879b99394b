"""The methods beside llama.cpp's own samplers, and as logits processors of llama-cpp-python."""

from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.bench.timing import LLAMA_CPP
from mink_local.samplers import (
    Chain,
    LlamaDefault,
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

Row = NDArray[np.float32]


def kept_by_llamacpp(row: Row, *handles: Any) -> NDArray[np.int64]:
    """Return the sorted token ids that a chain of llama.cpp samplers leaves above -inf."""
    chain = SamplerChain(*handles)
    kept, _ = chain.apply(np.arange(row.size), row)
    return np.sort(kept["id"][kept["logit"] > -np.inf]).astype(np.int64)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_keeps_what_llamacpp_keeps(logits: Row, temperature: float) -> None:
    """llama.cpp, behind its own `temp` for temperature-first, keeps the same tokens.

    It computes in float32: its threshold may fall on the other side of a logit that is within 1e-5 of
    it, and its order of equal logits is any.
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
    for row in logits:
        theirs = kept_by_llamacpp(row, *(LLAMA_CPP[type(cut)](cut) for cut in sampler.members))
        _, ours = sampler.candidates(row)
        np.testing.assert_array_equal(np.sort(row[theirs])[::-1], ours)
