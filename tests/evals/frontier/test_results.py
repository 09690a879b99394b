"""Intervals and variety at equal noise, beside other computations of the same numbers."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import bootstrap

from mink_local.evals.frontier.results import YARDSTICK, FrontierResults, most_entropy
from mink_local.evals.frontier.settings import MeasuredSetting, default_settings
from mink_local.evals.frontier.sums import FIGURES, NOISE_LEVELS
from mink_local.samplers import Greedy, MinK, MinP, PLess, TopK

NOISE, ENTROPY = FIGURES.index("noise_0.01"), FIGURES.index("entropy")
GREEDY = MeasuredSetting(Greedy(), 5.0, "greedy", "")
Floats = NDArray[np.float64]


def made_up(
    settings: list[MeasuredSetting], n_texts: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Floats]:
    """Texts of different lengths whose positions are alike within a text; longer texts are noisier."""
    positions = rng.integers(5, 100, n_texts)
    own = rng.gamma(2, 0.02, (n_texts, 1, 1)) * (1 + positions[:, None, None] / 50)
    per_position = own * rng.uniform(0.8, 1.2, (n_texts, len(settings), len(FIGURES)))
    return positions, per_position * positions[:, None, None]


def test_intervals_are_scipys() -> None:
    settings = [GREEDY, MeasuredSetting(TopK(), 5.0, "top-k", "k")]
    positions, sums = made_up(settings, 60, np.random.default_rng(0))
    results = FrontierResults(settings, positions, sums)
    for i, row in enumerate(results.rows):
        for j, (name, estimate) in enumerate(row.figures.items()):
            own = sums[:, i, j]
            expected = bootstrap(
                (own, positions), lambda s, n, axis: s.sum(axis) / n.sum(axis), paired=True, vectorized=True,
                method="percentile", n_resamples=20_000, rng=np.random.default_rng(1),
            ).confidence_interval  # fmt: skip
            assert name == FIGURES[j]
            assert estimate.value == pytest.approx(own.sum() / positions.sum())
            width = expected.high - expected.low
            assert abs(estimate.low - expected.low) < 0.06 * width
            assert abs(estimate.high - expected.high) < 0.06 * width


@pytest.mark.slow
def test_intervals_hold_the_truth_in_about_95_of_100_measurements() -> None:
    """The truth is the ratio of means of the made-up texts, from a million of them."""
    rng = np.random.default_rng(2)
    positions, sums = made_up([GREEDY], 1_000_000, rng)
    truth = sums[:, 0, NOISE].sum() / positions.sum()
    held = 0
    for _ in range(400):
        row = FrontierResults([GREEDY], *made_up([GREEDY], 100, rng)).rows[0].figures["noise_0.01"]
        held += row.low <= truth <= row.high
    assert 0.91 <= held / 400 <= 0.98  # a percentile interval of 100 skewed values holds a little less


def along(noise: Floats, entropy: Floats, at: float) -> float:
    """Return the most entropy of the line at no more than a noise, by a hundred thousand points of it."""
    where = np.linspace(0, len(noise) - 1, 100_001)
    numbers = np.arange(len(noise))
    allowed = np.interp(where, numbers, noise) <= at + 1e-12
    return float(np.interp(where, numbers, entropy)[allowed].max())


def test_most_entropy_is_that_of_the_line() -> None:
    rng = np.random.default_rng(3)
    noise, entropy = rng.uniform(0, 1, (2, 40, 6))
    noise[:, 0] = entropy[:, 0] = 0
    noise[20:], entropy[20:] = np.sort(noise[20:]), np.sort(entropy[20:])
    at = rng.uniform(0, 1, 40)
    found, _ = most_entropy(noise, entropy, at)
    for row, value in enumerate(found):
        assert value == pytest.approx(along(noise[row], entropy[row], at[row]), abs=1e-4)


def test_the_best_setting_for_a_wanted_noise() -> None:
    """Two curves whose answer is known: at 2 points more than greedy's 1%, one gives 0.5, the other 0.3.

    Settings of 90% noise do not count, although a little of their entropy would be the most.
    """
    careful, loose = MinP(p=0.5, order="temperature-last"), MinP(p=0.1, order="temperature-last")
    settings = [
        GREEDY,
        MeasuredSetting(careful, 5.0, YARDSTICK, "p"),
        MeasuredSetting(loose, 5.0, YARDSTICK, "p"),
        MeasuredSetting(TopK(k=2), 5.0, "top-k", "k"),
        MeasuredSetting(TopK(k=3), 5.0, "top-k", "k"),
        MeasuredSetting(PLess(), 5.0, "p-less", "p"),
    ]
    one_text = np.zeros((len(settings), len(FIGURES)))
    one_text[:, NOISE] = 0.01, 0.02, 0.04, 0.02, 0.9, 0.9
    one_text[:, ENTROPY] = 0, 0.4, 0.6, 0.3, 99, 99
    results = FrontierResults(settings, np.full(30, 10), np.repeat(10 * one_text[None], 30, axis=0))
    best, other = results.at_noise(5.0, 0.02, NOISE_LEVELS[0])
    assert (best.curve, best.between) == (YARDSTICK, ("p=0.5", "p=0.1"))
    assert best.entropy.value == pytest.approx(0.5)
    assert (best.behind.low, best.behind.high) == (0, 0)
    assert (other.curve, other.between) == ("top-k", ("k=2",))
    assert other.behind.value == pytest.approx(0.2)
    assert other.behind.low == pytest.approx(0.2)


def test_a_default_beside_the_yardstick_at_its_noise() -> None:
    settings = default_settings([5.0])
    rng = np.random.default_rng(4)
    positions, sums = made_up(settings, 40, rng)
    results = FrontierResults(settings, positions, sums)
    found = {str(one.result.setting.sampler): one for one in results.defaults(5.0, NOISE_LEVELS[0])}
    assert {
        "min-k:tau=3",
        "min-p:p=0.1,order=temperature-last",
        "top-p:p=0.9,order=temperature-first",
    } <= set(found)
    values = sums.sum(axis=0) / positions.sum()
    greedy = [str(one.sampler) for one in settings].index("greedy")
    path = [greedy, *(i for i, one in enumerate(settings) if one.curve == YARDSTICK)]
    i = next(i for i, one in enumerate(settings) if one.sampler == MinK())
    noise, entropy = values[path][:, NOISE], values[path][:, ENTROPY]
    gain = found["min-k:tau=3"].gain
    if values[i, NOISE] > noise.max():
        assert gain is None
    else:
        assert gain is not None
        assert gain.value == pytest.approx(
            values[i, ENTROPY] - along(noise, entropy, values[i, NOISE]), abs=1e-5
        )
        assert gain.low <= gain.value <= gain.high


def test_a_default_with_less_noise_than_greedy_has_a_finite_gain() -> None:
    minp = MinP(order="temperature-last")
    settings = [GREEDY, MeasuredSetting(minp, 5.0, YARDSTICK, "p"), MeasuredSetting(MinK(), 5.0, "min-k", "")]
    sums = np.zeros((30, 3, len(FIGURES)))
    sums[:, :, NOISE] = 0.5, 0.9, 0.4
    sums[:, :, ENTROPY] = 0, 4, 1
    results = FrontierResults(settings, np.full(30, 10), sums)
    gain = results.defaults(5.0, NOISE_LEVELS[0])[-1].gain
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.1, 0.1, 0.1))


def test_the_sweep_holds_every_default_once_a_curve_and_no_setting_twice() -> None:
    settings = default_settings([1.0, 5.0, math.inf])
    of_curve = [(one.curve, str(one.sampler), one.temperature) for one in settings]
    assert len(set(of_curve)) == len(of_curve)
    assert not any(one.sampler.order == "temperature-first" for one in settings if one.temperature != 5)
    for temperature in (1.0, 5.0, math.inf):
        defaults = {one.sampler.name for one in settings if one.is_default and one.temperature == temperature}
        assert defaults == {one.sampler.name for one in settings}
