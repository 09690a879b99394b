"""The candidates of the next token after a prompt, and how many each method keeps: the paper's Figure 1."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mink_local.generation.model import Model
from mink_local.generation.sampling_step import METHODS, SamplingStep, sampling_step
from mink_local.generation.step_plot import plot, quoted
from mink_local.generation.text_stream import token_name
from mink_local.samplers import Sampler, label

_SHOWN = 12  # candidates


def next_step(
    model: Model, prompt: str, answer: str = "", methods: Sequence[Sampler] = METHODS
) -> SamplingStep:
    """Return the step after the beginning of an answer to a prompt, at temperature 1.

    Raises:
        GenerationError: The prompt is longer than the context, or the model is in use by another thread.
    """
    logits = model.logits([{"role": "user", "content": prompt}], model.tokenize(answer))
    return sampling_step(logits, int(logits.argmax()), 1.0, methods)


def show(console: Console, model: Model, step: SamplingStep, temperatures: Sequence[float]) -> None:
    """Print the most probable candidates, and what the methods of a step keep at each temperature > 0."""
    candidates = Table("#", "token", "logit", "weight", "p")
    for rank, text in enumerate(texts(model, step)):
        candidates.add_row(
            str(rank + 1),
            quoted(text),
            f"{step.logits[rank]:.2f}",
            f"{step.weights[rank]:.4f}",
            f"{step.p[rank]:.2%}",
            end_section=rank + 1 == step.cliff,
        )
    kept = Table("keeps", *(f"T = {temperature:g}" for temperature in temperatures))
    steps = [step.at(temperature) for temperature in temperatures]
    for method in step.methods:
        kept.add_row(label(str(method)), *(f"{one.kept[str(method)]:,}" for one in steps))
    for table in (candidates, kept):
        for column in table.columns:
            column.no_wrap = True
            column.justify = "left" if column.header in ("token", "keeps") else "right"
        console.print(table)


def texts(model: Model, step: SamplingStep) -> list[str]:
    """Return the texts of the most probable candidates."""
    return [token_name(model.weights, int(token)) for token in step.ids[:_SHOWN]]


def write_picture(model: Model, step: SamplingStep, temperature: float, path: Path) -> None:
    """Write a picture of a step at a temperature > 0. Raises MinkError if the file cannot be written."""
    plot(step.at(temperature), texts(model, step), path, is_sampled=False)
