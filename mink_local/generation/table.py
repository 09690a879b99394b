"""The table of running answers: a row for each slot, in arrays that a step reads without touching the answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mink_local.generation.decoding import Decoding
from mink_local.llama.token_sampler import TokenSampler

_POISON = -1  # in rows where nothing runs: llama.cpp would refuse such a token


@dataclass(frozen=True)
class LineUp:
    """The running answers in the order of their rows, those first whose text may be told later.

    Attributes:
        rows: Their rows.
        answers: The answers.
        n_late: How many may be told later: they are the first ones.
        samplers: What samples them.
        banning: Those that ban tokens, depending on their length.
    """

    rows: NDArray[np.int64]
    answers: Sequence[Decoding]
    n_late: int
    samplers: list[TokenSampler] = field(init=False)
    banning: Sequence[Decoding] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samplers", [each.sampler for each in self.answers])
        object.__setattr__(self, "banning", [each for each in self.answers if each.is_banning])


class Table:
    """The running answers: those that have one token to be evaluated next, or one to be sampled.

    An answer joins when its prompt has been evaluated, and leaves at its end, or while a text that must follow
    is evaluated. Its row is the number of its slot, so it does not move because another leaves.

    Attributes:
        token: The token to be evaluated next, int32 (rows,).
        position: Where in its sequence, int32 (rows,).
        n_left: Number of tokens until the answer has its greatest length, int32 (rows,).
    """

    def __init__(self, n_rows: int) -> None:
        self.token, self.position, self.n_left = (np.full(n_rows, _POISON, np.int32) for _ in range(3))
        self._answers: list[Decoding | None] = [None] * n_rows
        self._line_up: LineUp | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of running answers, in ascending order."""
        return np.flatnonzero(self.position != _POISON)

    @property
    def line_up(self) -> LineUp:
        """The running answers."""
        if self._line_up is None:
            running = [(row, each) for row, each in enumerate(self._answers) if each is not None]
            running.sort(key=lambda pair: pair[1].is_told_at_once)
            n_late = sum(not each.is_told_at_once for _, each in running)
            rows = np.array([row for row, _ in running], np.int64)
            self._line_up = LineUp(rows, [each for _, each in running], n_late)
        return self._line_up

    def join(self, row: int, answer: Decoding, position: int) -> None:
        """Take an answer whose token at `position` is to be sampled."""
        self.token[row], self.position[row], self.n_left[row] = _POISON, position, answer.n_left
        self._answers[row], self._line_up = answer, None

    def leave(self, row: int) -> None:
        """Let an answer go, if there is one."""
        self.token[row] = self.position[row] = self.n_left[row] = _POISON
        if self._answers[row] is not None:
            self._answers[row], self._line_up = None, None

    def move(self, row: int, to: int) -> None:
        """Move a row, whole."""
        answer = self._answers[row]
        columns = self.token[row], self.position[row], self.n_left[row]
        self.leave(row)
        if answer is not None:
            self.join(to, answer, 0)
            self.token[to], self.position[to], self.n_left[to] = columns

    def go_on(self, rows: NDArray[np.int64], tokens: Sequence[int]) -> NDArray[np.int64]:
        """Queue the next tokens of some rows; return which of these then have their greatest length, by place."""
        self.token[rows] = tokens
        self.n_left[rows] -= 1
        return np.flatnonzero(self.n_left[rows] <= 0)
