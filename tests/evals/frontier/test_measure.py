"""`mink-eval frontier`, from texts to report, on small models."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mink_local import load_model
from mink_local.evals.frontier.measure import MeasuredText, common_vocabulary
from mink_local.evals.frontier.sums import FIGURES, PositionFigures
from mink_local.evals.settings import sweep
from mink_local.generation.model import read_rows
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished

Frontier = Callable[..., list[dict[str, object]]]
TEXT = "A river that is long.\n\nName a city.\r\n \nA"  # the last paragraph is one token, without a position


@pytest.fixture
def finished(
    mink_eval: MinkEval, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Finished]:
    """`finished(*options)` runs the command in tmp_path, which has TEXT in text.txt."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    return partial(mink_eval, "frontier", "-m", tiny_path, "-r", tiny_path, "--threads", 1)


@pytest.fixture
def frontier(finished: Callable[..., Finished], tmp_path: Path) -> Frontier:
    """`frontier(*options)` measures TEXT, which must succeed, and returns the rows."""

    def run(*options: object, text: Sequence[object] = ("--text", "text.txt")) -> list[dict[str, object]]:
        finished("--out", "out", *text, *options).succeeded()
        return [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]

    return run


def test_the_report(frontier: Frontier, tmp_path: Path) -> None:
    """With a chain, a setting of the sweep, which is measured once, and one that is none."""
    samplers = ["-s", "top-k:k=5+min-k", "-s", "min-k:floor=0.3", "-s", "min-k:tau=10"]
    measured = frontier("--temp", 5, *samplers, "--tail-mass", 3)
    assert len({row["text"] for row in measured}) == 3
    out = tmp_path / "out"
    assert (out / "frontier.svg").read_text().startswith("<?xml")
    found = json.loads((out / "frontier.json").read_text())
    assert found["n_texts"] == 2
    markdown = (out / "frontier.md").read_text()
    assert "+3 points" in markdown
    assert str(tmp_path) not in markdown + json.dumps(found)  # it is for others too
    defaults = [row["sampler"] for row in found["defaults"]]
    assert {"greedy", "top-k:k=5+min-k:tau=3", "min-k:tau=10"} <= {*defaults}
    assert "min-k:tau=3,floor=0.3" not in defaults
    assert len({row["curve"] for row in found["at_tail_mass"]}) == len(found["at_tail_mass"])
    rows = pd.read_csv(out / "frontier.csv")
    swept = [one for one in sweep([5.0]) if one.sampler.name in ("min-k", "min-p", "greedy")]
    assert len(rows) == len(found["settings"]) == len(swept) + 2
    assert (rows["entropy_low"] <= rows["entropy"] + 1e-6).all()
    assert (rows["entropy"] <= rows["entropy_high"] + 1e-6).all()


def test_curves_that_all_exceed_half_tail_mass_have_a_report(
    frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its other tables."""
    monkeypatch.setattr("mink_local.evals.frontier.report.MOST_TAIL_MASS", -1.0)
    frontier("--temp", "inf", "--limit", 1)
    found = json.loads((tmp_path / "out" / "frontier.json").read_text())
    assert (found["at_tail_mass"], len(found["settings"])) == ([], len(sweep([float("inf")])))


@pytest.mark.slow
def test_recorded_answers_of_the_reference_are_texts(
    mink_eval: MinkEval, frontier: Frontier, finished: Callable[..., Finished], tiny_path: Path,
    here: list[object],
) -> None:  # fmt: skip
    mink_eval.run(*here, "-s", "top-k", "-t", 1, "--max-tokens", 5, "--limit", 2, "--out", "run")
    records = [json.loads(line) for line in Path("run/records.jsonl").read_text().splitlines()]
    rows = frontier("--temp", 1, text=["--texts", "run"])
    assert len(rows) == 2 * len(sweep([1.0]))  # greedy's records are no texts
    assert sum(record["sampler"] != "greedy" for record in records) == 2
    Path("other.gguf").write_bytes(tiny_path.read_bytes() + b"\0")
    finished("--texts", "run", "--reference", "other.gguf", "--out", "other").refused(1, "run")


def test_the_positions_are_those_of_the_answer(tiny_path: Path) -> None:
    """Each is the row after the prompt and the answer's tokens before it, beside rows of single calls."""
    settings = sweep([2.0])
    path = str(tiny_path)
    answer = MeasuredText("", "A river that is long.", "Name a river.", ended=True)
    cut_off = MeasuredText("", answer.text, answer.prompt, ended=False)
    plain = MeasuredText("", answer.text)
    assert len({text.key for text in (answer, cut_off, plain)}) == 3
    with load_model(path, n_ctx=256, trust=True) as model:
        tokens = model.tokenize(answer.text)
        context = model.prompt_tokens([{"role": "user", "content": "Name a river."}])
        assert answer.sequence(model, model) == ([*context, *tokens], len(tokens) + 1)
        assert cut_off.sequence(model, model) == ([*context, *tokens[:-1]], len(tokens))
        assert plain.sequence(model, model) == (tokens[:-1], len(tokens) - 1)
        sequence, n_positions = answer.sequence(model, model)
        figures, expected = (PositionFigures(settings, model.weights.n_vocab) for _ in range(2))
        for _, rows in read_rows(model, [(sequence, n_positions)]):
            for row in rows:
                figures.add(row, row)
        for i in range(n_positions):
            logits = model.logits([{"role": "user", "content": "Name a river."}], tokens[:i])
            expected.add(logits, logits)
        off = ~np.isclose(figures.sums, expected.sums, rtol=0.02, atol=0.05)  # llama.cpp's batches differ
        assert off.any(axis=1).sum() <= 2  # of 127 settings: a candidate at a cut is kept or not
        greedy = [setting.curve for setting in settings].index("greedy")
        assert figures.sums[greedy, FIGURES.index("k")] == n_positions


def test_a_padded_vocabulary_is_taken(tiny_path: Path, tiny: Callable[..., Path]) -> None:
    with (
        load_model(str(tiny_path), trust=True, n_ctx=64) as model,
        load_model(str(tiny("padded.gguf", padding=3)), trust=True, n_ctx=64) as padded,
    ):
        n = model.weights.n_vocab
        assert padded.weights.n_vocab == n + 3
        assert common_vocabulary(model.weights, padded.weights) == n
        assert common_vocabulary(padded.weights, model.weights) == n


@pytest.mark.parametrize(
    ("options", "text", "named", "status"),
    [
        ([], "", "--texts", 2),
        (["--texts", ".", "--text", "x"], "", "--texts", 2),
        (["--texts", "no-such-folder"], "", "no-such-folder", 2),
        (["--texts", "."], "", "mink-eval run", 1),
        (["--text", "no-such-file"], "", "no-such-file", 1),
        (["--text", "x", "--temp", "0"], "", "0", 2),
        (["--text", "x", "--temp", "nan"], "", "nan", 2),
        (["--text", "file.txt"], "\n \n\n", "file.txt", 1),
        (["--text", "file.txt"], "word " * 3000, "paragraph 1", 1),
        (["--text", "file.txt", "-t", 1, "-q"], "a", "two tokens", 1),
        (["--text", "file.txt", "-s", "top-k+xtc"], "a", "xtc", 2),
    ],
)
def test_what_is_refused(
    finished: Callable[..., Finished], options: list[object], text: str, named: str, status: int
) -> None:
    Path("file.txt").write_text(text)
    finished(*options).refused(status, named)


def test_another_model_or_text_in_a_folder_is_refused(
    frontier: Frontier, finished: Callable[..., Finished], tiny_path: Path, tmp_path: Path
) -> None:
    frontier("--temp", 1, "--limit", 1)
    Path("other.txt").write_text("Another text.")
    renamed = tmp_path / "other.gguf"  # the same model with another token
    renamed.write_bytes(tiny_path.read_bytes().replace("ĠParis".encode(), "ĠPariz".encode()))
    other = ["--reference", renamed]
    for options, named in (
        (["--text", "other.txt", "--out", "out"], "other"),
        (["--text", "text.txt", "--out", "out", *other], "other"),
        (["--text", "text.txt", "--out", "new", *other], "'ĠPariz'"),
    ):
        finished(*options).refused(1, named)
