"""The candidates for the next token, and how many each sampler keeps: the paper's Figure 1."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

from mink_local.errors import MinkError
from mink_local.evals.inputs import DATE
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.sampling_step import SamplingStep, sampling_step
from mink_local.generation.text import token_name
from mink_local.samplers import Sampler, label

_SHOWN = 12  # candidates
_LONGEST = 16  # maximum columns of a token's text
_LABELLED = (0, 1, 3, 7)  # ranks with a label, spaced so that labels do not overlap on the logarithmic axis


def show_candidates(
    prompt: str,
    model: str,
    answer: str,
    samplers: Sequence[Sampler],
    temperatures: Sequence[float],
    picture: Path | None,
    **placement: Any,
) -> None:
    """Print the candidates for the token after the beginning of an answer, and how many samplers keep.

    Args:
        prompt: The user message.
        model: Name or path of the model.
        answer: The beginning of the answer.
        samplers: Samplers to compare; empty for all.
        temperatures: Above 0; the plot uses the last one.
        picture: File to write a plot to, if any.
        placement: Options of `load_model`, such as n_threads.

    Raises:
        MinkError: The prompt does not fit into the context, or the plot cannot be written.
    """
    with load_model(model, date=DATE, **placement) as loaded:
        step = next_step(loaded, prompt, answer, samplers)
        texts = [_quoted(token_name(loaded.weights, int(token))) for token in step.ids[:_SHOWN]]
    console = Console(markup=False, emoji=False)  # tokens are whatever a model has
    _print_tables(console, step, texts, temperatures)
    if picture:
        plot(step.at(temperatures[-1]), texts, picture)


def next_step(model: Model, prompt: str, answer: str = "", samplers: Sequence[Sampler] = ()) -> SamplingStep:
    """Return the step after the beginning of an answer to a prompt, at temperature 1."""
    logits = model.logits([{"role": "user", "content": prompt}], model.tokenize(answer))
    return sampling_step(logits, int(logits.argmax()), 1.0, samplers or None)


def _print_tables(
    console: Console, step: SamplingStep, texts: Sequence[str], temperatures: Sequence[float]
) -> None:
    candidates = Table("#", "token", "logit", "p")
    for rank, text in enumerate(texts):
        candidates.add_row(
            str(rank + 1),
            text,
            f"{step.logits[rank]:.2f}",
            f"{step.p[rank]:.2%}",
            end_section=rank + 1 == step.cliff,
        )
    kept = Table("keeps", *(f"T = {temperature:g}" for temperature in temperatures))
    steps = [step.at(temperature) for temperature in temperatures]
    for sampler in step.compared:
        kept.add_row(label(str(sampler)), *(f"{one.kept[sampler]:,}" for one in steps))
    for table in (candidates, kept):
        for column in table.columns:
            column.no_wrap = True
            column.justify = "left" if column.header in ("token", "keeps") else "right"
        console.print(table)


def _quoted(text: str) -> str:
    """Return a token's text in quotes, truncated to `_LONGEST` columns."""
    shown = repr(text)
    return shown if cell_len(shown) <= _LONGEST else set_cell_size(shown, _LONGEST - 1).rstrip() + "…"


def plot(step: SamplingStep, texts: Sequence[str], path: Path) -> None:
    """Plot the sorted logits and what each sampler keeps.

    Args:
        step: The step, at a temperature above 0.
        texts: Texts of the top-ranked tokens.
        path: File to write; its extension sets the format.

    Raises:
        MinkError: The file cannot be written.
        ModuleNotFoundError: Matplotlib is missing.
    """
    from matplotlib.figure import Figure

    from mink_local.evals.figures import look

    figure = Figure(figsize=(9, 6), layout="constrained")
    curve: Any
    bars: Any
    curve, bars = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    ranks = np.arange(1, len(step.ids) + 1)
    curve.plot(ranks, step.logits, color="0.35", linewidth=1)
    curve.plot(ranks[:30], step.logits[:30], ".", color="0.35", markersize=5)
    curve.axvline(step.cliff + 0.5, color="0.35", linestyle="--", linewidth=1, label="cliff")
    for rank in (rank for rank in _LABELLED if rank < len(texts)):
        curve.annotate(
            texts[rank].replace("$", r"\$"), (rank + 1, step.logits[rank]),
            rotation=40, fontsize=8, xytext=(3, 4), textcoords="offset points",
        )  # fmt: skip
    curve.margins(y=0.2)
    curve.set(
        xscale="log", ylabel="logit", title=f"What each sampler keeps at temperature {step.temperature:g}"
    )
    curve.legend()
    names, numbers = zip(*((label(str(sampler)), k) for sampler, k in step.kept.items()), strict=True)
    colours = [look(str(sampler))["color"] for sampler in step.kept]
    drawn = bars.barh(names, numbers, left=0.5, color=colours)
    bars.bar_label(drawn, [f"{n:,}" for n in numbers], padding=3, fontsize=8)
    bars.invert_yaxis()
    bars.set(xlabel="rank", xlim=(0.5, 4 * len(step.ids)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # glyphs missing from the font
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise MinkError(f"{path} cannot be written: {error}") from None
