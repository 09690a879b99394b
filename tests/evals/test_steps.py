"""`mink-eval steps`: k over the steps of continuations, and what decided it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mink_local import load_model
from mink_local.evals.frontier.measure import read_paragraphs
from mink_local.evals.steps import by_temperature
from mink_local.samplers import MinK
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished

TEXT = "A river that is long runs to the sea, and nobody knows why it does.\n\nName a city that you like."
TAU = 40.0


@pytest.fixture
def steps(mink_eval: MinkEval, tiny_path: Path, tmp_path: Path) -> Callable[..., Finished]:
    """`steps(*options)` measures TEXT with a model of random weights, whose range of logits is small."""
    (tmp_path / "text.txt").write_text(TEXT)
    options = ["-m", tiny_path, "--text", tmp_path / "text.txt", "--threads", 1, "--out", tmp_path / "out"]

    def run(*more: object) -> Finished:
        return mink_eval("steps", *options, "--max-tokens", 6, *more)

    return run


def test_k_is_the_cliff_or_the_fallback(
    steps: Callable[..., Finished], tmp_path: Path, tiny_path: Path
) -> None:
    """Beside the logits of the same text, and the same at every temperature until the tokens differ."""
    steps("--sampler", f"min-k:tau={TAU}", "--parallel", 1).succeeded()
    out = tmp_path / "out"
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    by_key = {text.key: text.text for text in read_paragraphs(tmp_path / "text.txt")}
    with load_model(str(tiny_path), n_ctx=256, trust=True) as model:
        for row in rows:
            tokens = model.weights.tokenize(by_key[row["text"]], add_special=True, parse_special=False)
            logits = model.logits(tokens)
            assert row["cliff"][0] == MinK(tau=0).cutoff(logits)
            assert row["k"][0] == MinK(tau=TAU).cutoff(logits)
            assert len(row["k"]) == len(row["cliff"]) <= 7
            assert all(k >= cliff for k, cliff in zip(row["k"], row["cliff"], strict=True))
    found = json.loads((out / "steps.json").read_text())
    assert [row["temperature"] for row in found["settings"]] == [1, 5]
    assert found["n_texts"] == 2
    for ending in ("html", "md", "csv", "svg"):
        assert (out / f"steps.{ending}").exists()
    n_before = (out / "rows.jsonl").stat().st_size
    steps("--sampler", f"min-k:tau={TAU}", "--parallel", 1, "-t", 1, "-t", 5).succeeded()
    assert (out / "rows.jsonl").stat().st_size == n_before


def test_the_share_of_the_fallback_is_over_texts() -> None:
    rows = pd.DataFrame(
        {
            "text": ["a", "b", "a", "b"],
            "temperature": [1.0, 1.0, 5.0, 5.0],
            "k": [[1, 3, 3, 9], [2], [1, 1], [1, 4]],
            "cliff": [[1, 2, 2, 9], [2], [1, 1], [1, 1]],
        }
    )
    cool, hot = by_temperature(rows).itertuples()
    assert (cool.fallback.value, hot.fallback.value) == (0.25, 0.25)
    assert (cool.steps, cool.mean_k, cool.k_is_1, cool.k_max) == (5, np.mean([1, 3, 3, 9, 2]), 0.2, 9)


def test_a_text_that_ends_at_once_has_no_steps(
    steps: Callable[..., Finished], mink_eval: MinkEval, tmp_path: Path
) -> None:
    steps("-t", 1).succeeded()
    rows = tmp_path / "out" / "rows.jsonl"
    ended, other = (json.loads(line) for line in rows.read_text().splitlines())
    rows.write_text(f"{json.dumps(ended | {'k': [], 'cliff': []})}\n{json.dumps(other)}\n")
    mink_eval("report", tmp_path / "out").succeeded()
    (row,) = json.loads((tmp_path / "out" / "steps.json").read_text())["settings"]
    assert row["steps"] == len(other["k"])
    assert 0 <= row["fallback"][0] <= 1
    rows.write_text(f"{json.dumps(ended | {'k': [], 'cliff': []})}\n")
    mink_eval("report", tmp_path / "out").refused(1, "no text")


def test_bad_input_is_one_sentence(steps: Callable[..., Finished], mink_eval: MinkEval) -> None:
    steps("--sampler", "top-p").refused(2, "min-k")
    mink_eval("steps", "--text", "no/such").refused(1, "no/such")
