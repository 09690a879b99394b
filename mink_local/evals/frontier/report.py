"""The report of a measurement: tables, a picture, and all figures as CSV and JSON."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mink_local.evals.figures import look, to_svg
from mink_local.evals.frontier.results import MOST_NOISE, YARDSTICK, FrontierResults
from mink_local.evals.frontier.sums import NOISE_LEVELS
from mink_local.evals.measurement import Results
from mink_local.evals.tables import (
    Cell,
    Format,
    Table,
    count,
    percent,
    points,
    publish,
    temperature_name,
    with_interval,
)
from mink_local.samplers import label

_TICKS = (1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1)
_LOOSE_NOISE = 0.2  # the least that the picture shows: what a person might choose lies below


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _nats(entropy: float) -> str:
    return f"{entropy:.3f}"


def _gain(difference: float) -> str:
    return f"{difference:+.3f}".replace("-", "−")


_COLUMNS: dict[str, tuple[str, Format]] = {
    "sampler": ("method", label),
    "temperature": ("T", temperature_name),
    "noise": ("noise, %", with_interval(_percent)),
    "deep_noise": ("noise at 0.1%, %", with_interval(_percent)),
    "surprise": ("surprise", with_interval(_nats)),
    "entropy": ("entropy", with_interval(_nats)),
    "k_is_1": ("k = 1, %", lambda share: percent(share.value)),
    "k": ("mean k", lambda k: f"{k.value:,.1f}"),
    "gain": ("gain", with_interval(_gain)),
}


def report(results: Results) -> None:
    """Print the defaults at the hottest temperature, and write the report; see `publish`."""
    found = FrontierResults(results.frame)
    manifest = results.manifest
    wanted = [one / 100 for one in manifest["wanted"]]
    defaults = pd.concat([found.defaults(temperature) for temperature in found.temperatures])
    at_noise = pd.concat(
        [
            found.at_noise(temperature, more, level).assign(temperature=temperature, wanted=more, level=level)
            for level in NOISE_LEVELS
            for temperature in found.temperatures
            for more in wanted
        ]
    )
    model, reference = (manifest[role]["name"] for role in ("model", "reference"))
    text = (
        f"{count(found.n_positions, 'position')} of {count(found.n_texts, 'text')} of "
        f"{manifest['texts']['source']}. At each position, *noise* is the probability of tokens that "
        f"{reference} gives less than {100 * NOISE_LEVELS['noise']:g}% (at temperature 1), and *entropy*, "
        "the variety, is that of the sampler's distribution, in nats; *surprise* is −Σ q log p, with p the "
        "reference's probability. All are exact, given the logits: nothing is sampled. (Another batch split "
        "changes the last bits of the logits, and with them a few cuts.) In brackets: 95% intervals, by "
        "bootstrap over texts, not corrected for the number of comparisons. What this does not show: how a "
        "text goes on after an improbable token, and whether such a token is wrong or only rare.",
        f"*Gain* is entropy minus that of {YARDSTICK} at the same noise: above 0 if a default gives more "
        "variety for its noise than the yardstick with another p. A wanted noise is greedy's plus a number "
        "of points, and the setting lies between those that are named. Bold: the most entropy, and what "
        "cannot be distinguished from it. ≥: the sweep ends below that noise. Settings above "
        f"{100 * MOST_NOISE:g}% noise do not count.",
    )
    hottest = max((t for t in found.temperatures if math.isfinite(t)), default=math.inf)
    columns = ["sampler", "noise", "entropy", "k_is_1", "gain"]
    publish(
        results,
        f"Noise against variety: {model}, judged by {reference}",
        text,
        [*_noise_tables(at_noise), _table("The defaults", defaults), _table("Every setting", found.figures)],
        _table(
            f"The defaults at T = {temperature_name(hottest)}",
            defaults.loc[defaults["temperature"] == hottest, columns],
        ),
        to_svg(lambda: _figure(found)),
        (found.n_texts, found.n_left_out, "text"),
        settings=found.figures,
        at_noise=at_noise,
        defaults=defaults,
    )


def _table(title: str, frame: pd.DataFrame) -> Table:
    """Return a table of those of the figures that a frame has."""
    columns = {name: column for name, column in _COLUMNS.items() if name in frame}
    renamed = frame[list(columns)].rename(columns={name: head for name, (head, _) in columns.items()})
    keys = 1 + ("temperature" in frame)
    return Table(title, renamed, keys, dict(columns.values()))


def _noise_tables(at_noise: pd.DataFrame) -> Iterator[Table]:
    """Yield for each temperature the most entropy of every curve at the wanted noises."""
    for temperature, frame in at_noise[at_noise["level"] == "noise"].groupby("temperature"):
        best = frame.assign(mean=[one.value for one in frame["entropy"]]).groupby("curve")["mean"].sum()
        table = pd.DataFrame({"method": best.sort_values(ascending=False).index})
        for wanted, column in frame.groupby("wanted"):
            cells = {one.curve: _most(one) for one in column.itertuples()}
            table[f"{points(wanted)} points"] = table["method"].map(cells)
        yield Table(f"The most entropy for a wanted noise, at T = {temperature_name(temperature)}", table)


def _most(row: Any) -> Cell:
    at_least = "" if " to " in row.between else "≥ "
    value, low, high = map(_nats, row.entropy)
    return Cell(f"{at_least}{value}", f"{low}–{high}, {row.between}", bold=row.behind.low <= 0)


def _figure(found: FrontierResults) -> Figure:
    """Draw noise over entropy, one curve for each method: at T = 5 or the highest finite one, and at ∞."""
    finite = [t for t in found.temperatures if math.isfinite(t)]
    shown = [t for t in (5.0, *finite[::-1]) if t in finite][:1] + [
        t for t in found.temperatures if math.isinf(t)
    ]
    figure = Figure(figsize=(5.2 * len(shown) + 0.6, 6.2), layout="constrained")
    axes = figure.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False).flatten()
    frame = found.figures.assign(
        x=[one.value for one in found.figures["entropy"]], y=[one.value for one in found.figures["noise"]]
    )
    lowest = frame["y"].min()
    highest = min(1.0, max(_LOOSE_NOISE, 10 * lowest))
    for axis, temperature in zip(axes, shown, strict=True):
        for name, curve in frame[frame["temperature"] == temperature].groupby("curve", sort=False):
            if (curve["y"] <= highest).any():
                axis.plot(curve["x"], curve["y"], **look(str(name)), label=name, markersize=4, linewidth=1.1)
        axis.set_title(f"T = {temperature_name(temperature)}")
        axis.set_xlabel("entropy, nats")
    axis = axes[0]
    axis.set_xlim(-0.03, 1.05 * frame.loc[frame["y"] <= highest, "x"].max())
    axis.set_yscale("log")
    axis.set_ylim(max(0.85 * lowest, _TICKS[0]), highest)
    axis.set_yticks([t for t in _TICKS if axis.get_ylim()[0] <= t <= highest])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda noise, _: f"{100 * noise:g}%")
    axis.set_ylabel(f"noise: probability of tokens below {100 * NOISE_LEVELS['noise']:g}% of the reference")
    handles, names = axis.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    return figure
