"""The report of a measurement of settings: a page, a picture, CSV and JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from mink_local.evals.figures import to_svg
from mink_local.evals.measurement import Results
from mink_local.evals.stats import few_clusters
from mink_local.evals.store import PLACES
from mink_local.evals.tables import Table, count, show_file, to_csv, to_json


def publish(
    results: Results,
    title: str,
    text: Sequence[str],
    tables: Iterable[Table],
    shown: Table,
    draw: Callable[[], Figure],
    clusters: tuple[int, int, str],
    **frames: pd.DataFrame,
) -> None:
    """Write NAME.md, .svg, .csv and .json for a measurement NAME, and print one table.

    Args:
        text: Paragraphs of the page, before its tables.
        shown: The table that is printed.
        draw: Draws the picture.
        clusters: How many units the intervals are over, how many lack a setting and are left out, and what a
            unit is called: (60, 0, "prompt").
        frames: What the JSON holds; `settings` is the CSV too.
    """
    name, console = results.manifest["measures"], Console()
    n, n_left_out, noun = clusters
    warnings = [few_clusters(n, f"{noun}s")]
    if n_left_out:
        warnings.append(f"{count(n_left_out, noun)} left out: not measured with every setting yet.")
    parts = [f"# {title}", *text, *filter(None, warnings), f"![{title}]({name}.svg)"]
    for table in tables:
        parts += [f"## {table.title}", table.markdown()]
    about = {**_public(results.manifest), f"n_{noun}s": n}
    results.write(f"{name}.svg", to_svg(draw))
    results.write(f"{name}.csv", to_csv(frames["settings"]))
    results.write(f"{name}.json", to_json(about, **frames))
    results.write(f"{name}.md", "\n\n".join(parts) + "\n")
    shown.print(console)
    for warning in filter(None, warnings):
        console.print(warning)
    show_file(console, results.folder / f"{name}.md")


def _public(value: Any) -> Any:
    """Return a manifest, or a part of it, without what is of this machine: paths and sessions."""
    if not isinstance(value, Mapping):
        return value
    hidden = (*PLACES, "sessions")
    return {key: _public(part) for key, part in value.items() if key not in hidden}
