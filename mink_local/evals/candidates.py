"""The candidates for the next token, and how many each sampler keeps: the paper's Figure 1."""

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

from mink_local.evals.inputs import DATE
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.sampling_step import SamplingStep, sampling_step
from mink_local.generation.text import token_name
from mink_local.samplers import Sampler, label

_SHOWN = 12  # candidates
_LONGEST = 16  # maximum columns of a token's text


def show_candidates(
    prompt: str,
    model: str,
    answer: str,
    samplers: Sequence[Sampler],
    temperatures: Sequence[float],
    **placement: Any,
) -> None:
    """Print the candidates for the token after the beginning of an answer, and how many samplers keep.

    Args:
        prompt: The user message.
        model: Name or path of the model.
        answer: The beginning of the answer.
        samplers: Samplers to compare; empty for all.
        temperatures: Above 0.
        placement: Options of `load_model`, such as n_threads.

    Raises:
        MinkError: The prompt does not fit into the context.
    """
    with load_model(model, date=DATE, **placement) as loaded:
        step = next_step(loaded, prompt, answer, samplers)
        texts = [_quoted(token_name(loaded.weights, int(token))) for token in step.ids[:_SHOWN]]
    console = Console(markup=False, emoji=False)  # tokens are whatever a model has
    _print_tables(console, step, texts, temperatures)


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
