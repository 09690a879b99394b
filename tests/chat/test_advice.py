"""What `mink-chat` advises is what was measured."""

import pytest

from mink_local.chat.advice import ADVICE, Advice
from mink_local.samplers import LlamaDefault
from scripts import results


@pytest.mark.parametrize("advice", ADVICE, ids=lambda one: one.kind)
def test_the_figures_are_those_of_the_results(advice: Advice) -> None:
    for sampler, shown in ((advice.sampler, advice.noise), (LlamaDefault(), advice.usual)):
        found = results.figures(advice.results, sampler, advice.temperature or 1.0)["noise_0.01"][0]
        assert shown == round(100 * found, 1)


def test_the_readme_has_the_table() -> None:
    assert results.advice_table() in results.README.read_text(encoding="utf-8")
