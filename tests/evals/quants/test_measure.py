"""`mink-eval quants` on files that llama.cpp has quantized."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from llama_cpp import Llama
from scipy.special import log_softmax

from mink_local.errors import DataError
from mink_local.evals.quants.divergence import CandidateSets
from mink_local.evals.quants.measure import BUNDLED, chunks_of, file_facts, measure_chunk
from mink_local.generation.loading import load_model
from mink_local.models.gguf import read_metadata
from mink_local.samplers import MinK
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished
from tests.support.quantize import quantize
from tests.support.tiny import Shape, write_model

Quants = Callable[..., Finished]
CHUNK = 64


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> dict[str, Path]:
    """A model with random weights, 256 wide, and its quantizations."""
    folder = tmp_path_factory.mktemp("quants")
    shape = Shape(width=256, feed_forward=256, heads=4, heads_kv=4, head_width=64, layers=2)
    base = write_model(folder / "base.gguf", smollm2_path, shape=shape, scale=0.2)
    types = ("Q8_0", "Q4_K_M", "Q2_K")
    return {"base": base} | {name: quantize(base, folder / f"{name}.gguf", name) for name in types}


@pytest.fixture
def quants(mink_eval: MinkEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quants:
    """`quants(*arguments)` runs the command on 2 chunks of 64 tokens."""
    monkeypatch.chdir(tmp_path)
    return partial(
        mink_eval, "quants", "--chunk", CHUNK, "--positions", 62, "--threads", 1, "--out", "out", "-q"
    )


def found_in(folder: Path) -> Any:
    return json.loads((folder / "quants.json").read_text())


def test_more_bits_lose_less(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    done = quants(*files.values())
    assert done.status == 0, done.stderr
    found = found_in(tmp_path / "out")
    losses = {one["file"]: one["kld_mean"] for one in found["files"]}
    assert 0 < losses["Q8_0"] < losses["Q4_K_M"] < losses["Q2_K"]
    assert found["self_noise"]["kld_mean"] < losses["Q8_0"]
    for one in found["files"]:
        assert one["positions"] == 62
        assert one["kld_mean_low"] <= one["kld_mean"] <= one["kld_mean_high"]
        assert one["kld_median"] <= one["kld_90"] <= one["kld_99"] <= one["kld_max"]
        assert min(one["same_top"], *one["set_same"].values()) >= 0
        assert max(one["same_top"], *one["set_same"].values()) <= 1
        assert min(one["tokens_per_s"], one["prompt_tokens_per_s"]) > 0
        assert one["bytes"] == files[one["file"]].stat().st_size
    table = pd.read_csv(tmp_path / "out" / "quants.csv")
    assert list(table["file"]) == list(files)
    page = (tmp_path / "out" / "quants.html").read_text()
    assert page.count("<img") == 2
    assert str(tmp_path) not in page + (tmp_path / "out" / "quants.json").read_text()


def test_the_figures_are_those_of_a_plain_computation(files: dict[str, Path]) -> None:
    """Beside llama-cpp-python's own logits of whole chunks, and float64 sums over them."""
    with load_model(str(files["base"]), trust=True, n_ctx=64) as base:
        [tokens, *_] = chunks_of(base, BUNDLED.read_text(encoding="utf-8"), CHUNK)
        with load_model(str(files["Q2_K"]), trust=True, n_ctx=64) as other:
            sets = CandidateSets([MinK()], base.weights.n_vocab)
            with base.rows(CHUNK + 16, 1, 128) as a, other.rows(CHUNK + 16, 1, 128) as b:
                row = measure_chunk("Q2_K", 0, tokens, base, [a, b], sets)
    log_probabilities = []
    for name in ("base", "Q2_K"):
        llama = Llama(str(files[name]), n_ctx=CHUNK, logits_all=True, verbose=False)
        llama.eval(tokens[:-1])
        scores = np.array(llama.scores[CHUNK // 2 : CHUNK - 1], np.float64)
        log_probabilities.append(log_softmax(scores, axis=1))
        llama.close()
    log_p, log_q = log_probabilities
    following = tokens[CHUNK // 2 + 1 :]
    steps = range(len(following))
    assert len(row.divergence.kld) == CHUNK - 1 - CHUNK // 2
    expected = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    # llama.cpp's batches differ, and with them the last bits of quantized products.
    assert np.mean(row.divergence.kld) == pytest.approx(expected.mean(), rel=0.02)
    assert row.divergence.kld == pytest.approx(expected.tolist(), rel=0.15, abs=0.01)
    assert row.divergence.base_logprob == pytest.approx(log_p[steps, following].tolist(), abs=0.1)
    assert row.divergence.logprob == pytest.approx(log_q[steps, following].tolist(), abs=0.1)


def test_a_file_and_itself_in_the_same_batches_do_not_differ(files: dict[str, Path]) -> None:
    with (
        load_model(str(files["Q2_K"]), trust=True, n_ctx=64) as one,
        load_model(str(files["Q2_K"]), trust=True, n_ctx=64) as same,
        one.rows(CHUNK + 16, 1, 128) as a,
        same.rows(CHUNK + 16, 1, 128) as b,
    ):
        tokens = chunks_of(one, BUNDLED.read_text(encoding="utf-8"), CHUNK)[1]
        row = measure_chunk("", 1, tokens, one, [a, b], CandidateSets([MinK()], one.weights.n_vocab))
    assert set(row.divergence.kld) == {0.0}
    assert set(row.divergence.same_set[str(MinK())]) == {1}


def test_only_what_is_added_is_measured(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    rows = tmp_path / "out" / "rows.jsonl"
    base, q8, q4, _ = files.values()
    assert quants(base, q8).status == 0
    first = rows.read_bytes()
    assert quants(base, q8, q4, "--positions", 93).status == 0
    assert rows.read_bytes().startswith(first)
    assert rows.read_bytes().count(b"\n") == 9
    rows.write_bytes(rows.read_bytes()[:-20])  # as a kill leaves it
    assert quants(base, q8, q4, "--positions", 93).status == 0
    assert {one["positions"] for one in found_in(tmp_path / "out")["files"]} == {93}
    refused = quants(q8, base)
    assert (refused.status, "base" in refused.stderr) == (1, True)


def test_a_limit_that_is_exceeded_is_status_1(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    command = [files["base"], files["Q2_K"], "--fail-above"]
    assert quants(*command, "kld_mean=100").status == 0
    failed = quants(*command, "kld_mean=1e-9")
    assert failed.status == 1
    assert "Q2_K" in failed.stderr
    assert "kld_mean" in failed.stderr
    assert (tmp_path / "out" / "quants.md").exists()
    assert quants(*command, "kld=1").status == 2


def test_files_of_one_name_are_told_apart_by_their_folder(
    quants: Quants, files: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("base", "Q8_0"):
        (tmp_path / name).mkdir()
        shutil.copy(files[name], tmp_path / name / "model.gguf")
    assert quants("base/model.gguf", "Q8_0/model.gguf").status == 0
    found = found_in(tmp_path / "out")
    assert (found["base"]["file"], found["files"][0]["file"]) == ("model", "Q8_0/model")
    assert quants("base/model.gguf", "base/model.gguf").status == 2


def test_another_vocabulary_is_refused(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(files["Q2_K"].read_bytes().replace("ĠParis".encode(), "ĠPariz".encode()))
    refused = quants(files["base"], other)
    assert refused.status == 1
    assert "ĠPariz" in refused.stderr


def test_a_task_says_which_questions_flip(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    done = quants(files["base"], files["Q2_K"], "--task", "sample-choice", "--limit", 2)
    assert done.status == 0, done.stderr
    assert "sample-choice" in (tmp_path / "out" / "quants.md").read_text()
    assert (tmp_path / "out" / "run" / "report" / "report.html").exists()
    assert "run/report/report.html" in (tmp_path / "out" / "quants.html").read_text()


def test_a_text_that_is_too_short_is_refused(files: dict[str, Path]) -> None:
    with load_model(str(files["base"]), trust=True, n_ctx=64) as model, pytest.raises(DataError):
        chunks_of(model, "Too short.", CHUNK)


def test_tensors_that_fell_back_are_counted(
    files: dict[str, Path], smollm2_path: Path, tmp_path: Path
) -> None:
    """SmolLM2's rows of 576 numbers are no multiple of 256."""
    assert file_facts(read_metadata(files["Q2_K"]))["fell_back"] == 0
    narrow = file_facts(read_metadata(quantize(smollm2_path, tmp_path / "narrow.gguf", "Q2_K")))
    assert 0 < narrow["fell_back"] < narrow["tensors"]
    assert narrow["nominal_type"] == "Q2_K"
