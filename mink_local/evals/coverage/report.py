"""The report on closed prompts: tables and a picture of validity against coverage."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from mink_local.errors import ReportError
from mink_local.evals.figures import look, to_svg
from mink_local.evals.measurement import Results
from mink_local.evals.stats import share
from mink_local.evals.tables import Format, Table, count, percent, publish, temperature_name, with_interval
from mink_local.samplers import Greedy, label

_BELOW_GREEDY = (0.01, 0.05)  # how far mean validity may be below greedy's, in the tables of the best T
_HEADS = {
    "sampler": "method",
    "temperature": "T",
    "valid": "validity, %",
    "coverage": "coverage, %",
    "distinct": "distinct",
    "unexplored": "unexplored, %",
}
_FORMATS: dict[str, Format] = {
    "method": label,
    "T": temperature_name,
    "validity, %": with_interval(percent),
    "coverage, %": with_interval(percent),
    "distinct": "{:.1f}".format,
    "unexplored, %": percent,
}


def means(rows: pd.DataFrame) -> tuple[pd.DataFrame, int, int]:
    """Return the means over prompts of every setting.

    Args:
        rows: A row for each prompt and setting, with the fields of `Coverage`.

    Returns:
        A row for each setting, in the order of `rows` and of temperature: `valid` and `coverage` as
        intervals, the mean of `distinct` and the largest `unexplored`; the number of prompts, which are those
        with every setting; and the number of the others.

    Raises:
        ReportError: No prompt was measured with every setting.
    """
    rows = rows.astype({"temperature": float})
    settings = ["sampler", "temperature"]
    n_settings = len(rows[settings].drop_duplicates())
    complete = rows.groupby("prompt").filter(lambda prompt: len(prompt) == n_settings)
    if complete.empty:
        raise ReportError("no prompt has been measured with every setting yet")
    order = {name: i for i, name in enumerate(rows["sampler"].unique())}
    grouped = complete.groupby(settings, as_index=False)
    found = grouped.agg({"valid": share, "coverage": share, "distinct": "mean", "unexplored": "max"})
    found = found.sort_values(
        settings, key=lambda column: column.map(lambda x: order.get(x, x)), ignore_index=True
    )
    n_prompts = complete["prompt"].nunique()
    return found, n_prompts, rows["prompt"].nunique() - n_prompts


def best(found: pd.DataFrame, least: float) -> pd.DataFrame:
    """Return each sampler at the temperature that covers most with a mean validity of at least `least`.

    The sampler that covers most comes first; one that is less valid at every temperature has empty cells.
    """
    enough = found[[one.value >= least for one in found["valid"]]]
    ranked = enough.sort_values("coverage", ascending=False, kind="stable").drop_duplicates("sampler")
    others = pd.DataFrame({"sampler": sorted(set(found["sampler"]) - set(ranked["sampler"]))})
    return pd.concat([ranked, others])


def _table(title: str, frame: pd.DataFrame, columns: Sequence[str]) -> Table:
    heads = [_HEADS[name] for name in columns]
    formats = {head: _FORMATS[head] for head in heads}
    return Table(title, frame[list(columns)].rename(columns=_HEADS), 2, formats)


def report(results: Results) -> None:
    """Print the best temperatures, and write the report; see `publish`."""
    found, n_prompts, n_left_out = means(results.frame)
    manifest = results.manifest
    greedy = found.loc[found["sampler"] == str(Greedy()), "valid"].iloc[0].value
    tables = [
        _table(
            f"Most coverage with a validity at most {count(round(100 * below), 'point')} below greedy's "
            f"{percent(greedy)}%",
            best(found, greedy - below),
            list(_HEADS)[:4],
        )
        for below in _BELOW_GREEDY
    ]
    text = (
        "The distribution over answers is computed, not sampled. *Validity* is the probability that an "
        "answer is one of the valid ones. *Coverage* is how many different valid answers "
        f"{manifest['walk']['samples']} samples are expected to have, as a share of what they would have if "
        "every valid answer were equally probable. *Unexplored* is the largest mass, of any prompt, of "
        "answers that were neither complete nor invalid when the walk ended: validity may be larger by as "
        "much. All others are means over prompts, with 95% intervals. At T = ∞ all candidates are equally "
        "probable, and a sampler that cuts after temperature sees T = 10⁶. The best temperature is chosen by "
        "these same prompts."
    )
    publish(
        results,
        f"Validity and coverage of {manifest['model']['name']}, {count(n_prompts, 'prompt')}",
        [text],
        [*tables, _table("All methods and temperatures", found, list(_HEADS))],
        tables[-1],
        to_svg(lambda: _figure(found)),
        (n_prompts, n_left_out, "prompt"),
        settings=found,
    )


def _figure(found: pd.DataFrame) -> Figure:
    """Draw validity against coverage: a curve a sampler, from the lowest temperature up."""
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axis = figure.subplots()
    for name, curve in found.groupby("sampler", sort=False):
        x, y = ([100 * one.value for one in curve[column]] for column in ("coverage", "valid"))
        axis.plot(x, y, **look(str(name)), linewidth=1.2, markersize=4.5, label=label(str(name)))
        axis.annotate(
            temperature_name(curve["temperature"].iloc[-1]),
            (x[-1], y[-1]),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize="x-small",
        )
    axis.set_xlabel("coverage, %")
    axis.set_ylabel("validity, %")
    axis.set_title("from the lowest temperature to the highest, which is marked", fontsize="small")
    axis.grid(alpha=0.25)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure
