"""A picture of one step of an answer: the sorted logits, and what each method keeps of them."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size

from mink_local.errors import MinkError
from mink_local.generation.sampling_step import SamplingStep

_LABELLED = (0, 1, 3, 7)  # ranks with a label, as far apart on the logarithmic axis as labels are wide


def quoted(text: str, longest: int = 16) -> str:
    """Return a token's text in quotes, cut to a number of columns."""
    shown = repr(text)
    return shown if cell_len(shown) <= longest else set_cell_size(shown, longest - 1).rstrip() + "…"


def plot(step: SamplingStep, texts: Sequence[str], path: Path, *, is_sampled: bool = True) -> None:
    """Write a picture of the sorted logits and of what each method keeps.

    Args:
        step: Whose temperature is above 0.
        texts: Of the tokens of the first ranks.
        path: Its ending names the format.
        is_sampled: Mark the sampled token.

    Raises:
        MinkError: Matplotlib is missing, or the file cannot be written.
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
    if is_sampled:
        rank = step.sampled
        curve.plot(rank + 1, step.logits[rank], "o", color="black", fillstyle="none", label="sampled")
    curve.axvline(step.cliff + 0.5, color="C0", linestyle="--", linewidth=1, label="cliff")
    for rank in (rank for rank in _LABELLED if rank < len(texts)):
        curve.annotate(
            quoted(texts[rank]).replace("$", r"\$"), (rank + 1, step.logits[rank]),
            rotation=40, fontsize=8, xytext=(3, 4), textcoords="offset points",
        )  # fmt: skip
    curve.margins(y=0.2)
    curve.set(
        xscale="log", ylabel="logit", title=f"What each method keeps at temperature {step.temperature:g}"
    )
    curve.legend()
    names, numbers = zip(*step.cuts, strict=True)
    bars.bar_label(bars.barh(names, numbers, left=0.5), [f"{n:,}" for n in numbers], padding=3, fontsize=8)
    bars.invert_yaxis()
    bars.set(xlabel="rank", xlim=(0.5, 4 * len(step.ids)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about characters that are missing in the font
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise MinkError(f"{path} cannot be written: {error}") from None
