"""How long a run will take: expected tokens, against simulated runs whose lengths are known."""

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.evals.run.pace import Pace, expected_lengths


def test_what_is_not_finished_is_longer_than_it_is_now() -> None:
    assert expected_lengths([10, 20, 40], [], 60) == []
    new, longest, longer_than_all = expected_lengths([10, 10, 20], [0, 60, 30], 60)
    assert (longest, longer_than_all) == (60, 60)
    assert new == pytest.approx(10 * 2 / 5 + 20 * 3 / 5 / 3 + 60 * 3 / 5 * 2 / 3)


def lengths(of: str, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return {
        "alike": rng.integers(90, 110, n),
        "geometric": np.minimum(rng.geometric(1 / 120, n), 512),
        "uniform": rng.integers(5, 512, n),
        "two kinds": np.where(rng.random(n) < 0.5, rng.integers(5, 15, n), 512),
        "cut off": np.where(rng.random(n) < 0.1, rng.integers(5, 15, n), 512),
    }[of]


def errors(lengths: NDArray[np.int64], n_slots: int) -> dict[int, float]:
    """Return what is expected to be left, as a share of the truth, by the number of complete responses."""
    found: dict[int, float] = {}
    slots: list[list[int]] = []
    waiting, finished = lengths.tolist(), list[int]()
    while waiting or slots:
        while waiting and len(slots) < n_slots:
            slots.append([waiting.pop(), 0])
        n_tokens = min(length - n for length, n in slots)
        slots = [[length, n + n_tokens] for length, n in slots]
        finished += [length for length, n in slots if n == length]
        slots = [slot for slot in slots if slot[1] < slot[0]]
        truth = sum(waiting) + sum(length - n for length, n in slots)
        of_new, *ends = expected_lengths(finished, [0, *(n for _, n in slots)], 512)
        left = sum(ends) - sum(n for _, n in slots) + len(waiting) * of_new
        found[len(finished)] = left / max(1, truth)
    return found


@pytest.mark.parametrize("of", ["alike", "geometric", "two kinds", "cut off"])
def test_after_a_tenth_the_rest_is_known_to_a_third(of: str) -> None:
    """32 responses at a time, so that short ones are the first to be complete."""
    every = errors(lengths(of, 400, np.random.default_rng(0)), 32)
    found = [error for n, error in every.items() if 40 <= n <= 300]
    assert 2 / 3 < min(found) <= max(found) < 4 / 3


@pytest.mark.parametrize("of", ["uniform", "cut off"])
def test_the_first_responses_are_not_taken_for_all(of: str) -> None:
    """After 5 of 48, 8 at a time, the rest is expected to be longer."""
    runs = (errors(lengths(of, 48, np.random.default_rng(i)), 8) for i in range(40))
    found = [next(error for n, error in run.items() if n >= 5) for run in runs]
    assert 0.85 < np.median(found) < 1.15


@pytest.mark.parametrize(
    ("before", "after", "prompt", "known"), [(0, 4, 0, 75), (1, 4, 0, 75), (4, 1, 0, 75), (4, 4, 2, 45)]
)
def test_a_machine_that_was_busy_or_idle_is_soon_forgotten(
    before: int, after: int, prompt: int, known: int
) -> None:
    """A slot makes `before` tokens a second for 40 s, and then `after`; half a minute later, that counts.

    A prompt takes `prompt` seconds, in which all slots wait.
    """
    now, slots = 0.0, [0] * 8
    pace = Pace(clock=lambda: now)
    now, n_left, errors = 8.0 * prompt, 400, []
    while n_left:
        now += 1
        slots = [n + (before if now <= 40 else after) for n in slots]
        n_ended = sum(n >= 100 for n in slots)
        pace.finished += [100] * n_ended
        n_left -= n_ended
        now += prompt * n_ended
        slots = [0 if n >= 100 else n for n in slots][:n_left]
        left = pace.seconds_left(slots, n_left, 512)
        if now > known and n_left > 40 and left is not None:
            errors.append(left / ((100 * n_left - sum(slots)) / (8 * after) + n_left * prompt))
    assert 2 / 3 < min(errors) <= max(errors) < 4 / 3
