"""The sweep of every registered sampler."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mink_local.evals.settings import sweep
from mink_local.samplers import SAMPLERS, Order, Sampler, kernels


def test_the_sweep_has_every_default_once_and_no_setting_twice() -> None:
    settings = sweep([1.0, 5.0, math.inf, 5.0])
    keys = [one.key for one in settings]
    assert len(set(keys)) == len(keys)
    assert not any(one.sampler.order == "temperature-first" for one in settings if one.temperature != 5)
    stateless = {name for name, sampler in SAMPLERS.items() if not sampler.is_stateful}
    for temperature in (1.0, 5.0, math.inf):
        defaults = [one for one in settings if one.is_default and one.temperature == temperature]
        assert {one.sampler.name for one in defaults} == stateless
        assert len({one.curve for one in defaults}) == len(defaults)


@pytest.fixture
def top_a() -> Iterator[type[Sampler]]:
    """A sampler that is registered while a test runs, whose default is not among the swept values."""

    @dataclass(frozen=True)
    class TopA(Sampler):
        a: float = 0.2
        order: Order = "temperature-first"

        name = "top-a"
        keeps = "some"
        sweep = ("a", (0.5, 0.1))
        kernel = staticmethod(kernels.greedy)

    yield TopA
    del SAMPLERS["top-a"]


def test_a_sampler_that_is_registered_later_is_swept(top_a: type[Sampler]) -> None:
    found = [one for one in sweep([1.0, 2.0]) if isinstance(one.sampler, top_a)]
    assert [(one.curve, one.option, one.temperature) for one in found] == [
        (f"top-a (T {order})", f"a={a}", temperature)
        for temperature, orders in ((1.0, ["last"]), (2.0, ["first", "last"]))
        for order in orders
        for a in (0.5, 0.2, 0.1)
    ]
