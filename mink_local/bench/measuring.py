"""Measure contestants in turn and compare them round by round.

No machine keeps its speed for long, so only figures of the same round are compared.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

import numpy as np

Name = TypeVar("Name", bound=Hashable)
Measured = TypeVar("Measured")
Row = dict[str, Any]
"""A line of a table: a sampler's name and figures, whose keys are the headings."""


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def in_turn(contestants: Mapping[Name, Callable[[int], Measured]], rounds: int) -> dict[Name, list[Measured]]:
    """Measure every contestant once per round, starting each round with another one.

    A contestant is a function of the round's number; the result lists what each returned. Round 0 comes
    first, warms up and is dropped.
    """
    measured: dict[Name, list[Measured]] = {name: [] for name in contestants}
    names = list(contestants)
    for i in range(rounds + 1):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            result = contestants[name](i)
            if i > 0:
                measured[name].append(result)
    return measured


def median_ratio(values: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median over rounds of the ratio of two contestants within a round."""
    return median(a / b for a, b in zip(values, reference, strict=True))


def slowdown(values: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """Return how much longer a contestant takes than the reference, in percent, with a 95% interval.

    `values` and `reference` are seconds in the same rounds, at least 6. The result is the median over rounds
    of the slowdown within a round, and the ends of its interval, which rests on order statistics alone.
    """
    from scipy.stats import quantile_test

    percent = 100 * (np.array(values) / np.array(reference) - 1)
    low, high = quantile_test(percent).confidence_interval(0.95)
    return round(float(np.median(percent)), 3), round(float(low), 3), round(float(high), 3)
