"""Contestants take turns; the logits of an answer's steps."""

from collections.abc import Callable

from mink_local.bench.timing import PROMPT, in_turn, logits_of_answer
from mink_local.generation.model import Model
from mink_local.samplers import MinK


def test_each_round_begins_with_another_contestant_and_the_first_round_is_dropped() -> None:
    calls: list[str] = []

    def contestant(name: str) -> Callable[[int], tuple[str, int]]:
        return lambda i: calls.append(name) or (name, i)  # type: ignore[func-returns-value]

    measured = in_turn({name: contestant(name) for name in "abc"}, rounds=3)
    assert "".join(calls) == "abc" + "bca" + "cab" + "abc"
    assert measured == {name: [(name, 1), (name, 2), (name, 3)] for name in "abc"}


def test_logits_are_those_of_the_steps_of_an_answer(smollm2: Model) -> None:
    logits = logits_of_answer(smollm2, 5)
    assert logits.shape == (5, 49152)
    assert len({row.tobytes() for row in logits}) == 5
    # From them the same sampler keeps as many candidates as it did while the answer was generated.
    messages = [{"role": "user", "content": PROMPT}]
    reply = smollm2.chat(messages, sampler=MinK(), seed=1, max_tokens=5, ignore_eos=True)
    reply.read()
    assert [MinK().cutoff(row) for row in logits] == reply.k
