"""Figures of all measurements: one look for each method, everywhere, and SVG that is the same each time."""

import io
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from mink_local.samplers import SAMPLERS

GREY, LIGHT = "#777777", "#bbbbbb"
NOTE: dict[str, Any] = {"fontsize": "small", "x": 0.01, "ha": "left", "wrap": True}

# Colours that colour-blind people can tell apart, of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/,
# and of Paul Tol; Min-k, which is registered first, is vermilion. What colours tell apart, markers do too.
_COLOURS = (
    *("#D55E00", "#000000", "#56B4E9", "#009E73", "#0072B2", "#CC79A7", "#8C6D1F", "#882255", "#777777"),
    *("#44AA99", "#E69F00", "#332288", "#999933"),
)
MARKERS = ("o", "+", "P", "^", "s", "D", "x", "X", "d", "v", "<", ">", "*")


def look(sampler: str) -> dict[str, Any]:
    """Return the colour, marker and line style of a sampler's text: the same in all figures.

    Methods have their colour by their place among the samplers; those that cut after temperature are dashed
    and hollow.
    """
    name = sampler.replace(":", " ").partition(" ")[0]  # also of a label: "top-p (T last)"
    names = list(SAMPLERS)
    place = names.index(name) if name in names else len(names)
    colour = _COLOURS[place % len(_COLOURS)]
    first = "temperature-first" in sampler or "(T first)" in sampler
    return {
        "color": colour,
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": "--" if first else "-",
        "markerfacecolor": "white" if first else colour,
    }


def to_svg(draw: Callable[[], Figure]) -> bytes:
    """Return the figure that `draw` makes as SVG; the same figure gives the same bytes.

    A $ in a name is a $.
    """
    with matplotlib.rc_context({"svg.hashsalt": "mink-local", "text.parse_math": False}):
        svg = io.BytesIO()
        draw().savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()
