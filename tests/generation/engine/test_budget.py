"""The budget of prompt tokens against machines whose times are known."""

import random

import pytest

from mink_local.generation.engine.budget import PromptBudget

MANY = 1 << 20  # tokens


def run(budget: PromptBudget, step: float, token: float, n_answers: int = 4) -> list[int]:
    """Let prompts be read in 45 of 50 steps, on a machine with these seconds a step and a token."""
    read = []
    for i in range(50):
        n_prompt = budget.tokens(MANY, n_answers) if i % 10 else 0
        budget.note(step + (n_answers + n_prompt) * token, n_answers, n_prompt)
        read.append(n_prompt)
    return read


@pytest.mark.parametrize(
    ("step", "token", "tokens"),
    [(0.2, 0.002, 396), (0.18, 0.003, 269), (0.01, 0.002, 491), (0.01, 0.1, 16), (1.5, 0.01, 16)],
    ids=["a second", "again", "a short step", "a slow token", "a slow step"],
)
def test_a_step_with_prompts_takes_a_second(step: float, token: float, tokens: int) -> None:
    assert max(run(PromptBudget(), step, token)[10:]) == pytest.approx(tokens, abs=1)


def test_it_follows_a_machine_that_gets_slower() -> None:
    budget = PromptBudget()
    run(budget, 0.2, 0.002)
    assert 130 < run(budget, 0.2, 0.004)[-1] < 200
    assert 350 < run(budget, 0.2, 0.002)[-1] < 400


@pytest.mark.parametrize("at", range(12))
def test_one_slow_step_changes_little(at: int) -> None:
    """Of the machine, not of the model: no step is planned to last more than a second."""
    budget = PromptBudget()
    usual = max(run(budget, 0.1, 0.02))
    for i in range(30):
        n = budget.tokens(MANY, 4) if i % 3 else 0
        budget.note(0.1 + 0.02 * (4 + n) + 5.0 * (i == at), 4, n)
        assert 0.1 + 0.02 * n <= 1
        assert i < at + 12 or n <= usual + 1


@pytest.mark.parametrize("seed", range(20))
def test_no_step_is_long_by_chance(seed: int) -> None:
    """On a machine whose times vary, a step takes a few times what it may, not what ever is in the prompt."""
    chance = random.Random(seed)
    budget = PromptBudget()
    budget.note(0.02 + 30 * 0.006, 0, 30)
    for i in range(200):
        n_prompt = budget.tokens(MANY, 2) if i % 20 > 8 else 0
        assert n_prompt * 0.006 < 3
        budget.note((0.02 + (1 + n_prompt) * 0.006) * chance.lognormvariate(0, 0.3), 1, n_prompt)


@pytest.mark.parametrize(("token", "tokens"), [(0.0001, 512), (0.0062, 160), (0.2, 16)])
def test_a_step_without_answers_lasts_a_second(token: float, tokens: int) -> None:
    """Known from other such steps, or from those beside answers."""
    alone, beside = PromptBudget(), PromptBudget()
    for n_prompt in (16, 100, 512, 512):
        alone.note(0.01 + n_prompt * token, 0, n_prompt)
    run(beside, 0.01, token)
    assert alone.tokens(MANY) == pytest.approx(tokens, abs=1)
    assert beside.tokens(MANY) <= tokens


def test_what_a_step_takes_is_not_what_its_tokens_take() -> None:
    budget = PromptBudget()
    for n_prompt in (64, 100, 1, 1, 1, 1, 1, 100, 100):
        budget.note(0.04 + 0.01 * n_prompt, 0, n_prompt)
    assert budget.tokens(MANY) == pytest.approx(96, abs=1)


@pytest.mark.parametrize("n_waiting", [1, 17, 192, 200, 500, 1000])
def test_a_prompt_is_read_in_equal_parts(n_waiting: int) -> None:
    """In as few steps as otherwise, of which none is for a small rest; none is wasted on a few tokens."""
    budget = PromptBudget()
    most, parts = run(budget, 0.2, 0.004)[-1], list[int]()
    while sum(parts) < n_waiting:
        left = n_waiting - sum(parts)
        parts.append(min(left, budget.tokens(left, 4)))
    assert len(parts) == -(-n_waiting // most)
    assert max(parts) - min(parts) <= 1 or max(parts) == 16


def test_each_step_reads_something() -> None:
    """Whatever is known: nothing, one kind of steps, steps that were slow by chance."""
    chance = random.Random(0)
    for n_steps in range(30):
        budget = PromptBudget()
        for _ in range(n_steps):
            seconds = chance.choice([0.0, 0.001, 0.1, 5.0])
            budget.note(seconds, chance.randint(0, 4), chance.choice([0, 1, 40, 512]))
        assert all(16 <= budget.tokens(MANY, n) <= 512 for n in (1, 4, 64))


def test_tokens_that_take_no_time_to_speak_of_are_read_in_whole_batches() -> None:
    assert run(PromptBudget(), 0.01, 1e-6)[-1] == 512
