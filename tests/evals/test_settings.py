"""The sweep of every registered sampler, and interrupts of measurements that read rows."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from mink_local.errors import GenerationError
from mink_local.evals.measurement import Results
from mink_local.evals.settings import RowMeasurement, sweep
from mink_local.evals.store import Store
from mink_local.generation.model import Model
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
def late() -> Iterator[type[Sampler]]:
    """A sampler that is registered while a test runs, whose default is not among the swept values."""

    @dataclass(frozen=True)
    class Late(Sampler):
        a: float = 0.2
        order: Order = "temperature-first"

        name = "late"
        keeps = "some"
        sweep = ("a", (0.5, 0.1))
        kernel = staticmethod(kernels.greedy)

    yield Late
    del SAMPLERS["late"]


def test_a_sampler_that_is_registered_later_is_swept(late: type[Sampler]) -> None:
    found = [one for one in sweep([1.0, 2.0]) if isinstance(one.sampler, late)]
    assert [(one.curve, one.option, one.temperature) for one in found] == [
        (f"late (T {order})", f"a={a}", temperature)
        for temperature, orders in ((1.0, ["last"]), (2.0, ["first", "last"]))
        for order in orders
        for a in (0.5, 0.2, 0.1)
    ]


class _Rows(RowMeasurement[Any]):
    """A measurement of nothing."""

    def plan(self) -> list[int]:
        return []

    def measure_rows(self, keys: Sequence[Any], store: Store[Any]) -> Iterator[Any]:  # noqa: ARG002
        yield from ()

    @classmethod
    def report(cls, results: Results) -> None: ...


def test_an_interrupt_while_a_model_loads_ends_its_first_rows(smollm2: Model) -> None:
    measurement = _Rows()
    with ExitStack() as opened:
        reader = measurement.reader(opened, smollm2, [(8, "a text")])
        assert [row.n_tokens for row in reader([([1, 2, 3], 1)])] == [3]
    measurement.interrupt()
    with ExitStack() as opened:
        reader = measurement.reader(opened, smollm2, [(8, "a text")])
        with pytest.raises(GenerationError):
            list(reader([([1, 2, 3], 1)]))
