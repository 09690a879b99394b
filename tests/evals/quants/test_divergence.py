"""Figures of a position against plain float64 sums."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.special import log_softmax
from scipy.stats import entropy

from mink_local.errors import GenerationError
from mink_local.evals.quants.divergence import CandidateSets, Divergence, most_probable
from mink_local.samplers import MinK, MinP, TopP

SAMPLERS = (MinK(), MinP(), TopP())
N = 40

rows = arrays(np.float32, N, elements=st.floats(-60, 60, width=32))


@given(rows, rows, st.integers(0, N - 1))
def test_a_position_is_that_of_the_definitions(
    base: NDArray[np.float32], file: NDArray[np.float32], token: int
) -> None:
    found = Divergence()
    found.add(base, file, token, CandidateSets(SAMPLERS, N))
    log_p, log_q = (log_softmax(row.astype(np.float64)) for row in (base, file))
    assert found.kld == [pytest.approx(entropy(np.exp(log_p), np.exp(log_q)), rel=1e-9, abs=1e-12)]
    assert found.base_logprob == [pytest.approx(log_p[token], rel=1e-12, abs=1e-12)]
    assert found.logprob == [pytest.approx(log_q[token], rel=1e-12, abs=1e-12)]
    assert found.same_top == [base.argmax() == file.argmax()]
    for sampler in SAMPLERS:
        kept = [set(sampler.candidates(row)[0].tolist()) for row in (base, file)]
        assert found.same_set[str(sampler)] == [kept[0] == kept[1]]
        assert found.k_is_1[str(sampler)] == [(len(kept[0]) == 1, len(kept[1]) == 1)]
    (best, p), *_ = most_probable(base, 3)
    assert math.isclose(p, np.exp(log_p).max(), rel_tol=1e-12)
    assert log_p[best] == log_p.max()  # logits that differ by less have equal probabilities


def test_equal_rows_have_no_divergence_and_padding_is_ignored() -> None:
    rng = np.random.default_rng(0)
    found = Divergence()
    row = rng.normal(size=N).astype(np.float32)
    padded = np.concatenate([row, np.full(5, 99, np.float32)])
    found.add(row, padded, 3, CandidateSets(SAMPLERS, N))
    assert (found.kld, found.same_top) == ([0.0], [1])


def test_banned_tokens_are_finite_and_a_nan_is_refused() -> None:
    base, file = np.zeros((2, N), np.float32)
    base[1] = -np.inf
    found, sets = Divergence(), CandidateSets(SAMPLERS, N)
    found.add(base, file, 0, sets)
    assert found.kld == [pytest.approx(math.log(N / (N - 1)))]
    file[2] = np.nan
    with pytest.raises(GenerationError):
        found.add(base, file, 0, sets)
