"""How far a run is: counts of every cell, which are all that the live view and the summary show."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mink_local.evals.run.records import Key, Record


class Cell(NamedTuple):
    """A method on a task with a model: what an accuracy is of."""

    model: str
    task: str
    sampler: str
    temperature: float

    @classmethod
    def of(cls, key: Key) -> "Cell":
        return cls(*key[:4])


@dataclass
class Tally:
    """Counts of responses. unanswered: without an answer that even flexible extraction finds. truncated: at
    the limit of tokens. overflow: the prompt did not fit the context. new: of this process, which saw
    the first of them begin at the monotonic time `began`, in seconds."""

    wanted: int = 0
    done: int = 0
    strict: int = 0
    flexible: int = 0
    unanswered: int = 0
    truncated: int = 0
    overflow: int = 0
    new: int = 0
    tokens: int = 0
    began: float = 0.0

    def add(self, record: Record, new: bool) -> None:
        self.done += 1
        self.strict += record.strict.correct
        self.flexible += record.flexible.correct
        self.unanswered += record.flexible.answer is None
        self.truncated += record.finish_reason == "length"
        self.overflow += record.finish_reason == "overflow"
        if new:
            self.began = self.began or time.monotonic() - record.seconds
            self.new += 1
            self.tokens += record.n_tokens

    @property
    def seconds(self) -> float:
        """Since the first new response began."""
        return time.monotonic() - self.began if self.began else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.new else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before the first new response."""
        if self.done == self.wanted:
            return 0.0
        return self.seconds / self.new * (self.wanted - self.done) if self.new else None


class Progress:
    """The tallies of every cell that is asked for, in the order of the grid, and `total`, of all of them."""

    def __init__(self, wanted: Iterable[Key]) -> None:
        self.cells: dict[Cell, Tally] = {}
        self.total = Tally()
        for key in wanted:
            self.cells.setdefault(Cell.of(key), Tally()).wanted += 1
            self.total.wanted += 1
        self.current = next(iter(self.cells), None)

    def add(self, record: Record, new: bool = True) -> None:
        """Count a record of a key that is wanted."""
        cell = Cell.of(record.key)
        self.cells[cell].add(record, new)
        self.total.add(record, new)
        if new:
            self.current = cell


def summed(tallies: Sequence[Tally]) -> Tally:
    """One tally of several cells."""
    total = Tally(began=min((tally.began for tally in tallies if tally.began), default=0.0))
    for tally in tallies:
        for name, count in vars(tally).items():
            if name != "began":
                setattr(total, name, getattr(total, name) + count)
    return total
