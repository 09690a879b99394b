"""Contestants take turns; the logits of an answer's steps."""

from collections.abc import Callable

from mink_local.bench.timing import in_turn


def test_each_round_begins_with_another_contestant_and_the_first_round_is_dropped() -> None:
    calls: list[str] = []

    def contestant(name: str) -> Callable[[int], tuple[str, int]]:
        return lambda i: calls.append(name) or (name, i)  # type: ignore[func-returns-value]

    measured = in_turn({name: contestant(name) for name in "abc"}, rounds=3)
    assert "".join(calls) == "abc" + "bca" + "cab" + "abc"
    assert measured == {name: [(name, 1), (name, 2), (name, 3)] for name in "abc"}
