"""The figures of every setting, beside their definitions over all tokens in float64."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.evals.frontier.sums import FIGURES, NOISE_LEVELS, PositionFigures
from mink_local.evals.settings import SamplerSetting, sweep
from mink_local.samplers import TopK
from tests.support.logits import embedded_logits

SETTINGS = sweep([0.5, 1, 5, math.inf])
Floats = NDArray[np.float64]


def probabilities(row: NDArray[np.float32]) -> Floats:
    weights = np.exp(row.astype(np.float64) - float(row.max()))
    return np.asarray(weights / weights.sum())


def brute_force(setting: SamplerSetting, row: NDArray[np.float32], reference: NDArray[np.float32]) -> Floats:
    """The definitions: of the distribution over the whole vocabulary, by the sampler's own candidates."""
    ids, _ = setting.sampler.candidates(row, setting.sampler.seen(setting.temperature))
    q = np.zeros(row.size)
    q[ids] = 1.0 if math.isinf(setting.temperature) else np.exp(
        (row[ids].astype(np.float64) - float(row.max())) / setting.temperature
    )  # fmt: skip
    q /= q.sum()
    p = probabilities(reference)
    noise = [q[p < level].sum() for level in NOISE_LEVELS.values()]
    entropy = -(q[q > 0] * np.log(q[q > 0])).sum()
    return np.array([*noise, -(q * np.log(p)).sum(), entropy, len(ids) == 1, len(ids)])


def summed(
    settings: list[SamplerSetting],
    rows: NDArray[np.float32],
    references: NDArray[np.float32],
    n_vocab: int | None = None,
) -> Floats:
    """Return the figures summed over positions."""
    figures = PositionFigures(settings, n_vocab or rows.shape[1])
    for row, reference in zip(rows, references, strict=True):
        figures.add(row, reference)
    return figures.sums


def check(
    settings: list[SamplerSetting], rows: NDArray[np.float32], references: NDArray[np.float32]
) -> Floats:
    """Compare a sum over positions with the brute force's; return it."""
    sums = summed(settings, rows, references)
    pairs = list(zip(rows, references, strict=True))
    for setting, found in zip(settings, sums, strict=True):
        expected = sum(brute_force(setting, *pair) for pair in pairs)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), setting
    return sums


@pytest.mark.parametrize("seed", range(4))
def test_every_setting_on_small_rows_with_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: NDArray[np.float32] = np.round(rng.normal(0, 3, (6, 300)), 1).astype(np.float32)  # with equal ones
    references: NDArray[np.float32] = rng.normal(rows, 1).astype(np.float32)
    check(SETTINGS, rows, references)


def test_settings_on_the_logits_of_a_model() -> None:
    check(SETTINGS[::5], embedded_logits()[4:5], embedded_logits()[5:6])


@pytest.mark.slow
def test_every_setting_on_the_logits_of_every_model(logits: NDArray[np.float32]) -> None:
    check(SETTINGS, logits[:3], logits[1:4])


def test_a_probability_too_small_for_a_float_has_a_surprise_all_the_same() -> None:
    row = np.array([[0.0, 0.0, -1.0]], np.float32)
    reference = np.array([[0.0, -2000.0, 0.0]], np.float32)  # exp(-2000) is 0 in float64
    sums = summed([SamplerSetting(TopK(k=2), 1.0)], row, reference)
    surprise = sums[0, FIGURES.index("surprise")]
    assert surprise == pytest.approx((math.log(2) + 2000 + math.log(2)) / 2)


def test_banned_tokens_and_those_beyond_the_common_vocabulary_do_not_count() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 3, (3, 200)).astype(np.float32)
    references = rng.normal(0, 3, (3, 200)).astype(np.float32)
    rows[:, 7] = -np.inf
    rows[1, 8] = references[2, 9] = 50.0
    sums = check(SETTINGS, rows[:, :150], references[:, :150])
    assert np.array_equal(summed(SETTINGS, rows, references, n_vocab=150), sums)


@pytest.mark.parametrize("which", [0, 1])
def test_a_nan_ends_the_measurement(which: int) -> None:
    rows = np.zeros((2, 50), np.float32)
    rows[which, 3] = np.nan
    with pytest.raises(GenerationError, match="NaN"):
        PositionFigures(SETTINGS, 50).add(*rows)
