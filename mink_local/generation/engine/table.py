"""The table of running answers: a row for each slot, in columns that a step reads instead of the answers."""

from collections.abc import Sequence
from typing import NamedTuple

from mink_local.generation.engine.decoding import Decoding
from mink_local.llama.guide import Guide
from mink_local.llama.token_sampler import TokenSampler

_POISON = -1  # in rows where nothing runs: llama.cpp would refuse such a token


class LineUp(NamedTuple):
    """The running answers, those first whose text may be told later.

    Attributes:
        rows: Their rows, in this order.
        answers: The answers.
        samplers: What samples their tokens.
        n_late: How many may be told later.
        banning: Those that ban tokens, depending on their length.
        guides: Those that compute masks.
        phased: The places of those whose sampler changes.
        in_order: All rows, in ascending order.
    """

    rows: list[int]
    answers: list[Decoding]
    samplers: list[TokenSampler]
    n_late: int
    banning: list[Decoding]
    guides: list[Guide]
    phased: list[int]
    in_order: list[int]


class Table:
    """The running answers: those that have one token to be evaluated next, or one to be sampled.

    Its columns are lists: with few answers, each access to an array takes as long as that to several numbers.

    An answer joins when its prompt has been evaluated, and leaves at its end, or while a text that must
    follow is evaluated. Its row is the number of its slot, so it does not move because another leaves.

    Attributes:
        token: The token to be evaluated next.
        n_left: Number of tokens until the answer has its greatest length.
    """

    def __init__(self, n_rows: int) -> None:
        self.token, self.n_left = [_POISON] * n_rows, [_POISON] * n_rows
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
                [row for row, _ in running],
                answers,
                [each.sampler for each in answers],
                sum(not each.is_told_at_once for each in answers),
                [each for each in answers if each.is_banning],
                [each.guide for each in answers if each.guide is not None],
                [i for i, each in enumerate(answers) if each.has_phases],
                sorted(row for row, _ in running),
            )
        return self._line_up

    def line_up_again(self) -> None:
        """Note that an answer's text may be told later no longer, or again."""
        self._line_up = None

    def join(self, row: int, answer: Decoding) -> None:
        """Take an answer whose next token is to be sampled."""
        self.token[row], self.n_left[row] = _POISON, answer.n_left
        self._answers[row], self._line_up = answer, None

    def leave(self, row: int) -> None:
        """Let an answer go, if there is one."""
        self.token[row] = self.n_left[row] = _POISON
        if self._answers[row] is not None:
            self._answers[row], self._line_up = None, None

    def move(self, row: int, to: int) -> None:
        """Move a row, whole."""
        answer = self._answers[row]
        columns = self.token[row], self.n_left[row]
        self.leave(row)
        if answer is not None:
            self.join(to, answer)
            self.token[to], self.n_left[to] = columns

    def go_on(self, rows: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Queue the next tokens of some rows; return those that then have their greatest length."""
        for row, token in zip(rows, tokens, strict=True):
            self.token[row] = token
            self.n_left[row] -= 1
        return [row for row in rows if self.n_left[row] <= 0]
