"""Whose answer is next: slots go to clients in turn."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mink_local.serve.admission import Admission

Answer = tuple[str, int]  # the client, and the number of its answer


def test_clients_take_turns() -> None:
    started: list[Answer] = []
    admission: Admission[Answer] = Admission(2, None, started.append)
    admission.add("a", [("a", i) for i in range(4)])
    admission.add("b", [("b", i) for i in range(2)])
    admission.add("c", [("c", 0)])
    for _ in range(5):
        admission.ended(started[len(started) - 2][0])
    assert started == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("a", 3), ("b", 1)]


def test_a_client_has_so_many_slots_at_most_while_others_wait() -> None:
    started: list[Answer] = []
    admission: Admission[Answer] = Admission(4, 1, started.append)
    admission.add("a", [("a", i) for i in range(4)])  # nobody else waits
    assert len(started) == 4
    admission.add("a", [("a", 4)])
    admission.add("b", [("b", 0), ("b", 1)])
    admission.ended("a")
    admission.ended("a")
    assert started[4:] == [("b", 0), ("a", 4)]  # no slot stays empty, even if both have their share


@given(
    st.integers(1, 4),
    st.none() | st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=40),
)
def test_every_answer_is_started_once_and_no_slot_stays_empty(
    n_slots: int, most: int | None, events: list[tuple[str, int]]
) -> None:
    started: list[Answer] = []
    admission: Admission[Answer] = Admission(n_slots, most, started.append)
    running: Counter[str] = Counter()
    added: list[Answer] = []
    n_seen = 0
    for client, n in events:
        if n:
            given_now = [(client, len(added) + i) for i in range(n)]
            added += given_now
            admission.add(client, given_now)
        elif running[client]:
            running[client] -= 1
            admission.ended(client)
        running.update(each for each, _ in started[n_seen:])
        n_seen = len(started)
        assert admission.n_running == running.total() == min(n_slots, running.total() + admission.n_waiting)
        assert len(started) + admission.n_waiting == len(added)
    for each in added:
        admission.remove(each[0], each)
    assert admission.n_waiting == 0
    assert len(set(started)) == len(started)
    for client in "abc":  # each client's in their order
        own = [number for each, number in started if each == client]
        assert own == sorted(own)
