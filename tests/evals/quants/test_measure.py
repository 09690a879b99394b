"""`mink-eval quants` on files that llama.cpp has quantized, and the figures of a position."""

import json
import math
import shutil
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

from mink_local.errors import DataError, GenerationError
from mink_local.evals.quants import measure
from mink_local.evals.quants.divergence import CandidateSets, Divergence, compare, most_probable
from mink_local.evals.quants.measure import BUNDLED, chunks_of, chunks_to_hold, evaluate, file_facts
from mink_local.evals.quants.report import verdict
from mink_local.evals.stats import Interval
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.llama.weights import Weights
from mink_local.models.gguf import read_metadata
from mink_local.models.memory import Budget, choose_placement
from mink_local.samplers import MinK, MinP, TopP
from tests.support.made_run import change
from tests.support.mink_eval import MINK_EVAL, MinkEval
from tests.support.python import Finished, output_of
from tests.support.rpc import RpcServer
from tests.support.tiny import Shape, write_model

Quants = Callable[..., Finished]
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
    quants(*files.values()).succeeded()
    found = found_in(tmp_path / "out")
    losses = {one["file"]: one["kld_mean"] for one in found["files"]}
    assert 0 < losses["Q8_0"] < losses["Q4_K_M"] < losses["Q2_K"]
    assert found["self_noise"]["kld_mean"] < losses["Q8_0"]
    for one in found["files"]:
        assert one["positions"] == POSITIONS
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


def divergence(base: Model, file: Model, tokens: list[int]) -> Divergence:
    """The figures of one chunk."""

    def evaluated(model: Model) -> NDArray[np.float32]:
        model.reserve(CHUNK + 32, 1, 128)
        return evaluate(model, tokens).rows

    sets = CandidateSets([MinK()], base.weights.n_vocab)
    return compare(evaluated(base), evaluated(file), tokens, sets)


def test_the_figures_are_those_of_a_plain_computation(files: dict[str, Path]) -> None:
    """Beside llama-cpp-python's own logits of whole chunks, and float64 sums over them."""
    with load_model(str(files["base"]), trust=True, n_ctx=64) as base:
        [tokens, *_] = chunks_of(base.weights, BUNDLED.read_text(encoding="utf-8"), CHUNK)
        with load_model(str(files["Q2_K"]), trust=True, n_ctx=64) as other:
            found = divergence(base, other, tokens)
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
    assert np.mean(found.kld) == pytest.approx(expected.mean(), rel=0.02)
    assert found.kld == pytest.approx(expected.tolist(), rel=0.15, abs=0.01)
    assert found.base_logprob == pytest.approx(log_p[steps, following].tolist(), abs=0.1)
    assert found.logprob == pytest.approx(log_q[steps, following].tolist(), abs=0.1)


def test_a_file_and_itself_in_the_same_batches_do_not_differ(files: dict[str, Path]) -> None:
    with (
        load_model(str(files["Q2_K"]), trust=True, n_ctx=64) as one,
        load_model(str(files["Q2_K"]), trust=True, n_ctx=64) as same,
    ):
        tokens = chunks_of(one.weights, BUNDLED.read_text(encoding="utf-8"), CHUNK)[1]
        found = divergence(one, same, tokens)
    assert set(found.kld) == {0.0}
    assert set(found.same_set[str(MinK())]) == {1}


@pytest.mark.slow
def test_only_what_is_added_is_measured(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    rows = tmp_path / "out" / "rows.jsonl"
    base, q8, q4, _ = files.values()
    assert quants(base, q8).status == 0
    first = rows.read_bytes()
    assert quants(base, q8, q4, "--positions", 45).status == 0
    assert rows.read_bytes().startswith(first)
    assert rows.read_bytes().count(b"\n") == 9
    assert {one["positions"] for one in found_in(tmp_path / "out")["files"]} == {45}
    quants(q8, base).refused(1, "base")


@pytest.mark.slow
def test_types_of_the_kv_cache_are_compared(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    """In any order of the arguments; the same type loses no more than another batch split does."""
    quants(files["base"], "--kv-type", "f16", "q8_0", "q4_0").succeeded()
    found = found_in(tmp_path / "out")
    losses = [one["kld_mean"] for one in found["files"]]
    assert [one["file"] for one in found["files"]] == ["base with q8_0 KV", "base with q4_0 KV"]
    assert found["self_noise"]["kld_mean"] < losses[0] < losses[1]
    quants("--kv-type", "f16", "q4_0", files["base"], files["Q2_K"]).succeeded()
    added = {one["file"]: one["kld_mean"] for one in found_in(tmp_path / "out")["files"]}
    assert added.keys() == {"base with q8_0 KV", "base with q4_0 KV", "Q2_K"}
    assert added["base with q4_0 KV"] == losses[1]
    quants(files["base"], "--kv-type", "q8_0", "q4_0").refused(1, "kv_type")
    quants(files["base"], "--kv-type", "q8_0").refused(2, "--kv-type")
    quants(files["base"], "--kv-type", "q9").refused(2, "q9")


def test_a_limit_that_is_exceeded_is_status_1(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    command = [files["base"], files["Q2_K"], "--fail-above"]
    assert quants(*command, "kld_mean=100").status == 0
    quants(*command, "kld_mean=1e-9").refused(1, "Q2_K", "kld_mean")
    assert (tmp_path / "out" / "quants.md").exists()
    below = [*command[:2], "--fail-below"]
    assert quants(*below, "same_top=0").status == 0
    quants(*below, "same_top=1.1", "--fail-above", "kld_mean=1e-9").refused(1, "same_top", "kld_mean")
    for wrong in ("kld=1", "kld_mean=nan", "kld_mean"):
        quants(*command, wrong).refused(2, "--fail-above")
    quants(files["base"], files["base"]).refused(2)


@pytest.mark.slow
def test_a_task_says_which_questions_flip(
    quants: Quants, files: dict[str, Path], tmp_path: Path, mink_eval: MinkEval
) -> None:
    quants(files["base"], files["Q2_K"], "--task", "sample-choice", "--limit", 2).succeeded()
    run = tmp_path / "out" / "run"
    assert "sample-choice" in (tmp_path / "out" / "quants.md").read_text()
    questions = (run / "questions.jsonl").read_text().splitlines()
    golds = {question["question_id"]: question["gold"] for question in map(json.loads, questions)}
    first = next(iter(golds))

    def flip(r: dict[str, Any]) -> None:
        letter = golds[r["question_id"]]
        if (r["model"], r["question_id"]) == ("Q2_K", first):
            letter = "B" if letter == "A" else "A"
        r.update(response=f"The answer is ({letter}).", finish_reason="stop")

    change(run, flip)
    assert mink_eval("report", tmp_path / "out").status == 0
    page = (tmp_path / "out" / "quants.html").read_text()
    flips = page[page.index("Questions that flip") :]
    assert "right → wrong" in flips
    assert "wrong → right" not in flips.partition("Answers")[2].partition("</table>")[0]
    assert json.loads(questions[0])["prompt"].split()[0] in flips
    assert 'id="responses"' in page


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
    figures = {"file": "Q4", "positions": 510, "kld_mean": Interval(0.1, 0.05, 0.15)}
    figures |= {
        "same_top": Interval(0.9, 0.8, 1.0),
        "ppl_ratio": Interval(*ratio),
        "above_noise": Interval(*above),
    }
    sentence = verdict(figures)
    assert said in sentence
    assert unsaid not in sentence


def test_a_text_that_is_too_short_is_refused(files: dict[str, Path]) -> None:
    vocabulary = Weights(files["base"], vocab_only=True)
    with pytest.raises(DataError):
        chunks_of(vocabulary, "Too short.", CHUNK)


def test_fewer_positions_than_are_wanted_are_said(
    quants: Quants, files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("One word follows another. " * 20)
    assert quants(files["base"], files["Q2_K"], "--text", text, "--positions", 999).status == 0
    n = found_in(tmp_path / "out")["files"][0]["positions"]
    assert f"{n} positions" in caplog.text
    assert "999" in caplog.text


@pytest.mark.slow
def test_two_files_that_do_not_fit_are_loaded_in_turns(
    quants: Quants,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The figures are the same to the last bit, and the report says how they were measured."""
    command = [files["base"], files["Q4_K_M"]]
    assert quants(*command).status == 0
    together = found_in(tmp_path / "out")
    monkeypatch.setattr(measure, "memory_budget", lambda: Budget(ram=1))
    assert quants(*command, "--out", "turns").status == 0
    in_turns = found_in(tmp_path / "turns")
    assert "2 times" in caplog.text
    assert "in turns" in (tmp_path / "turns" / "quants.md").read_text()
    for one, other in zip(together["files"], in_turns["files"], strict=True):
        for figure in ("kld_mean", "kld_max", "same_top", "ppl", "set_same"):
            assert one[figure] == other[figure]


def test_as_many_chunks_are_held_as_memory_has_room_for(files: dict[str, Path]) -> None:
    base, other = (read_metadata(files[name]) for name in ("base", "Q4_K_M"))

    def held(ram: int, vram: int = 0) -> int | None:
        budget = Budget(ram, vram)
        return chunks_to_hold(base, other, budget, n_bytes=10**6, n_ctx=80, n_gpu_layers="auto")

    enough = next(ram for ram in range(10**7, 10**10, 10**6) if held(ram) is None)
    fewer, one = held(enough - 10**6), held(10**7)
    assert fewer is not None
    assert one is not None
    assert fewer > one == 1
    roomy = choose_placement(base, Budget(10**10, 10**10), n_ctx=80)
    assert held(enough, vram=10**10) is None
    assert (
        held(enough, vram=roomy.need.gpu.total) is not None
    )  # beside the base it would have no layers there


@pytest.mark.slow
def test_a_file_of_another_programs_store(
    quants: Quants, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}"}
    manifest = tmp_path / "ollama/manifests/registry.ollama.ai/library/parrot/latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [weights]}))
    (tmp_path / "ollama/blobs").mkdir()
    shutil.copy(files["Q8_0"], tmp_path / "ollama/blobs" / f"sha256-{'a' * 64}")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    quants(files["base"], "ollama:parrot").succeeded()
    assert found_in(tmp_path / "out")["files"][0]["kld_mean"] > 0


@pytest.mark.slow
def test_layers_on_another_machine(quants: Quants, files: dict[str, Path], tmp_path: Path) -> None:
    """Its server changes the last bits of the sums, and no more."""
    with RpcServer() as server:
        command = ["--rpc", server.address, "--gpu-layers", -1, "--out", str(tmp_path / "out")]
        command += ["--chunk", CHUNK, "--positions", POSITIONS, "--threads", 1]
        output_of(*MINK_EVAL[1:], "quants", files["base"], files["Q2_K"], *command)
    assert quants(files["base"], files["Q2_K"], "--out", "here").status == 0
    found, here = (found_in(tmp_path / name)["files"][0]["kld_mean"] for name in ("out", "here"))
    assert found == pytest.approx(here, rel=0.05)


def test_tensors_that_fell_back_are_counted(
    files: dict[str, Path], smollm2_path: Path, tmp_path: Path
) -> None:
    """SmolLM2's rows of 576 numbers are no multiple of 256."""

    def fell_back(file: Path) -> dict[str, int]:
        return {row["type"]: row["fell_back"] for row in file_facts(read_metadata(file))["types"]}

    assert set(fell_back(files["Q2_K"]).values()) == {0}
    narrow = fell_back(quantize(smollm2_path, tmp_path / "narrow.gguf", "Q2_K"))
    assert narrow["F32"] == narrow["Q3_K"] == 0 < narrow["Q4_0"]


# Figures of a position against plain float64 sums


SAMPLERS = (MinK(), MinP(), TopP())
N = 40

rows = arrays(np.float32, N, elements=st.floats(-60, 60, width=32))


@given(rows, rows, st.integers(0, N - 1))
def test_a_position_is_that_of_the_definitions(
    base: NDArray[np.float32], file: NDArray[np.float32], token: int
) -> None:
    found = Divergence()
    found.add(base, file, token, CandidateSets(SAMPLERS, N))
    log_p, log_q = (log_softmax(row.astype(np.float64)) for row in (base, file))
    assert found.kld == [pytest.approx(entropy(np.exp(log_p), np.exp(log_q)), rel=1e-9, abs=1e-12)]
    assert found.base_logprob == [pytest.approx(log_p[token], rel=1e-12, abs=1e-12)]
    assert found.logprob == [pytest.approx(log_q[token], rel=1e-12, abs=1e-12)]
    assert found.same_top == [base.argmax() == file.argmax()]
    for sampler in SAMPLERS:
        kept = [set(sampler.candidates(row)[0].tolist()) for row in (base, file)]
        assert found.same_set[str(sampler)] == [kept[0] == kept[1]]
        assert found.k_is_1[str(sampler)] == [(len(kept[0]) == 1, len(kept[1]) == 1)]
    (best, p), *_ = most_probable(base, 3)
    assert math.isclose(p, np.exp(log_p).max(), rel_tol=1e-12)
    assert log_p[best] == log_p.max()  # logits that differ by less have equal probabilities


def test_equal_rows_have_no_divergence_and_padding_is_ignored() -> None:
    rng = np.random.default_rng(0)
    found = Divergence()
    row = rng.normal(size=N).astype(np.float32)
    padded = np.concatenate([row, np.full(5, 99, np.float32)])
    found.add(row, padded, 3, CandidateSets(SAMPLERS, N))
    assert (found.kld, found.same_top) == ([0.0], [1])


def test_banned_tokens_are_finite_and_a_nan_is_refused() -> None:
    base, file = np.zeros((2, N), np.float32)
    base[1] = -np.inf
    found, sets = Divergence(), CandidateSets(SAMPLERS, N)
    found.add(base, file, 0, sets)
    assert found.kld == [pytest.approx(math.log(N / (N - 1)))]
    file[2] = np.nan
    with pytest.raises(GenerationError):
        found.add(base, file, 0, sets)
