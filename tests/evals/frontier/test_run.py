"""`mink-eval frontier`, from texts to report, on small models."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mink_local import load_model
from mink_local.errors import ModelError
from mink_local.evals.frontier.measure import TextSums, TwoModels, common_vocabulary
from mink_local.evals.frontier.settings import default_settings
from mink_local.evals.frontier.sums import FIGURES, PositionFigures
from mink_local.evals.frontier.texts import MeasuredText, messages
from tests.support.mink_eval import MinkEval

PROMPTS = ["Name a river.", '{"instruction": "Tell me a story."}', "", "What is 2 + 2?"]
FEW = ["--temp", 5, "--max-tokens", 6, "--threads", 1]


@pytest.fixture
def asked(tiny_path: Path, tmp_path: Path) -> list[object]:
    """A measurement of three short answers."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS))
    models = ["--model", tiny_path, "--reference", tiny_path]
    return [*models, "--prompts", prompts, *FEW, "--out", tmp_path / "out"]


@pytest.mark.slow
def test_a_measurement_that_was_killed_goes_on(
    mink_eval: MinkEval, asked: list[object], tmp_path: Path
) -> None:
    assert mink_eval("frontier", *asked).status == 0
    out = tmp_path / "out"
    (sums,) = out.glob("sums-*.bin")
    texts = out / "texts.jsonl"
    whole, written = sums.read_bytes(), texts.read_bytes()
    found = json.loads((out / "frontier.json").read_text())
    assert found["n_texts"] == 3
    assert found["n_positions"] <= 3 * 7
    assert sorted(json.loads(line)["prompt"] for line in written.splitlines()[1:]) == sorted(
        ["Name a river.", "Tell me a story.", "What is 2 + 2?"]
    )
    sums.write_bytes(whole[: len(whole) // 2])  # one text and a half
    texts.write_bytes(written[:-5])
    (out / "frontier.json").unlink()
    finished = mink_eval("frontier", *asked)
    assert finished.status == 0
    assert "writing: 1 of 1 texts" in finished.stderr
    assert texts.read_bytes()[: len(written) - 5] == written[:-5]
    n = len(whole) // 3
    assert sums.read_bytes()[:n] == whole[:n]
    again = json.loads((out / "frontier.json").read_text())
    assert again["n_texts"] == 3
    assert again["seconds"]["measuring"] > found["seconds"]["measuring"]
    finished = mink_eval("frontier", *asked, "--noise", 3)  # nothing is left to measure
    assert finished.stderr == ""
    markdown = (out / "frontier.md").read_text()
    assert "+3.0 points" in markdown
    assert "At T = 5, Min-k's default has" in markdown
    assert "`mink-eval frontier --model" in markdown
    assert str(tmp_path) not in markdown + (out / "frontier.json").read_text()  # a report is shown to others
    assert (out / "frontier.svg").read_text().startswith("<?xml")
    rows = again["rows"]
    assert {row["sampler"] for row in rows if row["default"]} >= {
        "min-k:tau=3",
        "greedy",
        "llama-default:k=40,p=0.95,min_p=0.05",
    }
    for row in rows:
        value, low, high = row["entropy"]
        assert low <= value + 1e-6
        assert value <= high + 1e-6


@pytest.mark.slow
def test_other_settings_than_those_of_the_texts_are_refused(mink_eval: MinkEval, asked: list[object]) -> None:
    assert mink_eval("frontier", *asked, "--limit", 1).status == 0
    finished = mink_eval("frontier", *asked, "--limit", 1, "--seed", 4)
    assert finished.status == 1
    assert "seed was 0 and is 4" in finished.stderr


def test_the_positions_are_those_of_the_answer(tiny_path: Path) -> None:
    """Each is the row after the prompt and the answer's tokens before it, beside rows of single calls."""
    settings = default_settings([2.0])
    path = str(tiny_path)
    with (
        load_model(path, n_ctx=256, trust=True) as model,
        load_model(path, n_ctx=256, trust=True) as reference,
    ):
        tokens = model.tokenize("A river that is long.")
        text = MeasuredText(0, "Name a river.", tokens, ended=True, text="")
        ((_, sums),) = TwoModels(model, reference, settings).measure([text])
        figures = PositionFigures(settings, model.weights.n_vocab)
        for i in range(len(tokens) + 1):
            row = model.logits(messages("Name a river."), tokens[:i])
            figures.add(row, row)
        assert text.n_positions == len(tokens) + 1
        assert sums == pytest.approx(figures.sums, rel=0.02, abs=0.05)  # llama.cpp's batches differ
        unfinished = MeasuredText(0, "Name a river.", tokens, ended=False, text="")
        plain = MeasuredText(1, None, tokens, ended=False, text="")
        assert unfinished.n_positions == len(tokens)
        assert plain.n_positions == len(tokens) - 1
        k = FIGURES.index("k")
        greedy = [setting.curve for setting in settings].index("greedy")
        for _, sums in TwoModels(model, reference, settings).measure([unfinished, plain]):
            assert sums[greedy, k] in (len(tokens), len(tokens) - 1)


def test_vocabularies_are_compared_token_by_token(
    tiny_path: Path, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    """A reference whose vocabulary is padded is taken, one with another token is not."""
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_path.read_bytes().replace("ĠParis".encode(), "ĠPariz".encode()))
    with (
        load_model(str(tiny_path), trust=True, n_ctx=64) as model,
        load_model(str(tiny("padded.gguf", padding=3)), trust=True, n_ctx=64) as padded,
        load_model(str(other), trust=True, n_ctx=64) as differing,
    ):
        n = model.weights.n_vocab
        assert padded.weights.n_vocab == n + 3
        assert common_vocabulary(model, padded) == common_vocabulary(padded, model) == n
        with pytest.raises(ModelError, match="'ĠPariz' there and 'ĠParis' here"):
            common_vocabulary(model, differing)
        text = MeasuredText(0, None, model.tokenize("A river that is long."), ended=False, text="")
        settings = default_settings([1.0])
        ((_, sums),) = TwoModels(model, padded, settings).measure([text])
        assert np.isfinite(sums).all()


def test_sums_that_are_cut_short_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "sums.bin"
    rng = np.random.default_rng(0)
    first, second = rng.uniform(size=(2, 5, len(FIGURES)))
    sums = TextSums(path, 5)
    sums.add(3, 10, first)
    sums.add(1, 20, second)
    path.write_bytes(path.read_bytes()[:-1])
    kept = TextSums(path, 5)
    assert list(kept.records) == [3]
    assert kept.records[3][0] == 10
    assert np.array_equal(kept.records[3][1], first)
    kept.add(1, 20, second)
    assert list(TextSums(path, 5).records) == [3, 1]


BAD: dict[str, tuple[list[object], str, int]] = {
    "no texts": ([], "name the texts by one of", 2),
    "two kinds of texts": (["--task", "gsm8k", "--text", "x"], "name the texts by one of", 2),
    "data without a task": (["--text", "x", "--data", "y"], "--data is for --task", 2),
    "unknown task": (["--task", "gsm9k"], "unknown task 'gsm9k'", 2),
    "missing text": (["--text", "no-such-file"], "no-such-file cannot be read", 1),
    "missing data": (["--task", "gsm8k", "--data", "no-such-file"], "there is no file no-such-file", 1),
    "temperature 0": (["--text", "x", "--temp", "0"], "0 is greedy", 2),
    "negative temperature": (["--text", "x", "--temp", "-1"], "-1", 2),
    "no number": (["--text", "x", "--temp", "nan"], "nan is not a number", 2),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence(mink_eval: MinkEval, tiny_path: Path, tmp_path: Path, case: str) -> None:
    options, sentence, status = BAD[case]
    finished = mink_eval("frontier", "-m", tiny_path, "-r", tiny_path, "--out", tmp_path / "out", *options)
    assert sentence in finished.stderr
    assert finished.status == status


@pytest.mark.parametrize(
    ("content", "kind", "sentence"),
    [
        ("", "--text", "is empty"),
        ("\n \n\n", "--text", "is empty"),
        ("\n\n", "--prompts", "holds no prompts"),
        ('{"question": 3}', "--prompts", "'question' is not text"),
        ('{"answer": "3"}', "--prompts", "no 'question'"),
        ("{question", "--prompts", "is not JSON"),
        ("word " * 3000, "--text", "and the context of"),
        ("a", "--text", "single token"),
        ("word " * 3000, "--prompts", "cannot be answered by"),
    ],
)
def test_bad_files_get_a_sentence(
    mink_eval: MinkEval, tiny_path: Path, tmp_path: Path, content: str, kind: str, sentence: str
) -> None:
    path = tmp_path / "file.txt"
    path.write_text(content)
    models = ["-m", tiny_path, "-r", tiny_path, "--threads", 1]
    finished = mink_eval("frontier", *models, kind, path, "--out", tmp_path / "out")
    assert sentence in finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.status == 1


def test_another_vocabulary_is_refused(mink_eval: MinkEval, tiny_path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_path.read_bytes().replace("ĠParis".encode(), "ĠPariz".encode()))
    text = tmp_path / "text.txt"
    text.write_text("A river that is long.")
    finished = mink_eval("frontier", "-m", tiny_path, "-r", other, "--text", text, "--out", tmp_path / "out")
    assert "has another vocabulary than" in finished.stderr
    assert finished.status == 1
