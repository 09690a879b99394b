"""A report's figures.

Every method has a panel, shared only with the baseline, so that no line or band covers another.
"""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from mink_local.evals.figures import GREY, MARKERS, NOTE, Picture, look, panels
from mink_local.evals.run.summary import Summary
from mink_local.evals.tables import ENDS
from mink_local.samplers import label


def pictures(part: Summary, number: int, title: str) -> dict[str, Picture]:
    """Return the figures for one model and task by subject; the same numbers give the same bytes.

    A single temperature yields only the figure of k.
    """
    cells = part.cells.dropna(subset="accuracy")
    found: dict[str, Picture] = {}
    if cells["temperature"].nunique() > 1:
        data = cells[["sampler", "temperature", *(f"accuracy{end}" for end in ENDS)]]
        name, draw = f"Accuracy against temperature, {title}", partial(accuracy_figure, part)
        found["accuracy"] = Picture.of(f"{number}-accuracy", name, draw, data)
    if part.responses["k"].map(len).any():
        sizes = sizes_of(part.responses)
        name, draw = f"Sizes of the candidate set, {title}", partial(cutoffs_figure, sizes)
        found["k"] = Picture.of(f"{number}-k", name, draw, sizes)
    return found


def accuracy_figure(part: Summary) -> Figure:
    """Return a figure with a panel per method: accuracy over temperature with its interval, baseline in grey.

    Methods that differ only in the order of temperature and cut share a panel. A hollow marker means no
    significant difference from the baseline.
    """
    cells = part.cells
    samplers = list(cells["sampler"].unique())
    shown = [text for text in samplers if text != part.baseline] or samplers
    figure, axes = panels([_without_order(text) for text in shown], "temperature", "accuracy, %")
    found = part.comparisons
    found = found[(found["better"] | found["worse"]).astype(bool) & (found["kind"] != "default")]
    significant = set(zip(found["sampler"], found["temperature"], strict=True))
    temperatures = sorted(cells["temperature"].unique())
    for name, axis in axes.items():
        lines = [text for text in shown if _without_order(text) == name]
        for text in dict.fromkeys([part.baseline, *lines]):
            line = cells[cells["sampler"] == text]
            if len(line):
                colour = look(text)["color"] if text in lines else GREY
                filled = [(text, t) in significant for t in line["temperature"]]
                _plot_accuracy(axis, line, look(text) | {"color": colour}, np.array(filled))
        axis.legend(frameon=False, fontsize="small")
        if all(temperatures):  # 0 has no logarithm
            axis.set_xscale("log")
        axis.set_xticks(temperatures, [f"{t:g}" for t in temperatures])
        axis.xaxis.set_minor_locator(NullLocator())
    highest = cells["accuracy_high"].max()
    figure.axes[0].set_ylim(0, 100 * min(1.0, 1.08 * highest))
    figure.suptitle("Bands: 95% intervals. Filled markers: significant differences.", **NOTE)
    return figure


def _without_order(text: str) -> str:
    return label(text).partition(" (")[0]


def _plot_accuracy(axis: Any, line: pd.DataFrame, style: dict[str, Any], filled: Any) -> None:
    t = line["temperature"].to_numpy()
    value, low, high = (100 * line[f"accuracy{end}"].to_numpy() for end in ENDS)
    axis.fill_between(t, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.vlines(t, low, high, color=style["color"], alpha=0.4, linewidth=1)
    name = label(line["sampler"].iloc[0])
    axis.plot(t, value, **style | {"markerfacecolor": "white"}, label=name, zorder=3)
    axis.plot(t[filled], value[filled], style["marker"], color=style["color"], zorder=4)


def sizes_of(responses: pd.DataFrame) -> pd.DataFrame:
    """Return a row with the number of `steps` for each sampler, temperature and k.

    Greedy, whose k is always 1, is left out unless it is alone.
    """
    sampled = responses[~responses["copied"]] if not responses["copied"].all() else responses
    steps = sampled[["sampler", "temperature", "k"]].explode("k").dropna()
    found = steps.groupby(list(steps.columns), sort=False).size().rename("steps").reset_index()
    order = {one: place for place, one in enumerate(sampled["sampler"].unique())}
    by = ["sampler", "temperature", "k"]
    return found.sort_values(by, key=lambda one: one.map(order) if one.name == "sampler" else one)


def cutoffs_figure(sizes: pd.DataFrame) -> Figure:
    """Return a panel per method with a line per temperature: the share of steps with at least k candidates.

    `sizes` is that of `sizes_of`.
    """
    temperatures = sorted(sizes["temperature"].unique())
    shades = colormaps["viridis"](np.linspace(0.85, 0, len(temperatures)))
    names = sizes["sampler"].map(label)
    figure, axes = panels(names, "k, candidates in a step", "share of steps with at least k")
    least = 1.0
    for (name, t), cell in sizes.groupby([names, "temperature"], sort=False):
        k, counts = cell["k"].astype(int).to_numpy(), cell["steps"].to_numpy()
        place = temperatures.index(t)
        look: dict[str, Any] = {
            "color": shades[place],
            "marker": MARKERS[place % len(MARKERS)],
            "markersize": 4,
            "markevery": 0.25,
            "label": f"T = {t:g}, k = 1 in {100 * counts[k == 1].sum() / counts.sum():.0f}%",
        }
        axes[name].ecdf(k, counts, complementary=True, **look)
        least = min(least, counts[-1] / counts.sum())
    for axis in axes.values():
        axis.legend(frameon=False, fontsize="x-small")
    axis = figure.axes[0]
    axis.set(xscale="log", yscale="log", ylim=(0.7 * least, 1.2))  # an ecdf ends at a remainder, not at 0
    for ticks in (axis.xaxis, axis.yaxis):
        low, high = ticks.get_view_interval()
        if high < 100 * low:
            ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ticks.set_major_formatter("{x:g}")
        ticks.set_minor_locator(NullLocator())
    return figure
