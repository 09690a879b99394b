"""The figures that /help advice prints are those of docs/results."""

import csv
from pathlib import Path

import pytest

from mink_local.chat.commands.table import ADVICE, Advice


@pytest.mark.parametrize("advice", ADVICE, ids=lambda one: one.kind)
def test_the_figures_are_those_of_the_results(advice: Advice) -> None:
    with (Path(__file__).parents[2] / "docs" / "results" / "advice.csv").open(encoding="utf-8") as lines:
        measured = {row["for"]: row for row in csv.DictReader(lines)}[advice.kind]
    assert f"{advice.noise:.1f}" == measured["noise, %"]
    assert f"{advice.usual:.1f}" == measured["noise of llama.cpp's default cuts, %"]
    assert f"`{advice.options}`" == measured["options"]
