"""`mink-bench`: that it measures what it says; how long things take is for it to say, not for a test."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mink_local.bench.timing import LLAMA_CPP, real_rows, time_samplers
from mink_local.generation.model import Model
from mink_local.samplers import SAMPLERS, Greedy, MinK, TopK


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "mink_local.bench.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npz"
    np.savez(path, logits=np.random.default_rng(0).normal(0, 3, (3, 5000)).astype(np.float32))
    return path


def test_every_method_is_timed(rows: Path, tmp_path: Path) -> None:
    picture = tmp_path / "costs.png"
    result = bench("sampler", "--logits", str(rows), "--rounds", "3", "--json", "--plot", str(picture))
    assert result.returncode == 0, result.stderr
    costs = {cost["method"]: cost for cost in json.loads(result.stdout)}
    assert list(costs) == ["np.max", *(str(sampler()) for sampler in SAMPLERS.values()), "np.sort"]
    for sampler in SAMPLERS.values():
        cost = costs[str(sampler())]
        assert cost["n_vocab"] == 5000
        assert min(cost["step"], cost["select"]) > 0
        assert cost["processor"] > 0
        assert (cost["llama_cpp"] is not None) == (sampler in LLAMA_CPP)
    assert png(picture)


def test_table_on_the_models_own_logits() -> None:
    result = bench("sampler", "--rounds", "2", "--sampler", "min-k", "--sampler", "top-k:k=5")
    assert result.returncode == 0, result.stderr
    assert "vocabulary of 49,152" in result.stdout
    assert "min-k:tau=3" in result.stdout
    assert "top-k:k=5" in result.stdout
    assert "mirostat" not in result.stdout


def test_real_rows_are_steps_of_an_answer(smollm2: Model) -> None:
    rows = real_rows(smollm2, 8)
    assert rows.shape == (8, 49152)
    assert np.isfinite(rows).all()
    assert len({row.tobytes() for row in rows}) == 8
    costs = {cost.method: cost for cost in time_samplers(rows, [MinK(), Greedy(), TopK(5)], 1.0, rounds=4)}
    assert set(costs) == {"np.max", "np.sort", "min-k:tau=3", "greedy", "top-k:k=5"}


def test_decoding_is_compared_with_greedy(tiny: Callable[..., Path], tmp_path: Path) -> None:
    picture = tmp_path / "speeds.png"
    arguments = ["decode", "--model", str(tiny()), "--tokens", "3", "--rounds", "6", "--sampler", "min-k"]
    both = ["--sampler", "mirostat", "--form", "host", "--form", "graph"]
    result = bench(*arguments, *both, "--json", "--plot", str(picture))
    assert result.returncode == 0, result.stderr
    speeds = {(speed["method"], speed["form"]): speed for speed in json.loads(result.stdout)}
    greedy, min_k, mirostat = "greedy", "min-k:tau=3", "mirostat:tau=5,eta=0.1,version=2"
    host, graph = "host", "graph"
    assert list(speeds) == [
        (greedy, "llama.cpp"),
        (greedy, host),
        (min_k, host),
        (mirostat, host),
        (greedy, graph),
        (min_k, graph),
    ]
    assert all(speeds[greedy, form]["slowdown_high"] == 0 for form in (host, graph))
    for speed in speeds.values():
        assert speed["slowdown_low"] <= speed["slowdown"] <= speed["slowdown_high"]
        assert speed["tokens_per_second"] * speed["ms_per_token"] == pytest.approx(1000, rel=0.01)
        assert 0 < speed["sampling_us"] < 1000 * speed["ms_per_token"]
    assert png(picture)
    table = bench(*arguments)
    assert "tokens/s" in table.stdout
    assert "95% interval" in table.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["sampler", "--sampler", "parrot"], 2, "unknown sampler 'parrot': the samplers are min-k"),
        (["sampler", "--temp", "0"], 2, "0.0 is not in the range x>0"),
        (["sampler", "--logits", __file__], 1, "is no .npz file with an array named logits"),
        (["sampler", "--logits", "no.npz"], 2, "'no.npz' does not exist"),
        (["sampler", "--plot", "x.parrot"], 2, "x.parrot does not end in one of ."),
        (["sampler", "--plot", "no/such/x.png"], 2, "there is no folder no/such"),
        (["decode", "--rounds", "1"], 2, "1 is not in the range x>=6"),
        (["decode", "--model", "parrot"], 2, "unknown model 'parrot'"),
        (["parrot"], 2, "No such command 'parrot'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], status: int, complaint: str) -> None:
    result = bench(*arguments)
    assert (result.returncode, result.stdout) == (status, "")
    assert result.stderr.startswith("mink-bench: ")
    assert len(result.stderr.splitlines()) == 1
    assert complaint in result.stderr


def test_logits_of_another_shape(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", logits=np.zeros(5))
    result = bench("sampler", "--logits", str(tmp_path / "x.npz"))
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "are not of shape (rows, V) but (5,)" in result.stderr
