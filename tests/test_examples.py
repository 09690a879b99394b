"""The programs of examples/ run and print what they promise."""

import csv
import json
import re
from pathlib import Path

import pytest

from mink_local import MinK, TopP, parse
from tests.support.python import run_python

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {
    "asynchronous", "blind_pairs", "chat", "k_over_steps", "logits_processor", "logprobs", "many_prompts",
    "native_sampler",
}  # fmt: skip


def run(name: str, *arguments: object) -> str:
    result = run_python(EXAMPLES / f"{name}.py", *arguments)
    assert (result.status, result.stderr) == (0, "")
    return result.stdout


def test_every_example_is_short_and_tested() -> None:
    lines = {path.stem: path.read_text(encoding="utf-8").count("\n") for path in EXAMPLES.glob("*.py")}
    assert set(lines) == TESTED
    assert max(lines.values()) <= 40


def program_of(page: str) -> str:
    """The Python blocks of a page, which belong together."""
    text = (EXAMPLES.parent / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.slow
def test_the_page_of_tasks_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pydantic")
    exec(program_of("docs/python.md"), {})
    shown = capsys.readouterr().out
    assert " 5, 6" in shown
    assert "City(name=" in shown
    assert [f"{prompt} {sample} " in shown for prompt in range(3) for sample in range(2)] == [True] * 6


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/python.md", "README.md"])
def test_the_code_of_the_pages_is_typed(page: str, tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    (tmp_path / "page.py").write_text(program_of(page), encoding="utf-8")
    found, _, status = mypy.run(["--strict", "--cache-dir", str(tmp_path), str(tmp_path / "page.py")])
    assert status == 0, found


@pytest.mark.slow
def test_chat_evaluates_only_what_is_new() -> None:
    shown = run("chat")
    assert re.findall(r"^> (.*)", shown, re.MULTILINE) == ["What is rain?", "And snow?"]
    first, second = re.findall(r"^\[(\d+) tokens, (\d+) new", shown, re.MULTILINE)
    assert int(first[0]) > 3
    assert int(second[1]) < int(first[1])


@pytest.mark.slow
def test_many_prompts_are_all_answered() -> None:
    lines = run("many_prompts").splitlines()
    answers = dict(line.split(": ", 1) for line in lines)
    assert sorted(answers) == ["a bee", "a cat", "a horse", "a snail", "a whale", "an owl"]
    for animal, answer in answers.items():
        assert animal.split()[1] in answer
        assert answer.endswith(("(stop)", "(length)"))


def test_logprobs_are_probabilities() -> None:
    lines = run("logprobs").splitlines()
    assert 5 < len(lines) <= 12
    for line in lines:
        probability, *most_probable = map(float, re.findall(r"['\"] (\d\.\d+)", line))
        assert 0 < probability <= most_probable[0] <= 1
        assert most_probable == sorted(most_probable, reverse=True)


def test_k_over_steps(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(
        "Once upon a time there was a robot who liked to paint.", encoding="utf-8"
    )
    rows = list(csv.DictReader(run("k_over_steps", tmp_path / "text.txt").splitlines()))
    assert [row["temperature"] for row in rows] == ["1.0", "2.0", "5.0"]
    assert all(1 <= float(row["mean k"]) <= float(row["largest k"]) for row in rows)


def test_blind_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key says whose is whose; a sampler is named as in a program."""
    monkeypatch.chdir(tmp_path)
    questions = [{"task": "gsm8k", "question_id": str(i), "prompt": f"What is {i}?"} for i in range(9)]
    records = [
        {
            "model": "m", "task": "gsm8k", "sampler": str(sampler), "temperature": 5.0, "repeat": 0,
            "question_id": str(i), "response": f"{sampler.name} says {i}",
        }
        for i in range(8) for sampler in (MinK(), TopP())
    ]  # fmt: skip
    for name, rows in (("questions", questions), ("records", records)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert run("blind_pairs", tmp_path, "min-k", "top-p", "5").startswith("8 pairs ")
    pairs, key = (
        list(csv.DictReader(Path(f"{name}.csv").read_text("utf-8").splitlines())) for name in ("pairs", "key")
    )
    for pair, row in zip(pairs, key, strict=True):
        assert pair["question"] == f"What is {row['question']}?"
        for side in ("response 1", "response 2"):
            assert pair[side] == f"{parse(row[side]).name} says {row['question']}"
    assert len({row["response 1"] for row in key}) == 2


@pytest.mark.slow
def test_logits_processor_writes_a_story(smollm2_path: Path) -> None:
    assert "lighthouse" in run("logits_processor", smollm2_path)


@pytest.mark.slow
def test_a_grammar_and_a_native_sampler_of_llama_cpp_python(smollm2_path: Path) -> None:
    shown = run("native_sampler", smollm2_path)
    assert shown.startswith("{")
    assert re.fullmatch(r"[\x20-\x7e\n]+", shown), "no gibberish at T = 5"


def test_cancelled_task_leaves_the_model_usable() -> None:
    _, after = re.split(r"^\[cancelled .*\]$", run("asynchronous"), flags=re.MULTILINE)
    assert len(after.split()) > 2
