"""The figures that /help advice prints are those of docs/results."""

import csv
from pathlib import Path

import pytest

from mink_local.chat.commands.settings import ADVICE


@pytest.mark.parametrize(("kind", "options", "noise", "usual"), ADVICE)
def test_the_figures_are_those_of_the_results(kind: str, options: str, noise: float, usual: float) -> None:
    with (Path(__file__).parents[2] / "docs" / "results" / "advice.csv").open(encoding="utf-8") as lines:
        measured = {row["for"]: row for row in csv.DictReader(lines)}[kind]
    assert f"{noise:.1f}" == measured["noise, %"]
    assert f"{usual:.1f}" == measured["noise of llama.cpp's default cuts, %"]
    assert f"`{options}`" == measured["options"]
