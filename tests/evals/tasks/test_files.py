"""Files of questions in every task's format, and what is said about those in the wrong one."""

import codecs
import json
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import DataError
from mink_local.evals.tasks import TASKS, find_task
from mink_local.evals.tasks.datasets import shuffled
from tests.conftest import shared
from tests.evals.conftest import Write


@pytest.mark.parametrize(
    ("name", "n", "last"), [("gsm8k", 1319, "14"), ("aqua", 254, "A"), ("math500", 500, "106^\\circ")]
)
def test_the_published_sets_are_read_whole(name: str, n: int, last: str) -> None:
    questions = TASKS[name].read(shared(f"data/{name}_test.jsonl"), seed=0)
    assert [question.id for question in questions] == [str(row) for row in range(n)]
    assert questions[-1].gold == last
    ending = "one of A, B, C, D, or E." if name == "aqua" else TASKS[name].instruction
    assert all(question.prompt.endswith(ending) for question in questions)


def gsm8k(question: str = "How many?", answer: str = "Two.\n#### 2") -> str:
    return json.dumps({"question": question, "answer": answer}) + "\n"


def aqua(**fields: Any) -> str:
    options = ["A)1", "B)2", "C)3", "D)4", "E)5"]
    row = {"question": "How many?", "options": options, "rationale": "", "correct": "B", **fields}
    return json.dumps({field: value for field, value in row.items() if value is not None}) + "\n"


def test_gold_answers_lose_their_commas(write: Write) -> None:
    golds = ["2", "-10", "1,450,000", "0.5", "12"]
    path = write("\n".join(gsm8k(f"Question {gold}?", f"…\n#### {gold}") for gold in golds))
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())  # a byte order mark does no harm
    questions = TASKS["gsm8k"].read(path, 0)
    assert [question.gold for question in questions] == [gold.replace(",", "") for gold in golds]


CSV = "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
Q = {"question": "Why?"}
AB = {**Q, "choices": ["a", "b"]}

# task, content, line, what else is said
WRONG = [
    ("gsm8k", gsm8k() + '{"answer": "#### 3"}\n', 2, "question"),
    ("gsm8k", gsm8k() + "\n" + gsm8k("  "), 3, "question"),
    ("gsm8k", gsm8k() + '{"question": "Why?"}', 2, "answer"),
    ("gsm8k", gsm8k(answer="Two."), 1, "'Two.', which is no number"),
    ("gsm8k", gsm8k(answer="#### two"), 1, "'two', which is no number"),
    ("gsm8k", gsm8k() + gsm8k("Why?") + gsm8k(), 3, "line 1"),
    ("gsm8k", "question,answer\nHow many?,2\n", 1, "JSON"),
    ("gsm8k", '{"question": ' * 100_000, 1, ""),
    ("gsm8k", gsm8k() + "[1, 2]\n", 2, "object"),
    ("gsm8k", codecs.BOM_UTF16_LE + gsm8k().encode("utf-16-le") + b"\x00\xd8\n\x00", 2, "UTF-16"),
    ("gsm8k", gsm8k().encode() + "{'é'}".encode("latin-1"), 2, "UTF-8"),
    ("gsm8k", gsm8k("\ud800"), 1, "surrogate"),
    ("aqua", aqua(options=["A)1", "B)2", "C)3", "D)4"]), 1, "options"),
    ("aqua", aqua(options="A)1"), 1, "choices"),
    ("aqua", aqua(options=None), 1, "options"),
    ("aqua", aqua(correct="F"), 1, "'F'"),
    ("aqua", aqua(correct="AB"), 1, "'AB'"),
    ("aqua", aqua(correct=None), 1, "answer"),
    ("math500", '{"answer": "2"}', 1, "no question"),
    ("math500", '{"problem": "Why?", "answer": " "}', 1, "answer"),
    ("math500", '{"problem": "Why?"}', 1, "answer"),
    ("gpqa", "a,b\n1,2\n", 2, "'Question'"),
    ("gpqa", CSV + 'r,"two\nlines",a,b,c,d\nr,Why?,,b,c,d\n', 4, "'Correct Answer'"),
    ("gpqa", CSV + "r,Why?,a,b,c\n", 2, "'Incorrect Answer 3'"),
    ("gpqa", CSV + "r,Why?,a,b,c,d,e\n", 2, "columns"),
    ("gpqa", CSV + 'r,"Why?,a,b,c,d\n', 2, "CSV"),
    ("gpqa", CSV.encode() + b"r,Why\xff?,a,b,c,d\n", 2, "UTF-8"),
    ("gpqa", CSV + "r,Why?,a,b,c,d\n" * 2, 3, "line 2"),
    ("own", [{"question": " "}], 1, "question"),
    ("own", [{**Q, "A": "a", "C": "c", "answer": "A"}], 1, "choices"),
    ("own", [{**Q, "choices": "a, b", "answer": "A"}], 1, "choices"),
    ("own", [{**Q, "choices": ["a", ["b"]], "answer": "A"}], 1, "choices"),
    ("own", [{**Q, "choices": {"text": ["a"], "label": ["A"]}, "answer": "A"}], 1, "choices"),
    ("own", [{**Q, "choices": {"text": ["a", "b"], "label": ["A"]}, "answer": "A"}], 1, "labels"),
    ("own", [{**Q, "choices": {"text": ["a", "b"], "label": "AB"}, "answer": "A"}], 1, "label"),
    ("own", [{**Q, "choices": {"text": "ab", "label": ["A", "B"]}, "answer": "A"}], 1, "choices"),
    ("own", [{"question": {"text": "Why?"}}], 1, "question"),
    ("own", [{**Q, "choices": [1, 2, 3, 0], "answer": 2}], 1, "(B) 2 or (C) 3"),
    ("own", [{**AB, "answer": 2}], 1, "index from 0"),
    ("own", [{**AB, "answer": -1}], 1, "index from 0"),
    ("own", [{**AB, "answer": "0"}], 1, "index from 0"),
    ("own", [{**Q, "answer": [[1], 2]}], 1, "answer"),
    ("own", [{**Q, "answer": {"words": "a"}}], 1, "answer"),
    ("own", [{**Q, "choices": "['a' 'b']", "answer": "A"}], 1, "choices"),  # of NumPy
    ("own", [{**AB, "answer": ["a", "C"]}], 1, "'C'"),
    ("own", [{**Q, "answer": float("nan")}], 1, "JSON"),
    ("own", [AB], 1, "'choices'"),
    ("own", [{**Q, "choices": ["a"], "answer": "A"}], 1, "choices"),
    ("own", [{**AB, "answer": "C"}], 1, "'C'"),
    ("own", [{**Q, "choices": ["B", "C"], "answer": "B"}], 1, "'B'"),  # the first or the second?
    ("own", [{**Q, "id": "\x1b[2J"}], 1, "id"),
    ("own", [Q, Q], 2, "line 1"),
]


def read(task: str, path: Path) -> None:
    (find_task(str(path)) if task == "own" else TASKS[task]).read(path, seed=0)


@pytest.mark.parametrize(("task", "content", "line", "named"), WRONG)
def test_wrong_lines_are_named(task: str, content: Any, line: int, named: str, write: Write) -> None:
    path = write(*content) if isinstance(content, list) else write(content)
    with pytest.raises(DataError) as raised:
        read(task, path)
    assert str(raised.value).startswith(f"{path}, line {line}: ")
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((content, "list of JSON objects") for content in ("[" + gsm8k(), "[" * 100_000, "[]]")),
        (gsm8k().encode("utf-16-le"), "UTF-16"),
        ("[1, 2]", r"mine\.jsonl, item 1: "),
        ("[" + gsm8k() + ", [1]]", r"mine\.jsonl, item 2: "),
        ('[{"question": "Why?"}]', r"mine\.jsonl, item 1: "),
    ],
)
def test_a_broken_file_is_refused(content: str, said: str, write: Write) -> None:
    with pytest.raises(DataError, match=said):
        read("gsm8k", write(content))


@pytest.mark.parametrize("task", ["gsm8k", "gpqa", "own"])
def test_a_file_without_questions_and_one_that_cannot_be_read(
    task: str, write: Write, tmp_path: Path
) -> None:
    for content in (CSV, "") if task == "gpqa" else ("\n \n", ""):
        with pytest.raises(DataError, match="no questions"):
            read(task, write(content))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=r"folder\.jsonl cannot be read: "):
        read(task, tmp_path / "folder.jsonl")


def test_gpqa_reads_the_users_own_csv(write: Write) -> None:
    path = write(CSV + 'r1,"Which one,\nsays ""he""?",right,w1,w2,w3\nr2,And?,yes,no,never,"not, ever"\n')
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
    whole = TASKS["gpqa"].read(write(CSV + "".join(rows)), seed=1)
    part = TASKS["gpqa"].read(write(CSV + "".join(rows[100:])), seed=1)
    other = TASKS["gpqa"].read(write(CSV + "".join(rows)), seed=2)
    assert [question.order for question in whole[100:]] == [question.order for question in part]
    assert [question.order for question in whole] != [question.order for question in other]
    assert all(30 < [question.gold for question in whole].count(letter) < 70 for letter in "ABCD")
    assert shuffled("What?", 4, 0) == (1, 2, 3, 0)  # stored runs depend on it
