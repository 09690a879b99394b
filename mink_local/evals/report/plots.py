"""The pictures of a report, as SVG.

Every method has a panel of its own, so that no line or band covers another, and shares it with the method
compared with. Whatever colour tells apart, shape tells apart too.
"""

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib import color_sequences, colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator
from numpy.typing import NDArray

from mink_local.evals.report.ablations import Sweep, sweeps, variants
from mink_local.evals.report.stats import Share
from mink_local.evals.report.summary import CellResult, Method, Scoring, Summary, TaskResult

COLUMNS = 3
# Colours that colour-blind people can tell apart, of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/
COLOURS = ("#0072B2", "#D55E00", "#009E73")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY, LIGHT = "#777777", "#bbbbbb"
NOTE: dict[str, Any] = {"fontsize": "small", "x": 0.01, "ha": "left", "wrap": True}


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


def plot_pictures(summary: Summary, task: TaskResult) -> Iterator[Picture]:
    """Plot every picture of one model and task; the same numbers give the same bytes."""
    number = summary.tasks.index(task) + 1
    # hashsalt: element ids are the same in every run. parse_math: a $ in a sampler's name is a $.
    with matplotlib.rc_context({"svg.hashsalt": "mink-local", "text.parse_math": False}):
        for stem, description, figure in _figures(summary, task):
            svg = io.BytesIO()
            figure.savefig(svg, format="svg", metadata={"Date": None})
            yield Picture(f"{number}-{stem}", f"{description}, {task.title}", svg.getvalue())


def _figures(summary: Summary, task: TaskResult) -> Iterator[tuple[str, str, Figure]]:
    scorings = task.scorings[:1] if task.strict_is_silent else task.scorings
    for scoring in scorings:
        figure = accuracy_figure(summary, task, scoring)
        yield f"accuracy-{scoring}", f"{scoring.capitalize()} accuracy against temperature", figure
    for (name, option), swept in groupby(sweeps(task), key=lambda sweep: (sweep.name, sweep.option)):
        panels = list(swept)
        for scoring in scorings:
            stem = f"{name}-{option}-{scoring}"
            yield (
                stem,
                f"{scoring.capitalize()} accuracy of {name} over {option}",
                heatmap_figure(task, panels, scoring),
            )
    if task.repeated:
        for scoring in scorings:
            figure = attempts_figure(task, scoring)
            yield f"attempts-{scoring}", f"{scoring.capitalize()} accuracy of k responses", figure
    if any(cell.diversity for cell in task.cells.values()):
        for scoring in scorings:
            figure = diversity_figure(task, scoring)
            yield f"diversity-{scoring}", f"{scoring.capitalize()} accuracy against diversity", figure
    if any(cell.cutoffs.n_steps for cell in task.cells.values()):
        yield "k", "Sizes of the candidate set", cutoffs_figure(task)
    if task.baseline and sum(bool(cell.cutoffs.n_steps) for cell in task.row(task.baseline)) > 1:
        yield "k-temperatures", f"k of {task.baseline} at each temperature", bins_figure(task, task.baseline)


@dataclass(frozen=True)
class _Line:
    """The cells of one method, at ascending temperatures, and the look of their line."""

    method: Method
    cells: Sequence[CellResult]
    colour: str
    marker: str

    def plot(self, axis: Any, x: Any, y: Any) -> None:
        style = "--" if self.method.order == "temperature-first" else "-"
        label = self.method.short_order or self.method.name
        axis.plot(x, y, style, color=self.colour, marker=self.marker, label=label, zorder=3)


def _lines(task: TaskResult, name: str) -> list[_Line]:
    """Return a line for every method of this name: one, or one for each order."""
    methods = [method for method in task.methods if method.name == name]
    looks = zip(methods, COLOURS, MARKERS, strict=False)
    return [_Line(method, task.row(method), colour, marker) for method, colour, marker in looks]


def accuracy_figure(summary: Summary, task: TaskResult, scoring: Scoring) -> Figure:
    """Return a panel a method: accuracy over temperature with Wilson's interval, and the baseline in grey."""
    baseline = task.baseline
    swept = {method for sweep in sweeps(task) for method in sweep.methods.values()}
    swept -= {baseline, *variants(task).values()}  # whose values have a heatmap
    methods = [m for m in task.methods if m not in swept] or task.methods
    names = dict.fromkeys(m.name for m in methods if m != baseline) or [m.name for m in methods]
    figure, axes = _panels(len(names), "temperature", f"{scoring} accuracy, %")
    for axis, name in zip(axes, names, strict=True):
        if baseline and name != baseline.name:
            _plot_accuracy(axis, _Line(baseline, task.row(baseline), GREY, "D"), scoring)
        for line in _lines(task, name):
            _plot_accuracy(axis, line, scoring)
        axis.set_title(name)
        axis.legend(frameon=False, fontsize="small")
        _temperature_axis(axis, task.temperatures)
    highest = max(cell.accuracy[scoring].high for cell in task.cells.values())
    axes[0].set_ylim(0, 100 * min(1.0, 1.08 * highest))
    if task.comparisons(scoring):
        hollow = f"Hollow: no significant difference from {summary.against} found."
        figure.suptitle(f"Bands: Wilson's 95% intervals. {hollow}", **NOTE)
    return figure


def _plot_accuracy(axis: Any, line: _Line, scoring: Scoring) -> None:
    """Plot a line with its band; a hollow marker means no significant difference from the baseline."""
    t = [cell.temperature for cell in line.cells]
    accuracies = [cell.accuracy[scoring] for cell in line.cells]
    value, low, high = 100 * np.array([(a.value, a.low, a.high) for a in accuracies]).T
    axis.fill_between(t, low, high, color=line.colour, alpha=0.15, linewidth=0)
    axis.vlines(t, low, high, color=line.colour, alpha=0.4, linewidth=1)
    line.plot(axis, t, value)
    for cell in line.cells:
        comparison = cell.comparisons.get(scoring)
        if comparison and not (comparison.better or comparison.worse):
            point = (cell.temperature, 100 * cell.accuracy[scoring].value)
            axis.plot(*point, line.marker, color=line.colour, mfc="white", zorder=4)


def diversity_figure(task: TaskResult, scoring: Scoring) -> Figure:
    """Return a panel a method: accuracy against EAD, a point for every temperature.

    Behind them are the other methods' cells and the frontier: the cells that no other beats in both.
    """
    points = _points(task.cells.values(), scoring)
    looks = _looks(task)
    names = dict.fromkeys(m.name for m in task.methods)
    figure, axes = _panels(
        len(names), "diversity of the responses to a question: EAD, %", f"{scoring} accuracy, %"
    )
    for axis, name in zip(axes, names, strict=True):
        axis.scatter(*points.T, s=8, color=LIGHT)
        axis.plot(*_frontier(points).T, color=LIGHT, linewidth=1.2)
        lines = _lines(task, name)
        for line in lines:
            _plot_trail(axis, line, scoring, looks)
        axis.set_title(name)
        if len(lines) > 1:
            axis.legend(frameon=False, fontsize="small")
    axes[0].margins(0.08)
    axes[0].set_ylim(0, max(1, axes[0].get_ylim()[1]))
    shown = {cell.temperature for cell in task.cells.values() if cell.diversity and not cell.copied}
    handles = [Line2D([], [], linestyle="", label=f"T = {t:g}", **looks[t]) for t in sorted(shown)]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.suptitle("Grey: all cells, and the frontier of those that no other beats in both.", **NOTE)
    return figure


def _points(cells: Iterable[CellResult], scoring: Scoring) -> NDArray[np.float64]:
    """Return EAD and accuracy in percent, float64 (cells that have both, 2)."""
    both = [(c.diversity.ead, c.accuracy[scoring].value) for c in cells if c.diversity]
    return 100 * np.array(both, np.float64).reshape(-1, 2)


def _frontier(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the corners, from left to right, of the lowest stairs that lie above every point."""
    stairs: list[tuple[float, float]] = []
    height = -math.inf
    for x, y in sorted(map(tuple, points), reverse=True):
        if y > height:
            stairs += [(x, max(height, 0.0)), (x, y)]
            height = y
    return np.array([*stairs, (points[:, 0].min(), height)][::-1])


def _plot_trail(axis: Any, line: _Line, scoring: Scoring, looks: Mapping[float, Mapping[str, Any]]) -> None:
    """Plot a line whose points have their temperatures' markers; greedy's copies are one point."""
    cells = [cell for cell in line.cells if cell.diversity]
    if cells and cells[0].copied:
        line.plot(axis, *_points(cells[:1], scoring).T)
        return
    replace(line, marker="").plot(axis, *_points(cells, scoring).T)
    for cell in cells:
        axis.plot(*_points([cell], scoring).T, linestyle="", zorder=4, **looks[cell.temperature])


def _looks(task: TaskResult) -> dict[float, dict[str, Any]]:
    """Return the colour and the marker of every temperature."""
    shades = colormaps["viridis"](np.linspace(0.85, 0, len(task.temperatures)))
    looks = zip(task.temperatures, shades, MARKERS * len(task.temperatures), strict=False)
    return {t: {"color": shade, "marker": marker} for t, shade, marker in looks}


def heatmap_figure(task: TaskResult, sweeps: Sequence[Sweep], scoring: Scoring) -> Figure:
    """Return a panel for each sweep of one option: the accuracies, value × temperature, with intervals."""
    rows, columns = max(len(sweep.methods) for sweep in sweeps), len(task.temperatures)
    size = (len(sweeps) * (0.9 * columns + 0.9) + 0.6, 0.5 * rows + 1.4)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(sweeps), squeeze=False)[0]
    highest = max(cell.accuracy[scoring].value for cell in task.cells.values())
    for axis, sweep in zip(panels, sweeps, strict=True):
        cells = [[task.cells.get((m.sampler, t)) for t in task.temperatures] for m in sweep.methods.values()]
        values = [[cell.accuracy[scoring].value if cell else math.nan for cell in row] for row in cells]
        axis.imshow(values, cmap="viridis", vmin=0, vmax=highest or 1, aspect="auto", origin="lower")
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                if cell:
                    _write_accuracy(axis, x, y, cell.accuracy[scoring], highest)
        axis.set_xticks(range(columns), [f"{t:g}" for t in task.temperatures])
        axis.set_yticks(range(len(sweep.methods)), [f"{value:g}" for value in sweep.methods])
        axis.set_title(sweep.name + (f" ({sweep.fixed})" if sweep.fixed else ""), fontsize="medium")
    figure.supxlabel("temperature")
    figure.supylabel(sweeps[0].option)
    figure.suptitle(f"{scoring} accuracy, %, and its 95% interval", **NOTE)
    return figure


def _write_accuracy(axis: Any, x: int, y: int, value: Share, highest: float) -> None:
    colour = "black" if value.value > 0.6 * highest else "white"
    place = {"ha": "center", "color": colour}
    axis.text(x, y, f"{100 * value.value:.1f}", va="bottom", **place)
    axis.text(x, y, f"{100 * value.low:.0f}–{100 * value.high:.0f}", va="top", fontsize="x-small", **place)


def attempts_figure(task: TaskResult, scoring: Scoring) -> Figure:
    """Return pass@k above maj@k over k: a column of panels for each temperature, a line a method."""
    temperatures = sorted({cell.temperature for cell in task.repeated})
    figure = Figure(figsize=(max(7, 2.6 * len(temperatures)), 6), layout="constrained")
    axes: Any = figure.subplots(2, len(temperatures), sharex=True, sharey=True, squeeze=False)
    methods = list(dict.fromkeys(cell.method for cell in task.repeated))
    for cell in task.repeated:
        pair = axes[:, temperatures.index(cell.temperature)]
        number = methods.index(cell.method)
        look = {"color": color_sequences["tab10"][number % 10], "marker": MARKERS[number % len(MARKERS)]}
        found = cell.attempts[scoring]
        for axis, shares in zip(pair, ([a.passed for a in found], [a.majority for a in found]), strict=True):
            value, low, high = 100 * np.array([(one.value, one.low, one.high) for one in shares]).T
            sizes = [one.k for one in found]
            axis.plot(sizes, value, label=str(cell.method), markersize=4, linewidth=1.2, **look)
            if cell.method == task.baseline:
                axis.fill_between(sizes, low, high, color=look["color"], alpha=0.15, linewidth=0)
        pair[0].set_title(f"T = {cell.temperature:g}")
    for axis, of in zip(axes[:, 0], ("any of k is right", "the majority of k is right"), strict=True):
        axis.set_ylabel(f"{of}, %")
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_xscale("log", base=2)
    axes[0, 0].xaxis.set_major_formatter("{x:g}")
    figure.supxlabel("k, responses to a question")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside right", frameon=False, fontsize="small"
    )
    band = f" Bands: 95% intervals of {task.baseline}; the others' are in the table." if task.baseline else ""
    figure.suptitle(
        f"{scoring.capitalize()} accuracy of k responses: pass@k above, maj@k below.{band}", **NOTE
    )
    return figure


def cutoffs_figure(task: TaskResult) -> Figure:
    """Return a panel a method, a line a temperature: the share of steps with at least k candidates."""
    figure, axes = _panels(len(task.methods), "k, candidates in a step", "steps with at least k, %")
    looks = _looks(task)
    for axis, method in zip(axes, task.methods, strict=True):
        for cell in task.row(method):
            if cell.cutoffs.n_steps:
                _plot_cutoffs(axis, cell, looks[cell.temperature])
        axis.set_title(str(method))
        axis.legend(frameon=False, fontsize="x-small")
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    for ticks, (low, high) in ((axes[0].xaxis, axes[0].get_xlim()), (axes[0].yaxis, axes[0].get_ylim())):
        if high < 100 * low:
            ticks.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ticks.set_major_formatter("{x:g}")
        ticks.set_minor_locator(NullLocator())
    return figure


def _plot_cutoffs(axis: Any, cell: CellResult, look: Mapping[str, Any]) -> None:
    label = f"T = {cell.temperature:g}, k = 1 in {100 * cell.cutoffs.share(1):.0f}%"
    x = [1, *cell.cutoffs.sizes]
    y = [100, *(100 * cell.cutoffs.at_least())]
    marked = 0.25 if len(x) > 2 else None  # four markers a line, or one on its only point
    axis.step(x, y, where="pre", label=label, markevery=marked, markersize=4, **look)


def bins_figure(task: TaskResult, method: Method) -> Figure:
    """Return one panel: the share of steps with few and with many candidates, a bar a temperature.

    A share is the mean over questions, with its 95% interval.
    """
    cells = [cell for cell in task.row(method) if cell.cutoffs.n_steps]
    lows = (1, 2, 3, 4, 5, 9, 17, 33)
    names = [f"{low}" if high == low + 1 else f"{low}–{high - 1}" for low, high in pairwise(lows)]
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axis: Any = figure.subplots()
    looks, width = _looks(task), 0.8 / len(cells)
    for number, cell in enumerate(cells):
        value, error = 100 * cell.cutoff_shares(lows)
        x = np.arange(len(lows)) + (number - (len(cells) - 1) / 2) * width
        colour = looks[cell.temperature]["color"]
        label = f"T = {cell.temperature:g}"
        axis.bar(x, value, width, color=colour, label=label, yerr=error, error_kw={"ecolor": GREY})
    axis.set_xticks(range(len(lows)), [*names, f"{lows[-1]}+"])
    axis.legend(frameon=False)
    axis.set_xlabel("k, candidates in a step")
    axis.set_ylabel("steps, %")
    axis.set_title(str(method))
    figure.suptitle("Means over questions with 95% intervals. The responses at each T are others.", **NOTE)
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
