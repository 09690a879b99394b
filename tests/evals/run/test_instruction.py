"""The user's own instruction and system message: where they are placed, and that they are recorded."""

import json
from pathlib import Path

import pytest

from mink_local.evals.run.questions import ask
from mink_local.evals.tasks import find_task
from mink_local.evals.tasks.base import prompt_of
from tests.support.mink_eval import MinkEval

OPTIONS = "(A) yes\n(B) no"


@pytest.mark.parametrize(
    ("instruction", "prompt"),
    [
        ("Say it.", f"Why?\n\n{OPTIONS}\n\nSay it."),
        ("", f"Why?\n\n{OPTIONS}"),
        ("Q: {question}\nA:", f"Q: Why?\n\n{OPTIONS}\nA:"),
        ("Q: {question} [{choices}]", f"Q: Why? [{OPTIONS}]"),
        ("Of these:\n{choices}", f"Why?\n\nOf these:\n{OPTIONS}"),
        ("Write {x} and {}.", f"Why?\n\n{OPTIONS}\n\nWrite {{x}} and {{}}."),
    ],
)
def test_where_an_instruction_is_placed(instruction: str, prompt: str) -> None:
    assert prompt_of("Why?", instruction, ("yes", "no")) == prompt


def test_what_a_question_says_is_no_place() -> None:
    assert prompt_of("What is {choices}?", "{question} {choices}", ("{question}",)) == (
        "What is {choices}? (A) {question}"
    )


def test_they_are_asked_recorded_and_not_changed(
    tmp_path: Path, here: list[object], mink_eval: MinkEval
) -> None:
    out = tmp_path / "run"
    command = [*here, "-n", 2, "--limit", 1, "--no-greedy", "--out", out]
    given = ["--instruction", r"{question}\nThink.", "--system", "Be brief."]
    mink_eval.run(*command, *given)
    question = json.loads((out / "questions.jsonl").read_text())
    assert question["prompt"] == "What is 0 + 0?\nThink."
    task = json.loads((out / "manifest.json").read_text())["tasks"]["gsm8k"]
    assert (task["instruction"], task["system"]) == ("{question}\nThink.", "Be brief.")
    for other, named in ((given[:2], "system"), (given[2:], "instruction"), ([], "system")):
        mink_eval("run", "gsm8k", *command, *other).refused(1, named)
    mink_eval.run(*command, *given)


def test_an_own_file_has_both_per_question_and_per_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [
        {"defaults": {"system": "You are kind.", "instruction": "Say why."}},
        {"question": "1 + 1?", "answer": 2},
        {"question": "2 + 2?", "answer": 4, "system": "You are curt.", "instruction": "{question} Now!"},
        {"question": "Up?", "answer": "A", "choices": ["yes", "no"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ask(find_task(str(path)), path, system="You are there.")
    messages = [asked.messages(question) for question in asked.questions.values()]
    assert [(system["content"], user["content"]) for system, user in messages] == [
        ("You are kind.", "1 + 1?\n\nSay why."),
        ("You are curt.", "2 + 2? Now!"),
        ("You are kind.", f"Up?\n\n{OPTIONS}\n\nSay why."),
    ]
    path.write_text('{"question": "1 + 1?", "answer": 2}\n')
    asked = ask(find_task(str(path)), path, system="You are there.")
    assert asked.messages(asked.questions["0"])[0] == {"role": "system", "content": "You are there."}
