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
from pandas.api.types import is_numeric_dtype

from mink_local.evals.figures import GREY, MARKERS, NOTE, Picture, look, panels
from mink_local.evals.run.summary import Summary, parsed
from mink_local.evals.tables import values
from mink_local.samplers import label


def pictures(part: Summary, number: int, title: str) -> dict[str, Picture]:
    """Return the figures for one model and task by subject; the same numbers give the same bytes.

    A single temperature yields only the figure of k.
    """
    cells = part.cells[part.cells["scoring"] == "flexible"]
    draws: dict[str, tuple[str, Callable[[], Figure]]] = {}
    if cells["temperature"].nunique() > 1:
        draws["accuracy"] = ("Accuracy against temperature", partial(accuracy_figure, part))
    for (name, option), surface in grids(cells).items():
        title_of_grid = f"Accuracy of {name} over {option} and temperature"
        draws[f"{name}-{option}"] = (title_of_grid, partial(grid_figure, surface, f"{name}: {option}"))
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
    cells = part.cells[part.cells["scoring"] == "flexible"]
    samplers = list(cells["sampler"].unique())
    shown = [text for text in samplers if text != part.baseline] or samplers
    figure, axes = panels([_without_order(text) for text in shown], "temperature", "accuracy, %")
    found = part.comparisons[part.comparisons["scoring"] == "flexible"]
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
    highest = max(accuracy.high for accuracy in cells["accuracy"])
    figure.axes[0].set_ylim(0, 100 * min(1.0, 1.08 * highest))
    figure.suptitle("Bands: 95% intervals. Filled markers: significant differences.", **NOTE)
    return figure


def _without_order(text: str) -> str:
    return label(text).partition(" (")[0]


def _plot_accuracy(axis: Any, line: pd.DataFrame, style: dict[str, Any], filled: Any) -> None:
    t = line["temperature"].to_numpy()
    value, low, high = 100 * np.array(list(line["accuracy"])).T
    axis.fill_between(t, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.vlines(t, low, high, color=style["color"], alpha=0.4, linewidth=1)
    name = label(line["sampler"].iloc[0])
    axis.plot(t, value, **style | {"markerfacecolor": "white"}, label=name, zorder=3)
    axis.plot(t[filled], value[filled], style["marker"], color=style["color"], zorder=4)


def grids(cells: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the accuracies of samplers that differ in one option, by its value and temperature.

    Args:
        cells: Cells of one model, task and scoring.

    Returns:
        A frame in percent for each sampler's name and option with at least 3 values at 2 temperatures or
        more: a row per value, a column per temperature.
    """
    found: dict[tuple[str, str], pd.DataFrame] = {}
    for name, members in cells.groupby(cells["sampler"].map(_without_options), sort=False):
        samplers = [parsed(text) for text in members["sampler"]]
        options = pd.DataFrame([vars(one) if one and len(one.members) == 1 else {} for one in samplers])
        varied = [option for option in options if options[option].nunique(dropna=False) > 1]
        if len(varied) == 1 and is_numeric_dtype(options[varied[0]]):
            values_of = members.assign(
                value=options[varied[0]].to_list(), accuracy=100 * values(members["accuracy"])
            )
            surface = values_of.pivot(index="value", columns="temperature", values="accuracy")
            if surface.shape[0] > 2 and surface.shape[1] > 1:
                found[str(name), varied[0]] = surface
    return found


def _without_options(text: str) -> str:
    return text.partition(":")[0]


def grid_figure(surface: pd.DataFrame, option: str) -> Figure:
    """Return a heatmap of accuracy, as the paper's of τ and T, from a frame of `grids`."""
    figure = Figure(
        figsize=(1.6 + 0.7 * surface.shape[1], 1.4 + 0.4 * surface.shape[0]), layout="constrained"
    )
    axis = figure.subplots()
    middle = (np.nanmin(surface) + np.nanmax(surface)) / 2
    reach = max(10.0, np.nanmax(surface) - middle)  # so that a few points look as small as they are
    image = axis.imshow(surface, origin="lower", aspect="auto", vmin=middle - reach, vmax=middle + reach)
    for (i, j), accuracy in np.ndenumerate(surface.to_numpy()):
        if accuracy == accuracy:
            colour = "black" if accuracy > middle else "white"
            axis.text(j, i, f"{accuracy:.0f}", ha="center", va="center", color=colour, fontsize="small")
    axis.set_xticks(range(surface.shape[1]), [f"{t:g}" for t in surface.columns])
    axis.set_yticks(range(surface.shape[0]), [f"{value:g}" for value in surface.index])
    axis.set(xlabel="temperature", ylabel=option)
    figure.colorbar(image, label="accuracy, %")
    return figure


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
