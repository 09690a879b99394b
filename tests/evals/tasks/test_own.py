"""Tasks from a file of the user's own: the rule that its data asks for, its prompts, its scoring."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import DataError
from mink_local.evals.tasks import Question, Task, Verdict, find_task, recorded_task, score
from mink_local.evals.tasks.own import OwnTask
from tests.conftest import shared

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*rows: dict[str, Any], name: str = "mine.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


def read(path: Path) -> tuple[Task, list[Question]]:
    task = find_task(str(path))
    return task, task.read(path, seed=0)


def rule(task: Task) -> str:
    assert isinstance(task, OwnTask)
    return task.rule


def flexible(task: Task, question: Question, response: str) -> Verdict:
    return score(task, question, response, "stop")[1]


def test_numbers_are_scored_as_those_of_gsm8k(write: Write) -> None:
    task, questions = read(
        write(
            {"question": "3 * 6?", "answer": 18},
            {"prompt": "How many?", "answer": "1,450", "id": "people"},
            {"instruction": "How much?", "answer": "He has <<1+1=2>>2.\n#### -2.5", "id": 7},
        )
    )
    assert (task.name, rule(task)) == ("mine", "number")
    assert [(q.id, q.gold) for q in questions] == [("0", "18"), ("people", "1450"), ("7", "-2.5")]
    assert questions[0].prompt == '3 * 6?\n\nYour response must end with "The final answer is (answer)".'
    assert score(task, questions[0], "The final answer is 18.", "stop") == (
        Verdict("18.", True),
        Verdict("18", True),
    )
    assert flexible(task, questions[1], "It is \\boxed{1{,}450} people.") == Verdict("1450", True)
    assert flexible(task, questions[2], "The final answer is 2.5") == Verdict("2.5", False)


@pytest.mark.parametrize(("answer", "gold"), [("C", "C"), ("Nile", "A"), (1907, "B")])
def test_choices_are_scored_as_those_of_aqua(write: Write, answer: object, gold: str) -> None:
    task, (question,) = read(
        write({"question": "Which?", "choices": ["Nile", 1907, "Oder"], "answer": answer})
    )
    assert (rule(task), question.gold, question.choices) == ("choices", gold, ("Nile", "1907", "Oder"))
    assert question.prompt == (
        "Which?\n\n(A) Nile\n(B) 1907\n(C) Oder\n\n"
        'Your response must end with "The answer is (X)" where X is one of A, B, or C.'
    )
    assert score(task, question, f"The answer is ({gold}).", "stop") == (Verdict(gold, True),) * 2
    assert flexible(task, question, "The correct option is D.").answer is None  # there is no D
    assert flexible(task, question, "Answer: Oder").correct == (gold == "C")


@pytest.mark.parametrize(
    ("response", "correct"),
    [
        ("The final answer is The Nile River.", True),
        ("So the answer is **“nile  river”**!", True),
        ("The final answer is: \\boxed{\\text{Nile River}}", True),
        ("The final answer is the Blue Nile River.", False),
        ("Nile River", True),
        ("It is a river.", False),
    ],
)
def test_other_answers_are_compared_as_texts(write: Write, response: str, correct: bool) -> None:
    task, (question, _) = read(
        write({"question": "Which river?", "answer": " Nile River "}, {"question": "2 + 2?", "answer": 4})
    )
    assert rule(task) == "text"
    assert "(that of line 1 is no number)" in task.title
    assert question.gold == "Nile River"
    assert flexible(task, question, response).correct == correct


@pytest.mark.parametrize("gold", ["St. Petersburg", "J. R. R. Tolkien", "Washington D.C."])
def test_a_full_stop_inside_an_answer_does_not_end_it(write: Write, gold: str) -> None:
    task, (question,) = read(write({"question": "Which?", "answer": gold}))
    assert flexible(task, question, f"The final answer is {gold}. It is well known.") == Verdict(gold, True)
    assert not flexible(task, question, f"The final answer is not {gold}.").correct


def test_a_sign_and_a_decimal_point_are_not_punctuation(write: Write) -> None:
    task, questions = read(write({"question": "a?", "answer": "-3.5"}, {"question": "b?", "answer": "x"}))
    assert [flexible(task, questions[0], f"Answer: {text}").correct for text in ("-3.5", "3.5", "35")] == [
        True,
        False,
        False,
    ]


def test_without_answers_a_task_is_open_ended(write: Write) -> None:
    task, questions = read(write({"prompt": "Tell me a story.", "answer": None}, {"prompt": "A poem."}))
    assert (rule(task), task.open_ended) == ("open", True)
    assert [(q.prompt, q.gold) for q in questions] == [("Tell me a story.", ""), ("A poem.", "")]


def test_the_file_of_alpaca_eval_is_a_task() -> None:
    task, questions = read(shared("data/alpaca_eval_instructions.jsonl"))
    assert (task.name, task.open_ended, len(questions)) == ("alpaca_eval_instructions", True, 805)


def test_the_file_of_gsm8k_is_read_as_gsm8k_is() -> None:
    path = shared("data/gsm8k_test.jsonl")
    assert read(path)[1] == find_task("gsm8k").read(path, 0)


def test_a_recorded_rule_is_found_again(write: Write) -> None:
    task, questions = read(write({"question": "3 * 6?", "answer": 18}))
    again = recorded_task(task.name, rule(task))
    assert again
    assert flexible(again, questions[0], "It is 18. Answer: 18") == Verdict("18", True)


Q = {"question": "Why?"}


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], " holds no questions"),
        ([{"text": "Why?"}], ", line 1: no 'question', 'prompt', 'instruction' or 'problem'"),
        ([{"question": " "}], ", line 1: 'question' is empty"),
        ([{**Q, "answer": [1]}], ", line 1: 'answer' is not text"),
        ([{**Q, "answer": True}], ", line 1: 'answer' is not text"),
        ([{**Q, "answer": float("nan")}], ", line 1: 'answer' is not a finite number"),
        (
            [{**Q, "answer": 1}, {"question": "How?"}],
            ", line 2: no 'answer', and line 1 has one: a file has it in every line or in none",
        ),
        (
            [Q, {**Q, "answer": 1}],
            ", line 2: 'answer', and line 1 has none: a file has it in every line or in none",
        ),
        (
            [{**Q, "choices": ["a", "b"], "answer": "A"}, {**Q, "answer": "A"}],
            ", line 2: no 'choices', and line 1 has one: a file has it in every line or in none",
        ),
        ([{**Q, "choices": ["a", "b"]}], ", line 1: 'choices' and no 'answer'"),
        ([{**Q, "choices": ["a"], "answer": "A"}], ", line 1: 'choices' is not a list of 2 to 10"),
        (
            [{**Q, "choices": ["a", "b"], "answer": "C"}],
            ", line 1: 'answer' is 'C': write the letter of the right option, A to B, or its text",
        ),
        (
            [{**Q, "choices": ["B", "C"], "answer": "B"}],  # the first or the second?
            ", line 1: 'answer' is 'B': write the letter of the right option, A to B, or its text",
        ),
        ([{**Q, "id": "\x1b[2J"}], ", line 1: 'id' holds a character that cannot be printed"),
        ([{**Q, "id": 1}, {"prompt": "How?", "id": "1"}], ", line 2: the same id as in line 1; remove one"),
        ([Q, Q], ", line 2: the same question as in line 1; remove one"),
    ],
)
def test_wrong_lines_are_named(write: Write, rows: list[dict[str, Any]], complaint: str) -> None:
    path = write(*rows)
    with pytest.raises(DataError) as raised:
        read(path)
    assert str(raised.value) == f"{path}{complaint}"


def test_a_file_with_the_name_of_another_task_is_refused(write: Write) -> None:
    path = write(Q, name="aqua.jsonl")
    with pytest.raises(
        DataError, match=f"has the name of another task: rename it, or run aqua with --data {path}"
    ):
        find_task(str(path))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        find_task("none.jsonl")
