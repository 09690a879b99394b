"""Tables and pictures of one step of an answer, and the colours of its tokens."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mink_local.errors import MinkError
from mink_local.generation.sampling_step import SamplingStep

_LABELLED = (0, 1, 2, 3, 5, 8)  # ranks with a label in the picture; a logarithmic axis has no space for more
# The background of a token, from this number of candidates on.
_HEAT = ((1, ""), (2, "on dark_green"), (4, "on dark_goldenrod"), (11, "on dark_orange3"), (51, "on red3"))


def table(step: SamplingStep, texts: Sequence[str]) -> Table:
    """Return a table of candidates, with texts of `shown_ranks`, beside one of what each method keeps."""
    candidates = _table("#", "token", "logit", "weight", "p, T=1", f"p, T={step.temperature:g}")
    for rank, text in zip(step.shown_ranks(len(texts)), texts, strict=True):
        is_sampled = rank == step.sampled
        candidates.add_row(
            f"{rank + 1}",
            f"{_quoted(text)}{' ◀' if is_sampled else ''}",
            f"{step.logits[rank]:.2f}",
            f"{step.weights[rank]:.4f}",
            f"{step.p[rank]:.2%}",
            f"{step.p_hot[rank]:.2%}",
            style="bold" if is_sampled else None,
            end_section=rank + 1 == step.cliff,
        )
    methods = _table("method", "keeps")
    for method, kept in step.kept.items():
        methods.add_row(method.partition(":")[0], f"{kept:,}")
    both = Table.grid(padding=(0, 2))
    both.add_row(candidates, methods)
    return both


def _table(*names: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in ("token", "method") else "right", no_wrap=True)
    return table


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= 14 else repr(text[:13]) + "…"


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
            _quoted(texts[rank]).replace("$", r"\$"), (rank + 1, step.logits[rank]),
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


def heat(texts: Sequence[str], k: Sequence[int]) -> Text:
    """Return an answer with the background of each token coloured by its number of candidates."""
    shown = Text()
    for text, n in zip(texts, k, strict=False):
        shown.append(text, next(colour for least, colour in reversed(_HEAT) if n >= least))
    shown.append("\n\ncandidates:")
    for (least, colour), after in zip(_HEAT, [*(least for least, _ in _HEAT[1:]), None], strict=True):
        label = f"{least}" if after == least + 1 else f"{least}–{after - 1}" if after else f"{least}+"
        shown.append(" ").append(f" {label} ", colour)
    return shown


def plain_heat(texts: Sequence[str], k: Sequence[int]) -> str:
    """Return an answer with the number of candidates after each token that had more than one."""
    return "".join(f"{text}[{n}]" if n > 1 else text for text, n in zip(texts, k, strict=False))
