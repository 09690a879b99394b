"""The figures of settings, their intervals, and variety at equal tail mass, beside other computations."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from mink_local.evals.frontier.report import YARDSTICK, FrontierResults, most_entropy
from mink_local.evals.frontier.sums import FIGURES, TAIL_LEVELS, PositionFigures
from mink_local.evals.settings import SamplerSetting, sweep
from mink_local.evals.tables import ENDS
from mink_local.samplers import Greedy, MinK, MinP, PLess, TopK

TAIL_MASS, ENTROPY = FIGURES.index("tail_mass"), FIGURES.index("entropy")
GREEDY = SamplerSetting(Greedy(), 5.0)
Floats = NDArray[np.float64]


def results(settings: list[SamplerSetting], positions: NDArray[np.int64], sums: Floats) -> FrontierResults:
    """Return the results of sums, float64 (texts, settings, FIGURES); a NaN is a setting not measured."""
    rows = [
        {"text": str(i), "sampler": str(setting.sampler), "temperature": str(setting.temperature)}
        | {"positions": int(n), "sums": figures}
        for i, (n, of_text) in enumerate(zip(positions, sums.tolist(), strict=True))
        for setting, figures in zip(settings, of_text, strict=True)
        if np.isfinite(figures).all()
    ]
    return FrontierResults(pd.DataFrame(rows))


def alike(settings: list[SamplerSetting], tail: list[float], entropy: list[float]) -> FrontierResults:
    """Return the results of 30 texts on which a setting always has the same tail mass and entropy."""
    sums = np.zeros((30, len(settings), len(FIGURES)))
    sums[:, :, TAIL_MASS], sums[:, :, ENTROPY] = np.multiply(10, tail), np.multiply(10, entropy)
    return results(settings, np.full(30, 10), sums)


def made_up(
    settings: list[SamplerSetting], n_texts: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Floats]:
    """Texts of different lengths whose positions are alike within a text; longer texts are noisier."""
    positions = rng.integers(5, 100, n_texts)
    own = rng.gamma(2, 0.02, (n_texts, 1, 1)) * (1 + positions[:, None, None] / 50)
    per_position = own * rng.uniform(0.8, 1.2, (n_texts, len(settings), len(FIGURES)))
    return positions, per_position * positions[:, None, None]


def interval(row: Any, name: str) -> tuple[float, ...]:
    return tuple(row[f"{name}{end}"] for end in ENDS)


def along(tail: Floats, entropy: Floats, at: float) -> float:
    """Return the most entropy of the line at no more than a tail mass, by a hundred thousand points of it."""
    where = np.linspace(0, len(tail) - 1, 100_001)
    numbers = np.arange(len(tail))
    allowed = np.interp(where, numbers, tail) <= at + 1e-12
    return float(np.interp(where, numbers, entropy)[allowed].max())


def test_most_entropy_is_that_of_the_line() -> None:
    rng = np.random.default_rng(3)
    tail, entropy = rng.uniform(0, 1, (2, 40, 6))
    tail[:, 0] = entropy[:, 0] = 0
    tail[20:], entropy[20:] = np.sort(tail[20:]), np.sort(entropy[20:])
    at = rng.uniform(0, 1, 40)
    found, _ = most_entropy(tail, entropy, at)
    for row, value in enumerate(found):
        assert value == pytest.approx(along(tail[row], entropy[row], at[row]), abs=1e-4)


def test_the_best_setting_for_a_wanted_tail_mass() -> None:
    """Two curves whose answer is known: at 2 points more than greedy's 1%, one gives 0.5, the other 0.3.

    Settings of 90% tail mass do not count, although a little of their entropy would be the most.
    """
    careful, loose = MinP(p=0.5, order="temperature-last"), MinP(p=0.1, order="temperature-last")
    settings = [SamplerSetting(one, 5.0) for one in (Greedy(), careful, loose, TopK(k=2), TopK(k=3), PLess())]
    found = alike(settings, tail=[0.01, 0.02, 0.04, 0.02, 0.9, 0.9], entropy=[0, 0.4, 0.6, 0.3, 99, 99])
    best, other = found.at_tail_mass(5.0, 0.02).to_dict("records")
    assert (best["curve"], best["between"]) == (YARDSTICK, "p=0.5 to p=0.1")
    assert (best["entropy"], *interval(best, "behind")) == pytest.approx((0.5, 0, 0, 0))
    assert (other["curve"], other["between"]) == ("top-k", "k=2")
    assert interval(other, "behind") == pytest.approx((0.2, 0.2, 0.2))


def test_a_default_beside_the_yardstick_at_its_tail_mass() -> None:
    settings = sweep([5.0])
    positions, sums = made_up(settings, 40, np.random.default_rng(5))
    defaults = results(settings, positions, sums).defaults(5.0).set_index("sampler")
    assert set(defaults.index) == {str(one.sampler) for one in settings if one.is_default}
    assert math.isnan(defaults.loc["greedy", "gain"])
    values = sums.sum(axis=0) / positions.sum()
    path = [i for i, one in enumerate(settings) if one.curve == "greedy"]
    path += [i for i, one in enumerate(settings) if one.curve == YARDSTICK]
    i = next(i for i, one in enumerate(settings) if one.sampler == MinK())
    tail, entropy = values[path][:, TAIL_MASS], values[path][:, ENTROPY]
    gain, low, high = interval(defaults.loc[str(MinK())], "gain")
    assert values[i, TAIL_MASS] <= tail.max()
    assert gain == pytest.approx(values[i, ENTROPY] - along(tail, entropy, values[i, TAIL_MASS]), abs=1e-5)
    assert low <= gain <= high


def test_a_default_with_less_tail_mass_than_greedy_has_a_finite_gain() -> None:
    settings = [GREEDY, SamplerSetting(MinP(order="temperature-last"), 5.0), SamplerSetting(MinK(), 5.0)]
    found = alike(settings, tail=[0.05, 0.09, 0.04], entropy=[0, 0.4, 0.1])
    defaults = found.defaults(5.0).set_index("sampler")
    assert interval(defaults.loc[str(MinK())], "gain") == pytest.approx((0.1, 0.1, 0.1))


def test_a_text_that_lacks_a_setting_is_left_out_and_a_single_one_has_no_intervals() -> None:
    settings = [GREEDY, SamplerSetting(MinP(order="temperature-last"), 5.0)]
    positions, sums = made_up(settings, 2, np.random.default_rng(5))
    sums[1, 1] = np.nan
    found = results(settings, positions, sums)
    assert (found.n_texts, found.n_left_out, found.n_positions) == (1, 1, positions[0])
    assert found.figures[["entropy_low", "tail_mass_high"]].isna().all(axis=None)
    assert found.figures["entropy"].notna().all()


# The figures of every setting, beside their definitions over all tokens in float64


SETTINGS = sweep([0.5, 1, 5, math.inf])


def test_settings_of_samplers_that_have_gone_are_reported_by_their_texts() -> None:
    names = ["greedy", "min-p:p=0.1,order=temperature-last", "p-step:step=0.8", "nobodys"]
    rows = [
        {"text": text, "sampler": name, "temperature": "1", "positions": 9, "sums": [0.1] * len(FIGURES)}
        for text in "abc"
        for name in names
    ]
    found = FrontierResults(pd.DataFrame(rows))
    assert list(found.figures["curve"]) == ["greedy", YARDSTICK, "nobodys", "p-step:step=0.8"]
    assert {*found.defaults(1.0)["sampler"]} == {*names}


def brute_force(setting: SamplerSetting, row: NDArray[np.float32], reference: NDArray[np.float32]) -> Floats:
    """The definitions: of the distribution over the whole vocabulary, by the sampler's own candidates."""
    ids, _ = setting.sampler.candidates(row, setting.sampler.seen(setting.temperature))
    q = np.zeros(row.size)
    q[ids] = 1.0 if math.isinf(setting.temperature) else np.exp(
        (row[ids].astype(np.float64) - float(row.max())) / setting.temperature
    )  # fmt: skip
    q /= q.sum()
    p = softmax(reference.astype(np.float64))
    tail = [q[p < level].sum() for level in TAIL_LEVELS.values()]
    entropy = -(q[q > 0] * np.log(q[q > 0])).sum()
    return np.array([*tail, -(q * np.log(p)).sum(), entropy, len(ids) == 1, len(ids)])


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
