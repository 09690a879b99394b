"""`mink-bench`: what it measures and prints; durations are not tested."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mink_local.bench.cli import main
from mink_local.bench.timing import LLAMA_CPP, llama_cpp_chain
from mink_local.samplers import SAMPLERS, parse
from tests.support.python import Finished

Bench = Callable[..., Finished]


@pytest.fixture
def bench(run_main: Callable[..., Finished]) -> Bench:
    """`bench(*arguments)` runs `mink-bench`."""
    return partial(run_main, main)


def rows(bench: Bench, *arguments: object) -> list[dict[str, Any]]:
    """Run the program, which must succeed, with --json."""
    return json.loads(bench(*arguments, "--json").succeeded().stdout)  # type: ignore[no-any-return]


def test_every_method_is_timed_in_every_form_it_has(bench: Bench, tiny_path: Path) -> None:
    costs = {cost["method"]: cost for cost in rows(bench, "sampler", "--model", tiny_path, "--rounds", 3)}
    samplers = [sampler() for sampler in SAMPLERS.values()]
    chains = list(costs)[1 + len(samplers) : -1]
    assert list(costs) == ["np.max", *map(str, samplers), *chains, "np.sort"]
    assert any(chain.startswith("xtc") for chain in chains)
    for sampler in [*samplers, *map(parse, chains)]:
        cost = costs[str(sampler)]
        assert cost["vocabulary"] == 49152
        assert min(cost["cut_us"], cost["step_us"]) > 0
        assert (cost["processor_us"] is None) == sampler.comes_last
        has_form = all(type(one) in LLAMA_CPP for one in sampler.members)
        assert (cost["llama.cpp_us"] is not None) == has_form == (llama_cpp_chain(sampler) is not None)


@pytest.mark.parametrize("output", [[], ["--markdown"]])
def test_tables(bench: Bench, tiny_path: Path, output: list[str]) -> None:
    samplers = ["--sampler", "min-k", "--sampler", "top-k:k=5"]
    out = bench("sampler", "--model", tiny_path, "--rounds", 1, *samplers, *output).succeeded().stdout
    assert all(text in out for text in ("49152", "min-k:tau=3", "top-k:k=5", "llama.cpp µs"))
    assert "mirostat" not in out
    assert ("| ---" in out or "|---" in out) == bool(output)


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["sampler", "--sampler", "parrot"], 2, "parrot"),
        (["sampler", "--temp", "0"], 2, "--temp"),
        (["sampler", "--model", "parrot"], 2, "parrot"),
        (["sampler", "--rounds", "0"], 2, "--rounds"),
        (["parrot"], 2, "parrot"),
    ],
)
def test_bad_input_is_one_sentence(bench: Bench, arguments: list[str], status: int, complaint: str) -> None:
    assert bench(*arguments).refused(status, "mink-bench: ", complaint).stdout == ""
