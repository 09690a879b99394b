"""Results from the sums of texts: figures with intervals, and the variety of each sampler at equal noise.

A figure is a mean over positions: the sum over texts, divided by the number of positions. Its 95% interval
is the percentile bootstrap's over texts (Efron 1979, doi:10.1214/aos/1176344552), because positions of one
text depend on each other. All figures share the resamples, so that differences are paired.
"""

from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mink_local.errors import ReportError
from mink_local.evals.frontier.sums import FIGURES
from mink_local.evals.settings import sweep
from mink_local.evals.stats import Interval, resample

YARDSTICK = "min-p (T last)"
"""The curve that other samplers are compared with."""

MOST_NOISE = 0.5
"""A setting with more noise than this is not used on the way to a wanted noise; see `at_noise`."""

_ENTROPY = FIGURES.index("entropy")

Floats = NDArray[np.float64]


class FrontierResults:
    """The results of all settings of the sweep, over the texts for which every setting was measured.

    Args:
        rows: A row for each text and setting: `text`, `sampler`, `temperature`, the text's number of
            `positions`, and the `sums` of FIGURES over them.

    Raises:
        ReportError: There is no such text.

    Attributes:
        settings: The settings, a curve's from few candidates to many.
        n_left_out: Number of texts for which settings are missing.
    """

    def __init__(self, rows: pd.DataFrame) -> None:
        rows = rows[rows["positions"] > 0].astype({"temperature": float})
        by_text = rows.pivot(index="text", columns=["sampler", "temperature"], values=["positions", "sums"])
        texts = by_text.dropna()
        if texts.empty:
            raise ReportError("no text has been measured with every setting, or none has two tokens")
        self.n_texts, self.n_left_out = len(texts), len(by_text) - len(texts)
        measured = set(texts["positions"].columns)
        self.temperatures = sorted({temperature for _, temperature in measured})
        self.settings = [one for one in sweep(self.temperatures) if one.key in measured]
        keys = [one.key for one in self.settings]
        positions = texts["positions"].iloc[:, 0].to_numpy(np.int64)
        self.n_positions = int(positions.sum())
        sums = np.array(texts["sums"][keys].to_numpy().tolist())
        # (1 + resamples, settings, FIGURES): the means of the texts themselves, then those of the resamples.
        self._means: Floats = np.concatenate(
            [
                [sums.sum(axis=0) / self.n_positions],
                resample(sums) / resample(positions)[:, None, None],
            ]
        )

    @cached_property
    def figures(self) -> pd.DataFrame:
        """The FIGURES of every setting, as intervals, with its `curve`, `sampler` and `temperature`."""
        return pd.DataFrame(
            [
                {"curve": setting.curve, "sampler": str(setting.sampler), "temperature": setting.temperature}
                | {figure: _interval(self._means[:, i, j]) for j, figure in enumerate(FIGURES)}
                for i, setting in enumerate(self.settings)
            ]
        )

    def at_noise(self, temperature: float, wanted: float, level: str = "noise") -> pd.DataFrame:
        """Return the most entropy of each curve at a wanted noise, the best curve first.

        Between greedy and the settings of a curve the straight lines count: every point of a line is reached
        by choosing at random, at each position, between the settings at its ends. A setting above
        `MOST_NOISE` does not count: a little of it has much entropy, but of noise.

        Args:
            temperature: One of `temperatures`.
            wanted: Noise above greedy's, as a share.
            level: "noise" or "deep_noise".

        Returns:
            For each curve `entropy` and how much it is `behind` the best curve's, paired, as intervals; and
            `between` which settings it lies, a single one if the sweep ends below the wanted noise.
        """
        found: list[tuple[str, Floats, str]] = []
        for curve, members in self._curves(temperature).items():
            noise, entropy = self._path([*self._numbers(temperature, "greedy"), *members], level)
            kept = np.concatenate([[True], noise[0, 1:] <= MOST_NOISE])
            if kept.sum() > 1:
                best, place = most_entropy(noise[:, kept], entropy[:, kept], noise[:, 0] + wanted)
                names = ["greedy", *(self.settings[i].option for i in np.array(members)[kept[1:]])]
                found.append((curve, best, " to ".join(names[place : place + 2])))
        found.sort(key=lambda one: -one[1][0])
        rows = [
            (curve, _interval(best), between, _interval(found[0][1] - best)) for curve, best, between in found
        ]
        return pd.DataFrame(rows, columns=["curve", "entropy", "between", "behind"])

    def defaults(self, temperature: float, level: str = "noise") -> pd.DataFrame:
        """Return the `figures` of every sampler's default at a temperature, and its `gain`.

        The gain is its entropy minus that of the yardstick's curve at the same noise, in nats; the curve
        begins at greedy, also if the default has less noise. It is None for greedy itself, and if the
        yardstick's sweep ends below the noise.
        """
        (greedy,) = self._numbers(temperature, "greedy")
        noise, entropy = self._path([greedy, *self._numbers(temperature, YARDSTICK)], level)
        gains: dict[int, Interval | None] = {}
        for i, setting in enumerate(self.settings):
            if setting.temperature != temperature or not setting.is_default:
                continue
            own_noise, own_entropy = (means[:, 0] for means in self._path([i], level))
            gains[i] = None
            if i != greedy and own_noise[0] <= noise[0].max():
                best, _ = most_entropy(noise, entropy, np.maximum(own_noise, noise[:, 0]))
                gains[i] = _interval(own_entropy - best)
        return self.figures.loc[list(gains)].assign(gain=list(gains.values()))

    def _curves(self, temperature: float) -> dict[str, list[int]]:
        """Return the numbers of the settings of each curve with a sweep."""
        names = dict.fromkeys(one.curve for one in self.settings if one.option)
        curves = {name: self._numbers(temperature, name) for name in names}
        return {name: numbers for name, numbers in curves.items() if numbers}

    def _numbers(self, temperature: float, curve: str) -> list[int]:
        return [
            i for i, one in enumerate(self.settings) if (one.curve, one.temperature) == (curve, temperature)
        ]

    def _path(self, numbers: list[int], level: str) -> tuple[Floats, Floats]:
        """Return noise and entropy along settings, float64 (1 + resamples, settings)."""
        means = self._means[:, numbers]
        return means[:, :, FIGURES.index(level)], means[:, :, _ENTROPY]


def _interval(means: Floats) -> Interval:
    """Return the first number, with the interval of the others, its resamples."""
    return Interval.of(means[0], means[1:])


def most_entropy(noise: Floats, entropy: Floats, bound: Floats) -> tuple[Floats, int]:
    """Return the most entropy, with no more noise than `bound`, on the straight lines through points.

    On a line that stays within the bound the most is at one of its ends, and on a line that crosses it
    perhaps at the crossing.

    Args:
        noise: float64 (n, points); the first of each row is within the bound.
        entropy: float64 (n, points).
        bound: float64 (n,), of each row.

    Returns:
        The entropy, float64 (n,), and for the first row the number of the point at which it is, or with
        which the line begins on which it is.
    """
    best, place = entropy[:, 0], 0
    for i in range(1, noise.shape[1]):
        before, after = noise[:, i - 1] - bound, noise[:, i] - bound
        crosses = before * after < 0
        share = before / np.where(crosses, before - after, 1)
        at_crossing = entropy[:, i - 1] + share * (entropy[:, i] - entropy[:, i - 1])
        within = after <= 1e-12  # rounding: a noise that is the bound itself
        for number, allowed, candidate in ((i - 1, crosses, at_crossing), (i, within, entropy[:, i])):
            better = allowed & (candidate > best)
            best = np.where(better, candidate, best)
            place = number if better[0] else place
    return best, place
