"""The programs of examples/ run and print what they promise."""

import re
from pathlib import Path

import pytest

from tests.support.python import run_python

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {"asynchronous", "chat", "logits_processor", "logprobs", "many_prompts"}


def run(name: str, *arguments: object) -> str:
    result = run_python(EXAMPLES / f"{name}.py", *arguments)
    assert (result.status, result.stderr) == (0, "")
    return result.stdout


def test_every_example_is_short_and_tested() -> None:
    lines = {path.stem: path.read_text(encoding="utf-8").count("\n") for path in EXAMPLES.glob("*.py")}
    assert set(lines) == TESTED
    assert max(lines.values()) < 30


@pytest.mark.slow
def test_the_page_of_tasks_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (EXAMPLES.parent / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    exec("\n".join(blocks), {})
    shown = capsys.readouterr().out
    assert " 5, 6" in shown
    assert "city" in shown


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


@pytest.mark.slow
def test_logits_processor_writes_a_story(smollm2_path: Path) -> None:
    assert "lighthouse" in run("logits_processor", smollm2_path)


def test_cancelled_task_leaves_the_model_usable() -> None:
    note = "[cancelled after a second; the model can be asked again]\n"
    before, _, after = run("asynchronous").partition(note)
    assert before.endswith("\n")
    assert len(after.split()) > 2
