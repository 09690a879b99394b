"""Tables and pictures of one step of an answer."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import HORIZONTALS
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mink_local.errors import MinkError
from mink_local.generation.sampling_step import SamplingStep

_LABELLED = (0, 1, 2, 3, 5, 8)  # ranks with a label in the picture; a logarithmic axis has no space for more
_LEAST_IMPORTANT = (
    "weight",
    "own",
    "logit",
    "T=1",
)  # columns; the first goes first
_NARROW = 44  # columns
_GAP = 2  # columns between two tables

_Column = tuple[str, list[str]]


def table(step: SamplingStep, texts: Sequence[str], width: int) -> RenderableType:
    """Return a table of candidates, with texts of `shown_ranks`, and one of what each method keeps.

    They are beside each other if they fit `width`; the less important columns are left out if they do not.
    """
    ranks = step.shown_ranks(len(texts))
    longest = 16 if width >= _NARROW else 10
    columns = _fitting(_columns(step, ranks, [quoted(text, longest) for text in texts]), width)
    candidates = _table(*(title for title, _ in columns))
    for row, rank in zip(zip(*(cells for _, cells in columns), strict=True), ranks, strict=True):
        style = "bold" if rank == step.sampled else None
        candidates.add_row(*map(Text, row), style=style, end_section=rank + 1 == step.cliff)
    methods = _table("method", "keeps")
    for name, n in step.cuts:
        methods.add_row(name, f"{n:,}")
    beside = (
        _width(columns) + _GAP + _width([("method", [name for name, _ in step.cuts]), ("keeps", ["999,999"])])
    )
    if beside > width:
        return Group(candidates, methods)
    both = Table.grid(padding=(0, _GAP))
    both.add_row(candidates, methods)
    return both


def sentences(step: SamplingStep) -> list[str]:
    """Return what a table of a step does not show."""
    kept = f"{step.k:,} of {len(step.ids):,}"
    lines = [
        f"{step.sampler} at temperature {step.temperature:g} keeps {kept}; the cliff is after number "
        f"{step.cliff:,}; ◀ was sampled.",
        f"surprise {step.surprise:.1f} bits, entropy {step.entropy:.1f} bits",
    ]
    if step.is_constrained:
        lines.append("Logits are those under bias, penalties and grammar; own is the model's.")
    if step.sampled >= step.k:
        lines.append("The sampled token is not among those that are kept.")
    return lines


def _columns(step: SamplingStep, ranks: Sequence[int], texts: Sequence[str]) -> list[_Column]:
    """Return the columns of the table of candidates, in their order."""
    mark = {step.sampled: " ◀"}
    hot = [(f"T={step.temperature:g}", [f"{step.p_hot[rank]:.2%}" for rank in ranks])]
    own = [("own", [f"{step.own[rank]:.2f}" for rank in ranks])]
    return [
        ("#", [f"{rank + 1:,}" for rank in ranks]),
        ("token", [f"{text}{mark.get(rank, '')}" for rank, text in zip(ranks, texts, strict=True)]),
        *(own if step.is_constrained else []),
        ("logit", [f"{step.logits[rank]:.2f}" for rank in ranks]),
        ("weight", [f"{step.weights[rank]:.4f}" for rank in ranks]),
        ("T=1", [f"{step.p[rank]:.2%}" for rank in ranks]),
        *(hot if step.temperature != 1 else []),
        ("sampled", [f"{step.p_sampled[rank]:.2%}" for rank in ranks]),
    ]


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    """Return columns without the least important ones, until they fit."""
    for title in _LEAST_IMPORTANT:
        if _width(columns) > width:
            columns = [column for column in columns if column[0] != title]
    return columns


def _width(columns: Sequence[_Column]) -> int:
    """Return the width of a table, whose columns are separated by a blank."""
    return sum(max(cell_len(cell) for cell in [title, *cells]) + 1 for title, cells in columns) - 1


def _table(*names: str) -> Table:
    table = Table(box=HORIZONTALS, padding=0, show_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in ("token", "method") else "right", no_wrap=True)
    return table


def quoted(text: str, longest: int = 16) -> str:
    """Return a token's text in quotes, cut to a number of columns."""
    shown = repr(text)
    return shown if cell_len(shown) <= longest else set_cell_size(shown, longest - 1).rstrip() + "…"


def plot(step: SamplingStep, texts: Sequence[str], path: Path) -> None:
    """Write a picture of the sorted logits and of what each method keeps. Raises MinkError.

    `texts` are those of `table`; the ending of the file names its format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MinkError("pictures need Matplotlib: type  python -m pip install matplotlib") from None
    figure = Figure(figsize=(9, 6), layout="constrained")
    curve: Any
    bars: Any
    curve, bars = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    at = np.arange(1, len(step.ids) + 1)
    curve.plot(at, step.logits, color="0.35", linewidth=1)
    curve.plot(at[:30], step.logits[:30], ".", color="0.35", markersize=5)
    curve.plot(
        step.sampled + 1, step.logits[step.sampled], "o", color="black", fillstyle="none", label="sampled"
    )
    curve.axvline(step.cliff + 0.5, color="C0", linestyle="--", linewidth=1, label="cliff")
    for rank in (rank for rank in _LABELLED if rank < len(texts)):
        curve.annotate(
            quoted(texts[rank]).replace("$", r"\$"), (rank + 1, step.logits[rank]),
            rotation=30, fontsize=8, xytext=(3, 4), textcoords="offset points",
        )  # fmt: skip
    curve.margins(y=0.12)
    curve.set(
        xscale="log", ylabel="logit", title=f"What each method keeps at temperature {step.temperature:g}"
    )
    curve.legend()
    methods = [method.replace("order=temperature-first", "").rstrip(":,") for method in step.kept]
    kept = bars.barh(methods, list(step.kept.values()), left=0.5)
    bars.bar_label(kept, [f"{number:,}" for number in step.kept.values()], padding=3, fontsize=8)
    bars.invert_yaxis()
    bars.set(xlabel="rank", xlim=(0.5, 4 * len(step.ids)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about characters that are missing in the font
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise MinkError(f"{path} cannot be written: {error}") from None
