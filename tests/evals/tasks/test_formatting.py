"""The same statement in any formatting is read the same way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.scoring import OPTIONS, verdicts

WRAPS = (
    "**{}**",
    "*{}*",
    "`{}`",
    "${}$",
    "\\({}\\)",
    "\\boxed{{{}}}",
    "\\text{{{}}}",
    "({})",
    "“{}”",
    "__{}__",
)
BEGINNINGS = (
    "The final answer is {}.",
    "The final answer is: {}",
    "**The final answer is {}.**",
    "### Final Answer\n{}",
    "So the correct answer is {}!",
    "Final answer:\n\n{}\n",
    "> The answer is {}.",
    "<think>The answer is 1.</think>The answer is {}.",
)

NUMBERS = (
    ("18", "18"), ("-18", "-18"), ("−18", "-18"), ("1,800", "1800"), ("1.5", "1.5"), ("\\frac{1}{2}", "0.5"),
    ("-\\frac{1}{2}", "-0.5"), ("1800 m", "1800"), ("18%", "18"), ("3 million", "3000000"), ("1½", "1.5"),
    ("9 \\times 2 = 18", "18"), ("x = -18", "-18"), ("18 m^2", "18"), ("１８", "18"), ("18 hundred", "1800"),
)  # fmt: skip
BOUNDS = (
    "at least 18", "over 18", "18 or more", "18+", "\\geq 18", "a third of 18", "18\\pi", "18^2", "18 or 19",
    "not 18", "< 18", "twice 18", "x + 18", "18 at most", "-(18)", "18 dozen", "18 and a half",
)  # fmt: skip
LETTERS = (
    ("B", "B"), ("(B)", "B"), ("option B", "B"), ("(B) Apples", "B"), ("Apples", "B"), ("3/8", "C"),
    ("20 km/h", "D"), ("(E) None of these", "E"), ("（B）", "B"),
)  # fmt: skip
MATHS_HAVE_NONE = {"\\text{{{}}}", "({})"}  # as brackets make a pair an interval
MATHS = ("\\frac{1}{2}", "-\\frac{1}{2}", "3\\sqrt{13}", "(3,4)", "x^2+1", "-5", "52_8", "2\\pi", "90^\\circ")


def wrapped(text: str, wraps: tuple[str, ...], beginning: str) -> str:
    for wrap in wraps:
        text = wrap.format(text)
    return beginning.format(text)


some_wraps = st.lists(st.sampled_from(WRAPS), max_size=3, unique=True).map(tuple)


@pytest.mark.parametrize(("text", "gold"), NUMBERS)
@given(some_wraps, st.sampled_from(BEGINNINGS))
def test_a_number_has_one_reading(text: str, gold: str, wraps: tuple[str, ...], beginning: str) -> None:
    assert verdicts("gsm8k", wrapped(text, wraps, beginning), gold)[1].correct


@pytest.mark.parametrize("bound", BOUNDS)
@given(some_wraps, st.sampled_from(BEGINNINGS))
def test_a_bound_is_never_an_answer(bound: str, wraps: tuple[str, ...], beginning: str) -> None:
    assert verdicts("gsm8k", wrapped(bound, wraps, beginning), "18")[1].answer is None


@pytest.mark.parametrize(("text", "gold"), LETTERS)
@given(some_wraps, st.sampled_from(BEGINNINGS))
def test_an_option_has_one_reading(text: str, gold: str, wraps: tuple[str, ...], beginning: str) -> None:
    assert verdicts("aqua", wrapped(text, wraps, beginning), gold, OPTIONS)[1].answer == gold


@pytest.mark.parametrize("gold", MATHS)
@given(some_wraps.filter(lambda wraps: not MATHS_HAVE_NONE & set(wraps)), st.sampled_from(BEGINNINGS))
def test_an_expression_has_one_reading(gold: str, wraps: tuple[str, ...], beginning: str) -> None:
    assert verdicts("math500", wrapped(gold, wraps, beginning), gold)[1].correct
