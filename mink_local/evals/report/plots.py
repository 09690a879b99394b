"""The pictures of a report, as SVG.

Every method has a panel, so that no line or band covers another, and shares it with the method compared with.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from mink_local.evals.figures import GREY, MARKERS, NOTE, look, to_svg
from mink_local.evals.report.summary import Summary, Sweep, by_cell, sweeps
from mink_local.evals.tables import temperature_name
from mink_local.samplers import label

COLUMNS = 3


@dataclass(frozen=True)
class Picture:
    """A picture with its description; `stem` is the name of its file without ".svg"."""

    stem: str
    description: str
    svg: bytes

    @property
    def subject(self) -> str:
        """The stem without the number of the model and task."""
        return self.stem.partition("-")[2]


def pictures(summary: Summary, number: int, task: str, model: str) -> Iterator[Picture]:
    """Yield the pictures of one model and task; the same numbers give the same bytes.

    There is none of a single temperature, except of an option that was swept and of k.
    """
    cells = _of(summary.cells, task, model)
    cells = cells[cells["scoring"] == "flexible"]
    responses = _of(summary.responses, task, model)
    found: list[tuple[str, str, Any]] = []
    if cells["temperature"].nunique() > 1:
        found.append(("accuracy", "Accuracy against temperature", partial(accuracy_figure, summary, cells)))
    for (name, option), group in groupby(
        sweeps(list(cells["sampler"].unique())), lambda s: (s.name, s.option)
    ):
        draw = partial(heatmap_figure, cells, list(group))
        found.append((f"sweep-{name}-{option}", f"Accuracy of {name} over {option}", draw))
    if cells["temperature"].nunique() > 1 and "self_bleu" in cells and cells["self_bleu"].notna().any():
        found.append(("diversity", "Accuracy against diversity", partial(diversity_figure, cells)))
    if responses["k"].map(len).any():
        found.append(("k", "Sizes of the candidate set", partial(cutoffs_figure, responses)))
    for stem, description, draw in found:
        yield Picture(f"{number}-{stem}", f"{description}, {task} with {model}", to_svg(draw))


def _of(frame: pd.DataFrame, task: str, model: str) -> pd.DataFrame:
    return frame[(frame["task"] == task) & (frame["model"] == model)]


def accuracy_figure(summary: Summary, cells: pd.DataFrame) -> Figure:
    """Return a panel a method: accuracy over temperature with its interval, and the baseline in grey.

    Methods that differ in the order of temperature and cut share a panel. A hollow marker means no
    significant difference from the baseline. Swept options have a heatmap instead, except their default.
    """
    baseline = summary.baseline
    samplers = list(cells["sampler"].unique())
    swept = {text for sweep in sweeps(samplers) for text in sweep.samplers.values()}
    compared = summary.comparisons
    if len(compared):
        variants = set(compared[compared["kind"] == "default"]["sampler"])
        swept = swept & variants
    shown = [text for text in samplers if text not in swept and text != baseline] or samplers
    names = list(dict.fromkeys(_without_order(text) for text in shown))
    figure, axes = _panels(len(names), "temperature", "accuracy, %")
    for axis, name in zip(axes, names, strict=True):
        lines = [text for text in shown if _without_order(text) == name]
        for text in dict.fromkeys([*([baseline] if baseline in samplers else []), *lines]):
            colour = GREY if text == baseline and text not in lines else look(text)["color"]
            _plot_accuracy(axis, cells[cells["sampler"] == text], compared, look(text) | {"color": colour})
        axis.set_title(name)
        axis.legend(frameon=False, fontsize="small")
        _temperature_axis(axis, sorted(cells["temperature"].unique()))
    highest = max(accuracy.high for accuracy in cells["accuracy"])
    axes[0].set_ylim(0, 100 * min(1.0, 1.08 * highest))
    figure.suptitle("Bands: 95% intervals. Filled markers: a significant difference was found.", **NOTE)
    return figure


def _without_order(text: str) -> str:
    return label(text).partition(" (")[0]


def _plot_accuracy(axis: Any, line: pd.DataFrame, compared: pd.DataFrame, style: dict[str, Any]) -> None:
    t = line["temperature"].to_numpy()
    value, low, high = 100 * np.array(list(line["accuracy"])).T
    colour = style["color"]
    axis.fill_between(t, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.vlines(t, low, high, color=colour, alpha=0.4, linewidth=1)
    name = label(line["sampler"].iloc[0])
    axis.plot(t, value, **style | {"markerfacecolor": "white"}, label=name, zorder=3)
    if len(compared):
        places = compared[(compared["better"] | compared["worse"]) & (compared["scoring"] == "flexible")]
        places = places[places["kind"] != "default"][["task", "model", "sampler", "temperature"]]
        found = line.merge(places, on=list(places.columns))
        values = [100 * accuracy.value for accuracy in found["accuracy"]]
        axis.plot(found["temperature"], values, style["marker"], color=colour, zorder=4)


def diversity_figure(cells: pd.DataFrame) -> Figure:
    """Return one panel: accuracy against diversity, a line a method from the lowest temperature up."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axis: Any = figure.subplots()
    for sampler, line in cells.dropna(subset=["self_bleu"]).groupby("sampler", sort=False):
        x, y = 100 - line["self_bleu"], [100 * accuracy.value for accuracy in line["accuracy"]]
        axis.plot(x, y, **look(str(sampler)), markersize=5, linewidth=1.2, label=label(str(sampler)))
        end = (x.iloc[-1], y[-1])
        highest = temperature_name(line["temperature"].max())
        axis.annotate(highest, end, xytext=(4, 3), textcoords="offset points", fontsize="x-small")
    axis.set_xlabel("diversity of the responses to a question: 100 − self-BLEU")
    axis.set_ylabel("accuracy, %")
    axis.margins(0.08)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    figure.suptitle("Lines: from the lowest temperature to the highest, which is marked.", **NOTE)
    return figure


def heatmap_figure(cells: pd.DataFrame, panels: Sequence[Sweep]) -> Figure:
    """Return a panel for each sweep of one option: the accuracies, value × temperature, with intervals."""
    temperatures = sorted(cells["temperature"].unique())
    rows, columns = max(len(sweep.samplers) for sweep in panels), len(temperatures)
    size = (len(panels) * (0.9 * columns + 0.9) + 0.6, 0.5 * rows + 1.4)
    figure = Figure(figsize=size, layout="constrained")
    accuracies = cells.set_index(["sampler", "temperature"])["accuracy"].to_dict()
    highest = max(accuracy.value for accuracy in accuracies.values()) or 1
    for axis, sweep in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        found = [[accuracies.get((text, t)) for t in temperatures] for text in sweep.samplers.values()]
        values = [[one.value if one else math.nan for one in row] for row in found]
        axis.imshow(values, cmap="viridis", vmin=0, vmax=highest, aspect="auto", origin="lower")
        for y, row in enumerate(found):
            for x, one in enumerate(row):
                if one:
                    style = {"ha": "center", "color": "black" if one.value > 0.6 * highest else "white"}
                    axis.text(x, y, f"{100 * one.value:.1f}", va="bottom", **style)
                    ends = f"{100 * one.low:.0f}–{100 * one.high:.0f}"
                    axis.text(x, y, ends, va="top", fontsize="x-small", **style)
        axis.set_xticks(range(columns), [f"{t:g}" for t in temperatures])
        axis.set_yticks(range(len(sweep.samplers)), [f"{value:g}" for value in sweep.samplers])
        axis.set_title(f"{sweep.name} {sweep.fixed}".strip(), fontsize="medium")
    figure.supxlabel("temperature")
    figure.supylabel(panels[0].option)
    figure.suptitle("Accuracy, %, and its 95% interval", **NOTE)
    return figure


def cutoffs_figure(responses: pd.DataFrame) -> Figure:
    """Return a panel a method, a line a temperature: the share of steps with at least k candidates.

    Greedy, whose k is always 1, has no panel.
    """
    sampled = responses[~responses["copied"]] if not responses["copied"].all() else responses
    samplers = list(sampled["sampler"].unique())
    temperatures = sorted(sampled["temperature"].unique())
    shades = colormaps["viridis"](np.linspace(0.85, 0, len(temperatures)))
    figure, axes = _panels(len(samplers), "k, candidates in a step", "steps with at least k, %")
    panels = dict(zip(samplers, axes, strict=True))
    for key, cell in by_cell(sampled):
        sizes = np.sort(np.concatenate([np.asarray(k, np.int64) for k in cell["k"]]))
        if len(sizes):
            place = temperatures.index(key.temperature)
            x, first = np.unique(sizes, return_index=True)
            share = 100 * (1 - first / len(sizes))
            ones = 100 * (sizes == 1).mean()
            style = {"color": shades[place], "marker": MARKERS[place % len(MARKERS)]}
            panels[key.sampler].step(
                [1, *x], [100, *share], where="pre", markersize=4, markevery=0.25 if len(x) > 1 else None,
                label=f"T = {key.temperature:g}, k = 1 in {ones:.0f}%", **style,
            )  # fmt: skip
    for sampler, axis in panels.items():
        axis.set_title(label(sampler))
        axis.legend(frameon=False, fontsize="x-small")
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    for ticks, (low, high) in ((axes[0].xaxis, axes[0].get_xlim()), (axes[0].yaxis, axes[0].get_ylim())):
        if high < 100 * low:
            ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ticks.set_major_formatter("{x:g}")
        ticks.set_minor_locator(NullLocator())
    return figure


def _panels(n: int, x_label: str, y_label: str) -> tuple[Figure, Any]:
    columns = min(n, COLUMNS)
    rows = math.ceil(n / columns)
    figure = Figure(figsize=(3.5 * columns, 2.8 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axis in axes[n:]:
        axis.remove()
    for axis in axes[max(0, n - columns) : n]:  # the lowest panel of every column
        axis.xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel(x_label)
    figure.supylabel(y_label)
    return figure, axes[:n]


def _temperature_axis(axis: Any, temperatures: Sequence[float]) -> None:
    if all(temperatures) and len(temperatures) > 1:  # 0 has no logarithm, and one value no range
        axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(list(temperatures)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([f"{t:g}" for t in temperatures])
