"""The picture of /explain, and the colours of /heat."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.chat import explain
from mink_local.errors import MinkError
from mink_local.generation.sampling_step import sampling_step


def test_plot(logits: NDArray[np.float32], tmp_path: Path) -> None:
    step = sampling_step(logits[0], int(logits[0].argmax()), 5.0)
    explain.plot(step, ["$x_1", "日本語", "\n"], tmp_path / "step.svg")
    assert (tmp_path / "step.svg").read_text().startswith("<?xml")
    for path in (tmp_path / "step.parrot", tmp_path / "no" / "step.png"):
        with pytest.raises(MinkError, match="cannot be written"):
            explain.plot(step, ["a"], path)


def test_heat() -> None:
    shown = explain.heat(["a", "b", "c", "d"], [1, 2, 60, 4, 1])
    assert shown.plain.startswith("abcd\n\ncandidates:  1   2–3 ")
    assert [str(span.style) for span in shown.spans[:3]] == ["on dark_green", "on red3", "on dark_goldenrod"]
    assert explain.plain_heat(["a", "b"], [1, 7]) == "ab[7]"
