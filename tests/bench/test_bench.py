"""`scripts/bench.py`: comparisons of contestants whose times are known, and what the contestants do."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mink_local.cli import run
from mink_local.samplers import Greedy, MinK, Mirostat
from scripts.bench import (
    cli,
    compare_batches,
    compare_decoding,
    slowdown,
)
from tests.support.python import Finished


@pytest.fixture
def bench(run_main: Callable[..., Finished]) -> Callable[..., Finished]:
    """`bench(*arguments)` runs the script."""
    return partial(run_main, lambda: run(cli, "scripts/bench.py"))


def test_slowdown_and_its_interval_are_order_statistics_of_the_rounds() -> None:
    reference = [float(i + 1) for i in range(11)]
    percent = [7, 1, 9, 3, 5, 0, 2, 4, 6, 8, 10]
    values = [seconds * (1 + p / 100) for seconds, p in zip(reference, percent, strict=True)]
    # Of 11 rounds the 2nd and the 10th enclose the median with 98.8% probability; the 3rd and 9th with 93.5%.
    assert slowdown(values, reference) == pytest.approx((5, 1, 9))


def test_a_slower_method_is_told_from_noise() -> None:
    noise = [1.0, 1.3, 0.9, 1.1, 1.2, 0.8, 1.0, 1.4]
    greedy, slower = ([seconds * n for n in noise] for seconds in (0.010, 0.011))
    speeds = compare_decoding({"greedy": greedy, "slower": slower})
    assert (speeds[0]["low"], speeds[0]["slowdown_percent"], speeds[0]["high"]) == (0, 0, 0)
    assert speeds[1] == {"method": "slower"} | {
        name: pytest.approx(value)
        for name, value in {
            "tokens_per_s": 1000 / 11.55, "ms_per_token": 11.55, "slowdown_percent": 10,
            "low": 10, "high": 10,
        }.items()
    }  # fmt: skip


def test_batches_are_compared_with_the_bare_calls_and_with_the_first() -> None:
    """With the bare calls round by round: the machine may be slower in some."""
    rounds = [(10.0, 20.0, 0.9), (30.0, 40.0, 0.9), (20.0, 20.0, 0.9)]
    one, many = compare_batches({1: rounds, 4: [(30.0, 30.0, 3.5)] * 3})
    figures = {"tokens_per_s": 20, "share_of_bare": 0.75, "speedup": 1, "tokens_a_call": 0.9}
    assert one == {"answers": 1, **figures}
    assert (many["share_of_bare"], many["speedup"], many["tokens_a_call"]) == (1, 1.5, 3.5)


@pytest.mark.parametrize("beside", ["schema", "logprobs", "prompts"])
def test_answers_beside_something_else(bench: Callable[..., Finished], tiny_path: Path, beside: str) -> None:
    given = ["--model", tiny_path, "--rounds", 1, "--json", "--threads", 1, "--tokens", 5, "--parallel", 2]
    [row] = json.loads(bench("batch", *given, "--beside", beside).succeeded().stdout)
    assert row["answers"] == 2
    assert row["share_of_bare"] > 0


def test_constrained_answers_and_the_cost_of_options(bench: Callable[..., Finished], tiny_path: Path) -> None:
    model = ["--model", tiny_path, "--rounds", 1, "--json"]
    batch = bench("batch", *model, "--schema", "--parallel", 1, "--parallel", 2, "--tokens", 9).succeeded()
    one, two = json.loads(batch.stdout)
    assert (one["answers"], two["answers"], one["speedup"]) == (1, 2, 1)
    assert min(one["share_of_bare"], two["share_of_bare"], two["speedup"]) > 0
    assert two["tokens_a_call"] > 1
    costs = {row["option"]: row for row in json.loads(bench("options", *model).succeeded().stdout)}
    assert costs["none"]["times_none"] == 1
    assert min(cost["us"] for cost in costs.values()) > 0


def test_decoding_is_compared_with_greedy(bench: Callable[..., Finished], tiny_path: Path) -> None:
    arguments = ["decode", "--model", tiny_path, "--tokens", 3, "--rounds", 6, "--sampler", "min-k"]
    speeds = json.loads(bench(*arguments, "--sampler", "mirostat", "--json").succeeded().stdout)
    assert [speed["method"] for speed in speeds] == [*map(str, (Greedy(), MinK(), Mirostat()))]
    for speed in speeds:
        assert speed["low"] <= speed["slowdown_percent"] <= speed["high"]
        assert speed["ms_per_token"] > 0
    assert bench(*arguments)[1].count("min-k") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["decode", "--rounds", "1"], "--rounds"),
        (["batch", "--parallel", "257"], "--parallel"),
    ],
)
def test_bad_input(bench: Callable[..., Finished], arguments: list[str], complaint: str) -> None:
    bench(*arguments).refused(2, complaint)
