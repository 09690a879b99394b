"""Figures with intervals, the variety of each sampler at equal tail mass, and the report.

A figure is a mean over positions: the sum over texts, divided by the number of positions. Its 95% interval
is a percentile bootstrap over texts (Efron 1979, doi:10.1214/aos/1176344552), because positions in the same
text are dependent. All figures share the resamples, so that differences are paired.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from mink_local.errors import ReportError
from mink_local.evals.figures import Picture, look, panels
from mink_local.evals.frontier.sums import FIGURES, TAIL_LEVELS
from mink_local.evals.measurement import Results
from mink_local.evals.report.report import Report, Section
from mink_local.evals.settings import settings_report, sweep
from mink_local.evals.stats import Interval, few_clusters, resample
from mink_local.evals.tables import (
    ENDS,
    Cell,
    Format,
    Table,
    columns_of,
    count,
    of_interval,
    percent,
    temperature_name,
)
from mink_local.samplers import MinK, label

YARDSTICK = "min-p (T last)"
"""The curve that the samplers are compared with."""

MOST_TAIL_MASS = 0.5
"""Settings with more tail mass than this are ignored; see `at_tail_mass`."""

_LEAST_TAIL_MASS = 1e-4  # the figure's lower end, if anything lies there
_LOOSE_TAIL_MASS = 0.2  # the figure's upper end is at least this: any reasonable choice lies below

Floats = NDArray[np.float64]


class FrontierResults:
    """The figures for all settings of the sweep, over the texts measured with every setting.

    Args:
        rows: A row per text and setting: `text`, `sampler`, `temperature`, the text's number of `positions`,
            and the `sums` of FIGURES over them.

    Raises:
        ReportError: There is no such text.

    Attributes:
        figures: The FIGURES for every setting, with intervals, and its `curve`, `sampler` and `temperature`;
            first those of the sweep, within a curve from few candidates to many.
        n_left_out: Number of texts that lack a setting.
    """

    def __init__(self, rows: pd.DataFrame) -> None:
        rows = rows[rows["positions"] > 0].astype({"temperature": float})
        by_text = rows.pivot(index="text", columns=["sampler", "temperature"], values=["positions", "sums"])
        texts = by_text.dropna()
        if texts.empty:
            raise ReportError("no text with at least two tokens has been measured with every setting yet")
        self.n_texts, self.n_left_out = len(texts), len(by_text) - len(texts)
        measured = set(texts["positions"].columns)
        self.temperatures = sorted({temperature for _, temperature in measured})
        self._swept = [one for one in sweep(self.temperatures) if one.key in measured]
        curves = {one.key: one.curve for one in self._swept}
        curves |= {key: label(key[0]) for key in sorted(measured.difference(curves))}
        positions = texts["positions"].iloc[:, 0].to_numpy(np.int64)
        self.n_positions = int(positions.sum())
        sums = np.array(texts["sums"][list(curves)].to_numpy().tolist())
        resampled = resample(sums) / resample(positions)[:, None, None]
        # (1 + resamples, settings, FIGURES): means over the texts themselves, then over the resamples.
        self._means: Floats = np.concatenate([[sums.sum(axis=0) / self.n_positions], resampled])
        self.figures = pd.DataFrame(
            {"curve": curve, "sampler": sampler, "temperature": temperature}
            | {
                column: value
                for j, figure in enumerate(FIGURES)
                for column, value in columns_of(self._interval(self._means[:, i, j]), figure).items()
            }
            for i, ((sampler, temperature), curve) in enumerate(curves.items())
        )
        self._numbers: dict[tuple[float, str], list[int]] = {  # of the settings
            key: list(curve.index)
            for key, curve in self.figures.groupby(["temperature", "curve"], sort=False)
        }

    def at_tail_mass(self, temperature: float, wanted: float) -> pd.DataFrame:
        """Return the maximum entropy of each curve at a given tail mass, the best curve first.

        Args:
            temperature: One of `temperatures`.
            wanted: Tail mass above greedy's, as a share.

        Returns:
            For each curve, its `entropy` and, paired, how far it is `behind` the best curve's, with
            intervals; and `between` which settings it lies: a single one if the sweep ends below the wanted
            tail mass.
        """
        bound = self._of(*self._numbers[temperature, "greedy"])[0] + wanted
        curves = [
            curve
            for (t, curve), (first, *_) in self._numbers.items()
            if t == temperature and first < len(self._swept) and self._swept[first].option
        ]
        found = {curve: self._most_entropy(temperature, curve, bound) for curve in curves}
        ranked = sorted(found, key=lambda curve: -found[curve][0][0])
        return pd.DataFrame(
            {
                "curve": curve,
                **columns_of(self._interval(found[curve][0]), "entropy"),
                "between": found[curve][1],
                **columns_of(self._interval(found[ranked[0]][0] - found[curve][0]), "behind"),
            }
            for curve in ranked
            if found[curve][1] != "greedy"
        )

    def defaults(self, temperature: float) -> pd.DataFrame:
        """Return the `figures` of every default, and of what is not swept, at a temperature, with its `gain`.

        The gain is its entropy minus that of the yardstick's curve at the same tail mass, in nats. The curve
        starts at greedy, even if the default has less. The gain is None for greedy itself, and where
        the yardstick's sweep ends below the default's tail mass.
        """
        greedy = self._numbers[temperature, "greedy"]
        most = max(self._of(i)[0][0] for i in greedy + self._numbers[temperature, YARDSTICK])
        gains: dict[int, Interval | None] = {}
        for i in self.figures.index[self.figures["temperature"] == temperature]:
            if i >= len(self._swept) or self._swept[i].is_default:
                tail, entropy = self._of(i)
                best, _ = self._most_entropy(temperature, YARDSTICK, tail)
                has_gain = i not in greedy and tail[0] <= min(most, MOST_TAIL_MASS)
                gains[i] = self._interval(entropy - best) if has_gain else None
        found = pd.DataFrame([columns_of(gain, "gain") for gain in gains.values()], index=list(gains))
        return self.figures.loc[list(gains)].join(found.astype(float))

    def _most_entropy(self, temperature: float, curve: str, bound: Floats) -> tuple[Floats, str]:
        """Return the maximum entropy of a curve at a tail mass, and between which settings it lies.

        A curve consists of straight lines from greedy through its settings: a point on a line is reached by
        choosing at random, at each position, between the settings at its ends. Settings above
        `MOST_TAIL_MASS` are ignored: a little of them would add much entropy, all of it from the tail.
        """
        (greedy,) = self._numbers[temperature, "greedy"]
        swept = [i for i in self._numbers[temperature, curve] if self._of(i)[0][0] <= MOST_TAIL_MASS]
        tail, entropy = np.stack([self._of(i) for i in (greedy, *swept)], axis=-1)
        best, place = most_entropy(tail, entropy, np.maximum(bound, tail[:, 0]))
        names = ["greedy", *(self._swept[i].option for i in swept)]
        return best, " to ".join(names[place : place + 2])

    def _of(self, setting: int) -> Floats:
        """Return the tail mass and the entropy of a setting, float64 (2, 1 + resamples)."""
        means: Floats = self._means[:, setting, [FIGURES.index("tail_mass"), FIGURES.index("entropy")]]
        return means.T

    def _interval(self, means: Floats) -> Interval:
        """Return the first number, with an interval from the others, its resamples."""
        return Interval.of(means[0], means[1:], self.n_texts)


def most_entropy(tail: Floats, entropy: Floats, bound: Floats) -> tuple[Floats, int]:
    """Return the maximum entropy at a tail mass of at most `bound` on the straight lines through points.

    On a line within the bound, it is at one of the ends; on a line that crosses the bound, it may be at the
    crossing.

    Args:
        tail: float64 (n, points); the first in each row is within the bound.
        entropy: float64 (n, points).
        bound: float64 (n,), one per row.

    Returns:
        The entropy, float64 (n,), and for the first row the index of its point, or of the point where its
        line starts.
    """
    best, place = entropy[:, 0], 0
    for i in range(1, tail.shape[1]):
        before, after = tail[:, i - 1] - bound, tail[:, i] - bound
        crosses = before * after < 0
        share = before / np.where(crosses, before - after, 1)
        at_crossing = entropy[:, i - 1] + share * (entropy[:, i] - entropy[:, i - 1])
        within = after <= 1e-12  # allows for rounding of a tail mass equal to the bound
        for number, allowed, candidate in ((i - 1, crosses, at_crossing), (i, within, entropy[:, i])):
            better = allowed & (candidate > best)
            best = np.where(better, candidate, best)
            place = number if better[0] else place
    return best, place


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _gain(difference: float) -> str:
    return f"{difference:+.3f}".replace("-", "−")


_COLUMNS: dict[str, tuple[str, Format]] = {
    "sampler": ("method", label),
    "temperature": ("T", temperature_name),
    "tail_mass": ("tail mass, %", _percent),
    "deep_tail_mass": ("tail mass at 0.1%, %", _percent),
    "surprise": ("surprise", "{:.3f}".format),
    "entropy": ("entropy", "{:.3f}".format),
    "k_is_1": ("k = 1, %", percent),
    "k": ("mean k", "{:,.1f}".format),
    "gain": ("gain", _gain),
}


def report(results: Results) -> Report:
    """Return the report on a frontier's rows."""
    found = FrontierResults(results.frame)
    manifest = results.manifest
    wanted = [one / 100 for one in manifest["wanted"]]
    defaults = pd.concat([found.defaults(temperature) for temperature in found.temperatures])
    at_tail_mass = pd.concat(
        [
            found.at_tail_mass(temperature, more).assign(temperature=temperature, wanted=more)
            for temperature in found.temperatures
            for more in wanted
        ]
    )
    model, reference = (manifest[role]["name"] for role in ("model", "reference"))
    how_to_read = (
        f"{count(found.n_positions, 'position')} in {count(found.n_texts, 'text')} from "
        f"{manifest['texts']['source']}. At each position, tail mass is the probability of tokens to which "
        f"{reference} gives less than {100 * TAIL_LEVELS['tail_mass']:g}% (at temperature 1), and entropy, "
        "the variety, is that of the sampler's distribution, in nats; surprise is −Σ q log p, where p is "
        "the reference's probability. All are exact, given the logits: nothing is sampled. (Another batch "
        "split changes the last bits of the logits, and thus a few cuts.) In brackets: 95% intervals, by "
        "bootstrap over texts, not corrected for multiple comparisons. Not shown: how a text continues after "
        "an improbable token, and whether such a token is wrong or merely rare.",
        f"Gain is entropy minus that of {YARDSTICK} at the same tail mass: above 0 if a default has more "
        "variety for its tail mass than the yardstick with another p. Levels of tail mass are in points "
        "above greedy's, and are reached between the settings shown. Bold: the maximum entropy, and any that "
        "cannot be distinguished from it. ≥: the sweep ends below that tail mass. Settings above "
        f"{100 * MOST_TAIL_MASS:g}% are ignored.",
    )
    hottest = max((t for t in found.temperatures if math.isfinite(t)), default=math.inf)
    shown = ("tail_mass", "entropy", "gain")
    columns = ["sampler", "k_is_1", *(f"{name}{end}" for name in shown for end in ENDS)]
    title = f"Tail mass against variety: {model}, judged by {reference}"
    tables = [
        *_tail_mass_tables(at_tail_mass),
        _table("Defaults", defaults),
        _table("All settings", found.figures),
    ]
    lead = Picture.of("frontier", title, lambda: frontier_figure(found.figures))
    return settings_report(
        results,
        title,
        [Section("Tail mass against variety", tables, lead=lead), Section("How to read this", how_to_read)],
        _table(
            f"Defaults at T = {temperature_name(hottest)}",
            defaults.loc[defaults["temperature"] == hottest, columns],
        ),
        (found.n_texts, found.n_left_out, "text"),
        few_clusters(found.n_texts, "texts"),
        settings=found.figures,
        at_tail_mass=at_tail_mass,
        defaults=defaults,
    )


def _table(title: str, frame: pd.DataFrame) -> Table:
    """Return a table of a frame's figures."""
    bare = [f"{name}{end}" for name in ("k_is_1", "k") for end in ENDS[1:]]  # shown without intervals
    keys = 1 + ("temperature" in frame)
    return Table.of(title, frame.drop(columns=bare, errors="ignore"), _COLUMNS, keys)


def _tail_mass_tables(at_tail_mass: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per temperature: the maximum entropy of every curve at the wanted levels of tail mass."""
    for temperature, frame in at_tail_mass.groupby("temperature"):
        title = f"Maximum entropy at equal tail mass, T = {temperature_name(temperature)}"
        yield tail_mass_table(title, frame.assign(is_behind=frame["behind_low"] > 0))


def tail_mass_table(title: str, frame: pd.DataFrame) -> Table:
    """Return the table of curves at levels of tail mass; bold are those that are not behind the best."""
    most = frame.groupby("curve")["entropy"].transform("sum")
    ranked = frame.assign(method=frame["curve"], most=most).sort_values(
        "most", ascending=False, kind="stable"
    )
    heads = {wanted: f"+{100 * wanted:g} points" for wanted in sorted(frame["wanted"].unique())}
    return Table.grid(title, ranked, _most, "method", "wanted", heads)


def _most(row: Any) -> Cell:
    at_least = "" if " to " in row.between else "≥ "
    shown = of_interval(row, "entropy", "{:.3f}".format)
    below = ", ".join(filter(None, (shown.below, row.between)))
    return Cell(f"{at_least}{shown.text}", below, bold=not row.is_behind)


def frontier_figure(settings: pd.DataFrame) -> Figure:
    """Draw tail mass over entropy, a curve per sampler: at T = 5, or else the highest finite T, and at ∞.

    Min-k is drawn last, above the curves that it coincides with.

    Args:
        settings: Each setting's `curve`, `temperature`, `entropy` and `tail_mass`.
    """
    temperatures = sorted(settings["temperature"].unique())
    finite = [t for t in temperatures if math.isfinite(t)]
    shown = [5.0] if 5.0 in finite else finite[-1:]
    shown += [t for t in temperatures if math.isinf(t)]
    figure, axes = panels([f"T = {temperature_name(t)}" for t in shown], "entropy, nats", "tail mass")
    figure.set_size_inches(5.2 * len(shown) + 0.6, 6.2)
    frame = settings[settings["temperature"].isin(shown)]
    lowest = frame["tail_mass"].min()
    highest = min(1.0, max(_LOOSE_TAIL_MASS, 10 * lowest))
    for temperature, axis in zip(shown, axes.values(), strict=True):
        here = frame[frame["temperature"] == temperature]
        for name, curve in sorted(here.groupby("curve", sort=False), key=lambda one: one[0] == MinK.name):
            if (curve["tail_mass"] <= highest).any():
                x, y = curve["entropy"], curve["tail_mass"]
                axis.plot(x, y, **look(str(name)), label=name, markersize=4, linewidth=1.1)
    axis.set(  # the panels share their scales
        xlim=(-0.03, 1.05 * frame.loc[frame["tail_mass"] <= highest, "entropy"].max()),
        yscale="log",
        ylim=(max(0.85 * lowest, _LEAST_TAIL_MASS), highest),
    )
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5), numticks=20))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, fontsize="small", frameon=False)
    return figure
