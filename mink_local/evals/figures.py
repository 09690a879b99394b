"""Figures of all measurements: each sampler looks the same everywhere, and the SVG is reproducible."""

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mink_local.evals.tables import ENDS
from mink_local.samplers import SAMPLERS, MinK, label

COLUMNS = 3
GREY = "#777777"
NOTE: dict[str, Any] = {"fontsize": "small", "x": 0.01, "ha": "left", "wrap": True}

# Colours that colour-blind people can tell apart, by Okabe and Ito (2008), https://jfly.uni-koeln.de/color/,
# and Paul Tol; Min-k, which is registered first, is vermilion. Markers distinguish whatever colours do.
COLOURS = (
    *("#D55E00", "#000000", "#CC79A7", "#56B4E9", "#E69F00", "#332288", "#009E73", "#0072B2", "#999933"),
    *("#8C6D1F", "#882255", "#AA4499", "#117733", "#777777", "#44AA99", "#661100", "#6699CC", "#AA4466"),
)
_N_CHAINS = 3  # looks for chains
FILLED = ("o", "D", "P", "<", ">", "^", "s", "*")  # those that an error bar does not hide
MARKERS = ("o", "+", "D", "P", "<", ">", "^", "s", "*", "x", "X", "h", "p", "d", "v", "1", "8", "2")


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, with its description.

    Attributes:
        stem: Name of its files, without an ending.
        data: The numbers that it draws; None if they are in a file of the report.
    """

    stem: str
    description: str
    svg: bytes
    pdf: bytes
    data: pd.DataFrame | None = None

    @classmethod
    def of(
        cls, stem: str, description: str, draw: Callable[[], Figure], data: pd.DataFrame | None = None
    ) -> "Picture":
        """Return a figure's picture; the same figure gives the same bytes, and a $ in a name stays a $."""
        svg, pdf = io.BytesIO(), io.BytesIO()
        with matplotlib.rc_context(
            {"svg.hashsalt": "mink-local", "text.parse_math": False, "pdf.fonttype": 42}
        ):
            figure = draw()
            figure.savefig(svg, format="svg", metadata={"Date": None})
            figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
        return cls(stem, description, svg.getvalue(), pdf.getvalue(), data)


def look(sampler: str) -> dict[str, Any]:
    """Return the colour, marker and line style for a sampler's text: the same in all figures.

    The colour depends on a sampler's place in the registry, or on a chain's name; samplers that cut after
    temperature are dashed and hollow.
    """
    name = "+".join(re.findall(r"(?:^|\+)([a-z-]+)", sampler))  # also matches a label: "top-p (T last)"
    names = list(SAMPLERS)
    place = names.index(name) if name in names else len(names) + crc32(name.encode()) % _N_CHAINS
    colour = COLOURS[place % len(COLOURS)]
    first = "temperature-first" in sampler or "(T first)" in sampler
    return {
        "color": colour,
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": "--" if first else "-",
        "markerfacecolor": "white" if first else colour,
    }


def panels(titles: Iterable[str], x_label: str, y_label: str) -> tuple[Figure, dict[str, Any]]:
    """Return a figure with a panel per title, and its axes by title; all panels share their scales."""
    names = list(dict.fromkeys(titles))
    columns = min(len(names), COLUMNS)
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(3.5 * columns, 2.8 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axis in axes[len(names) :]:
        axis.remove()
    for axis, name in zip(axes, names, strict=False):
        axis.set_title(name, fontsize="medium")
        axis.xaxis.set_tick_params(labelbottom=axis in axes[max(0, len(names) - columns) : len(names)])
    figure.supxlabel(x_label)
    figure.supylabel(y_label)
    return figure, dict(zip(names, axes, strict=False))


def dots(axis: Axes, rows: pd.DataFrame, name: str, heights: Sequence[float], is_filled: bool = True) -> None:
    """Draw a number of each row and its interval as a dot on a bar; Min-k's are in its colour.

    Args:
        axis: Where to draw.
        rows: Rows with a `method`, and with `name` and the ends of its interval.
        name: The number's column.
        heights: Where each row is, on the y axis.
        is_filled: Whether the dots are filled.
    """
    own = [COLOURS[0] if method.startswith(MinK.name) else GREY for method in rows["method"]]
    value, low, high = (rows[f"{name}{end}"] for end in ENDS)
    axis.hlines(heights, low, high, own)
    axis.scatter(value, heights, 26, own if is_filled else "white", edgecolors=own, zorder=3)


def accuracy_figure(cells: pd.DataFrame, baseline: str | None) -> Figure:
    """Return a panel per method: accuracy over temperature with its interval, and the baseline's in grey.

    Greedy's, which has no temperature, is a line across.

    Methods that differ only in the order of temperature and cut share a panel.

    Args:
        cells: A row per sampler and temperature, with `accuracy` and the ends of its interval.
        baseline: The sampler that the others are compared with, if any.
    """
    samplers = list(cells["sampler"].unique())
    shown = [text for text in samplers if text != baseline] or samplers
    figure, axes = panels(map(_without_order, shown), "temperature", "accuracy, %")
    temperatures = sorted(cells[cells["temperature"] > 0]["temperature"].unique())
    for name, axis in axes.items():
        own = [text for text in shown if _without_order(text) == name]
        for text, line in cells[cells["sampler"].isin([baseline, *own])].groupby("sampler", sort=False):
            if not line["temperature"].any():
                line = line.merge(pd.DataFrame({"at": temperatures}), how="cross").assign(
                    temperature=lambda across: across["at"]
                )
            style = look(text) if text in own else {**look(text), "color": GREY, "markerfacecolor": GREY}
            value, low, high = (100 * line[f"accuracy{end}"] for end in ENDS)
            axis.fill_between(line["temperature"], low, high, color=style["color"], alpha=0.15, linewidth=0)
            axis.plot(line["temperature"], value, **style, label=label(text))
        axis.legend(frameon=False, fontsize="small")
        axis.set_xscale("log")
        axis.set_xticks(temperatures, [f"{t:g}" for t in temperatures])
        axis.xaxis.set_minor_locator(NullLocator())
    top = 100 * min(1.0, 1.08 * cells["accuracy_high"].max())
    figure.axes[0].set_ylim(-top / 40, top)  # markers at 0 are whole
    figure.suptitle("Bands: 95% intervals.", **NOTE)
    return figure


def _without_order(text: str) -> str:
    return label(text).partition(" (")[0]
