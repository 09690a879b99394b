"""The pictures of a report. Every method has its own panel, so that no line or band covers another, and
is drawn against the method compared with; what is told apart by colour is so by shape too."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mink_local.evals.report.summary import SCORINGS, Cell, Group, Method, Scoring, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3
# Okabe and Ito's colours, which the colour-blind can tell apart, dark before light.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6BB1")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY, LIGHT = "#777777", "#bbbbbb"


def pictures(summary: Summary, group: Group) -> Iterator[tuple[str, str, "Figure"]]:
    """Every picture of one model and task: the stem of its file's name, what it shows, the figure."""
    where = f"{group.task} with {group.model}"
    for scoring in SCORINGS:
        shows = f"{scoring.capitalize()} accuracy against temperature, {where}"
        yield f"accuracy-{scoring}", shows, accuracy_figure(summary, group, scoring)
    if any(cell.distinct_2 is not None for cell in group.cells.values()):
        for scoring in SCORINGS:
            shows = f"{scoring.capitalize()} accuracy against diversity, {where}"
            yield f"diversity-{scoring}", shows, diversity_figure(group, scoring)
    if any(cell.steps.n for cell in group.cells.values()):
        yield "k", f"Sizes of the candidate set, {where}", sizes_figure(group)


def accuracy_figure(summary: Summary, group: Group, scoring: Scoring) -> "Figure":
    """A panel a method: accuracy over temperature with Wilson's band, both orders, Min-k in grey behind."""
    names = list(dict.fromkeys(m.name for m in group.methods if m.sampler != summary.baseline))
    baseline = next((m for m in group.methods if m.sampler == summary.baseline), None)
    names = names or [m.name for m in group.methods]
    figure, axes = _panels(len(names), "temperature", f"{scoring} accuracy, %")
    for axis, name in zip(axes, names, strict=False):
        if baseline and name != baseline.name:
            _line(axis, group, baseline, scoring, GREY, "D")
        shown = [m for m in group.methods if m.name == name]
        for method, colour, marker in zip(shown, COLOURS, MARKERS, strict=False):
            _line(axis, group, method, scoring, colour, marker)
        axis.set_title(name)
        axis.legend(frameon=False, fontsize="small")
        _temperature_axis(axis, group.temperatures)
    axes[0].set_ylim(0, 100 * min(1.0, 1.08 * max(c.accuracy[scoring].high for c in group.cells.values())))
    if baseline and group.comparisons[scoring]:
        _note(
            figure, f"Bands: Wilson's 95% intervals. Hollow: no significant difference from {baseline} found."
        )
    return figure


def _line(axis: Any, group: Group, method: Method, scoring: Scoring, colour: str, marker: str) -> None:
    """Hollow markers: no significant difference found from the method compared with."""
    cells = _cells(group, method)
    at = [c.temperature for c in cells]
    value, low, high = (
        [100 * getattr(c.accuracy[scoring], name) for c in cells] for name in ("value", "low", "high")
    )
    comparisons = [group.comparisons[scoring].get((method.sampler, t)) for t in at]
    axis.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.vlines(at, low, high, color=colour, alpha=0.4, linewidth=1)
    axis.plot(
        at,
        value,
        _style(method),
        color=colour,
        marker=marker,
        label=method.short_order or method.name,
        zorder=3,
    )
    hollow = [
        (t, v) for t, v, c in zip(at, value, comparisons, strict=True) if c and not (c.better or c.worse)
    ]
    axis.plot(*zip(*hollow, strict=True) if hollow else ((), ()), marker, color=colour, mfc="white", zorder=4)


def _cells(group: Group, method: Method) -> list[Cell]:
    """A method's cells, coldest first."""
    return [group.cells[method.sampler, t] for t in group.temperatures if (method.sampler, t) in group.cells]


def _style(method: Method) -> str:
    return "--" if method.order == "temperature-first" else "-"


def diversity_figure(group: Group, scoring: Scoring) -> "Figure":
    """A panel a method: accuracy against distinct-2 at every temperature, before the other methods' cells and
    the frontier, the cells that no other beats in both. (Whole responses are nearly all distinct as soon as
    they are long, so their share is left to the table.)"""
    points = _points(group.cells.values(), scoring)
    names = list(dict.fromkeys(m.name for m in group.methods))
    figure, axes = _panels(len(names), "distinct-2, %", f"{scoring} accuracy, %")
    for axis, name in zip(axes, names, strict=False):
        axis.scatter(*points.T, s=8, color=LIGHT)
        axis.plot(*_frontier(points).T, color=LIGHT, linewidth=1.2)
        shown = [m for m in group.methods if m.name == name]
        for method, colour, marker in zip(shown, COLOURS, MARKERS, strict=False):
            _trail(axis, group, method, scoring, colour, marker, near=0.08 * np.ptp(points, axis=0))
        axis.set_title(name)
        if len(shown) > 1:
            axis.legend(frameon=False, fontsize="small")
    axes[0].margins(0.08)
    axes[0].set_ylim(bottom=0)
    _note(
        figure,
        "Numbers: temperatures. Grey: all cells, and the frontier of those that no other beats in both.",
    )
    return figure


def _points(cells: Iterable[Cell], scoring: Scoring) -> NDArray[np.float64]:
    """Distinct-2 and accuracy in %, float64 (cells that have both, 2)."""
    both = [(c.distinct_2, c.accuracy[scoring].value) for c in cells if c.distinct_2 is not None]
    return 100 * np.array(both, np.float64).reshape(-1, 2)


def _frontier(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The corners, from left to right, of the stairs under which every point lies."""
    stairs: list[tuple[float, float]] = []
    height = -math.inf
    for x, y in sorted(map(tuple, points), reverse=True):
        if y > height:
            stairs += [(x, max(height, 0.0)), (x, y)]
            height = y
    return np.array([*stairs, (points[:, 0].min(), height)][::-1])


def _trail(
    axis: Any,
    group: Group,
    method: Method,
    scoring: Scoring,
    colour: str,
    marker: str,
    near: NDArray[np.float64],
) -> None:
    """near: how far apart two points may be at most, float64 (2,), for one label to be enough."""
    cells = [c for c in _cells(group, method) if c.distinct_2 is not None]
    points = _points(cells, scoring)
    axis.plot(*points.T, _style(method), color=colour, marker=marker, label=method.short_order or method.name)
    labels: list[tuple[NDArray[np.float64], list[str]]] = []
    for cell, point in zip(cells, points, strict=True):
        if not labels or (np.abs(point - labels[-1][0]) > near).any():
            labels.append((point, []))
        labels[-1][1].append(f"{cell.temperature:g}")
    for point, names in labels:
        axis.annotate(
            ", ".join(names), point, xytext=(5, 4), textcoords="offset points", fontsize="small", color=colour
        )


def sizes_figure(group: Group) -> "Figure":
    """A panel a method, a line a temperature: at every k, the share of steps with at least k candidates."""
    from matplotlib.ticker import NullLocator

    figure, axes = _panels(len(group.methods), "k, candidates in a step", "steps with at least k, %")
    colours = _shades(len(group.temperatures))
    for axis, method in zip(axes, group.methods, strict=False):
        for cell in _cells(group, method):
            if cell.steps.n:
                look = group.temperatures.index(cell.temperature)
                _survival(axis, cell, colours[look], MARKERS[look % len(MARKERS)])
        axis.set_title(str(method))
        axis.legend(frameon=False, fontsize="x-small")
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    for ticks in (axes[0].xaxis, axes[0].yaxis):
        ticks.set_major_formatter("{x:g}")
        ticks.set_minor_locator(NullLocator())
    return figure


def _survival(axis: Any, cell: Cell, colour: Any, marker: str) -> None:
    label = f"T = {cell.temperature:g}, k = 1 in {100 * cell.steps.share(1):.0f}%"
    x = [1, *cell.steps.sizes]
    y = [100, *(100 * cell.steps.at_least())]
    marked = 0.25 if len(x) > 2 else None  # four a line, or its only point
    axis.step(x, y, where="pre", color=colour, label=label, marker=marker, markevery=marked, markersize=4)


def _shades(n: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * (1 - i / max(1, n - 1))) for i in range(n)]


def _panels(n: int, x_label: str, y_label: str) -> tuple["Figure", Any]:
    from matplotlib.figure import Figure

    columns = min(n, COLUMNS)
    rows = math.ceil(n / columns)
    figure = Figure(figsize=(3.5 * columns, 2.8 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axis in axes[n:]:
        axis.remove()
    for axis in axes[max(0, n - columns) : n]:  # the last of their columns
        axis.xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel(x_label)
    figure.supylabel(y_label)
    return figure, axes[:n]


def _note(figure: "Figure", text: str) -> None:
    figure.suptitle(text, fontsize="small", x=0.01, ha="left")


def _temperature_axis(axis: Any, temperatures: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    if all(temperatures):  # a logarithm of 0 there is none
        axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(list(temperatures)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([f"{t:g}" for t in temperatures])
