"""Tasks from a file of the user's own: the rule that its data asks for, its prompts, its scoring."""

import json
import re
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from mink_local.errors import DataError, TaskNotFoundError
from mink_local.evals.tasks import Question, Task, Verdict, find_task, recorded_task, score
from mink_local.evals.tasks.base import ScorerError
from mink_local.evals.tasks.own import parse_columns
from mink_local.evals.tasks.scoring import chosen_scorer
from tests.conftest import shared
from tests.evals.conftest import Write
from tests.support.folders import of_others
from tests.support.mink_eval import MinkEval, read_responses


def read(path: Path) -> tuple[Task, list[Question]]:
    task = find_task(str(path))
    return task, task.read(path, seed=0)


def flexible(task: Task, question: Question, response: str) -> Verdict:
    return score(task, question, response, "stop")[1]


def test_numbers_are_scored_as_those_of_gsm8k(write: Write) -> None:
    task, questions = read(
        write(
            {"question": "3 * 6?", "answer": 18},
            {"question": "How many?", "answer": "1,450", "id": "people"},
            {"question": "How much?", "answer": "He has <<1+1=2>>2.\n#### -2.5", "id": 7},
        )
    )
    assert task.name == "mine"
    assert [(q.id, q.gold) for q in questions] == [("0", "18"), ("people", "1450"), ("7", "-2.5")]
    assert questions[2].worked == "He has 2.\nThe final answer is -2.5."
    assert questions[0].prompt == '3 * 6?\n\nYour response must end with "The final answer is (answer)".'
    assert score(task, questions[0], "The final answer is 18.", "stop")[:2] == (
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
    assert (question.gold, question.choices) == (gold, ("Nile", "1907", "Oder"))
    assert question.prompt == (
        "Which?\n\n(A) Nile\n(B) 1907\n(C) Oder\n\n"
        'Your response must end with "The answer is (X)" where X is one of A, B, or C.'
    )
    assert score(task, question, f"The answer is ({gold}).", "stop")[:2] == (Verdict(gold, True),) * 2
    assert flexible(task, question, "The correct option is D.").answer is None  # there is no D
    assert flexible(task, question, "Answer: Oder").correct == (gold == "C")


ROW: dict[str, object] = {"question": "Which?", "choices": ["Nile", "Elbe", "Oder"], "answer": "Oder"}


# columns, and a row of other programs' files that says the same as ROW with them
OTHERS: list[tuple[str, dict[str, object]]] = [
    ("", ROW | {"answer": 2, "_mine": [1]}),
    ("", {"Question": "Which?", "choices": {"A": "Nile", "B": "Elbe", "C": "Oder"}, "Answer": "C"}),
    ("", {"question": "Which?", "A": "Nile", "B": "Elbe", "C": "Oder", "answer": 2, "D": None}),
    ("", ROW | {"choices": '["Nile", "Elbe", "Oder"]'}),
    ("question=prompt,answer=target,choices=options", {
        "prompt": "Which?", "options": ["Nile", "Elbe", "Oder"], "target": "C"}),
    ("question=query,answer=gold", {"query": "Which?", "choices": ["Nile", "Elbe", "Oder"], "gold": 2}),
    ("question=input,answer=label", {"input": "Which?", "A": "Nile", "B": "Elbe", "C": "Oder", "label": 2}),
    ("answer=answerKey", {"question": "Which?", "answerKey": "3",
        "choices": {"text": ["Nile", "Elbe", "Oder"], "label": [*"123"]}}),
    ("answer=cop,choices=opa+opb+opc", {"question": "Which?", "opa": "Nile", "opb": "Elbe", "opc": "Oder",
        "cop": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "row"), OTHERS)
def test_files_of_other_programs(write: Write, columns: str, row: dict[str, object]) -> None:
    """Nothing is guessed: what must be typed is said, and is what has to be typed."""
    path = write(row)
    if columns:
        with pytest.raises(DataError, match=re.escape(f"--columns {columns} ")):
            find_task(str(path))
    task = find_task(str(path), columns=parse_columns([columns]))
    assert task.read(path, seed=0) == read(write(ROW))[1]
    assert task.remarks == ()


@pytest.mark.parametrize(
    ("row", "columns", "prompt"),
    [
        ({"article": "Long.", "question": "Why?", "answer": "So"}, "question=article+question",
         "Long.\n\nWhy?"),
        ({"Body": "Ann has 3.", "Question": "How many?", "Answer": 3}, "question=Body+Question",
         "Ann has 3.\n\nHow many?"),
        ({"instruction": "Add.", "input": "1 1", "output": "2"}, "question=instruction+input,answer=output",
         "Add.\n\n1 1"),
        ({"system": "Be curt.", "question": "Why?", "answer": "So"}, "question=system+question",
         "Be curt.\n\nWhy?"),
    ],
)  # fmt: skip
def test_what_a_question_needs_is_not_left_out(
    write: Write, row: dict[str, object], columns: str, prompt: str
) -> None:
    path = write(row)
    with pytest.raises(DataError, match=re.escape(f"--columns {columns} ")):
        find_task(str(path))
    [question] = find_task(str(path), columns=parse_columns([columns])).read(path, seed=0)
    assert question.prompt.startswith(prompt)
    alone = f"question={columns.rpartition('+')[2]}"
    [question] = find_task(str(path), columns=parse_columns([alone])).read(path, seed=0)
    assert prompt not in question.prompt


@pytest.mark.posix
@pytest.mark.parametrize("name", ["faq.csv", "faq"])
def test_a_file_in_a_folder_of_others_is_no_task(name: str) -> None:
    with of_others() as others, pytest.raises(TaskNotFoundError, match=name):
        find_task(str(others / name))


def test_an_a_beside_a_q_is_no_option(write: Write) -> None:
    path = write("Q,A\nWhy?,So\nHow?,Thus\n", name="faq.csv")
    with pytest.raises(DataError, match="no 'question'"):
        find_task(str(path))
    task = find_task(str(path), columns=parse_columns(["question=Q,answer=A"]))
    assert [(one.gold, one.choices) for one in task.read(path, seed=0)] == [("So", ()), ("Thus", ())]


@pytest.mark.parametrize(
    ("rows", "columns", "named"),
    [
        ([{"text": "Why?"}], "", "no 'question'"),
        ([{"question": "Why?", "anwser": 4}], "", "no answers.*anwser"),
        ([{"question": "Wie viele?", "answer": None, "answer_number": 11}], "", "answer=answer_number"),
        ([{"question": "Why?", "level": 5, "answer": 4}], "", "category=level"),
        ([{"question": "Why?", "answer": 4}], "answer=gold", "no column 'gold'.*question, answer"),
    ],
)
def test_columns_that_are_not_found(
    write: Write, rows: list[dict[str, object]], columns: str, named: str
) -> None:
    with pytest.raises(DataError, match=named):
        find_task(str(write(*rows)), columns=parse_columns([columns]))


@pytest.mark.parametrize("text", ["question", "text=body", "=a"])
def test_what_names_no_column(mink_eval: MinkEval, write: Write, text: str) -> None:
    mink_eval("run", write(ROW), "--columns", text).refused(2, "NAME=COLUMN")
    mink_eval("run", "gsm8k", "--columns", "question=a").refused(2, "--columns")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mine.csv", "question,A,B,C,answer\nWhich?,Nile,Elbe,Oder,C\n"),
        ("mine.csv", "\ufeffquestion;A;B;C;answer\r\nWhich?;Nile;Elbe;Oder;2\r\n"),
        ("mine.tsv", "question\tA\tB\tC\tanswer\n\nWhich?\tNile\tElbe\tOder\tOder\n"),
        ("MINE.TSV", "question\ttopics (a, b, c, d)\tA\tB\tC\tanswer\nWhich?\tx\tNile\tElbe\tOder\tC\n"),
        ("mine.csv", ',question,A,B,C,answer\n0,"Which?",Nile,Elbe,Oder,C\n'),  # with a pandas index
        ("mine.json", json.dumps([ROW], indent=2)),
        ("mine.jsonl", json.dumps([ROW])),
        ("mine.json", "\ufeff" + json.dumps(ROW) + "\r\n"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_formats_and_encodings(write: Write, name: str, content: str, encoding: str) -> None:
    task, questions = read(write(content.encode(encoding), name=name))
    assert (task.name.lower(), [replace(one, task="mine") for one in questions]) == (
        "mine",
        read(write(ROW))[1],
    )


def test_equal_ids_are_numbered_and_values_are_taken_as_they_are_written(write: Write) -> None:
    rows = "question,answer,id\nZIP?,02138,a\nAgent?,007,a\nBond?,7,b\n"
    _, questions = read(write(rows, name="mine.csv"))
    assert [(one.id, one.gold) for one in questions] == [("a", "02138"), ("a-2", "007"), ("b", "7")]
    task, [question] = read(write({"question": "Is it?", "answer": True}))
    assert flexible(task, question, "The final answer is true.").correct
    assert not flexible(task, question, "The final answer is false.").correct


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("question,answer\n", "no questions"),
        ("question,question\nWhy?,4\n", "line 1: two columns"),
        ("question,answer\nWhy?,4,5\n", "line 2: more columns"),
        ('question,answer\nWhy?,"4\n', "not CSV"),
        ("question,A,B,answer\nWhy?,1,0,1\n", r"line 2: 'answer' is '1', which may mean \(A\) 1 or \(B\) 0"),
    ],
)
def test_what_is_said_of_a_wrong_csv_file(write: Write, content: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(write(content, name="mine.csv"))


@pytest.mark.parametrize(
    ("gold", "response", "correct"),
    [
        ("1/2", "The final answer is 0.5.", True),
        ("\\frac{1}{2}", "The final answer is 1/2.", True),
        ("1 1/2", "The final answer is 1.5.", True),
        ("1/2", "The final answer is 2.", False),
        ("$5", "The final answer is 5 dollars.", True),
        ("$1,200.50", "The final answer is \\$1200.5.", True),
        ("-$5", "The final answer is -5.", True),
        ("$5", "The final answer is $50.", False),
        ("50%", "The final answer is 50.", True),
        ("50\\%", "The final answer is 50%.", True),
        ("50%", "The final answer is 5%.", False),
        ("50%", "The final answer is 0.5.", True),
        ("50%", "The final answer is 50 percent.", True),
        ("50%", "The final answer is 50 percentage points.", True),
        ("50%", "The final answer is 0.5%.", False),
        ("x^2+1", "The final answer is $1 + x^2$.", True),
        ("$x^2+1$", "The final answer is x^2+1", True),
        ("x^2+1", "The final answer is $x^2-1$.", False),
        ("y = 2x + 1", "The final answer is $y=2x+1$", True),
        ("\\frac{\\sqrt{2}}{2}", "The final answer is $\\frac{1}{\\sqrt{2}}$.", True),
        ("AC/DC", "The final answer is AC/DC.", True),
        ("C++", "The final answer is C++.", True),
        ("A+", "The final answer is A.", False),
        ("\\text{Nile River}", "The final answer is Nile River.", True),
        ("well-known", "The final answer is well-known.", True),
        ("1/0", "The final answer is 1/0", True),
        ("24/7", "The final answer is 24/7", True),
        ("-\\frac{1}{2}", "The final answer is -0.5.", True),
        ("-\\frac{1}{2}", "The final answer is $\\frac{1}{2}$.", False),
        ("−½", "The final answer is -1/2.", True),
        ("+5", "The final answer is 5.", True),
        ("+5", "The final answer is -5.", False),
        ("3,5", "The final answer is 3,5.", True),
        ("3,5", "The final answer is 3.5.", True),
        ("3,5", "The final answer is 35.", False),
        ("1.450,50", "The final answer is 1.450,50 Euro.", True),
        ("$3M", "The final answer is $3.", False),
        ("18 dollars", "The final answer is 18.", True),
        ("18 dollars", "The final answer is $18 per day.", True),
        ("10 a.m.", "The final answer is 10 a.m.", True),
        ("10 a.m.", "The final answer is 10 p.m.", False),
        ("12 apples", "The final answer is 12.", True),
        ("7 Eleven", "The final answer is 7 Eleven.", True),
        ("7 Eleven", "The final answer is 7.", False),
        ("We add.\n#### 18 dollars", "The final answer is 18.", True),
        ("We add.\n#### five", "The final answer is five.", True),
        ("St. Petersburg", "The final answer is st. petersburg.", True),
        ("Who?", "The final answer is who?", True),
        ("Paris", "The final answer is Paris, not London.", True),
        ("Paris", "The final answer is Paris because it is.", True),
        ("rock 'n' roll", "The final answer is rock ‘n’ roll.", True),
    ],
)
def test_golds_are_scored_as_what_they_are(write: Write, gold: str, response: str, correct: bool) -> None:
    task, (question,) = read(write({"question": "Which?", "answer": gold}))
    assert flexible(task, question, response).correct == correct
    again = recorded_task(task.name, "question")
    assert again
    assert again.scorer_of(question) is task.scorer_of(question)


@pytest.mark.parametrize(
    ("gold", "response", "correct"),
    [
        (" Nile River ", "The final answer is The Nile River.", True),
        ("Nile River", "So the answer is **“nile  river”**!", True),
        ("Nile River", "The final answer is: \\boxed{\\text{Nile River}}", True),
        ("Nile River", "The final answer is the Blue Nile River.", False),
        ("Nile River", "Nile River", True),
        ("Nile River", "It is a river.", False),
        ("St. Petersburg", "The final answer is St. Petersburg. It is well known.", True),
        ("St. Petersburg", "The final answer is not St. Petersburg.", False),
        ("J. R. R. Tolkien", "The final answer is J. R. R. Tolkien. It is well known.", True),
        ("Washington D.C.", "The final answer is Washington D.C.. It is well known.", True),
        ("-3.5", "Answer: -3.5", True),
        ("-3.5", "Answer: 3.5", False),
        ("-3.5", "Answer: 35", False),
        ("Paris", "The capital of France is Paris.", True),
        ("Paris", "**The capital of France is Paris.**", True),
        ("Paris", "Its capital is **Paris**!", True),
        ("Paris", "Its capital is\u00a0paris", True),
        ("the Nile", "Africa's longest river is the Nile.", True),
        ("St. Petersburg", "It was St. Petersburg.", True),
        ("Washington D.C.", "The capital is Washington D.C.", True),
        ("Paris", "The capital of France is Lyon.", False),
        ("Paris", "The capital of France is not Paris.", False),
        ("Paris", "The capital of France isn't Paris.", False),
        ("Paris", "The capital of France might be Lyon, or it is Paris.", False),
        ("Paris", "Is it true that the capital is Paris?", False),
        ("Paris", "The capital is Paris. No, that is wrong.", False),
        ("Paris", "The capital is Paris. The capital is Lyon.", False),
        ("Paris", "The capital is Lyon. The largest city is Paris.", False),
        ("Paris", "Lyon! Its rival is Paris.", False),
        ("Paris", "The capital is Lyon, and the largest city is Paris.", False),
        ("Paris", "If France were England, its capital is Paris.", False),
        ("Paris", "The answer is Lyon. The largest city is Paris.", False),
        ("Paris", "The capital of France is Paris or Lyon.", False),
        ("Paris", "The capital of France is Paris, Texas.", False),
    ],
)
def test_other_answers_are_compared_as_texts(write: Write, gold: str, response: str, correct: bool) -> None:
    task, (question,) = read(write({"question": "Which?", "answer": gold}))
    assert question.gold == gold.strip()
    assert flexible(task, question, response).correct == correct


def test_every_question_has_its_own_rule(write: Write) -> None:
    """A text answer or choices in a file do not change how its numbers are scored."""
    choice = {"question": "Which?", "choices": ["Nile", "Oder"], "answer": "Oder"}
    task, (number, text, option) = read(
        write({"question": "5 * 5?", "answer": 25}, {"question": "Who?", "answer": "Ann"}, choice)
    )
    assert flexible(task, number, "Answer: 5 * 5 = 25").correct
    assert flexible(task, text, "The answer is Ann.").correct
    assert flexible(task, option, "The answer is (b).").correct


@pytest.mark.parametrize(
    ("row", "right", "wrong"),
    [
        ({"answer": ["red", "crimson"]}, ["red", "The Crimson"], ["blue"]),
        ({"answer": [4, "four", "x^2"]}, ["4", "4.0", "four", "$x^2$"], ["5", "five"]),
        ({"answer": ["C", "A"], "choices": ["up", "to", "on"]}, ["(A)", "C", "on"], ["(B)"]),
        ({"answer": '["red", "crimson"]'}, ["red", "The Crimson"], ["blue"]),  # as in CSV
        ({"answer": {"value": "Ulm", "aliases": ["Ulma"], "type": "City"}}, ["Ulm", "Ulma"], ["City"]),
        ({"answer": {"text": ["Ulm"], "answer_start": [3]}}, ["Ulm"], ["3"]),
        ({"answer": "[0, 1]"}, ["$[0, 1]$"], ["0", "1"]),  # an interval
    ],
)
def test_several_answers_are_accepted(
    write: Write, row: dict[str, object], right: list[str], wrong: list[str]
) -> None:
    task, (question,) = read(write({"question": "Which?", **row}))
    for answer in (*right, *wrong):
        assert flexible(task, question, f"The answer is {answer}.").correct == (answer in right), answer


def test_files_as_they_come(write: Write) -> None:
    """What is ignored or left out is said; a question may have several categories."""
    path = write(
        "question,answer,domain,level,metadata,output\n",
        "1 + 1?,2,sums,1,x,y\n2 + 2?,nan,,2,x,y\n3 + 3?,6,,3,x,y\n",
        name="MINE.CSV",
    )
    task = find_task(str(path), columns={"category": ["domain", "level"]})
    questions = task.read(path, seed=0)
    assert [(one.id, one.gold, one.category) for one in questions] == [
        ("0", "2", "sums\nlevel 1"),
        ("2", "6", "level 3"),
    ]
    assert task.remarks == (
        f"{path}: ignored 'metadata', 'output'.",
        f"{path}: left out without an answer: line 3.",
    )
    open_ended = write({"question": "Tell me a story.", "category": "prose", "n": 1}, name="TALES.JSONL")
    task = find_task(str(open_ended), columns={"answer": []})
    assert task.read(open_ended, seed=0)[0].category == "prose"
    assert task.remarks == (f"{open_ended}: ignored 'n'.",)


def test_labels_of_aquas_options_are_not_shown_twice(write: Write) -> None:
    row = {"question": "Which?", "choices": ["A)21", "B)24", "C)27"], "answer": "B"}
    _, (question,) = read(write(row))
    assert (question.choices, question.gold) == (("21", "24", "27"), "B")
    assert read(write(row | {"answer": "B)24"}))[1] == [question]


def test_without_answers_a_task_is_open_ended(write: Write) -> None:
    task, questions = read(write({"question": "Tell me a story.", "answer": None}, {"question": "A poem."}))
    assert task.open_ended
    assert [(q.prompt, q.gold) for q in questions] == [("Tell me a story.", ""), ("A poem.", "")]


def test_published_files_are_read_as_tasks() -> None:
    path = shared("data/alpaca_eval_instructions.jsonl")
    task = find_task(str(path), columns=parse_columns(["question=instruction,category=dataset"]))
    questions = task.read(path, seed=0)
    assert (task.name, task.open_ended, len(questions)) == ("alpaca_eval_instructions", True, 805)


@pytest.mark.parametrize("rule", ["question", "number", "text"])  # the others are of 0.1.0
def test_a_recorded_task_scores_as_before(write: Write, rule: str) -> None:
    task, questions = read(write({"question": "3 * 6?", "answer": 18}))
    again = recorded_task(task.name, rule)
    assert again
    assert flexible(again, questions[0], "It is 18. Answer: 18") == Verdict("18", True)
    assert recorded_task("talk", "open").open_ended  # type: ignore[union-attr]
    assert recorded_task("unknown", None) is None


def test_a_file_with_the_name_of_another_task_is_refused(write: Write) -> None:
    path = write({"question": "Why?"}, name="aqua.jsonl")
    with pytest.raises(DataError, match=re.escape(f"--data {path}")):
        find_task(str(path))
    with pytest.raises(TaskNotFoundError, match=r"no file none\.jsonl"):
        find_task("none.jsonl")


# Scorers that users name: a kind of answer, a regular expression, and their own functions


# scorer, gold, response, verdict
SCORED = [
    ("number", "18", "The answer is $18.", Verdict("18", True)),
    ("text", "18", "The answer is 18.", Verdict("18", True)),
    ("text", "18", "The answer is 18.0.", Verdict("18.0", False)),
    ("math", "2", "The answer is $\\frac{4}{2}$.", Verdict("\\frac{4}{2}", True)),
    ("letter", "b", "The answer is (B).", Verdict("B", True)),
    ("letter", "B", "The answer is (C).", Verdict("C", False)),
    ("regex:Result: (\\S+)", "18", "Result: 1 Result: 18.0", Verdict("18.0", True)),
    ("regex:\\bU\\w+", "Ulm", "In ULM", Verdict("ULM", True)),
    ("regex:Result: (\\d+)", "18", "It is 18.", Verdict(None, False)),
]


@pytest.mark.parametrize(("scorer", "gold", "response", "verdict"), SCORED)
def test_named_scorers(write: Write, scorer: str, gold: str, response: str, verdict: Verdict) -> None:
    path = write({"question": "Which?", "answer": gold})
    task = find_task(str(path), scorer)
    (question,) = task.read(path, seed=0)
    assert score(task, question, response, "stop")[1] == verdict
    rule = task.rule  # type: ignore[attr-defined]
    again = recorded_task("mine", rule, scorer)
    assert again
    assert (recorded_task("mine", rule) is None) == (":" in scorer)
    assert score(again, question, response, "stop")[1] == verdict


@pytest.mark.parametrize(
    ("scorer", "row", "named"),
    [
        ("nubmer", {"answer": 1}, "'nubmer'"),
        ("regex:(", {"answer": 1}, "'\\('"),
        ("no_such_module_here:score", {"answer": 1}, "no_such_module_here"),
        ("json:nothing", {"answer": 1}, "'nothing'"),
        ("number", {"answer": "five"}, "line 1: 'answer' is 'five'"),
        ("letter", {"answer": "AB"}, "line 1: 'answer' is 'AB'"),
        ("number", {"answer": "A", "choices": ["a", "b"]}, "line 1: .*choices"),
        ("number", {}, "no answers"),
    ],
)
def test_what_is_no_scorer_or_has_no_use(
    write: Write, scorer: str, row: dict[str, object], named: str
) -> None:
    path = write({"question": "Which?", **row})
    with pytest.raises(DataError, match=named):
        find_task(str(path), scorer).read(path, seed=0)


FUNCTION = """
import numpy
from mink_local.evals.tasks import Question, Verdict

def is_long(response: str, question: Question) -> bool | Verdict:
    if question.id == "bad":
        raise KeyError("nothing")
    if question.id == "odd":
        return 1
    return Verdict("long", True) if len(response) > 3 else numpy.bool_(False)
"""


def test_a_users_function_scores_and_its_failure_ends_the_run(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mink_eval: MinkEval, tiny_path: Path
) -> None:
    """A mistake in it is no model's, so it is in no accuracy. What was scored before is kept."""
    monkeypatch.chdir(tmp_path)
    Path("lengths.py").write_text(FUNCTION)
    rows = [{"question": f"{name}?", "answer": "x", "id": name} for name in ("good", "bad", "odd")]
    path = write(*rows)
    task = find_task(str(path), "lengths:is_long")
    good, *failing = task.read(path, seed=0)
    assert score(task, good, "<think>Hm.</think>abcd", "stop")[:2] == (Verdict("long", True),) * 2
    assert score(task, good, "abc", "stop")[:2] == (Verdict(None, False),) * 2
    for question in failing:
        with pytest.raises(ScorerError, match=f"question {question.id} of mine"):
            score(task, question, "abcd", "stop")
    run = ("run", path, "-m", tiny_path, "--no-greedy", "-n", 4, "--parallel", 1, "-q", "--out", "r")
    mink_eval(*run, "--scorer", "lengths:is_long").refused(1, "question bad of mine")
    assert [one.question_id for one in read_responses(tmp_path / "r")] == ["good"]
    Path("lengths.py").write_text("def is_long(response, question): return True")
    chosen_scorer.cache_clear()
    del sys.modules["lengths"]
    mink_eval(*run, "--scorer", "lengths:is_long").succeeded()
    assert len(read_responses(tmp_path / "r")) == 3
    Path("lengths.py").unlink()
    assert "lengths:is" in mink_eval("report", "r").succeeded().stdout
    mink_eval(*run, "--scorer", "text").refused(1, "rule")
    mink_eval("run", "gsm8k", "--scorer", "number").refused(2, "--scorer")
