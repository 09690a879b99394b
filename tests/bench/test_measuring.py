"""Comparing contestants whose times are known."""

from collections.abc import Callable

import pytest

from mink_local.bench import batch, decode
from mink_local.bench.measuring import in_turn, median_ratio, slowdown


def test_each_round_begins_with_another_contestant_and_the_first_round_is_dropped() -> None:
    calls: list[str] = []

    def contestant(name: str) -> Callable[[int], tuple[str, int]]:
        return lambda i: calls.append(name) or (name, i)  # type: ignore[func-returns-value]

    measured = in_turn({name: contestant(name) for name in "abc"}, rounds=3)
    assert "".join(calls) == "abc" + "bca" + "cab" + "abc"
    assert measured == {name: [(name, 1), (name, 2), (name, 3)] for name in "abc"}


def test_ratios_are_of_the_same_round() -> None:
    # The machine is 100 times slower in the end: medians of each (4 and 5) have a ratio of 0.8, rounds of 2.
    reference = [1.0, 2.0, 5.0, 50.0, 100.0]
    assert median_ratio([2 * seconds for seconds in reference], reference) == 2
    assert median_ratio([2, 4, 4, 100, 200], reference) == 2


def test_slowdown_and_its_interval_are_order_statistics_of_the_rounds() -> None:
    reference = [float(i + 1) for i in range(11)]
    percent = [7, 1, 9, 3, 5, 0, 2, 4, 6, 8, 10]
    values = [seconds * (1 + p / 100) for seconds, p in zip(reference, percent, strict=True)]
    # Of 11 rounds the 2nd and the 10th enclose the median with 98.8% probability; the 3rd and 9th with 93.5%.
    assert slowdown(values, reference) == pytest.approx((5, 1, 9))


def test_a_slower_method_is_told_from_noise() -> None:
    noise = [1.0, 1.3, 0.9, 1.1, 1.2, 0.8, 1.0, 1.4]
    greedy = [(0.010 * n, 0.0001) for n in noise]
    slower = [(0.011 * n, 0.0004) for n in noise]
    speeds = decode.compare({("greedy", "host"): greedy, ("slower", "host"): slower})
    assert [speed["method"] for speed in speeds] == ["greedy", "slower"]
    first, second = speeds
    assert (first["low"], first["slowdown_percent"], first["high"]) == (0, 0, 0)
    assert second["slowdown_percent"] == pytest.approx(10)
    assert second["low"] == pytest.approx(10)
    assert second["ms_per_token"] == pytest.approx(11.55)
    assert second["tokens_per_s"] == pytest.approx(1000 / 11.55)
    assert second["sampling_us"] == pytest.approx(400)


def test_greedy_of_the_same_form_is_the_reference() -> None:
    speeds = decode.compare(
        {
            ("greedy", "host"): [(1.0, 0.1)] * 6,
            ("greedy", "backend"): [(2.0, 0.1)] * 6,
            ("min-k", "host"): [(1.5, 0.1)] * 6,
            ("min-k", "backend"): [(3.0, 0.1)] * 6,
        }
    )
    assert [speed["slowdown_percent"] for speed in speeds] == [0, 0, 50, 50]


def test_batches_are_compared_with_the_bare_calls_and_with_the_first() -> None:
    one, many = batch.compare({1: [(10.0, 20.0), (30.0, 40.0), (20.0, 20.0)], 4: [(30.0, 30.0)] * 3})
    assert one == {"answers": 1, "tokens_per_s": 20, "share_of_bare": 0.75, "speedup": 1}
    assert many == {"answers": 4, "tokens_per_s": 30, "share_of_bare": 1, "speedup": 1.5}
