"""The candidates of one step and what each method keeps, by hand and on real logits."""

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.generation.sampling_step import METHODS, sampling_step
from mink_local.samplers import MinK


def test_by_hand() -> None:
    """R = 6; weights (1/6)/1, (4/6)/2, (1/6)/3: the cliff is after the second."""
    step = sampling_step(np.array([1, 5, 0, 6, -np.inf, np.nan], np.float32), sampled=0, temperature=2.0)
    assert step.ids.tolist() == [3, 1, 0, 2]
    assert step.weights == pytest.approx([1 / 6, 4 / 6 / 2, 1 / 6 / 3, np.nan], nan_ok=True)
    assert step.cliff == step.kept["min-k:tau=3"] == 2
    assert step.sampled == 2
    weights = np.exp([3, 2.5, 0.5, 0])
    assert step.p_hot == pytest.approx(weights / weights.sum())
    assert step.p.sum() == pytest.approx(1)
    assert step.shown_ranks(3) == [0, 1, 2]
    assert step.shown_ranks(2) == [0, 2]  # the sampled one is always shown


def test_on_real_logits(logits: NDArray[np.float32]) -> None:
    step = sampling_step(logits[0], int(logits[0].argmax()), 5.0)
    assert step.sampled == 0
    kept, _ = MinK().candidates(logits[0])
    assert step.ids[: step.cliff].tolist() == kept.tolist()
    for method in METHODS:
        assert step.kept[str(method)] == method.cutoff(logits[0], 5.0)
