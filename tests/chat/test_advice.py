"""What `mink-chat` advises is what was measured."""

import re
from collections.abc import Callable

import pytest

from mink_local.chat.advice import ADVICE, Advice
from mink_local.samplers import LlamaDefault
from scripts.measured import frontier
from tests.chat.conftest import Typist


@pytest.mark.parametrize("advice", ADVICE, ids=lambda one: one.kind)
def test_the_figures_are_those_of_the_results(advice: Advice) -> None:
    for sampler, shown in ((advice.sampler, advice.noise), (LlamaDefault(), advice.usual)):
        found = frontier(advice.results, sampler, advice.temperature or 1.0)["noise_0.01"][0]
        assert shown == round(100 * found, 1)


def test_a_row_can_be_typed(typist: Callable[..., Typist]) -> None:
    say = typist().say
    assert re.search(r"prose +/floor 1\.8, /temp 1 +5\.5% +8\.0%", say("/help advice"))
    assert "floor is 1.8" in say("/floor 1.8")
    assert "temp is 1" in say("/temp 1")
