"""`scripts.lab.coverage`: its measures, its files, going on after a stop, and what it refuses."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mink_local.errors import ReportError
from scripts.lab.coverage.__main__ import main
from scripts.lab.coverage.measure import N_SAMPLES, best, expected_distinct, means
from tests.evals.conftest import Write
from tests.support.python import Finished

PROMPTS: list[dict[str, object]] = [
    {"id": "coin", "prompt": "Name one side of a coin.", "answers": [["heads", "obverse"], "tails"]},
    {"id": "digit", "prompt": "Name one digit.", "answers": list("0123456789")},
    {"id": "day", "prompt": "Name one day of the weekend.", "answers": ["Saturday", "Sunday"]},
]
Coverage = Callable[..., Finished]


@pytest.fixture
def coverage(run_main: Callable[..., Finished], tiny_path: Path, tmp_path: Path, write: Write) -> Coverage:
    """`coverage(*options)` measures two samplers with a small random model, into tmp_path / "out"."""
    model = ["-m", tiny_path, "--threads", 1, "--prompts", write(*PROMPTS), "--out", tmp_path / "out"]
    return partial(run_main, main, *model, "-s", "top-p", "-s", "min-k")


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("p", [[0.5, 0.3, 0.1], [0.99, 0.001, 0.0], [1.0, 0.0], [0.02] * 40, [0.0, 0.0]])
def test_expected_distinct_is_the_mean_of_a_simulation(p: list[float]) -> None:
    counts = np.random.default_rng(1).multinomial(N_SAMPLES, [*p, max(0.0, 1 - sum(p))], size=20_000)
    distinct = (counts[:, :-1] > 0).sum(axis=1)
    error = 5 * distinct.std() / np.sqrt(len(distinct)) + 1e-9
    assert float(expected_distinct(np.array(p))) == pytest.approx(distinct.mean(), abs=error)


def test_means_are_over_the_prompts_that_have_every_setting() -> None:
    made_up = [
        {"prompt": prompt, "sampler": sampler, "temperature": temperature, "valid": 0.5 + i / 10}
        | {"coverage": 0.1, "distinct": 2.0 + i, "unexplored": i / 100}
        for i, prompt in enumerate("abc")
        for sampler, temperature in (("top-k:k=2", "inf"), ("top-k:k=2", "1"), ("greedy", "1"))
        if (prompt, temperature) != ("c", "inf")
    ]
    found, n_prompts, n_left_out = means(pd.DataFrame(made_up))
    assert (n_prompts, n_left_out) == (2, 1)
    assert list(zip(found["sampler"], found["temperature"], strict=True)) == [
        ("top-k:k=2", 1), ("top-k:k=2", float("inf")), ("greedy", 1),
    ]  # fmt: skip
    row = found.iloc[0]
    assert row["valid"] == pytest.approx(0.55)
    assert row["valid_low"] < 0.5 < 0.6 < row["valid_high"]
    assert (row["distinct"], row["unexplored"]) == (2.5, 0.01)
    alone, _, _ = means(pd.DataFrame(made_up[:1]))
    assert alone["valid_low"][0] < 0.5 < alone["valid_high"][0]  # also of a single prompt
    with pytest.raises(ReportError):
        means(pd.DataFrame([made_up[0], made_up[-1]]))


def test_the_best_temperature() -> None:
    values = [("a", 1, 1.0, 0.1), ("a", 2, 0.95, 0.4), ("b", 1, 0.9, 0.3), ("b", 2, 0.5, 0.9)]
    values.append(("greedy", 1, 1.0, 0.0))
    columns = ["sampler", "temperature", "valid", "coverage"]
    found = pd.DataFrame(values, columns=columns).assign(distinct=1.0, unexplored=0.0)
    for below, chosen in (
        (0.1, [("a", 2), ("b", 1), ("greedy", 1)]),
        (1.0, [("b", 2), ("a", 2), ("greedy", 1)]),
        (0.01, [("a", 1), ("greedy", 1), ("b", None)]),
    ):
        frame = best(found, below)
        temperatures = frame["temperature"].astype(object).where(frame["coverage"].notna(), None)
        assert list(zip(frame["sampler"], temperatures, strict=True)) == chosen


def test_a_run_writes_tables_picture_and_figures(coverage: Coverage, tmp_path: Path) -> None:
    printed = coverage("-t", 0.5, "-t", "inf").succeeded().stdout
    assert "below greedy" not in printed  # 3 prompts choose no temperature
    out = tmp_path / "out"
    found = rows(out)
    assert [(row["prompt"], row["sampler"], row["temperature"]) for row in found] == [
        (prompt["id"], sampler, temperature)
        for prompt in PROMPTS
        for sampler, temperature in (
            ("top-p:p=0.9,order=temperature-first", "0.5"), ("top-p:p=0.9,order=temperature-first", "inf"),
            ("min-k:tau=3", "0.5"), ("min-k:tau=3", "inf"), ("greedy", "1"),
        )
    ]  # fmt: skip
    for row in found:
        assert 0 <= row["unexplored"] <= 0.01
        assert 0 <= row["coverage"] <= 1
    text = (out / "coverage.md").read_text("utf-8")
    assert "| top-p:p=0.9 (T first) | ∞ |" in text
    assert "| greedy | 1 |" in text
    assert (out / "coverage.svg").read_text("utf-8").startswith("<?xml")
    assert len(json.loads((out / "coverage.json").read_text("utf-8"))["settings"]) == 5


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        (("-t", "0"), 2, "0"),
        (("-t", "nan"), 2, "nan"),
        (("-s", "mirostat"), 2, "mirostat"),
        (("--rest", "0"), 2, "--rest"),
        (("--prompts", "none.jsonl"), 1, "none.jsonl"),
        (("--prompts", "long.jsonl"), 1, "'coin'"),
    ],
)
def test_what_is_refused(
    coverage: Coverage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write,
    options: tuple[str, ...], status: int, error: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write(PROMPTS[0] | {"prompt": "heads or tails? " * 5000}, name="long.jsonl")
    coverage(*options).refused(status, error)
    assert not (tmp_path / "out" / "coverage.md").exists()
