"""`mink-eval quants` on files that llama.cpp has quantized, and the figures of a position."""

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from llama_cpp import Llama
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from scipy.special import log_softmax
from scipy.stats import entropy

from mink_local.evals.quants import measure
from mink_local.evals.quants.divergence import (
    MOST,
    SAMPLED,
    Divergence,
    compare,
    position_of,
)
from mink_local.evals.quants.measure import KINDS, chunks_of, n_scored, text_files
from mink_local.evals.quants.report import verdict
from mink_local.evals.stats import Interval
from mink_local.evals.tables import columns_of
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model, read_rows
from mink_local.llama.weights import Weights
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished
from tests.support.tiny import Shape, write_model

Quants = Callable[..., Finished]
Rows = NDArray[np.float32]
CHUNK, POSITIONS = 32, 30  # of two chunks


def quantize(source: Path, target: Path, file_type: str) -> Path:
    """Write a GGUF file in another type, such as "Q8_0", to `target`."""
    params = C.llama_model_quantize_default_params()
    params.ftype = getattr(C, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    params.allow_requantize = True
    assert C.llama_model_quantize(str(source).encode(), str(target).encode(), params) == 0
    return target


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
    """`quants(*arguments)` runs the command on 2 chunks of 32 tokens."""
    monkeypatch.chdir(tmp_path)
    return partial(
        mink_eval, "quants", "--chunk", CHUNK, "--positions", POSITIONS, "--threads", 1, "--out", "out", "-q"
    )


def found_in(folder: Path) -> Any:
    return json.loads((folder / "quants.json").read_text())


@pytest.mark.slow
def test_more_bits_lose_less(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    """And the files are sorted by what they lose, whatever their order in the command."""
    base, *others = files.values()
    quants(base, *reversed(others), "--positions", 150).succeeded()
    found = found_in(tmp_path / "out")
    assert [one["file"] for one in found["files"]] == list(files)[1:]
    losses = {one["file"]: one["kld_mean"] for one in found["files"]}
    assert 0 < losses["Q8_0"] < losses["Q4_K_M"] < losses["Q2_K"]
    assert found["self_noise"]["kld_mean"] < losses["Q8_0"]
    for one in found["files"]:
        assert one["positions"] == 150
        assert one["kld_mean_low"] <= one["kld_mean"] <= one["kld_mean_high"]
        assert one["kld_median"] <= one["kld_90"] <= one["kld_95"] <= one["kld_99"]
        assert one["kld_99"] <= one["kld_99_9"] <= one["kld_max"]
        assert one["kld_99_9_low"] <= one["kld_99_9"] <= one["kld_99_9_high"]
        assert 0 <= one["same_top"] <= 1
        assert one["bytes"] == files[one["file"]].stat().st_size
    kinds = pd.DataFrame(found["kinds"])
    assert set(kinds["kind"]) == set(KINDS)
    for name, loss in losses.items():
        own = kinds[kinds["file"] == name]
        assert np.average(own["kld_mean"], weights=own["positions"]) == pytest.approx(loss)
    assert list(pd.read_csv(tmp_path / "out" / "quants.csv")["file"]) == list(files)
    page = (tmp_path / "out" / "quants.html").read_text()
    assert str(tmp_path) not in page + (tmp_path / "out" / "quants.json").read_text()
    card = (tmp_path / "out" / "quants-card.md").read_text()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    for file in (manifest["base"], *manifest["files"].values()):
        assert file["sha256"] in card
    assert "mink-eval quants ./base.gguf ./Q2_K.gguf" in card


@pytest.mark.slow
def test_a_folder_stands_for_its_models(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    """The largest is the base, unless another one is given; other files are no models."""
    folder = files["base"].parent
    shutil.copytree(folder, tmp_path / "models")
    (tmp_path / "models" / "readme.txt").write_text("Hello")
    quants(tmp_path / "models").succeeded()
    assert found_in(tmp_path / "out")["base"] == "base"
    assert [one["file"] for one in found_in(tmp_path / "out")["files"]] == ["Q8_0", "Q4_K_M", "Q2_K"]
    assert "itself" not in (tmp_path / "out" / "quants.md").read_text()
    quants(tmp_path / "models" / "Q4_K_M.gguf", tmp_path / "models", "--out", "other").succeeded()
    assert found_in(tmp_path / "other")["base"] == "Q4_K_M"
    first, *_ = (tmp_path / "other" / "quants.md").read_text().splitlines()
    assert "itself a quantization (Q4\\_K\\_M)" in first
    (tmp_path / "none").mkdir()
    quants(tmp_path / "none").refused(2, "no models")


def second_half(path: Path, size: int, n_outputs: int = 128, **options: Any) -> tuple[list[int], Rows]:
    """Return a chunk of `size` tokens, and a model's rows of its second half."""
    with load_model(str(path), trust=True, n_ctx=128, n_threads=1, **options) as model:
        [chunk, *_] = chunks_of(text_files(None), model.weights, size, 60)
        model.reserve(size + 1, 1, n_outputs)
        [(_, found)] = read_rows(model, [(chunk.tokens[:-1], n_scored(size))])
        return chunk.tokens, found


def figures(base: NDArray[np.float32], file: NDArray[np.float32], tokens: list[int]) -> Divergence:
    follows = tokens[-len(base) :]
    return compare(list(map(position_of, base, follows)), file, follows, base.shape[1])


def test_the_figures_are_those_of_a_plain_computation(files: dict[str, Path]) -> None:
    """Beside llama-cpp-python's own logits of whole chunks, and float64 sums over them."""
    (tokens, base), (_, file) = (second_half(files[name], CHUNK) for name in ("base", "Q2_K"))
    found = figures(base, file, tokens)
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
    assert len(found.kld) == CHUNK - 1 - CHUNK // 2
    expected = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    # llama.cpp's batches differ, and with them the last bits of quantized products.
    assert np.mean(found.kld) == pytest.approx(expected.mean(), rel=0.03)
    assert found.kld == pytest.approx(expected.tolist(), rel=0.2, abs=0.02)
    assert found.base_logprob == pytest.approx(log_p[steps, following].tolist(), abs=0.1)
    assert found.logprob == pytest.approx(log_q[steps, following].tolist(), abs=0.1)


def test_what_is_kept_is_exact_to_a_tenth_of_the_self_noise(smollm2_path: Path) -> None:
    tokens, base = second_half(smollm2_path, 96)
    _, again = second_half(smollm2_path, 96, n_outputs=5)
    _, smaller = second_half(smollm2_path, 96, kv_type="q4_0")
    p, *others = (np.exp(log_softmax(one.astype(np.float64), 1)) for one in (base, again, smaller))
    exact = [np.mean(entropy(p, q, axis=1)) for q in others]
    kept = [np.mean(figures(base, other, tokens).kld) for other in (again, smaller)]
    assert kept == pytest.approx(exact, abs=0.1 * exact[0])
    itself = figures(base, base, tokens)
    assert max(itself.kld) < 1e-4
    assert set(itself.same_top) == {1}
    assert exact[0] < exact[1]


@pytest.mark.slow
def test_only_what_is_added_is_measured(
    quants: Quants, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file is read against what is kept of the base, which is not loaded again."""
    rows = tmp_path / "out" / "rows.jsonl"
    base, q8, q4, q2 = files.values()
    assert quants(base, q8).status == 0
    first = rows.read_bytes()
    loaded = []

    def load(path: str, **options: Any) -> Model:
        loaded.append(Path(path).stem)
        return load_model(path, **options)

    monkeypatch.setattr(measure, "load_model", load)
    assert quants(base, q8, q4).status == 0
    assert loaded == ["Q4_K_M"]
    assert quants(base, q8, q4, "--positions", 45).status == 0
    assert loaded[1:] == ["base", "base", "Q8_0", "Q4_K_M"]
    assert rows.read_bytes().startswith(first)
    assert rows.read_bytes().count(b"\n") == 9
    assert {one["positions"] for one in found_in(tmp_path / "out")["files"]} == {45}
    quants(q8, base).refused(1, "base")
    [kept, *_] = sorted((tmp_path / "out" / "base").iterdir())
    kept.write_bytes(kept.read_bytes()[:-3])
    del loaded[:]
    quants(base, q2).succeeded()
    assert loaded == ["base", "Q2_K"]  # what is damaged is kept again


@pytest.mark.slow
def test_the_time_left_counts_the_base(
    quants: Quants, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is evaluated first, before there is a row: here 2 chunks of 6."""
    left: list[float | None] = []

    def keep_base(self: measure.Quants, *arguments: Any) -> None:
        keep(self, *arguments)
        left.append(self.seconds_left(0, 4, 6.0))

    keep = measure.Quants._keep_base
    monkeypatch.setattr(measure.Quants, "_keep_base", keep_base)
    quants(files["base"], files["Q8_0"]).succeeded()
    assert left == [pytest.approx(6 / 2 * 4)]


def test_the_tokens_of_a_chunk_are_counted_as_they_are_evaluated() -> None:
    """Those that are not scored come with the first that is; a long chunk need not be complete."""
    counting = measure.Quants.__new__(measure.Quants)
    counting._n_evaluated = 0.0
    seen = [counting._n_evaluated for _ in counting._counted([np.zeros(1, np.float32)] * 3, 10, 3)]
    assert [*seen, counting._n_evaluated] == pytest.approx([0, 0.8, 0.9, 1])


def kv_types(*names: str) -> list[str]:
    return [word for name in names for word in ("--kv-type", name)]


@pytest.mark.slow
def test_types_of_the_kv_cache_are_compared(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    """In any order of the arguments; the same type loses no more than another batch split does."""
    quants(files["base"], *kv_types("f16", "q8_0", "q4_0")).succeeded()
    found = found_in(tmp_path / "out")
    losses = [one["kld_mean"] for one in found["files"]]
    assert [one["file"] for one in found["files"]] == ["base with q8_0 KV", "base with q4_0 KV"]
    assert found["self_noise"]["kld_mean"] < losses[0] < losses[1]
    quants(*kv_types("f16", "q4_0"), files["base"], files["Q2_K"]).succeeded()
    added = {one["file"]: one["kld_mean"] for one in found_in(tmp_path / "out")["files"]}
    assert added.keys() == {"base with q8_0 KV", "base with q4_0 KV", "Q2_K"}
    assert added["base with q4_0 KV"] == losses[1]
    quants(files["base"], *kv_types("q8_0", "q4_0")).refused(1, "kv_type")
    quants(files["base"], "--kv-type", "q8_0").refused(2, "--kv-type")
    quants(files["base"], "--kv-type", "q9").refused(2, "q9")


def test_a_copy_of_the_base_is_a_file_like_any_other(
    quants: Quants, files: dict[str, Path], tmp_path: Path
) -> None:
    """And the card's command runs where the files lie."""
    for name in ("base", "copy"):
        (tmp_path / f"{name}.gguf").write_bytes(files["base"].read_bytes())
    quants(tmp_path / "base.gguf", tmp_path / "copy.gguf", "--kv-type", "f16").succeeded()
    card = (tmp_path / "out" / "quants-card.md").read_text()
    command = re.search(r"^mink-eval quants (\./base.gguf \./copy.gguf) ", card, re.MULTILINE)
    assert command
    assert all(Path(name).exists() for name in command[1].split())


def test_a_limit_that_is_exceeded_is_status_1(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    command = [files["base"], files["Q2_K"], "--fail-above"]
    assert quants(*command, "kld_mean=100").status == 0
    quants(*command, "kld_mean=1e-9").refused(1, "Q2_K", "kld_mean")
    assert (tmp_path / "out" / "quants.md").exists()
    below = [*command[:2], "--fail-below"]
    assert quants(*below, "same_top=0").status == 0
    quants(*below, "same_top=1.1", "--fail-above", "kld_mean=1e-9").refused(1, "same_top", "kld_mean")
    quants(files["base"], files["Q8_0"], "--fail-above", "kld_mean=1e-9").refused(1, "Q8_0")
    quants(*command, "bits_per_weight=8").succeeded()  # Q8_0, which has more, is of an earlier command
    for wrong in ("kld=1", "kld_mean=nan", "kld_mean"):
        quants(*command, wrong).refused(2, "--fail-above")
    quants(files["base"], files["base"]).refused(2)


@pytest.mark.parametrize(
    ("above", "ratio", "said", "unsaid"),
    [
        ((-0.001, -0.002, 0.0), (1.1, 1.05, 1.15), "within twice", "perplexity"),
        ((-0.001, -0.002, 0.001), (1.1, 1.05, 1.15), "not distinguishable", "within"),
        ((0.001, 0.0, 0.002), (1.1, 1.05, 1.15), "not distinguishable", "perplexity"),
        ((0.002, 0.001, 0.003), (1.1, 1.05, 1.15), "+10.0% (+5.0 to +15.0)", "self-noise"),
        ((0.002, 0.001, 0.003), (1.1, 0.95, 1.25), "unclear (−5.0 to +25.0%)", "+10.0"),
    ],
)
def test_a_verdict_says_no_more_than_its_intervals(
    above: tuple[float, ...], ratio: tuple[float, ...], said: str, unsaid: str
) -> None:
    intervals = {"kld_mean": (0.1, 0.05, 0.15), "ppl_ratio": ratio, "above_noise": above}
    figures = {"file": "Q4", "positions": 510, "chunks": 8, "same_top": 0.9}
    for name, interval in intervals.items():
        figures |= columns_of(Interval(*interval), name)
    sentence = verdict(figures)
    assert said in sentence
    assert unsaid not in sentence
    assert "no verdict" in verdict(figures | {"chunks": 7})


def test_bundled_texts_fill_eight_chunks_of_each_kind(smollm2_path: Path) -> None:
    chunks = chunks_of(text_files(None), Weights(smollm2_path, vocab_only=True), 256, None)
    assert Counter(chunk.kind for chunk in chunks) == dict.fromkeys(KINDS, 8)
    assert {len(chunk.tokens) for chunk in chunks} == {256}


def test_fewer_positions_than_are_wanted_are_said(
    quants: Quants, files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And too few are none, which locks nothing."""
    text = tmp_path / "text.txt"
    text.write_text("Too short.")
    quants(files["base"], files["Q2_K"], "--text", text).refused(1, "--text")
    text.write_text("One word follows another. " * 20)
    assert quants(files["base"], files["Q2_K"], "--text", text, "--positions", 999).status == 0
    n = found_in(tmp_path / "out")["files"][0]["positions"]
    assert f"{n} positions" in caplog.text
    assert "999" in caplog.text


# Figures of a position against plain float64 sums


N = 40

rows = arrays(np.float32, N, elements=st.floats(-60, 60, width=32))


@given(rows, rows, st.integers(0, N - 1))
def test_a_position_is_that_of_the_definitions(
    base: NDArray[np.float32], file: NDArray[np.float32], token: int
) -> None:
    """Of the common tokens: padding is ignored."""
    padded = np.append(file, np.float32(99))
    found = compare([position_of(base, token)], [padded], [token], N)
    log_p, log_q = (log_softmax(row.astype(np.float64)) for row in (base, file))
    assert found.kld == [pytest.approx(entropy(np.exp(log_p), np.exp(log_q)), rel=0.01, abs=0.05)]
    assert found.base_logprob == [pytest.approx(log_p[token], rel=1e-5, abs=1e-5)]
    assert found.logprob == [pytest.approx(log_q[token], rel=1e-5, abs=1e-5)]
    assert found.same_top == [base.argmax() == file.argmax()]


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 10.0]))
def test_the_sample_stands_for_the_rest(seed: int, spread: float) -> None:
    """Of a vocabulary in which the most probable tokens are few of many."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0, spread, 20_000).astype(np.float32)
    file = (base + rng.normal(0, 0.3, 20_000)).astype(np.float32)
    kept = position_of(base, 0)
    log_p, log_q = (log_softmax(row.astype(np.float64)) for row in (base, file))
    assert len(kept.tokens) <= MOST + SAMPLED
    most = set(kept.tokens["id"][: kept.n_most].tolist())
    assert kept.rest == pytest.approx(1 - sum(np.exp(log_p[one]) for one in most), abs=1e-4)
    found = compare([kept], [file], [0], 20_000)
    assert found.kld == [pytest.approx(entropy(np.exp(log_p), np.exp(log_q)), abs=0.05)]


def test_banned_tokens_are_finite() -> None:
    base, file = np.zeros((2, N), np.float32)
    base[1] = -np.inf
    found = compare([position_of(base, 0)], [file], [0], N)
    assert found.kld == [pytest.approx(math.log(N / (N - 1)), abs=1e-3)]
