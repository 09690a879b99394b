"""The table of running answers: a row for each slot, in arrays that a step reads instead of the answers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.generation.engine.decoding import Decoding
from mink_local.llama.guide import Guide
from mink_local.llama.token_sampler import TokenSampler

_POISON = -1  # in rows where nothing runs: llama.cpp would refuse such a token


class LineUp(NamedTuple):
    """The running answers, those first whose text may be told later.

    Attributes:
        rows: Their rows.
        answers: The answers.
        samplers: What samples their tokens.
        n_late: How many may be told later.
        banning: Those that ban tokens, depending on their length.
        guides: Those that compute masks.
        phased: The places of those whose sampler changes.
        in_order: All rows, in ascending order.
    """

    rows: NDArray[np.int64]
    answers: list[Decoding]
    samplers: list[TokenSampler]
    n_late: int
    banning: list[Decoding]
    guides: list[Guide]
    phased: list[int]
    in_order: NDArray[np.int64]


class Table:
    """The running answers: those that have one token to be evaluated next, or one to be sampled.

    An answer joins when its prompt has been evaluated, and leaves at its end, or while a text that must
    follow is evaluated. Its row is the number of its slot, so it does not move because another leaves.

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
    def line_up(self) -> LineUp:
        """The running answers."""
        if self._line_up is None:
            running = [(row, each) for row, each in enumerate(self._answers) if each is not None]
            running.sort(key=lambda pair: pair[1].is_told_at_once)
            answers = [each for _, each in running]
            self._line_up = LineUp(
                np.array([row for row, _ in running], np.int64),
                answers,
                [each.sampler for each in answers],
                sum(not each.is_told_at_once for each in answers),
                [each for each in answers if each.is_banning],
                [each.guide for each in answers if each.guide is not None],
                [i for i, each in enumerate(answers) if each.has_phases],
                np.flatnonzero(self.position != _POISON),
            )
        return self._line_up

    def line_up_again(self) -> None:
        """Note that an answer's text may be told later no longer, or again."""
        self._line_up = None

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

    def go_on(self, rows: NDArray[np.int64], tokens: Sequence[int]) -> NDArray[np.bool_]:
        """Queue the next tokens of some rows; return for each whether it then has its greatest length."""
        self.token[rows] = tokens
        self.n_left[rows] -= 1
        is_full: NDArray[np.bool_] = self.n_left[rows] <= 0
        return is_full
