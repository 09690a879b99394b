"""Tables of one step of an answer."""

from collections.abc import Sequence

from rich.box import HORIZONTALS
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mink_local.generation.sampling_step import SamplingStep
from mink_local.generation.step_plot import quoted

_LEAST_IMPORTANT = ("weight", "own", "logit", "T=1")  # columns; the first goes first
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
