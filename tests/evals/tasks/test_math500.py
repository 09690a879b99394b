"""MATH500: the paper's comparison, and math-verify's within limits."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from mink_local.errors import DataError
from mink_local.evals.tasks import TASKS, Verdict, equivalence, score
from mink_local.evals.tasks.equivalence import equivalent
from mink_local.evals.tasks.scoring import normalized
from mink_local.sandbox import Child, ChildStartError
from tests.conftest import shared
from tests.support.scoring import verdicts

# response, gold, strict's answer, whether strict takes it, whether flexible does
ANSWERS = [
    ("The final answer is 9", "9", "9", True, True),
    ("The final answer is 9.", "9", "9", True, True),
    ("The final answer is: 9.", "9", "9", True, True),
    ("The final answer is 3.5.", "3.5", "3", False, True),  # strict stops at the first full stop
    ("The final answer is 3.5", "3", "3", True, False),
    ("The final answer is $\\frac{14}{3}$.", "\\frac{14}{3}", "$\\frac{14}{3}$", True, True),
    ("The final answer is \\dfrac{14}{3}.", "\\frac{14}{3}", "\\dfrac{14}{3}", True, True),
    ("The final answer is 14/3.", "\\frac{14}{3}", "14/3", True, True),
    ("The final answer is \\frac43", "\\frac{4}{3}", "\\frac43", True, True),
    ("The final answer is \\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})",
     "\\left( 3, \\frac{\\pi}{2} \\right)", True, True),
    ("The final answer is EVELYN.", "\\text{Evelyn}", "EVELYN", True, True),
    ("The final answer is 10080.", "10,\\!080", "10080", True, True),
    ("The final answer is 10,080.", "10080", "10,080", True, True),
    ("The final answer is 9.00", "9", "9", True, True),
    ("The final answer is 9\nThat was easy", "9", None, False, True),
    ("The final answer is (9).", "9", "(9)", False, True),
    ("The final answer is **9**.", "9", "**9**", False, True),
    ("the final answer is \\(\\boxed{9}\\)", "9", None, False, True),
    ("The final answer is \\[\\boxed{9}.\\]", "9", "\\[\\boxed{9}", True, True),
    ("**Answer:** $x = 9$", "9", None, False, True),
    ("### Final Answer\n\\[\n\\begin{pmatrix}\n1 \\\\\n2\n\\end{pmatrix}\n\\]",
     "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", None, False, True),
    ("So it is \\boxed{\\frac{28}{6}}.", "\\frac{14}{3}", None, False, True),
    ("The final answer is 0.5", "\\frac{1}{2}", "0", False, True),
    ("The final answer is 90 degrees.", "90^\\circ", "90 degrees", False, True),
    ("The final answer is \\$18.90.", "18.90", "\\$18", False, True),
    ("The final answer is $\\sqrt{52}$.", "2\\sqrt{13}", "$\\sqrt{52}$", False, True),
    ("The final answer is (-2, 1).", "1,-2", "(-2, 1)", False, True),
    ("The final answer is $[-2,7]$.", "x \\in [-2,7]", "$[-2,7]$", False, True),
    ("The final answer is \\(9\\times 2\\) = \\(18\\).", "18", "\\(9\\times 2\\) = \\(18\\)", False, True),
    ("The final answer is 8. No: the final answer is 9.", "9", "8", False, True),
    ("The final answer is 2\\pi.", "2", "2\\pi", False, False),
    ("The final answer is 2.", "2\\pi", "2", False, False),
    ("The final answer is \\sqrt{13}.", "13", "\\sqrt{13}", False, False),
    ("The final answer is nan", "3", "nan", False, False),
    ("The final answer is 1_000", "1000", "1_000", False, False),
    ("The final answer is infinity", "3", "infinity", False, False),
    ("The final answer is 1e999", "3", "1e999", False, False),
    ("We have 3 cases, and 9 of them fit.", "9", None, False, False),
    ("", "9", None, False, False),
]  # fmt: skip


@pytest.mark.parametrize(("response", "gold", "answer", "strict", "flexible"), ANSWERS)
def test_answers(response: str, gold: str, answer: str | None, strict: bool, flexible: bool) -> None:
    both = verdicts("math500", response, gold)
    assert both[0] == Verdict(answer, strict)
    assert both[1].correct == flexible


def test_floats_are_the_same_within_a_millionth() -> None:
    for answer, correct in [
        ("2,000000", False),
        ("-1e-7", True),
        ("+0", True),
        (".0000009", True),
        (".0000011", False),
    ]:
        assert verdicts("math500", f"The final answer is {answer}", "0")[0].correct == correct, answer
    assert normalized("11,\\! 111,\\! 100") == "11111100"
    assert normalized("3, 500") == "3,500"


@pytest.mark.slow
def test_every_gold_answer_is_the_same_as_itself() -> None:
    questions = TASKS["math500"].read(shared("data/math500_test.jsonl"), seed=0)
    for question in questions:
        for response in (
            f"The final answer is $\\boxed{{{question.gold}}}$.",
            f"The final answer is ${question.gold}$.",
        ):
            assert score(TASKS["math500"], question, response, "stop")[1].correct, question.gold
    golds = sorted({question.gold for question in questions})
    assert [gold for gold in golds if not equivalent(gold, gold)] == []
    assert not any(equivalent(gold, other) for gold, other in zip(golds[:100], golds[150:], strict=False))


QUICK = [
    "10^{10^{10}}",
    "{" * 900 + "3" + "}" * 900,
    "1" * 100_000,
    "\\frac" * 300,
    "}",
    "\\",
    "nan",
    "\x00",
    "\ud800",
]
SLOW = ["9^9^9^9", "9999999999999999!", "\\sqrt{" * 300 + "}" * 300, "x" * 1900, "{"]
ENDLESS = "\\int_0^1 e^{x^{x^x}} dx"


@pytest.mark.parametrize(
    "answer", [*QUICK, *(pytest.param(answer, marks=pytest.mark.slow) for answer in SLOW)]
)
def test_hostile_answers_are_not_the_same_and_harm_nobody(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "SECONDS", 1)
    assert not equivalent("3", answer)
    monkeypatch.setattr(equivalence, "SECONDS", 30)
    assert equivalent("\\frac{6}{2}", "3")


@pytest.mark.slow
def test_the_limit_holds_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "SECONDS", 3)
    assert equivalent("\\frac{7}{2}", "3.5")  # the child has started
    answers = ["0.5", ENDLESS, "\\frac{3}{6}", "2", "50\\%"]
    with ThreadPoolExecutor(len(answers)) as pool:
        same = list(pool.map(lambda answer: equivalent("\\frac{1}{2}", answer), answers))
    assert same == [True, False, True, False, True]


def test_without_math_verify_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"mink-local\[eval\]"):
        equivalent("1", "a question not asked before")


def test_a_child_that_does_not_start_is_an_error_and_not_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equivalence, "_verifier", Child("mink_local.no_such_module", memory=1 << 30))
    with pytest.raises(ChildStartError, match="no_such_module"):
        equivalent("1", "another question not asked before")
