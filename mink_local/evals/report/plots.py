"""The pictures of a report, as SVG.

Every method has a panel, so that no line or band covers another, and shares it with the method compared with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from mink_local.evals.figures import GREY, MARKERS, NOTE, curves, look, panels, to_svg
from mink_local.evals.report.summary import Summary, default_options, sweeps
from mink_local.samplers import label


@dataclass(frozen=True)
class Picture:
    """A picture with its description; `stem` is the name of its file without ".svg"."""

    stem: str
    description: str
    svg: bytes


def pictures(part: Summary, number: int, title: str) -> dict[str, Picture]:
    """Return the pictures of one model and task by subject; the same numbers give the same bytes.

    There is none of a single temperature, except of an option that was swept and of k.
    """
    cells = part.cells[part.cells["scoring"] == "flexible"]
    diverse = cells.dropna(subset="self_bleu")
    draws: dict[str, tuple[str, Callable[[], Figure]]] = {}
    if cells["temperature"].nunique() > 1:
        draws["accuracy"] = ("Accuracy against temperature", partial(accuracy_figure, part))
    for (name, option), sweep in sweeps(cells["sampler"].unique()).groupby(["name", "option"]):
        draw = partial(heatmap_figure, cells, sweep)
        draws[f"sweep-{name}-{option}"] = (f"Accuracy of {name} over {option}", draw)
    if diverse["temperature"].nunique() > 1:
        draws["diversity"] = ("Accuracy against diversity", partial(diversity_figure, diverse))
    if part.responses["k"].map(len).any():
        draws["k"] = ("Sizes of the candidate set", partial(cutoffs_figure, part.responses))
    return {
        subject: Picture(f"{number}-{subject}", f"{description}, {title}", to_svg(draw))
        for subject, (description, draw) in draws.items()
    }


def accuracy_figure(part: Summary) -> Figure:
    """Return a panel a method: accuracy over temperature with its interval, and the baseline in grey.

    Methods that differ in the order of temperature and cut share a panel. A hollow marker means no
    significant difference from the baseline. Swept options have a heatmap instead, except their default.
    """
    cells = part.cells[part.cells["scoring"] == "flexible"]
    samplers = list(cells["sampler"].unique())
    hidden = {text for text in sweeps(samplers)["sampler"] if text != default_options(text)}
    shown = [text for text in samplers if text not in {*hidden, part.baseline}] or samplers
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
    figure.suptitle("Bands: 95% intervals. Filled markers: a significant difference was found.", **NOTE)
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


def diversity_figure(cells: pd.DataFrame) -> Figure:
    """Return one panel: accuracy against diversity, a line a method from the lowest temperature up."""
    shown = cells.assign(x=100 - cells["self_bleu"], y=100 * cells["accuracy"].str[0])
    return curves(shown, "diversity of the responses to a question: 100 − self-BLEU", "accuracy, %")


def heatmap_figure(cells: pd.DataFrame, sweep: pd.DataFrame) -> Figure:
    """Return the accuracies of one option's values × temperatures; a panel for each set of other options."""
    temperatures = sorted(cells["temperature"].unique())
    found = sweep.merge(cells[["sampler", "temperature", "accuracy"]], on="sampler")
    groups = list(found.groupby(["name", "fixed"]))
    n_rows = max(group["value"].nunique() for _, group in groups)
    size = (len(groups) * (0.9 * len(temperatures) + 0.9) + 0.6, 0.5 * n_rows + 1.4)
    figure = Figure(figsize=size, layout="constrained")
    highest = cells["accuracy"].str[0].max() or 1
    for axis, (names, group) in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        wide = group.pivot(index="value", columns="temperature", values="accuracy")
        values = sorted(group["value"].unique())
        axis.imshow(
            wide.reindex(columns=temperatures).apply(lambda column: column.str[0]).astype(float),
            cmap="viridis", vmin=0, vmax=highest, aspect="auto", origin="lower",
        )  # fmt: skip
        for row in group.itertuples():
            place = temperatures.index(row.temperature), values.index(row.value)
            value, low, high = row.accuracy
            style = {"ha": "center", "color": "black" if value > 0.6 * highest else "white"}
            axis.text(*place, f"{100 * value:.1f}", va="bottom", **style)
            axis.text(*place, f"{100 * low:.0f}–{100 * high:.0f}", va="top", fontsize="x-small", **style)
        axis.set_xticks(range(len(temperatures)), [f"{t:g}" for t in temperatures])
        axis.set_yticks(range(len(values)), [f"{value:g}" for value in values])
        axis.set_title(" ".join(names).strip(), fontsize="medium")
    figure.supxlabel("temperature")
    figure.supylabel(sweep["option"].iloc[0])
    figure.suptitle("Accuracy, %, and its 95% interval", **NOTE)
    return figure


def cutoffs_figure(responses: pd.DataFrame) -> Figure:
    """Return a panel a method, a line a temperature: the share of steps with at least k candidates.

    Greedy, whose k is always 1, has no panel.
    """
    sampled = responses[~responses["copied"]] if not responses["copied"].all() else responses
    temperatures = sorted(sampled["temperature"].unique())
    shades = colormaps["viridis"](np.linspace(0.85, 0, len(temperatures)))
    names = sampled["sampler"].map(label)
    figure, axes = panels(names, "k, candidates in a step", "steps with at least k, %")
    for (name, t), cell in sampled.groupby([names, "temperature"], sort=False):
        sizes = np.concatenate([np.asarray(k, np.int64) for k in cell["k"]])
        if len(sizes):
            place = temperatures.index(t)
            x, first = np.unique(np.sort(sizes), return_index=True)
            axes[name].step(
                [1, *x], [100, *(100 * (1 - first / len(sizes)))], where="pre",
                color=shades[place], marker=MARKERS[place % len(MARKERS)], markersize=4,
                markevery=0.25 if len(x) > 1 else None,
                label=f"T = {t:g}, k = 1 in {100 * (sizes == 1).mean():.0f}%",
            )  # fmt: skip
    for axis in axes.values():
        axis.legend(frameon=False, fontsize="x-small")
    axis = figure.axes[0]
    axis.set(xscale="log", yscale="log")
    for ticks in (axis.xaxis, axis.yaxis):
        low, high = ticks.get_view_interval()
        if high < 100 * low:
            ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ticks.set_major_formatter("{x:g}")
        ticks.set_minor_locator(NullLocator())
    return figure
