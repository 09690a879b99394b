"""What strict and flexible scoring make of responses as models write them."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mink_local.evals.run.data import locate
from mink_local.evals.tasks import TASKS, Question, Verdict, score
from mink_local.evals.tasks.base import without_reasoning
from mink_local.evals.tasks.statements import boxed, plain

GSM8K, AQUA, GPQA = TASKS["gsm8k"], TASKS["aqua"], TASKS["gpqa"]
OPTIONS = ("15%", "Apples", "3/8", "20 km/h", "None of these")


def read(task: str, response: str, gold: str, choices: tuple[str, ...] = ()) -> tuple[Verdict, Verdict]:
    return score(TASKS[task], Question("0", "", gold, choices), response, "stop")


# response, what strict reads, what flexible reads
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
    ("The final answer is negative 18.", None, "-18"),
    ("The final answer is minus 18 degrees.", None, "-18"),
    ("The final answer is +18.", None, "18"),
    ("The final answer is 20%.", "20", "20"),
    ("The final answer is 20\\%.", "20", "20"),
    ("The final answer is 1{,}800.", "1", "1800"),
    ("The final answer is 1 800 000.", "1", "1800000"),
    ("The final answer is 1\u202f800.", "1", "1800"),
    ("The final answer is 1\\,800.", "1", "1800"),
    ("The final answer is 11,\\!111.", "11", "11111"),
    ("The final answer is 70,000.00", "70,000.00", "70000"),
    ("The final answer is .5", None, "0.5"),
    ("The final answer is 1/2.", "1", "0.5"),
    ("The final answer is \\frac{1}{2}.", None, "0.5"),
    ("The final answer is \\dfrac12.", None, "0.5"),
    ("The final answer is 1/3", "1", "1/3"),
    ("The final answer is 1 1/2 cups.", "1", "1.5"),
    ("The final answer is $1\\frac{1}{2}$.", None, "1.5"),
    ("The final answer is -1 1/2.", "-1", "-1.5"),
    ("The final answer is 1.5 million.", "1.5", "1500000"),
    ("The final answer is £3 thousand.", None, "3000"),
    ("The final answer is 18 eggs/day.", "18", "18"),
    ("The final answer is 18kg.", "18", "18"),
    # equations: what is stated stands on the right
    ("The final answer is 9 * 2 = 18.", "9", "18"),
    ("The final answer is 9 * 2 = $<<9*2=18>>18.", "9", "18"),
    ("The final answer is x = 18.", None, "18"),
    ("The final answer is \\(9 \\times 2 = 18\\).", None, "18"),
    ("The final answer is 53 / 3 ≈ 17.67", "53", "17.67"),
    # nothing that is certain
    ("The final answer is 9 * 2.", "9", None),
    ("The final answer is 9 x 2", "9", None),
    ("The final answer is 9**2", "9", None),
    ("The final answer is 2^5.", "2", None),
    ("The final answer is 10 - 12.", "10", None),
    ("The final answer is 2:30", "2", None),
    ("The final answer is \\sqrt{18}.", None, None),
    ("The final answer is 1,45", "1", None),
    ("The final answer is 1e5", "1", None),
    ("The final answer is 1/0.", "1", None),
    ("The final answer is that on day 2 they sell 18 eggs.", None, None),
    ("The final answer is x18y.", None, None),
    ("The final answer is eighteen.", None, None),
    ("The final answer is (answer).", None, None),
    ("She has 16 - 3 - 4 = 9 eggs and so she makes 9 * 2 = 18 dollars every day.", None, None),
    ("The final answer is:\nStep 1: add them up.", None, None),
    ("", None, None),
    # which one counts
    ("The final answer is 17. No, wait. The final answer is 18.", "18.", "18"),
    ("The final answer is 18. I hope this answer is helpful!", "18.", "18"),
    ("The final answer is 18. Check: \\boxed{5}", "18.", "18"),
    ("We get \\boxed{9} eggs, so \\boxed{18} dollars. Done, in 3 steps.", None, "18"),
    ("\\boxed{17 eggs and 2 hens}", None, "17"),
    ("So $18.00 is the final answer.", None, "18"),
    ("9 * 2 = 18\n#### 18", None, "18"),
    ("#### $1,800 a day", None, "1800"),
    ("18", None, "18"),
    ("$18 per day.", None, "18"),
    ("Janet has 16 ducks.", None, None),
]


@pytest.mark.parametrize(("response", "strict", "flexible"), NUMBERS)
def test_numbers(response: str, strict: str | None, flexible: str | None) -> None:
    verdicts = read("gsm8k", response, "18")
    assert [verdict.answer for verdict in verdicts] == [strict, flexible]
    assert verdicts[0].correct == (strict is not None and Fraction(strict.replace(",", "")) == 18)
    assert verdicts[1].correct == (flexible == "18")


@pytest.mark.parametrize(
    ("response", "gold"), [("70,000.00", "70000"), ("0.50", "0.5"), ("-3.", "-3"), ("5.0", "5"), ("007", "7")]
)
def test_strict_compares_numbers_and_not_strings(response: str, gold: str) -> None:
    strict, flexible = read("gsm8k", f"The final answer is {response}", gold)
    assert strict == Verdict(response, correct=True)
    assert flexible.correct


# response, what strict reads, what flexible reads
LETTERS = [
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


@pytest.mark.parametrize(("response", "strict", "flexible"), LETTERS)
def test_letters(response: str, strict: str | None, flexible: str | None) -> None:
    verdicts = read("aqua", response, "B", OPTIONS)
    assert [verdict.answer for verdict in verdicts] == [strict, flexible]
    assert [verdict.correct for verdict in verdicts] == [strict == "B", flexible == "B"]


def test_apples_are_no_a_where_no_option_says_so() -> None:
    strict, flexible = read("aqua", "The answer is Apples", "A", ("1", "2", "3", "4", "5"))
    assert strict == Verdict("A", correct=True)  # the paper's expression takes the A
    assert flexible == Verdict(None, correct=False)


def test_options_with_the_same_text_are_the_same_answer() -> None:
    choices = ("8.75", "8.79", "8.75", "8.71", "87.5")
    assert read("aqua", "The answer is (A)", "C", choices)[0] == Verdict("A", correct=False)
    assert read("aqua", "The answer is (A)", "C", choices)[1] == Verdict("A", correct=True)
    assert read("aqua", "The answer is 8.75", "C", choices)[1].correct
    assert not read("aqua", "The answer is 87.5", "C", choices)[1].correct
    assert not read("aqua", "The answer is (B)", "C", choices)[1].correct


@pytest.mark.parametrize(
    ("response", "strict", "flexible"),
    [
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
    ],
)
def test_gpqa_letters(response: str, strict: str | None, flexible: str | None) -> None:
    verdicts = read("gpqa", response, "B", OPTIONS[:4])
    assert [verdict.answer for verdict in verdicts] == [strict, flexible]
    assert [verdict.correct for verdict in verdicts] == [strict == "B", flexible == "B"]


@pytest.mark.parametrize(
    "response",
    [
        "<think>The final answer is 17.</think>\nThe final answer is 18.",
        "The final answer is 18.\n<think>The final answer is 17.",
        "The final answer is 17.</think>The final answer is 18.",
        "<think>a</think>The final answer is 18.<think>The final answer is 17.</think>",
    ],
)
def test_thoughts_are_not_the_answer(response: str) -> None:
    assert [verdict.correct for verdict in read("gsm8k", response, "18")] == [True, True]


def test_an_answer_in_an_open_thought_is_none() -> None:
    assert read("gsm8k", "<think>The final answer is 18.", "18") == (
        Verdict(None, False),
        Verdict(None, False),
    )
    assert without_reasoning(" <think>a<think>b</think> c ") == "c"


@pytest.mark.parametrize(("reason", "correct"), [("stop", True), ("length", False)])
def test_a_truncated_response_is_wrong_and_keeps_its_answer(reason: str, correct: bool) -> None:
    question = Question("0", "", "18")
    assert score(GSM8K, question, "The final answer is 18", reason) == (
        Verdict("18", correct),
        Verdict("18", correct),
    )


def test_the_last_closed_box_counts() -> None:
    text = r"\boxed{1} \boxed{\frac{2}{3}} \boxed{\left\{4\right\}} \boxed{5"
    assert [content for _, content in boxed(text)] == ["1", r"\frac{2}{3}", r"\left\{4\right\}"]


def test_plain_text_keeps_what_has_a_meaning() -> None:
    assert plain(r"**\$1{,}200.50**") == "1,200.50"
    assert plain(r"$\sqrt{2} \times 3\,\text{cm}$") == r"\sqrt2 × 3 cm"
    assert plain("2 * 3 ** 4") == "2 * 3 ** 4"


GOLDS = {"gsm8k": "18", "aqua": "B", "gpqa": "B"}
MARKUP = "answer : = \\boxed{ } { ( ) B 18 , . /0 <think> </think> $ \\[ \\frac - #### ** \u0663 ² Ⅷ \x00 ½"
PIECES = st.sampled_from(["The final answer is ", "\n", "9" * 60, *MARKUP.split()])


@pytest.mark.parametrize("task", GOLDS)
@given(st.lists(PIECES | st.text(max_size=3)).map("".join) | st.text())
@example("The final answer is " + "9" * 5000)
@example("The final answer is 1/" + "9" * 5000)
@example("\\boxed{" * 50)
def test_no_text_makes_scoring_fail(task: str, response: str) -> None:
    for verdict in read(task, response, GOLDS[task], OPTIONS):
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
        "\\frac{1",
    ):
        for task, gold in GOLDS.items():
            read(task, piece * 20_000, gold, OPTIONS)


def value(expression: str) -> Fraction:
    """What an expression of numbers, + - * / and brackets comes to, exactly."""
    assert re.fullmatch(r"[\d.+\-*/() ]+", expression)
    result = eval(re.sub(r"\d+(?:\.\d+)?", r"Fraction('\g<0>')", expression), {"Fraction": Fraction})
    assert isinstance(result, Fraction)
    return result


def worked(solution: str) -> Fraction:
    """The last of a solution's worked steps <<expression=result>>, each of which is right."""
    steps = re.findall(r"<<([^<>=]+)=([^<>=]+)>>(\S+)", solution)
    assert steps
    for expression, result, shown in steps:
        assert value(expression) == value(result)
        assert shown.rstrip(".").removesuffix(":") == result
    return value(steps[-1][1])


def rows(name: str) -> list[dict[str, str]]:
    path = locate(TASKS[name])
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_answer_of_sample_math_is_recomputed() -> None:
    questions = TASKS["sample-math"].read(locate(TASKS["sample-math"]), seed=0)
    assert len(questions) >= 40
    for row, question in zip(rows("sample-math"), questions, strict=True):
        assert worked(row["answer"]) == Fraction(question.gold), row["question"]
        assert len(row["answer"].splitlines()[:-1]) == row["answer"].count("<<"), row["question"]


def test_every_answer_of_sample_choice_is_recomputed() -> None:
    questions = TASKS["sample-choice"].read(locate(TASKS["sample-choice"]), seed=0)
    assert len(questions) >= 40
    for row, question in zip(rows("sample-choice"), questions, strict=True):
        right = worked(row["rationale"])
        values = [
            Fraction(re.findall(r"-?[\d.]+(?:/\d+)?", choice.replace(",", ""))[0])
            for choice in question.choices
        ]
        fits = [letter for letter, shown in zip("ABCDE", values, strict=True) if shown == right]
        assert fits == [question.gold], row["question"]
        assert row["rationale"].endswith(f"Answer: {question.gold}")


def test_the_samples_copy_nothing_from_the_published_sets() -> None:
    published = {
        tuple(json.loads(line)["question"].lower().split()[start : start + 8])
        for name in ("gsm8k", "aqua")
        for line in _published(name).read_text(encoding="utf-8").split("\n")
        if line
        for start in range(max(1, len(json.loads(line)["question"].split()) - 7))
    }
    for name in ("sample-math", "sample-choice"):
        for row in rows(name):
            words = row["question"].lower().split()
            copied = [
                words[at : at + 8] for at in range(len(words) - 7) if tuple(words[at : at + 8]) in published
            ]
            assert not copied


def _published(name: str) -> Path:
    from tests.conftest import shared

    return shared(f"data/{name}_test.jsonl")
