"""How long a run will take: expected tokens, against simulated runs whose lengths are known."""

import numpy as np
import pytest

from mink_local.evals.run.pace import Pace, expected_lengths


def test_a_response_is_expected_to_be_as_those_that_are_longer() -> None:
    assert expected_lengths([10, 20, 40], [0, 10, 25, 40], 60) == [70 / 3, 30, 40, 50]


@pytest.mark.parametrize("of", ["alike", "geometric", "two kinds", "cut off"])
def test_after_a_tenth_the_rest_is_known_to_a_third(of: str) -> None:
    """32 responses at a time, so that short ones are the first to be complete."""
    rng = np.random.default_rng(0)
    lengths = {
        "alike": rng.integers(90, 110, 400),
        "geometric": np.minimum(rng.geometric(1 / 120, 400), 512),
        "two kinds": np.where(rng.random(400) < 0.5, rng.integers(5, 15, 400), 512),
        "cut off": np.where(rng.random(400) < 0.1, rng.integers(5, 15, 400), 512),
    }[of]
    waiting, finished, errors = list(lengths), [], []
    slots: list[list[int]] = []
    while waiting or slots:
        while waiting and len(slots) < 32:
            slots.append([waiting.pop(), 0])
        for slot in slots:
            slot[1] += 1
        finished += [length for length, n in slots if n >= length]
        slots = [slot for slot in slots if slot[1] < slot[0]]
        if 40 <= len(finished) <= 300:
            truth = sum(waiting) + sum(length - n for length, n in slots)
            ends = expected_lengths(finished, [n for _, n in slots], 512)
            left = sum(ends) - sum(n for _, n in slots)
            errors.append((left + len(waiting) * np.mean([*finished, *ends])) / truth)
    assert 2 / 3 < min(errors) <= max(errors) < 4 / 3


@pytest.mark.parametrize(("before", "after"), [(0, 4), (1, 4), (4, 1)])
def test_a_machine_that_was_busy_or_idle_is_soon_forgotten(before: int, after: int) -> None:
    """A slot makes `before` tokens a second for 40 s, and then `after`; half a minute later, that counts."""
    now, slots = 0.0, [0] * 8
    pace = Pace(clock=lambda: now)
    n_left, errors = 400, []
    while n_left:
        now += 1
        slots = [n + (before if now <= 40 else after) for n in slots]
        pace.finished += [100 for n in slots if n >= 100]
        n_left -= sum(n >= 100 for n in slots)
        slots = [0 if n >= 100 else n for n in slots][:n_left]
        left = pace.seconds_left(slots, n_left, 512)
        if now > 75 and n_left > 40 and left is not None:
            errors.append(left * 8 * after / (100 * n_left - sum(slots)))
    assert 2 / 3 < min(errors) <= max(errors) < 4 / 3
