"""Scorers that users name: a kind of answer, a regular expression, and their own functions."""

from pathlib import Path

import pytest

from mink_local.errors import DataError
from mink_local.evals.tasks import Verdict, find_task, recorded_task, score
from mink_local.evals.tasks.base import ScorerError
from tests.evals.tasks.conftest import Write
from tests.support.mink_eval import MinkEval, read_responses

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
    again = recorded_task("mine", task.rule)  # type: ignore[attr-defined]
    assert again
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
from mink_local.evals.tasks import Question, Verdict

def is_long(response: str, question: Question) -> bool | Verdict:
    if question.id == "bad":
        raise KeyError("nothing")
    if question.id == "odd":
        return 1
    return Verdict("long", True) if len(response) > 3 else False
"""


def test_a_users_function_scores_and_its_failure_loses_nothing(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mink_eval: MinkEval,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lengths.py").write_text(FUNCTION)
    path = write(*({"question": f"{name}?", "answer": "x", "id": name} for name in ("good", "bad", "odd")))
    task = find_task(str(path), "lengths:is_long")
    good, *failing = task.read(path, seed=0)
    assert score(task, good, "<think>Hm.</think>abcd", "stop") == (Verdict("long", True),) * 2
    assert score(task, good, "abc", "stop") == (Verdict(None, False),) * 2
    for question in failing:
        with pytest.raises(ScorerError, match=f"question {question.id} of mine"):
            score(task, question, "abcd", "stop")
    run = ("run", path, "-m", "smollm2-135m", "--no-greedy", "-n", 4, "--out", "r")
    mink_eval(*run, "--scorer", "lengths:is_long").succeeded()
    assert "question bad of mine" in caplog.text
    assert len(read_responses(tmp_path / "r")) == 3
    mink_eval("report", "r").succeeded()
    assert "question bad of mine" in next(Path("r").rglob("report.md")).read_text(encoding="utf-8")
    mink_eval(*run, "--scorer", "text").refused(1, "rule")
    mink_eval("run", "gsm8k", "--scorer", "number").refused(2, "--scorer")
