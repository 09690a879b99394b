"""What all tasks do with a response: reasoning, truncation, text of any kind and length."""

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


GOLDS = {"gsm8k": "18", "aqua": "B", "gpqa": "B"}
MARKUP = "answer : = \\boxed{ } { ( ) B 18 , . /0 <think> </think> $ \\[ \\frac - #### ** \u0663 ² Ⅷ \x00 ½"
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
        "\\frac{1",
    ):
        for task, gold in GOLDS.items():
            verdicts(task, piece * 20_000, gold, OPTIONS)
