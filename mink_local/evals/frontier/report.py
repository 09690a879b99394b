"""The report of a measurement: tables as Markdown, a picture, and all figures as JSON."""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mink_local.evals.frontier.results import (
    MOST_NOISE,
    N_RESAMPLES,
    YARDSTICK,
    DefaultResult,
    Estimate,
    FrontierResults,
    SettingResult,
    VarietyAtNoise,
)
from mink_local.evals.frontier.sums import NOISE_LEVELS
from mink_local.evals.report.format import count, listed, markdown_table, points, temperature_name
from mink_local.samplers import Greedy, MinK, label

LEVEL = NOISE_LEVELS[0]
_FEW_TEXTS = 20
_NOISE_TICKS = (1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1)

# Colours that colour-blind people can tell apart, of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/
_LOOKS = {
    "min-k floor": ("#D55E00", "o"),
    "min-k alpha": ("#E69F00", "v"),
    "min-k tau": ("#E69F00", "1"),
    "min-p": ("#0072B2", "s"),
    "top-p": ("#009E73", "^"),
    "top-n-sigma": ("#CC79A7", "D"),
    "top-k": ("#56B4E9", "P"),
    "eta": ("#8C6D1F", "x"),
    "p-less": ("#000000", "X"),
    "llama-default": ("#000000", "d"),
    "greedy": ("#000000", "+"),
}


def as_json(results: FrontierResults, wanted: Sequence[float], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was asked for (`about`) and found, as JSON has it; an infinite T is "inf".

    A figure is a list of its value and the ends of its 95% interval.
    """
    return {
        **about,
        "n_texts": results.n_texts,
        "n_positions": results.n_positions,
        "n_resamples": N_RESAMPLES,
        "noise_levels": NOISE_LEVELS,
        "rows": [_row_json(row) for row in results.rows],
        "most_variety": [
            {
                "level": level,
                "wanted_noise": at.wanted,
                "curve": at.curve,
                "temperature": _number(at.temperature),
                "entropy": _list(at.entropy),
                "between": at.between,
                "behind_the_best": _list(at.behind),
            }
            for level in NOISE_LEVELS
            for temperature in results.temperatures
            for noise in wanted
            for at in results.at_noise(temperature, noise, level)
        ],
        "defaults": [
            {
                "level": level,
                "sampler": str(one.result.setting.sampler),
                "temperature": _number(temperature),
                f"gain_on_{YARDSTICK}": one.gain and _list(one.gain),
            }
            for level in NOISE_LEVELS
            for temperature in results.temperatures
            for one in results.defaults(temperature, level)
        ],
    }


def _row_json(row: SettingResult) -> dict[str, Any]:
    setting = row.setting
    return {
        "curve": setting.curve,
        "sampler": str(setting.sampler),
        "temperature": _number(setting.temperature),
        "default": setting.is_default,
        **{name: _list(estimate) for name, estimate in row.figures.items()},
    }


def _number(temperature: float) -> float | str:
    return "inf" if math.isinf(temperature) else temperature


def to_text(content: Mapping[str, Any]) -> str:
    """Return JSON with a line for every entry, and for every item of a list of objects."""
    entries = []
    for key, value in content.items():
        if isinstance(value, list):
            items = ",\n  ".join(json.dumps(item, allow_nan=False) for item in value)
            entries.append(f"{json.dumps(key)}: [\n  {items}\n ]")
        else:
            entries.append(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return "{\n " + ",\n ".join(entries) + "\n}\n"


def _list(estimate: Estimate) -> list[float]:
    return [float(f"{x:.5g}") for x in (estimate.value, estimate.low, estimate.high)]


def as_markdown(
    results: FrontierResults, wanted: Sequence[float], about: Mapping[str, Any], picture: str
) -> str:
    """Return the report's text with its tables."""
    return "\n".join(_lines(results, wanted, about, picture)) + "\n"


def _lines(
    results: FrontierResults, wanted: Sequence[float], about: Mapping[str, Any], picture: str
) -> Iterator[str]:
    model, reference = about["model"]["name"], about["reference"]["name"]
    yield f"# Noise against variety: {model}, judged by {reference}"
    yield ""
    n = f"{count(results.n_positions, 'position')} of {count(results.n_texts, 'text')}"
    yield (
        f"{n}: {about['texts']['words']}. At each position, *noise* is the probability of a token that "
        f"{reference} gives less than {100 * LEVEL:g}% (at temperature 1), and *entropy*, the variety, is "
        "that of the method's distribution, in nats. Both are exact: nothing is sampled. In brackets: 95% "
        "intervals, by bootstrap over texts. What this does not show: how a text goes on after a token of "
        "low probability, and whether such a token is wrong or only rare."
    )
    if results.n_texts < _FEW_TEXTS:
        yield ""
        yield f"The intervals are too narrow: {count(results.n_texts, 'text')} are too few for a bootstrap."
    yield ""
    yield f"![Noise against entropy, one curve for each method]({picture})"
    yield ""
    yield "## What this shows"
    yield ""
    shown = shown_temperatures(results)
    for temperature in shown:
        yield from _findings(results, wanted, temperature)
    yield ""
    yield "No interval is corrected for the number of comparisons."
    order = [*shown, *(t for t in results.temperatures if t not in shown)]
    for temperature in order:
        yield from _wanted_table(results, wanted, temperature)
    for temperature in order:
        yield from _defaults_table(results.defaults(temperature, LEVEL), temperature)
    yield from _every_setting(results)
    yield ""
    yield f"`{about['command']}`"


def shown_temperatures(results: FrontierResults) -> list[float]:
    """Return the temperatures of the picture: 5, or the highest finite one, and infinity, if measured."""
    finite = [t for t in results.temperatures if math.isfinite(t)]
    return [t for t in (5.0, *finite[::-1]) if t in finite][:1] + [
        t for t in results.temperatures if math.isinf(t)
    ]


def _findings(results: FrontierResults, wanted: Sequence[float], temperature: float) -> Iterator[str]:
    where = f"At T = {temperature_name(temperature)}"
    defaults = {one.result.setting.sampler: one for one in results.defaults(temperature, LEVEL)}
    min_k, greedy = defaults[MinK()], defaults[Greedy()]
    noise, least = (_percents(one.result.figures[f"noise_{LEVEL:g}"]) for one in (min_k, greedy))
    sentence = f"- {where}, Min-k's default has {noise}% noise, greedy {least}%; its entropy is "
    sentence += _nats(min_k.result.figures["entropy"])
    if min_k.gain:
        than = "more" if min_k.gain.low > 0 else "less" if min_k.gain.high < 0 else None
        sentence += f": {than} than" if than else ", which cannot be told apart from"
        sentence += f" that of {YARDSTICK} at the same noise (difference {_signed(min_k.gain)})"
    yield f"{sentence}."
    for more in wanted:
        best, *others = results.at_noise(temperature, more, LEVEL)
        alike = [one.curve for one in others if one.behind.low <= 0]
        sentence = f"- {where} and {points(more)} points of noise, {best.curve} gives the most entropy, "
        sentence += _nats(best.entropy)
        yield sentence + (f"; not to be told apart from it: {listed(alike)}." if alike else ".")


def _defaults_table(defaults: Sequence[DefaultResult], temperature: float) -> Iterator[str]:
    yield ""
    yield f"## The defaults at T = {temperature_name(temperature)}"
    yield ""
    yield (
        f"The last column is entropy minus that of {YARDSTICK} at the same noise: if its interval is above "
        f"0, the default gives more variety for its noise than {YARDSTICK} does with another p."
    )
    yield ""
    heads = (
        "method",
        "noise, %",
        "noise at 0.1%, %",
        "entropy",
        "k = 1, %",
        "mean k",
        f"gain on {YARDSTICK}",
    )
    rows = []
    for one in defaults:
        figures = one.result.figures
        rows.append(
            [
                label(str(one.result.setting.sampler)),
                _percents(figures[f"noise_{LEVEL:g}"]),
                _percents(figures[f"noise_{NOISE_LEVELS[1]:g}"]),
                _nats(figures["entropy"]),
                f"{100 * figures['k_is_1'].value:.0f}",
                f"{figures['k'].value:,.1f}",
                _signed(one.gain) if one.gain else "–",
            ]
        )
    yield markdown_table(heads, rows)


def _wanted_table(results: FrontierResults, wanted: Sequence[float], temperature: float) -> Iterator[str]:
    yield ""
    yield f"## The most entropy for a wanted noise, at T = {temperature_name(temperature)}"
    yield ""
    yield (
        "Noise is that of greedy plus so many points; the setting is between those that are named. Bold: the "
        "most, and what cannot be told apart from it (the 95% interval of the difference includes 0). "
        f"≥: the sweep ends below that noise. Settings above {100 * MOST_NOISE:g}% noise do not count."
    )
    yield ""
    columns = [{at.curve: at for at in results.at_noise(temperature, noise, LEVEL)} for noise in wanted]
    if not columns or not columns[0]:
        yield "No method has a parameter that was swept."
        return
    order = sorted(columns[0], key=lambda name: -sum(column[name].entropy.value for column in columns))
    heads = ("method", *(f"{points(noise)} points" for noise in wanted))
    yield markdown_table(heads, [[name, *(_most(column[name]) for column in columns)] for name in order])


def _most(at: VarietyAtNoise) -> str:
    at_least = "≥ " if len(at.between) == 1 else ""
    text = f"{at_least}{_nats(at.entropy)}"
    text = f"**{text}**" if at.behind.low <= 0 else text
    return f"{text}, {' to '.join(at.between)}"


def _every_setting(results: FrontierResults) -> Iterator[str]:
    yield ""
    yield "## Every setting"
    yield ""
    yield "Surprise is −Σ q log p, in nats, with p the reference's probability. \\*: the method's default."
    yield ""
    heads = ("method", "T", "noise, %", "noise at 0.1%, %", "surprise", "entropy", "k = 1, %", "mean k")
    rows = []
    for row in results.rows:
        setting, figures = row.setting, row.figures
        rows.append(
            [
                label(str(setting.sampler)) + (" \\*" if setting.is_default else ""),
                temperature_name(setting.temperature),
                *(_percents(figures[f"noise_{level:g}"]) for level in NOISE_LEVELS),
                _nats(figures["surprise"]),
                _nats(figures["entropy"]),
                f"{100 * figures['k_is_1'].value:.0f}",
                f"{figures['k'].value:,.1f}",
            ]
        )
    yield markdown_table(heads, rows)


def _percents(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.2f} [{100 * estimate.low:.2f}, {100 * estimate.high:.2f}]"


def _nats(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]".replace("-", "−")


def picture(results: FrontierResults) -> bytes:
    """Return noise over entropy as SVG, one curve for each method: at one finite temperature, and at ∞."""
    shown = shown_temperatures(results)
    with matplotlib.rc_context({"svg.hashsalt": "mink-local", "text.parse_math": False}):
        figure = Figure(figsize=(5.2 * len(shown) + 0.6, 6.2), layout="constrained")
        axes = figure.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False).flatten()
        for axis, temperature in zip(axes, shown, strict=True):
            _plot_curves(axis, results.curves(temperature))
            axis.set_title(f"T = {temperature_name(temperature)}")
            axis.set_xlabel("entropy, nats")
        _limit(axes[0], [row for t in shown for row in results.rows if row.setting.temperature == t])
        axes[0].set_ylabel(f"noise: probability of tokens below {100 * LEVEL:g}% of the reference")
        handles: dict[str, Any] = {}
        for axis in axes:
            handles |= {text: line for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=4, fontsize="small", frameon=False
        )
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        return svg.getvalue()


def _plot_curves(axis: Any, curves: Mapping[str, Sequence[SettingResult]]) -> None:
    for name, rows in curves.items():
        colour, marker = _LOOKS[name.partition(" (T ")[0]]
        first = name.endswith("(T first)")
        x, y = zip(*map(_point, rows), strict=True)
        own = name == "min-k floor"
        axis.plot(
            x, y, "--" if first else "-", color=colour, marker=marker, label=name,
            markersize=4 if len(rows) > 1 else 7, mfc="white" if first else colour,
            linewidth=2.2 if own else 1.1, zorder=4 if own else 3,
        )  # fmt: skip
        if name in ("min-k alpha", "min-k tau"):  # whose default is that of the floor
            continue
        for row in rows:
            if row.setting.is_default and row.setting.parameter:
                axis.plot(*_point(row), marker, color=colour, markersize=10, mfc="none", mew=1.4, zorder=5)
    for row in (row for rows in curves.values() for row in rows if str(row.setting.sampler) == "min-k:tau=3"):
        axis.plot(
            *_point(row), "*", color="#D55E00", markersize=17, mec="black", zorder=6, label="min-k default"
        )
        break


def _point(row: SettingResult) -> tuple[float, float]:
    return row.figures["entropy"].value, row.figures[f"noise_{LEVEL:g}"].value


def _limit(axis: Any, rows: Sequence[SettingResult]) -> None:
    """Show the part that a person chooses from: up to ten times greedy's noise, at least 20%."""
    lowest = min(_point(row)[1] for row in rows)
    highest = min(1.0, max(0.2, 10 * lowest))
    axis.set_xlim(-0.03, 1.05 * max([x for x, y in map(_point, rows) if y <= highest], default=1.0))
    axis.set_yscale("log")
    axis.set_ylim(max(0.85 * lowest, 1e-4), highest)
    low, high = axis.get_ylim()
    axis.set_yticks([t for t in _NOISE_TICKS if low <= t <= high])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda noise, _: f"{100 * noise:g}%")
