"""A report's figures, as SVG.

Every method has a panel, shared only with the baseline, so that no line or band covers another.
"""

from collections.abc import Callable
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
    draws: dict[str, tuple[str, Callable[[], Figure]]] = {}
    if cells["temperature"].nunique() > 1:
        draws["accuracy"] = ("Accuracy against temperature", partial(accuracy_figure, part))
    if part.responses["k"].map(len).any():
        draws["k"] = ("Sizes of the candidate set", partial(cutoffs_figure, part.responses))
    return {
        subject: Picture.of(f"{number}-{subject}", f"{description}, {title}", draw)
        for subject, (description, draw) in draws.items()
    }


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


def cutoffs_figure(responses: pd.DataFrame) -> Figure:
    """Return a panel per method with a line per temperature: the share of steps with at least k candidates.

    Greedy, whose k is always 1, has no panel.
    """
    sampled = responses[~responses["copied"]] if not responses["copied"].all() else responses
    temperatures = sorted(sampled["temperature"].unique())
    shades = colormaps["viridis"](np.linspace(0.85, 0, len(temperatures)))
    names = sampled["sampler"].map(label)
    figure, axes = panels(names, "k, candidates in a step", "share of steps with at least k")
    least = 1.0
    for (name, t), cell in sampled.groupby([names, "temperature"], sort=False):
        sizes = np.concatenate([np.asarray(k, np.int64) for k in cell["k"]])
        if len(sizes):
            place = temperatures.index(t)
            look: dict[str, Any] = {
                "color": shades[place],
                "marker": MARKERS[place % len(MARKERS)],
                "markersize": 4,
                "markevery": 0.25,
                "label": f"T = {t:g}, k = 1 in {100 * (sizes == 1).mean():.0f}%",
            }
            k, counts = np.unique(sizes, return_counts=True)
            axes[name].ecdf(k, counts, complementary=True, **look)
            least = min(least, counts[-1] / len(sizes))
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
