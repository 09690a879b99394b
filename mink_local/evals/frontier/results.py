"""Results from the sums of texts: figures with intervals, and the variety of each method at equal noise.

A figure is a mean over positions: the sum over texts, divided by the number of positions. Its 95% interval
is the percentile bootstrap's over texts (Efron 1979, doi:10.1214/aos/1176344552), because positions of one
text depend on each other. All figures share the resamples, so that differences are paired.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from mink_local.evals.bootstrap import LEVELS, resampled_counts
from mink_local.evals.frontier.settings import MeasuredSetting
from mink_local.evals.frontier.sums import FIGURES, NOISE_LEVELS
from mink_local.samplers import Greedy

N_RESAMPLES = 2000
YARDSTICK = "min-p (T last)"
"""The curve that other methods are compared with."""

MOST_NOISE = 0.5
"""A setting with more noise than this is no way to any wanted noise; see `FrontierResults.at_noise`."""

_ENTROPY = FIGURES.index("entropy")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, resampled: Floats) -> "Estimate":
        low, high = np.quantile(resampled, LEVELS)
        return cls(float(value), float(low), float(high))


@dataclass(frozen=True)
class SettingResult:
    """A setting with its figures, by the names of FIGURES."""

    setting: MeasuredSetting
    figures: dict[str, Estimate]


@dataclass(frozen=True)
class VarietyAtNoise:
    """The most entropy, in nats, that a curve gives at a wanted noise.

    Attributes:
        curve: Name of the method, with its parameter and order.
        temperature: Of all the curve's settings.
        wanted: Noise above greedy's, as a share.
        entropy: On the straight line between the two neighbouring settings.
        between: These settings; one if the sweep ends below the wanted noise.
        behind: Entropy of the best curve minus that of this one, paired; 0 for the best.
    """

    curve: str
    temperature: float
    wanted: float
    entropy: Estimate
    between: tuple[str, ...]
    behind: Estimate


@dataclass(frozen=True)
class DefaultResult:
    """The default of a method, beside the yardstick's curve at the same noise and temperature.

    `gain` is its entropy minus that of the curve, which begins at greedy, also if the default has less noise
    than greedy; None for greedy itself, and if the curve's sweep ends below the noise.
    """

    result: SettingResult
    gain: Estimate | None


class FrontierResults:
    """The results of all settings.

    Args:
        settings: The settings, a curve's from careful to loose.
        positions: int64 (texts,), numbers of positions.
        sums: float64 (texts, settings, FIGURES), sums over a text's positions.
    """

    def __init__(
        self, settings: Sequence[MeasuredSetting], positions: NDArray[np.int64], sums: Floats
    ) -> None:
        self.settings = list(settings)
        self.n_texts, self.n_positions = len(positions), int(positions.sum())
        self._values = sums.sum(axis=0) / positions.sum()
        n = len(positions)
        counts = resampled_counts(n, N_RESAMPLES)
        totals = (counts @ sums.reshape(n, -1)).reshape(N_RESAMPLES, *sums.shape[1:])
        self._resampled = totals / (counts @ positions)[:, None, None]

    @property
    def temperatures(self) -> list[float]:
        return sorted({setting.temperature for setting in self.settings})

    @cached_property
    def rows(self) -> list[SettingResult]:
        """The figures of every setting."""
        low, high = np.quantile(self._resampled, LEVELS, axis=0)
        return [
            SettingResult(
                setting,
                {
                    name: Estimate(float(self._values[i, j]), float(low[i, j]), float(high[i, j]))
                    for j, name in enumerate(FIGURES)
                },
            )
            for i, setting in enumerate(self.settings)
        ]

    def curves(self, temperature: float) -> dict[str, list[SettingResult]]:
        """Return the settings of every curve at a temperature, from careful to loose."""
        rows = [row for row in self.rows if row.setting.temperature == temperature]
        return {name: list(group) for name, group in groupby(rows, lambda row: row.setting.curve)}

    def at_noise(self, temperature: float, wanted: float, level: float) -> list[VarietyAtNoise]:
        """Return the most variety that every method with a parameter gives at a wanted noise, best first.

        Between greedy and the settings of a curve the straight lines count: every point of a line is reached
        by choosing at random, at each position, between the settings at its ends. A setting above
        `MOST_NOISE` does not count: a little of it has much entropy, but of noise.

        Args:
            temperature: One of `temperatures`.
            wanted: Noise above greedy's, as a share.
            level: One of NOISE_LEVELS.
        """
        j = NOISE_LEVELS.index(level)
        greedy = self._greedy(temperature)
        reached: dict[str, tuple[float, Floats, tuple[str, ...]]] = {}
        for name, every in self._numbers(temperature):
            numbers = [i for i in every if self._values[i, j] <= MOST_NOISE]
            if not numbers:
                continue
            noise, entropy = self._path([greedy, *numbers], j)
            at = noise[:, :1] + wanted
            best, where = most_entropy(noise, entropy, at[:, 0])
            ends = [self.settings[i].value for i in numbers]
            names = ["greedy", *ends]
            first = int(where[0])
            between = (names[first],) if first == len(ends) else (names[first], names[first + 1])
            reached[name] = float(best[0]), best[1:], between
        if not reached:
            return []
        top = max(reached.values(), key=lambda item: item[0])
        found = [
            VarietyAtNoise(
                name,
                temperature,
                wanted,
                Estimate.of(value, resampled),
                between,
                Estimate.of(top[0] - value, top[1] - resampled),
            )
            for name, (value, resampled, between) in reached.items()
        ]
        return sorted(found, key=lambda one: one.entropy.value, reverse=True)

    def defaults(self, temperature: float, level: float) -> list[DefaultResult]:
        """Return the default of every method, beside the yardstick's curve at the same noise."""
        j = NOISE_LEVELS.index(level)
        yardstick = dict(self._numbers(temperature)).get(YARDSTICK)
        found: dict[str, DefaultResult] = {}
        for i, setting in enumerate(self.settings):
            name = str(setting.sampler)
            if setting.temperature != temperature or not setting.is_default or name in found:
                continue
            gain = None
            if yardstick and not isinstance(setting.sampler, Greedy):
                noise, entropy = self._path([self._greedy(temperature), *yardstick], j)
                own_noise, own_entropy = (matrix[:, 0] for matrix in self._path([i], j))
                if own_noise[0] <= noise[0].max():
                    best, _ = most_entropy(noise, entropy, np.maximum(own_noise, noise[:, 0]))
                    difference = own_entropy - best
                    gain = Estimate.of(float(difference[0]), difference[1:])
            found[name] = DefaultResult(self.rows[i], gain)
        return list(found.values())

    def _greedy(self, temperature: float) -> int:
        return next(
            i
            for i, setting in enumerate(self.settings)
            if setting.temperature == temperature and isinstance(setting.sampler, Greedy)
        )

    def _numbers(self, temperature: float) -> Iterator[tuple[str, list[int]]]:
        """Yield every curve with a parameter, and its settings' numbers."""
        at = [i for i, setting in enumerate(self.settings) if setting.temperature == temperature]
        for name, group in groupby(at, lambda i: self.settings[i].curve):
            numbers = list(group)
            if self.settings[numbers[0]].parameter:
                yield name, numbers

    def _path(self, numbers: list[int], noise: int) -> tuple[Floats, Floats]:
        """Return noise and entropy along settings, float64 (1 + resamples, settings), the estimate first."""
        every = np.concatenate([self._values[None], self._resampled])[:, numbers]
        return every[:, :, noise], every[:, :, _ENTROPY]


def most_entropy(noise: Floats, entropy: Floats, at: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the most entropy of lines through points at no more than a noise, and where it is.

    Args:
        noise: float64 (n, points); the first of each row is at most `at`.
        entropy: float64 (n, points).
        at: float64 (n,), the noise of each row.

    Returns:
        The entropy, float64 (n,), and the number of the point on or behind which it lies, int64 (n,).
    """
    bound = at[:, None]
    slack = 1e-12  # of rounding: a noise that is the bound itself
    own = np.where(noise <= bound + slack, entropy, -np.inf)
    before, after = noise[:, :-1], noise[:, 1:]
    crosses = (before - bound) * (after - bound) < 0
    share = (bound - before) / np.where(crosses, after - before, 1.0)
    crossing = np.where(crosses, entropy[:, :-1] + share * np.diff(entropy, axis=1), -np.inf)
    # A crossing counts for the point before it, which keeps the two kinds apart by value alone.
    best = own.copy()
    best[:, :-1] = np.maximum(best[:, :-1], crossing)
    where = best.argmax(axis=1)
    return np.take_along_axis(best, where[:, None], axis=1)[:, 0], where
