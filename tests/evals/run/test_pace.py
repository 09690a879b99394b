"""How long a run will take: expected tokens, against simulated runs whose lengths are known."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.evals.run.pace import Pace, survival, tokens_left

LENGTHS = st.lists(st.integers(0, 50), min_size=1, max_size=30)


@given(LENGTHS)
def test_without_unfinished_responses_it_is_the_plain_mean(finished: list[int]) -> None:
    assert tokens_left(finished, [], 7, 50) == pytest.approx(7 * np.mean(finished), abs=1e-9)


@given(LENGTHS, st.lists(st.integers(0, 60), max_size=10), st.integers(0, 9))
def test_it_is_never_negative_nor_more_than_the_limit_allows(
    finished: list[int], unfinished: list[int], n_waiting: int
) -> None:
    left = tokens_left(finished, unfinished, n_waiting, 60)
    assert 0 <= left <= 60 * n_waiting + sum(60 - n for n in unfinished) + 1e-6
    lengths, share = survival(finished, unfinished)
    assert lengths == sorted(set(lengths) | {0}) or lengths[:2] == [0, 0]
    assert all(one >= other >= 0 for one, other in itertools.pairwise(share))


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
            errors.append(tokens_left(finished, [n for _, n in slots], len(waiting), 512) / truth)
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
