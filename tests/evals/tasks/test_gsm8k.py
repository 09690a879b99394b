"""Numbers as models state them, scored strictly and flexibly."""

import pytest

from mink_local.evals.tasks import Verdict
from tests.support.scoring import verdicts

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
    ("The final answer is 1 1/2 cups.", "1", "1.5"),
    ("The final answer is $1\\frac{1}{2}$.", None, "1.5"),
    ("The final answer is -1 1/2.", "-1", None),
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
    ("The final answer is 1e5", "1", "100000"),
    ("The final answer is 1e999999999", "1", None),
    ("The final answer is that on day 2 they sell 18 eggs.", None, None),
    ("The answer is **7** dozen.", None, None),
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
    ("\\boxed{17 eggs and 2 hens}", None, None),
    ("So $18.00 is the final answer.", None, "18"),
    ("9 * 2 = 18\n#### 18", None, "18"),
    ("#### $1,800 a day", None, "1800"),
    ("18", None, "18"),
    ("$18 per day.", None, "18"),
    ("Janet has 16 ducks.", None, None),
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
