"""The figures of every setting, beside their definitions over all tokens in float64."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.evals.frontier.settings import MeasuredSetting, default_settings
from mink_local.evals.frontier.sums import FIGURES, NOISE_LEVELS, PositionFigures
from mink_local.samplers import MinK, MinP, Sampler, TopK
from mink_local.samplers.compile import compiled
from mink_local.samplers.kernels import keep_from, survey
from tests.support.logits import embedded_logits

SETTINGS = default_settings([0.5, 1, 5, math.inf])
Floats = NDArray[np.float64]


def probabilities(row: NDArray[np.float32]) -> Floats:
    weights = np.exp(row.astype(np.float64) - float(row.max()))
    return np.asarray(weights / weights.sum())


def brute_force(setting: MeasuredSetting, row: NDArray[np.float32], reference: NDArray[np.float32]) -> Floats:
    """The definitions: of the distribution over the whole vocabulary, by the sampler's own candidates."""
    ids, _ = setting.sampler.candidates(row, setting.seen)
    q = np.zeros(row.size)
    q[ids] = 1.0 if math.isinf(setting.temperature) else np.exp(
        (row[ids].astype(np.float64) - float(row.max())) / setting.temperature
    )  # fmt: skip
    q /= q.sum()
    p = probabilities(reference)
    noise = [q[p < level].sum() for level in NOISE_LEVELS]
    entropy = -(q[q > 0] * np.log(q[q > 0])).sum()
    return np.array([*noise, -(q * np.log(p)).sum(), entropy, len(ids) == 1, len(ids)])


def check(
    settings: list[MeasuredSetting], rows: NDArray[np.float32], references: NDArray[np.float32]
) -> Floats:
    """Compare a sum over positions with the brute force's; return it."""
    figures = PositionFigures(settings, rows.shape[1])
    for row, reference in zip(rows, references, strict=True):
        figures.add(row, reference)
    pairs = list(zip(rows, references, strict=True))
    for setting, found in zip(settings, figures.sums, strict=True):
        expected = sum(brute_force(setting, *pair) for pair in pairs)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), setting
    return figures.sums


@pytest.mark.parametrize("seed", range(4))
def test_every_setting_on_small_rows_with_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows: NDArray[np.float32] = np.round(rng.normal(0, 3, (6, 300)), 1).astype(np.float32)  # with equal ones
    references: NDArray[np.float32] = rng.normal(rows, 1).astype(np.float32)
    check(SETTINGS, rows, references)


def test_settings_on_the_logits_of_a_model() -> None:
    rows = embedded_logits()
    check(SETTINGS[::5], rows[4:5], rows[5:6])


@pytest.mark.slow
def test_every_setting_on_the_logits_of_every_model(logits: NDArray[np.float32]) -> None:
    check(SETTINGS, logits[:3], logits[1:4])


def test_a_probability_too_small_for_a_float_has_a_surprise_all_the_same() -> None:
    row = np.array([0.0, 0.0, -1.0], np.float32)
    reference = np.array([0.0, -2000.0, 0.0], np.float32)  # exp(-2000) is 0 in float64
    setting = MeasuredSetting(TopK(k=2), 1.0, "top-k", "k")
    figures = PositionFigures([setting], 3)
    figures.add(row, reference)
    surprise = figures.sums[0, FIGURES.index("surprise")]
    assert surprise == pytest.approx((math.log(2) + 2000 + math.log(2)) / 2)


def test_banned_tokens_and_those_beyond_the_common_vocabulary_do_not_count() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 3, (3, 200)).astype(np.float32)
    references = rng.normal(0, 3, (3, 200)).astype(np.float32)
    rows[:, 7] = -np.inf
    rows[1, 8] = references[2, 9] = 50.0
    sums = check(SETTINGS, rows[:, :150], references[:, :150])
    figures = PositionFigures(SETTINGS, 150)
    for row, reference in zip(rows, references, strict=True):
        figures.add(row, reference)
    assert np.array_equal(figures.sums, sums)


@pytest.mark.parametrize("which", [0, 1])
def test_a_nan_ends_the_measurement(which: int) -> None:
    rows = np.zeros((2, 50), np.float32)
    rows[which, 3] = np.nan
    with pytest.raises(GenerationError, match="NaN"):
        PositionFigures(SETTINGS, 50).add(*rows)


@compiled
def at_least(logits, options, work, ids):  # type: ignore[no-untyped-def]
    """Keep the tokens with a probability of at least `options[0]`, and the largest in any case."""
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    total = 0.0
    for logit in logits:
        total += math.exp(np.float64(logit) - largest)
    return keep_from(min(largest, largest + math.log(options[0] * total)), largest, logits, work, ids)


@dataclass(frozen=True)
class AtLeast(Sampler):
    """Every token that is not noise by the model's own probabilities."""

    p: float = NOISE_LEVELS[0]

    name = "at-least"
    kernel = staticmethod(at_least)


@pytest.mark.parametrize("temperature", [1.0, 5.0, math.inf])
def test_two_copies_of_one_model_have_a_threshold_as_their_optimum(temperature: float) -> None:
    """If the reference is the model, noise is known beforehand: it is the tokens with p < θ.

    Then, at each position, the tokens with p >= θ are the largest set of candidates that adds no noise to
    greedy's, and so have the most entropy of all such sets. Relative to the largest probability this is
    min-p's rule with θ / p_max: the optimum that min-p comes near to with one constant for all positions.
    """
    rows = embedded_logits()[4:9]
    kinds = [*default_settings([temperature]), MeasuredSetting(AtLeast(), temperature, "optimum", "p")]
    figures = PositionFigures(kinds, rows.shape[1])
    noise, entropy = FIGURES.index("noise_0.01"), FIGURES.index("entropy")
    least = 0.0
    for row in rows:
        before = figures.sums.copy()
        figures.add(row, row)
        at_position = figures.sums - before
        p_max = float(probabilities(row).max())
        greedys = at_position[[k.curve for k in kinds].index("greedy"), noise]
        assert greedys == (p_max < NOISE_LEVELS[0])
        optimum = at_position[-1]
        assert optimum[noise] == pytest.approx(greedys, abs=1e-12)
        as_quiet = at_position[:, noise] <= optimum[noise] + 1e-12
        assert at_position[as_quiet, entropy].max() <= optimum[entropy] + 1e-12
        if p_max > NOISE_LEVELS[0]:
            own = MinP(p=NOISE_LEVELS[0] / p_max, order="temperature-last")
            assert own.cutoff(row) == AtLeast().cutoff(row)
        least += optimum[noise]
    totals = figures.sums
    quiet = totals[:, noise] <= least + 1e-9
    assert quiet.sum() > 5  # min-p's and others' careful settings add no noise either
    assert (totals[quiet, entropy] <= totals[-1, entropy] + 1e-9).all()
    best = max(
        totals[i, entropy] for i, kind in enumerate(kinds) if kind.curve == "min-p (T last)" and quiet[i]
    )
    minks = totals[[str(kind.sampler) for kind in kinds].index(str(MinK())), entropy]
    assert minks < totals[-1, entropy]
    assert best < totals[-1, entropy]


def test_without_a_cut_the_surprise_of_ones_own_tokens_is_the_entropy() -> None:
    """Cross-entropy of a distribution with itself."""
    rows = embedded_logits()[4:8]
    setting = MeasuredSetting(MinP(p=0, order="temperature-last"), 1.0, "all", "p")
    figures = PositionFigures([setting], rows.shape[1])
    for row in rows:
        figures.add(row, row)
    surprise, entropy = figures.sums[0, 2:4]
    assert surprise == pytest.approx(entropy, rel=1e-12)
