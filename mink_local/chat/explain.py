"""One step of an answer taken apart: its candidates, the cliff, and what each method would have kept."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import MinkError
from mink_local.samplers import Eta, MinK, MinP, PLess, Sampler, TopK, TopNSigma, TopP

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

METHODS: tuple[Sampler, ...] = (MinK(), TopNSigma(), MinP(), TopP(), TopK(), Eta(), PLess())
_NAMED = (1, 2, 3, 4, 6, 9)  # places named in the picture, as close as a logarithmic axis has room for
# Background of a token by how many candidates there were, from which number on.
_HEAT = ((1, ""), (2, "on dark_green"), (4, "on dark_goldenrod"), (11, "on dark_orange3"), (51, "on red3"))


@dataclass(frozen=True)
class Step:
    """The candidates of one step, largest logit first.

    ids, logits, weights (n,): of the finite logits; `weights` are Min-k's, NaN for the last. p, p_hot (n,):
    probabilities at temperature 1 and at `temperature`. kept: how many stand, by method. drawn: the place
    of the token that was drawn, from 0 on.
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]
    weights: NDArray[np.float64]
    p: NDArray[np.float64]
    p_hot: NDArray[np.float64]
    temperature: float
    kept: dict[str, int]
    drawn: int


def take_apart(
    logits: NDArray[np.float32], drawn: int, temperature: float, methods: Sequence[Sampler] = METHODS
) -> Step:
    """logits: raw, (V,). drawn: the id of the token that was drawn from them. temperature: > 0."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    order = order[np.isfinite(logits[order])]
    ordered = logits[order].astype(np.float64)
    span = ordered[0] - ordered[-1] + 1e-8
    gaps = np.append(ordered[:-1] - ordered[1:], np.nan)
    return Step(
        ids=order,
        logits=ordered,
        weights=gaps / span / np.arange(1, len(order) + 1),
        p=_softmax(ordered),
        p_hot=_softmax(ordered / temperature),
        temperature=temperature,
        kept={str(method): method.cutoff(logits, temperature) for method in methods},
        drawn=int(np.flatnonzero(order == drawn)[0]),
    )


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def table(step: Step, texts: Sequence[str]) -> "Table":
    """The candidates whose texts are given (see `places`), and beside them what every method keeps."""
    from rich.table import Table

    candidates = _table("#", "token", "logit", "weight", "p, T=1", f"p, T={step.temperature:g}")
    for place, text in zip(places(step, len(texts)), texts, strict=True):
        candidates.add_row(
            f"{place + 1}",
            f"{_quoted(text)}{' ◀' if place == step.drawn else ''}",
            f"{step.logits[place]:.2f}",
            f"{step.weights[place]:.4f}",
            f"{step.p[place]:.2%}",
            f"{step.p_hot[place]:.2%}",
            style="bold" if place == step.drawn else None,
            end_section=place + 1 == cliff(step),
        )
    methods = _table("method", "keeps")
    for method, kept in step.kept.items():
        methods.add_row(method.partition(":")[0], f"{kept:,}")
    both = Table.grid(padding=(0, 2))
    both.add_row(candidates, methods)
    return both


def _table(*names: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in ("token", "method") else "right", no_wrap=True)
    return table


def cliff(step: Step) -> int:
    """How many tokens stand before the steepest weighted drop."""
    return int(np.nanargmax(step.weights)) + 1 if len(step.ids) > 1 else 1


def places(step: Step, rows: int) -> list[int]:
    """The places of the candidates to show in so many rows: the first, and the one that was drawn."""
    first = list(range(min(rows, len(step.ids))))
    return first if step.drawn < len(first) else [*first[:-1], step.drawn]


def _quoted(text: str) -> str:
    """A token as one sees its blanks."""
    return repr(text) if len(text) <= 14 else repr(text[:13]) + "…"


def plot(step: Step, texts: Sequence[str], path: Path) -> None:
    """Draw the sorted logits, and where each method cuts, to `path`; its ending says how. Raises MinkError
    where that cannot be done."""
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
    curve.plot(step.drawn + 1, step.logits[step.drawn], "o", color="black", fillstyle="none", label="drawn")
    curve.axvline(cliff(step) + 0.5, color="C0", linestyle="--", linewidth=1, label="cliff")
    for place in (place for place in _NAMED if place <= len(texts)):
        curve.annotate(
            _quoted(texts[place - 1]).replace("$", r"\$"), (place, step.logits[place - 1]),
            rotation=30, fontsize=8, xytext=(3, 4), textcoords="offset points",
        )  # fmt: skip
    curve.margins(y=0.12)
    curve.set(
        xscale="log", ylabel="logit", title=f"What each method keeps at temperature {step.temperature:g}"
    )
    curve.legend()
    methods = [method.replace("order=temperature-first", "").rstrip(":,") for method in step.kept]
    drawn = bars.barh(methods, list(step.kept.values()), left=0.5)
    bars.bar_label(drawn, [f"{kept:,}" for kept in step.kept.values()], padding=3, fontsize=8)
    bars.invert_yaxis()
    bars.set(xlabel="place in the descending order", xlim=(0.5, 4 * len(step.ids)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of characters that its font has not
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise MinkError(f"{path} cannot be written: {error}") from None


def heat(texts: Sequence[str], k: Sequence[int]) -> "Text":
    """An answer, each token on a background that says how many candidates it was drawn from."""
    from rich.text import Text

    shown = Text()
    for text, n in zip(texts, k, strict=False):
        shown.append(text, _colour(n))
    shown.append("\n\ncandidates:")
    for (least, colour), after in zip(_HEAT, [*(least for least, _ in _HEAT[1:]), None], strict=True):
        label = f"{least}" if after == least + 1 else f"{least}–{after - 1}" if after else f"{least}+"
        shown.append(" ").append(f" {label} ", colour)
    return shown


def plain_heat(texts: Sequence[str], k: Sequence[int]) -> str:
    """The same without colours: the number stands behind a token, where it is not 1."""
    return "".join(f"{text}[{n}]" if n > 1 else text for text, n in zip(texts, k, strict=False))


def _colour(k: int) -> str:
    return next(colour for least, colour in reversed(_HEAT) if k >= least)
