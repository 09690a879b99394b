"""Pictures of a step."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.errors import MinkError
from mink_local.generation.sampling_step import sampling_step
from mink_local.generation.step_plot import plot


@pytest.mark.slow
def test_plot(logits: NDArray[np.float32], tmp_path: Path) -> None:
    step = sampling_step(logits[0], int(logits[0].argmax()), 5.0)
    plot(step, ["$x_1", "日本語", "\n"], tmp_path / "step.svg")
    assert (tmp_path / "step.svg").read_text().startswith("<?xml")
    for path in (tmp_path / "step.parrot", tmp_path / "no" / "step.png"):
        with pytest.raises(MinkError, match="cannot be written"):
            plot(step, ["a"], path)
