"""Responses scored strictly and flexibly: what all tasks do with them, numbers, and options."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mink_local.evals.tasks import Verdict
from tests.support.scoring import OPTIONS, verdicts


@pytest.mark.parametrize(
    ("response", "correct"),
    [
        ("<think>The final answer is 17.</think>\nThe final answer is 18.", True),
        ("The final answer is 18.\n<think>The final answer is 17.", True),
        ("The final answer is 17.</think>The final answer is 18.", True),
        ("<think>a</think>The final answer is 18.<think>The final answer is 17.</think>", True),
        ("<think>a<think>b</think>The final answer is 18.", True),
        ("<think>The final answer is 18.", False),
    ],
)
def test_reasoning_is_not_the_answer(response: str, correct: bool) -> None:
    assert [verdict.correct for verdict in verdicts("gsm8k", response, "18")] == [correct, correct]


@pytest.mark.parametrize(("reason", "correct"), [("stop", True), ("length", False)])
def test_a_truncated_response_is_wrong_and_keeps_its_answer(reason: str, correct: bool) -> None:
    assert verdicts("gsm8k", "The final answer is 18", "18", finish_reason=reason) == (
        Verdict("18", correct),
        Verdict("18", correct),
    )


GOLDS = {"gsm8k": "18", "aqua": "B", "gpqa": "B", "math500": "\\frac{1}{2}"}
MARKUP = (
    "answer : = \\boxed{ } { ( ) B 18 , . /0 <think> </think> $ \\[ \\frac - #### ** \u0663 ² Ⅷ \x00 ½ "
    "[ ] x + * _ \\ & % \\sqrt \\text{"
)
PIECES = st.sampled_from(["The final answer is ", "\n", "9" * 60, *MARKUP.split()])


@pytest.mark.parametrize("task", GOLDS)
@given(st.lists(PIECES | st.text(max_size=3)).map("".join) | st.text())
@example("The final answer is " + "9" * 5000)
@example("The final answer is 1/" + "9" * 5000)
@example("\\boxed{" * 50)
def test_no_text_makes_scoring_fail(task: str, response: str) -> None:
    for verdict in verdicts(task, response, GOLDS[task], OPTIONS):
        assert verdict.answer is not None or not verdict.correct
        json.dumps(verdict.answer).encode()


def test_hostile_length_is_read_in_passing() -> None:
    for piece in (
        "The final answer is ",
        "\\boxed{",
        "answer\n",
        "answer \\boxed{1",
        "<think>",
        "9,",
        "*",
        "!",
        "(",
        "?( ",
        "\\frac{1",
    ):
        for task, gold in GOLDS.items():
            verdicts(task, piece * 20_000, gold, OPTIONS)


# Numbers as models state them


# response, strict answer, flexible answer
NUMBERS = [
    # the paper's form, and what its regular expression misses
    ("The final answer is 18", "18", "18"),
    ("The final answer is 18.", "18.", "18"),
    ("The final answer is -18.", "-18.", "-18"),
    ("The final answer is 1,450,000 people.", "1,450,000", "1450000"),
    ("The final answer is 1234.56", "1234", "1234.56"),
    ("The final answer is (18).", None, "18"),
    ("The final answer is $18.", None, "18"),
    ("The final answer is \\$18.00.", None, "18"),
    ("The final answer is **18**.", None, "18"),
    ("**The final answer is 18**", "18", "18"),
    ("The final answer is *18*.", None, "18"),
    ("The final answer is `18`", None, "18"),
    ("The final answer is __18__.", None, "18"),
    ("The final answer is: 18", None, "18"),
    ("The final answer is \\(\\boxed{18}\\)", None, "18"),
    ("The final answer is $\\boxed{18}$.", None, "18"),
    ("The final answer is:\n\n$$\n\\boxed{18}\n$$", None, "18"),
    ("The final answer is\n\\[\n18\n\\]", None, "18"),
    ("The final answer is \\boxed{\\text{18 dollars}}", None, "18"),
    ("The final answer is \\boxed{\\$1{,}800}", None, "1800"),
    ("The final answer is $\\mathbf{18}$.", None, "18"),
    ("the final answer is 18", None, "18"),
    ("THE FINAL ANSWER IS 18!", None, "18"),
    ("The final answer is “18”.", None, "18"),
    ("The final answer is \\( 18 \\) dollars.", None, "18"),
    # other words for it
    ("answer: 18", None, "18"),
    ("Answer = 18", None, "18"),
    ("**Final Answer:** 18 eggs", None, "18"),
    ("**Answer**: $18", None, "18"),
    ("### Final Answer\n\n18", None, "18"),
    ("## Answer:\n$18$", None, "18"),
    ("The answer to the question is 18.", None, "18"),
    ("So the answer would be $18.", None, "18"),
    ("The final answer is: Janet makes $18 every day.", None, "18"),
    ("The final answer is that she makes 18 dollars.", None, "18"),
    ("The final answer is approximately 18 eggs in 2 days.", None, "18"),
    # numbers of every kind
    ("The final answer is −18.", None, "-18"),
    ("The final answer is -$18.", None, "-18"),
    ("The final answer is $-18$.", None, "-18"),
    ("The final answer is +18.", None, "18"),
    ("The final answer is 20%.", "20", "20"),
    ("The final answer is 20\\%.", "20", "20"),
    ("The final answer is 1{,}800.", "1", "1800"),
    ("The final answer is 1\\,800.", "1", "1800"),
    ("The final answer is 11,\\!111.", "11", "11111"),
    ("The final answer is 70,000.00", "70,000.00", "70000"),
    ("The final answer is .5", None, "0.5"),
    ("The final answer is 1/2.", "1", "0.5"),
    ("The final answer is \\frac{1}{2}.", None, "0.5"),
    ("The final answer is \\dfrac12.", None, "0.5"),
    ("The final answer is 1 1/2 cups.", "1", "1.5"),
    ("The final answer is $1\\frac{1}{2}$.", None, "1.5"),
    ("The final answer is -1 1/2.", "-1", "-1.5"),
    ("The final answer is 18 eggs/day.", "18", "18"),
    ("The final answer is 18kg.", "18", "18"),
    # equations: what is stated stands on the right
    ("The final answer is 9 * 2 = 18.", "9", "18"),
    ("The final answer is 9 * 2 = $<<9*2=18>>18.", "9", "18"),
    ("The final answer is x = 18.", None, "18"),
    ("The final answer is \\(9 \\times 2 = 18\\).", None, "18"),
    ("The final answer is 53 / 3 ≈ 17.67", "53", "17.67"),
    # nothing that is certain
    ("The final answer is \\sqrt{18}.", None, None),
    ("The final answer is x18y.", None, None),
    ("The final answer is eighteen.", None, None),
    ("The final answer is (answer).", None, None),
    ("She has 16 - 3 - 4 = 9 eggs and so she makes 9 * 2 = 18 dollars every day.", None, None),
    # which one counts
    ("The final answer is 17. No, wait. The final answer is 18.", "18.", "18"),
    ("The final answer is 18. I hope this answer is helpful!", "18.", "18"),
    ("We get \\boxed{9} eggs, so \\boxed{18} dollars. Done, in 3 steps.", None, "18"),
    ("9 * 2 = 18\n#### 18", None, "18"),
    ("#### $1,800 a day", None, "1800"),
    ("18", None, "18"),
    ("$18 per day.", None, "18"),
]


@pytest.mark.parametrize(("response", "strict", "flexible"), NUMBERS)
def test_numbers(response: str, strict: str | None, flexible: str | None) -> None:
    both = verdicts("gsm8k", response, flexible or "18")
    assert both[0].answer == strict
    assert (both[1].answer is not None, both[1].correct) == (flexible is not None,) * 2
    assert flexible == "18" or not verdicts("gsm8k", response, "18")[1].correct


@pytest.mark.parametrize(
    ("response", "gold"), [("70,000.00", "70000"), ("0.50", "0.5"), ("-3.", "-3"), ("5.0", "5"), ("007", "7")]
)
def test_strict_compares_numbers_and_not_strings(response: str, gold: str) -> None:
    strict, flexible = verdicts("gsm8k", f"The final answer is {response}", gold)
    assert strict == Verdict(response, correct=True)
    assert flexible.correct


# Options as models state them, by letter or in words


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
    ("This is the answer.", None, None),
    ("The answer is Apples", "A", "B"),
    ("The answer is apples.", None, "B"),
    ("The answer is 15%.", None, "A"),
    ("The answer is $15\\%$.", None, "A"),
    ("The answer is \\frac{3}{8}", None, "C"),
    ("The answer is 20 km/h (D).", None, "D"),
    ("The answer is 20 km/h, option (D).", None, "D"),
    ("The final answer is \\boxed{20\\text{ km/h}}", None, "D"),
    ("The fruit is not Apples.", None, None),
    ("The fruit may be what is Apples.", None, None),
    ("The share is 15%.", None, None),
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
    ("Apples are tasty (B).", None, None),
    # which one counts
    ("The answer is (A). No. The answer is (B).", "B", "B"),
    ("The answer is (B). The answer is clear to all.", "B", "B"),
    ("The answer is (B), not (A).", "B", "B"),
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
