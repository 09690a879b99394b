"""Who is next: answers that wait for a slot, of several clients in turn."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Admission(Generic[T]):
    """Gives free slots to the clients in turn, so that nobody waits behind all that another has sent.

    Args:
        n_slots: Number of slots.
        most: Number of slots that a client has at most while others wait; None for no limit.
        start: Starts an answer.
    """

    def __init__(self, n_slots: int, most: int | None, start: Callable[[T], object]) -> None:
        self._n_slots = n_slots
        self._most = n_slots if most is None else most
        self._start = start
        self._waiting: dict[str, deque[T]] = {}  # by client, the next in turn first
        self._running: Counter[str] = Counter()

    @property
    def n_waiting(self) -> int:
        """Number of answers that wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def n_running(self) -> int:
        """Number of answers that were started and have not ended."""
        return self._running.total()

    def add(self, client: str, answers: list[T]) -> None:
        """Have a client's answers started when it is their turn."""
        self._waiting.setdefault(client, deque()).extend(answers)
        self._fill()

    def remove(self, client: str, answer: T) -> None:
        """Forget an answer, if it waits."""
        queue = self._waiting.get(client, deque())
        if answer in queue:
            queue.remove(answer)
        if not queue:
            self._waiting.pop(client, None)

    def ended(self, client: str) -> None:
        """Note that one of a client's answers has ended."""
        self._running[client] -= 1
        self._running += Counter()  # without those that have none
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self.n_running < self._n_slots:
            below = (client for client in self._waiting if self._running[client] < self._most)
            client = next(below, next(iter(self._waiting)))
            queue = self._waiting.pop(client)
            answer = queue.popleft()
            if queue:
                self._waiting[client] = queue  # at the end: the others are next
            self._running[client] += 1
            self._start(answer)
