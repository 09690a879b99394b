"""Files of questions in every task's format, and what is said about those in the wrong one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import DataError, TaskNotFoundError
from mink_local.evals.run.data import locate
from mink_local.evals.tasks import TASKS, find_task
from mink_local.evals.tasks.gpqa import shuffled
from tests.conftest import shared


def test_an_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(
        TaskNotFoundError, match="'gsm8': the tasks are gsm8k, aqua, gpqa, math500, sample-math"
    ):
        find_task("gsm8")


Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "data"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(task: str, path: Path) -> str:
    with pytest.raises(DataError) as raised:
        TASKS[task].read(path, seed=0)
    assert str(raised.value).startswith(str(path))
    return str(raised.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("name", "n", "last"), [("gsm8k", 1319, "14"), ("aqua", 254, "A"), ("math500", 500, "106^\\circ")]
)
def test_the_published_sets_are_read_whole(name: str, n: int, last: str) -> None:
    questions = TASKS[name].read(shared(f"data/{name}_test.jsonl"), seed=0)
    assert [question.id for question in questions] == [str(row) for row in range(n)]
    assert questions[-1].gold == last
    assert all(question.prompt.endswith(TASKS[name].instruction) for question in questions)


def gsm8k(question: str = "How many?", answer: str = "Two.\n#### 2") -> str:
    return json.dumps({"question": question, "answer": answer}) + "\n"


def aqua(**fields: Any) -> str:
    options = ["A)1", "B)2", "C)3", "D)4", "E)5"]
    row = {"question": "How many?", "options": options, "rationale": "", "correct": "B", **fields}
    return json.dumps({field: value for field, value in row.items() if value is not None}) + "\n"


def test_gold_answers_lose_their_commas(write: Write) -> None:
    golds = ["2", "-10", "1,450,000", "0.5", "12"]
    path = write("\n".join(gsm8k(f"Question {gold}?", f"…\n#### {gold}") for gold in golds))
    assert [question.gold for question in TASKS["gsm8k"].read(path, 0)] == [
        "2",
        "-10",
        "1450000",
        "0.5",
        "12",
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", " holds no questions"),
        ("\n \n", " holds no questions"),
        (gsm8k() + '{"answer": "#### 3"}\n', ", line 2: no 'question'"),
        (gsm8k() + "\n" + gsm8k("  "), ", line 3: 'question' is empty"),
        (gsm8k() + '{"question": 5}', ", line 2: 'question' is not text"),
        (gsm8k() + '{"question": "Why?"}', ", line 2: no 'answer'"),
        (gsm8k(answer="Two."), ", line 1: 'answer' has no gold answer, it does not end in '#### NUMBER'"),
        (gsm8k(answer="#### two"), ", line 1: 'answer' has no gold answer, it does not end in '#### NUMBER'"),
        (gsm8k() + gsm8k("Why?") + gsm8k(), ", line 3: the same question as in line 1; remove one"),
        ("question,answer\nHow many?,2\n", ", line 1: this is not JSON: write one JSON object a line"),
        ("[" + gsm8k() + "]", ", line 1: this is not JSON: write one JSON object a line"),
        ("[" * 100_000, ", line 1: this is not JSON: write one JSON object a line"),
        ("[1, 2]\n", ", line 1: [1, 2] is not a JSON object"),
        (gsm8k().encode("utf-16"), ", line 1: this is not UTF-8 text"),
        (gsm8k().encode() + "{'é'}".encode("latin-1"), ", line 2: this is not UTF-8 text"),
        (gsm8k("\ud800"), ", line 1: 'question' holds half a character (a lone surrogate)"),
    ],
)
def test_wrong_lines_are_named(content: str | bytes, complaint: str, write: Write) -> None:
    assert refusal("gsm8k", write(content)) == complaint


def test_a_byte_order_mark_does_no_harm(write: Write) -> None:
    assert TASKS["gsm8k"].read(write(gsm8k().encode("utf-8-sig")), 0)[0].gold == "2"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal("gsm8k", tmp_path) == " cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (aqua(options=["A)1", "B)2", "C)3", "D)4"]), ", line 1: 'options' is not a list of five"),
        (aqua(options="A)1"), ", line 1: 'options' is not a list of five"),
        (aqua(options=None), ", line 1: no 'options'"),
        (aqua(options=["A)1", *"2345"]), ", line 1: an option does not begin with 'B)' but with '2'"),
        (aqua(options=["A)1", "B)2", 3, "D)4", "E)5"]), ", line 1: 'options' is not text"),
        (aqua(correct="F"), ", line 1: 'correct' is 'F' and not one of A to E"),
        (aqua(correct="AB"), ", line 1: 'correct' is 'AB' and not one of A to E"),
        (aqua(correct=None), ", line 1: no 'correct'"),
        (gsm8k(), ", line 1: no 'options'"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(content: str, complaint: str, write: Write) -> None:
    assert refusal("aqua", write(content)) == complaint


def test_aqua_shows_its_options() -> None:
    question = TASKS["sample-choice"].read(locate(TASKS["sample-choice"]), 0)[0]
    assert question.choices[1] == "15%"
    assert "\n(B) 15%\n" in question.prompt


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (gsm8k(), ", line 1: no 'problem'"),
        ('{"problem": "Why?", "answer": " "}', ", line 1: 'answer' is empty"),
        ('{"problem": "Why?"}', ", line 1: no 'answer'"),
    ],
)
def test_math500_needs_problem_and_answer(content: str, complaint: str, write: Write) -> None:
    assert refusal("math500", write(content)) == complaint


COLUMNS = "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"


def test_gpqa_reads_the_users_own_csv(write: Write) -> None:
    path = write(COLUMNS + 'r1,"Which one,\nsays ""he""?",right,w1,w2,w3\nr2,And?,yes,no,never,"not, ever"\n')
    questions = TASKS["gpqa"].read(path, seed=1)
    assert [question.id for question in questions] == ["0", "1"]
    first = questions[0]
    assert first.prompt.startswith('Which one,\nsays "he"?\n\n(A) ')
    assert first.prompt.endswith("The final answer is (A).")
    assert sorted(first.choices) == ["right", "w1", "w2", "w3"]
    assert first.choices == tuple(("right", "w1", "w2", "w3")[place] for place in first.order)
    assert first.choices["ABCD".index(first.gold)] == "right"


def test_the_shuffle_depends_on_seed_and_question_alone(write: Write) -> None:
    rows = [f"r,Question {row}?,right,w1,w2,w3\n" for row in range(200)]
    whole = TASKS["gpqa"].read(write(COLUMNS + "".join(rows)), seed=1)
    part = TASKS["gpqa"].read(write(COLUMNS + "".join(rows[100:])), seed=1)
    other = TASKS["gpqa"].read(write(COLUMNS + "".join(rows)), seed=2)
    assert [question.order for question in whole[100:]] == [question.order for question in part]
    assert [question.order for question in whole] != [question.order for question in other]
    assert all(30 < [question.gold for question in whole].count(letter) < 70 for letter in "ABCD")
    assert shuffled("What?", 4, 0) == (1, 2, 3, 0)  # stored runs depend on it


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", " holds no questions"),
        (COLUMNS, " holds no questions"),
        ("a,b\n1,2\n", ", line 1: no column 'Question'; GPQA's gpqa_main.csv is wanted"),
        (gsm8k(), ", line 1: no column 'Question'; GPQA's gpqa_main.csv is wanted"),
        (COLUMNS + 'r,"two\nlines",a,b,c,d\nr,Why?,,b,c,d\n', ", line 4: 'Correct Answer' is empty"),
        (COLUMNS + "r,Why?,a,b,c\n", ", line 2: 5 columns and not 6"),
        (COLUMNS + 'r,"Why?,a,b,c,d\n', ", line 2: this is not CSV (unexpected end of data)"),
        (COLUMNS.encode() + b"r,Why\xff?,a,b,c,d\n", ", line 2: this is not UTF-8 text"),
        (COLUMNS + "r,Why?,a,b,c,d\n" * 2, ", line 3: the same question as in line 2; remove one"),
    ],
)
def test_wrong_csv_is_named(content: str | bytes, complaint: str, write: Write) -> None:
    assert refusal("gpqa", write(content)) == complaint
