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
from tests.support.methods import check

INF = float("inf")

Row = NDArray[np.float32]


MAKERS: dict[type[Sampler], Callable[[Any], Any]] = {
    TopK: lambda cut: C.llama_sampler_init_top_k(cut.k),
    TopP: lambda cut: C.llama_sampler_init_top_p(cut.p, 1),
    MinP: lambda cut: C.llama_sampler_init_min_p(cut.p, 1),
    TopNSigma: lambda cut: C.llama_sampler_init_top_n_sigma(cut.n),
    Typical: lambda cut: C.llama_sampler_init_typical(cut.p, 1),
    Xtc: lambda cut: C.llama_sampler_init_xtc(cut.probability, cut.threshold, 1, 1),
}


def kept_by_llamacpp(sampler: Sampler, row: Row) -> NDArray[np.int64]:
    """Return the token ids that llama.cpp's form of a sampler leaves above -inf."""
    chain = SamplerChain(*(MAKERS[type(cut)](cut) for cut in sampler.members))
    kept, _ = chain.apply(np.arange(row.size), row)
    return np.asarray(kept["id"][kept["logit"] > -np.inf], np.int64)


LAST: Order = "temperature-last"
TOP_P, MIN_P = TopP(0.95, LAST), MinP(0.05, LAST)
CUTS = [TopK(20), TopK(300), MinP(0.1), TopNSigma(1.0), Xtc(1.0, 0.05)]
CHAINS = [
    LlamaDefault(),  # llama.cpp's own
    Chain(TopK(), TOP_P),
    Chain(TopNSigma(2), TopK(), MIN_P),
    Chain(TOP_P, TopK(5)),
    Chain(TopK(40), Typical(0.9, LAST), TOP_P, MIN_P, Xtc(1.0, 0.1, LAST)),
]


@pytest.mark.parametrize(
    ("sampler", "temperature"),
    [*((cut, t) for cut in CUTS for t in (1.0, 5.0)), *((chain, 1.0) for chain in CHAINS)],
    ids=str,
)
def test_keeps_what_llamacpp_keeps(logits: Row, sampler: Sampler, temperature: float) -> None:
    """llama.cpp, behind its own `temp` for temperature-first, keeps the same logits.

    It computes in float32: its threshold may fall on the other side of a logit that is within 1e-5 of
    it, and its order of equal logits is any.
    """
    for row in logits:
        ours, _ = sampler.candidates(row, temperature)
        theirs = kept_by_llamacpp(sampler, row / np.float32(temperature))
        our_logits, their_logits = (  # away from the threshold
            np.sort(row[ids][abs(row[ids] - row[ours[-1]]) > 1e-5 * temperature]) for ids in (ours, theirs)
        )
        np.testing.assert_array_equal(our_logits, their_logits)
        assert ours.size == theirs.size or not isinstance(sampler, TopK)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
@pytest.mark.parametrize("sampler", [TopP(0.9), Typical(0.9)], ids=str)
def test_sums_over_a_vocabulary_end_near_llamacpps(logits: Row, sampler: Sampler, temperature: float) -> None:
    """Its float32 sums often end a few improbable tokens away; ours are those of float64."""
    for row in logits[:4]:
        check(sampler, row, temperature)
        scaled = row / np.float32(temperature)
        differing = np.setxor1d(sampler.candidates(row, temperature)[0], kept_by_llamacpp(sampler, scaled))
        weights = np.exp((scaled - scaled.max()).astype(np.float64))
        assert weights[differing].sum() < 0.01 * weights.sum()


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
