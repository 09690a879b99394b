"""The table and the picture of /explain."""

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from mink_local.chat import explain
from mink_local.generation.sampling_step import sampling_step


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100])
def test_the_table_fits(logits: NDArray[np.float32], width: int) -> None:
    """The rank, the token and its probability are always there, and every method with its number."""
    row = logits[0].copy()
    row[0] = row.max() - 1  # biased, so that the model's own logits are another column
    sampled = int(row.argsort()[-20_000])
    step = sampling_step(row, sampled, 5.0, own=logits[0])
    texts = [" antidisestablishmentarianism", "日本語日本語日本語", "\n", "<0xE7>", *["'"] * 8]
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(explain.table(step, texts, width))
    lines = captured.get().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert sum("◀" in line for line in lines) == 1
    assert any("20,000" in line and line.rstrip().count("%") for line in lines)
    assert "…" not in "".join(lines[1:2])  # the titles
    for name, kept in step.cuts:
        assert any(name in line and line.rstrip().endswith(f"{kept:,}") for line in lines)
    assert ("weight" in lines[0]) == (width >= 80)


def test_what_is_said_below_the_table(logits: NDArray[np.float32]) -> None:
    best, other = (int(token) for token in logits[0].argsort()[[-1, -400]])
    said = explain.sentences(sampling_step(logits[0], best, 1.0))
    assert said[0].startswith("min-k:tau=3 at temperature 1 keeps ")
    assert len(said) == 2
    biased = logits[0].copy()
    biased[best] = -np.inf
    said = explain.sentences(sampling_step(biased, other, 1.0, own=logits[0]))
    assert said[2:] == [
        "Logits are those under bias, penalties and grammar; own is the model's.",
        "The sampled token is not among those that are kept.",
    ]
