"""The report on a measurement of closed prompts: its tables and its picture, from the results alone."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mink_local.evals.coverage.measures import Mean, best_with, means, most_distinct, oracle
from mink_local.evals.report.format import count, escape_markdown, markdown_table, percent, temperature_name
from mink_local.samplers import Greedy, LlamaDefault, MinP, label, parse

ORACLE_VALID = (0.95, 0.9)  # least validity of what the oracle chooses
BELOW_GREEDY = (
    0.01,
    0.05,
)  # how far mean validity may be below greedy's, in the tables of the best temperature
_COLOURS = (
    "#0072B2",
    "#56B4E9",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#882255",
    "#44AA99",
    "#777777",
    "#999933",
)
_MARKERS = "oDs^vPX<>d"


@dataclass(frozen=True)
class Point:
    """The means over prompts of a method at a temperature; `rest` is the largest unexplored mass."""

    temperature: float
    valid: Mean
    covered: Mean
    distinct: Mean
    even: Mean
    rest: float


@dataclass(frozen=True)
class Curve:
    """A method over its temperatures, ascending; `is_oracle` if its cut-off is chosen for each prompt."""

    name: str
    points: Sequence[Point]
    is_oracle: bool = False

    def best(self, least: float) -> Point | None:
        """Return the point with the most coverage at a mean validity of at least `least`, or None."""
        i = best_with([one.valid for one in self.points], [one.covered for one in self.points], least)
        return None if i is None else self.points[i]


class CoverageResults:
    """The results of all prompts.

    Args:
        about: What was asked for, as in coverage.json.
        rows: The results of the prompts, as in coverage.json.
    """

    def __init__(self, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        self.about, self.rows = about, rows
        self._measured = {
            name: np.array([row[name] for row in rows], np.float64)
            for name in ("valid", "coverage", "evenness", "rest")
        }
        most = np.array([[most_distinct(row["n_answers"])] for row in rows])
        self._measured["distinct"] = self._measured["coverage"] * most
        self.curves = [*self._methods(), *self._oracles()]

    def _methods(self) -> Iterator[Curve]:
        members: dict[str, list[int]] = {}
        for i, (text, _) in enumerate(self.about["methods"]):
            members.setdefault(text, []).append(i)
        for text, columns in members.items():
            temperatures = [float(self.about["methods"][i][1]) for i in columns]
            yield Curve(curve_name(text), self._points(temperatures, np.array([columns] * len(self.rows))))

    def _oracles(self) -> Iterator[Curve]:
        cuts: dict[float, list[int]] = {}
        for i, (_, temperature) in enumerate(self.about["oracle"], start=len(self.about["methods"])):
            cuts.setdefault(float(temperature), []).append(i)
        valid, covered = self._measured["valid"], self._measured["coverage"]
        for least in ORACLE_VALID:
            chosen = [np.array(i)[oracle(valid[:, i], covered[:, i], least)] for i in cuts.values()]
            points = self._points(list(cuts), np.stack(chosen, axis=1))
            yield Curve(f"oracle, {100 * least:g}% valid", points, is_oracle=True)

    def _points(self, temperatures: Sequence[float], columns: NDArray[np.intp]) -> list[Point]:
        """Return a point for each temperature, from one column of the measures for each prompt."""
        picked = {
            name: np.take_along_axis(values, columns, axis=1) for name, values in self._measured.items()
        }
        rest = picked.pop("rest").max(axis=0).tolist()
        measures = (means(picked[name]) for name in ("valid", "coverage", "distinct", "evenness"))
        return [Point(*one) for one in zip(temperatures, *measures, rest, strict=True)]

    @property
    def greedy(self) -> Point:
        """The point of greedy, which is always measured."""
        return next(curve.points[0] for curve in self.curves if curve.name == str(Greedy()))


def curve_name(text: str) -> str:
    """Return a method's name in the report."""
    sampler = parse(text)
    if sampler == LlamaDefault():
        return sampler.name
    return "temperature only" if isinstance(sampler, MinP) and sampler.p == 0 else label(text)


def _interval(mean: Mean) -> str:
    return f"{percent(mean.value)} [{percent(mean.low)}, {percent(mean.high)}]"


def show(console: Console, results: CoverageResults) -> None:
    """Print the best temperature of every method."""
    below = BELOW_GREEDY[-1]
    console.print(f"\n{_title(results)}", style="bold", highlight=False, markup=False)
    console.print(f"{_best_title(results, below)}:", highlight=False, markup=False)
    table = Table(*_BEST_HEADER)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for cells in _best_rows(results, below):
        table.add_row(*cells)
    console.print(table, markup=False)


_BEST_HEADER = ("method", "T", "validity, %", "coverage, %")


def _best_title(results: CoverageResults, below: float) -> str:
    greedy = percent(results.greedy.valid.value)
    return (
        f"Most coverage with a validity at most {count(round(100 * below), 'point')} below greedy's {greedy}%"
    )


def _best_rows(results: CoverageResults, below: float) -> Iterator[tuple[str, str, str, str]]:
    """Yield every method's best temperature, the method with the most coverage first."""
    least = results.greedy.valid.value - below
    found = [(curve, curve.best(least)) for curve in results.curves]
    found.sort(key=lambda pair: -1.0 if pair[1] is None else pair[1].covered.value, reverse=True)
    for curve, point in found:
        if point is None:
            yield curve.name, "none", "–", "–"
        else:
            temperature = temperature_name(point.temperature)
            yield curve.name, temperature, percent(point.valid.value), _interval(point.covered)


def _title(results: CoverageResults) -> str:
    return f"Validity and coverage of {results.about['model']['name']}, {count(len(results.rows), 'prompt')}"


def as_markdown(results: CoverageResults, picture_file: str) -> str:
    """Return the report."""
    about = results.about
    n_nodes, seconds = (sum(row[name] for row in results.rows) for name in ("n_nodes", "seconds"))
    lines = [
        f"# {escape_markdown(_title(results))}",
        "",
        f"![Validity against coverage]({picture_file})",
        "",
        f"The distribution over answers is computed, not sampled: {count(n_nodes, 'node')} of the trees of "
        f"candidates in {seconds:,.0f} seconds. *Validity* is the probability that an answer is one of "
        f"the valid ones. *Coverage* is how many different valid answers {about['samples']} samples are "
        "expected to have, as a share of what they would have if every valid answer were equally probable. "
        "*Evenness* is the entropy among valid answers as a share of the largest possible. *Unexplored* is "
        "the largest mass, of any prompt, of answers that were neither complete nor invalid when the walk "
        "ended: validity may be larger by as much. All others are means over prompts; in brackets, 95% "
        "bootstrap intervals over prompts. At T = ∞ all candidates are equally probable, and a method that "
        "cuts after temperature sees T = 10⁶.",
        "",
        "The oracle chooses the best cut-off for each prompt and temperature: of min-p, temperature last, "
        "the p with the most coverage among those with the validity that it is named for, or the p with the "
        "largest validity if there is none.",
    ]
    for below in BELOW_GREEDY:
        lines += ["", f"## {_best_title(results, below)}", ""]
        lines.append(_table(_BEST_HEADER, _best_rows(results, below)))
    lines += [
        "",
        "The temperature is chosen by these same prompts.",
        "",
        "## All methods and temperatures",
        "",
    ]
    header = ("method", "T", "validity, %", "coverage, %", "distinct", "evenness, %", "unexplored, %")
    lines.append(_table(header, _all_rows(results)))
    lines += ["", "## Prompts", ""]
    prompts = _table(
        ("prompt", "valid answers", "nodes", "seconds"),
        (
            (row["id"], str(row["n_answers"]), str(row["n_nodes"]), f"{row['seconds']:.0f}")
            for row in results.rows
        ),
    )
    lines.append(prompts)
    return "\n".join(lines) + "\n"


def _all_rows(results: CoverageResults) -> Iterator[Sequence[str]]:
    for curve in results.curves:
        for one in curve.points:
            yield (
                curve.name,
                temperature_name(one.temperature),
                _interval(one.valid),
                _interval(one.covered),
                f"{one.distinct.value:.1f}",
                percent(one.even.value),
                percent(one.rest),
            )


def _table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    return markdown_table(header, ([*map(escape_markdown, row)] for row in rows))


def picture(results: CoverageResults) -> bytes:
    """Return validity against coverage as SVG: a curve a method, from the lowest temperature up."""
    with matplotlib.rc_context({"svg.hashsalt": "mink-local", "text.parse_math": False}):
        figure = Figure(figsize=(8.5, 5), layout="constrained")
        axis = figure.subplots()
        n = 0
        for curve in results.curves:
            x = [100 * one.covered.value for one in curve.points]
            y = [100 * one.valid.value for one in curve.points]
            if curve.is_oracle:
                style = ":" if curve.name == results.curves[-1].name else "--"
                axis.plot(x, y, style, color="black", linewidth=1, marker=".", label=curve.name)
                continue
            look: dict[str, Any] = {
                "color": _COLOURS[n % len(_COLOURS)],
                "marker": _MARKERS[n % len(_MARKERS)],
            }
            n += 1
            if len(curve.points) == 1:
                look = {"color": "black", "marker": "*", "markersize": 11, "linestyle": ""}
            axis.plot(x, y, **{"linewidth": 1.2, "markersize": 4.5} | look, label=curve.name)
            if len(x) > 1:
                axis.annotate(
                    temperature_name(curve.points[-1].temperature), (x[-1], y[-1]), xytext=(4, 3),
                    textcoords="offset points", fontsize="x-small", color=look["color"],
                )  # fmt: skip
        axis.set_xlabel("coverage, %")
        axis.set_ylabel("validity, %")
        axis.margins(0.05)
        axis.grid(alpha=0.25)
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
        temperatures = sorted({one.temperature for curve in results.curves for one in curve.points})
        ends = f"{temperature_name(temperatures[0])} to {temperature_name(temperatures[-1])}"
        figure.suptitle(f"Curves: from T = {ends}, which is marked.", fontsize="small", x=0.01, ha="left")
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()
