"""The budget of prompt tokens against machines whose times are known."""

import pytest

from mink_local.generation.prompt_budget import PromptBudget


def run(budget: PromptBudget, step: float, token: float, n_answers: int = 4) -> list[int]:
    """Let prompts wait for 50 steps on a machine with these seconds a step and for each prompt token."""
    evaluated = []
    for _ in range(50):
        evaluated.append(budget.tokens(n_answers))
        budget.note(step + evaluated[-1] * token, n_answers, evaluated[-1])
    return evaluated


@pytest.mark.parametrize(
    ("step", "token", "tokens"),
    [(0.1, 0.001, 300), (0.08, 0.0016, 150), (0.01, 0.001, 240), (0.01, 0.1, 9), (1.5, 0.01, 1)],
    ids=["four times", "four times again", "a quarter of a second", "a second", "a slow step"],
)
def test_how_long_a_step_with_prompts_takes(step: float, token: float, tokens: int) -> None:
    assert max(run(PromptBudget(), step, token)[10:]) == pytest.approx(tokens, abs=1)


def test_it_follows_a_machine_that_gets_slower() -> None:
    budget = PromptBudget()
    run(budget, 0.1, 0.001)
    assert run(budget, 0.2, 0.002)[-1] == pytest.approx(300, abs=6)


@pytest.mark.parametrize("at", range(1, 12))
def test_one_slow_step_changes_little(at: int) -> None:
    """Of the machine, not of the model; what the budget would be without it comes back within a few steps."""
    budget = PromptBudget()
    usual = max(run(budget, 0.1, 0.02))
    for i in range(30):
        n = budget.tokens(4)
        budget.note(0.1 + 0.02 * n + 5.0 * (i == at), 4, n)
        assert 0.1 + 0.02 * n <= 1
        assert i < at + 8 or n <= usual + 1


@pytest.mark.parametrize(("token", "tokens"), [(0.0001, 10_000), (0.0062, 161), (0.2, 16)])
def test_a_step_without_answers_lasts_a_second(token: float, tokens: int) -> None:
    """Known from other such steps, or from those beside answers."""
    alone, beside = PromptBudget(), PromptBudget()
    alone.note(alone.longest * token, 0, alone.longest)
    run(beside, 0.01, token)
    assert alone.longest == pytest.approx(tokens, abs=1)
    assert beside.longest == pytest.approx(tokens, abs=1)


def test_steps_of_a_few_tokens_do_not_say_what_a_token_takes() -> None:
    budget = PromptBudget()
    budget.note(64 * 0.01, 0, 64)
    for _ in range(5):
        budget.note(0.04 + 0.01, 0, 1)
    assert budget.longest == pytest.approx(100, abs=1)


def test_first_answers_wait_for_the_others_as_long_as_all_will() -> None:
    budget = PromptBudget()
    run(budget, 0.1, 0.001, n_answers=1)
    run(budget, 0.16, 0.001, n_answers=4)
    assert budget.tokens(1) == pytest.approx(300, abs=1)
    assert budget.tokens(4) == pytest.approx(480, abs=1)
    assert budget.tokens(9) == pytest.approx(740, abs=1)  # though nine have not been seen yet: a second


def test_prompts_wait_for_one_step_in_eight() -> None:
    assert run(PromptBudget(), 0.01, 0.001)[-16:].count(0) == 2


def test_a_step_with_prompts_that_is_faster_by_chance_is_no_error() -> None:
    budget = PromptBudget()
    budget.note(0.01, 1, 0)
    budget.note(0.009, 1, budget.tokens(1))
    assert budget.tokens(1) > 0
