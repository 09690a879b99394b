"""Options as models state them, by letter or in words, scored strictly and flexibly."""

import pytest

from mink_local.evals.tasks import Verdict
from tests.support.scoring import OPTIONS, verdicts

# response, strict answer, flexible answer
AQUA = [
    ("The answer is (B)", "B", "B"),
    ("The answer is B.", "B", "B"),
    ("The answer is\n(B)", "B", "B"),
    ("The answer is B because it fits.", "B", "B"),
    ("The answer is C which fits.", "C", "C"),
    ("The answer is (B) Apples.", "B", "B"),
    ("The answer is B) Apples", "B", "B"),
    ("The answer is B: Apples", "B", "B"),
    ("The answer is **(B)**.", None, "B"),
    ("**Answer: B**", None, "B"),
    ("The answer is: (B)", None, "B"),
    ("the answer is (b).", None, "B"),
    ("the answer is b.", None, "B"),
    ("Answer: b) Apples", None, "B"),
    ("The correct answer is option B.", None, "B"),
    ("The correct answer is choice (B).", None, "B"),
    ("The answer is the letter B.", None, "B"),
    ("The answer is \\boxed{B}.", None, "B"),
    ("The answer is $\\boxed{\\text{(B)}}$", None, "B"),
    ("The answer is \\(\\mathrm{B}\\).", None, "B"),
    ("### Final answer\n(B)", None, "B"),
    ("So it is \\boxed{\\textbf{B}}.", None, "B"),
    ("B", None, "B"),
    ("(B) Apples", None, "B"),
    # the option's own words
    ("B is the correct answer.", None, "B"),
    ("So **(B)** is the answer", None, "B"),
    ("This is the answer.", None, None),
    ("The answer is Apples", "A", "B"),
    ("The answer is apples.", None, "B"),
    ("The answer is 15%.", None, "A"),
    ("The answer is $15\\%$.", None, "A"),
    ("The answer is \\frac{3}{8}", None, "C"),
    ("The answer is 20 km/h (D).", None, "D"),
    ("The answer is 20 km/h, option (D).", None, "D"),
    ("The final answer is \\boxed{20\\text{ km/h}}", None, "D"),
    # no letter, and no option
    ("The answer is Apricots", "A", None),
    ("The answer is Bananas.", "B", None),
    ("The answer is A car that goes fast.", "A", None),
    ("The answer is a car.", None, None),
    ("The answer is an apple a day.", None, None),
    ("The answer is 20.", None, None),
    ("The answer is F.", None, None),
    ("The answer is (X)", None, None),
    ("The answer is I.", None, None),
    ("The answer is A or B.", "A", None),
    ("The answer is (A) and (C).", "A", None),
    ("The answer is not (B).", None, None),
    ("The answer is neither (B).", None, None),
    ("Apples are tasty (B).", None, None),
    ("", None, None),
    # which one counts
    ("The answer is (A). No. The answer is (B).", "B", "B"),
    ("The answer is (B). The answer is clear to all.", "B", "B"),
    ("The answer is (B), not (A).", "B", "B"),
    ("The answer is (B), as the answer is not (A).", "B", "B"),
]
GPQA = [
    ("The final answer is (B).", "B", "B"),
    ("The final answer is (B)", "B", "B"),
    ("The final answer is\n(B). \n", "B", "B"),
    ("The final answer is (B). I am sure.", None, "B"),
    ("The final answer is (A). The final answer is (B).", "B", "B"),
    ("The final answer is (B)<|im_end|>", None, "B"),
    ("The final answer is B.", None, "B"),
    ("The final answer is (E).", None, None),
    ("**The final answer is (B).**", None, "B"),
    ("The final answer is (b).", None, "B"),
    ("The final answer is 3/8.", None, "C"),
]


@pytest.mark.parametrize(
    ("task", "response", "strict", "flexible"),
    [*(("aqua", *row) for row in AQUA), *(("gpqa", *row) for row in GPQA)],
)
def test_letters(task: str, response: str, strict: str | None, flexible: str | None) -> None:
    both = verdicts(task, response, "B", OPTIONS[: 5 if task == "aqua" else 4])
    assert [verdict.answer for verdict in both] == [strict, flexible]
    assert [verdict.correct for verdict in both] == [strict == "B", flexible == "B"]


def test_apples_are_no_a_where_no_option_says_so() -> None:
    strict, flexible = verdicts("aqua", "The answer is Apples", "A", ("1", "2", "3", "4", "5"))
    assert strict == Verdict("A", correct=True)  # the paper's expression takes the A
    assert flexible == Verdict(None, correct=False)


def test_options_with_the_same_text_are_the_same_answer() -> None:
    choices = ("8.75", "8.79", "8.75", "8.71", "87.5")
    assert verdicts("aqua", "The answer is (A)", "C", choices)[0] == Verdict("A", correct=False)
    assert verdicts("aqua", "The answer is (A)", "C", choices)[1] == Verdict("A", correct=True)
    assert verdicts("aqua", "The answer is 8.75", "C", choices)[1].correct
    assert not verdicts("aqua", "The answer is 87.5", "C", choices)[1].correct
    assert not verdicts("aqua", "The answer is (B)", "C", choices)[1].correct
