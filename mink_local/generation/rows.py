"""Rows of logits of many sequences of tokens, evaluated together."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.generation.slots import Slot, decode, reserve
from mink_local.llama.context import Context


class Row(NamedTuple):
    """The logits of the token after the first `n_tokens` tokens of a sequence.

    Attributes:
        sequence: Number of the sequence among those that were given together.
        n_tokens: From 1 to the length of the sequence.
        logits: Raw, float32 (V,): llama.cpp's memory, valid until the next row.
    """

    sequence: int
    n_tokens: int
    logits: NDArray[np.float32]


class RowReader:
    """Evaluates sequences of tokens, many at a time, in a KV cache that it keeps between calls.

    Args:
        context: An empty KV cache, with room for the logits of several tokens of a batch if several rows of a
            sequence are wanted.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._slots: list[Slot[int]] = [Slot(context, i) for i in range(context.n_seq)]

    @property
    def n_parallel(self) -> int:
        """Number of sequences that are evaluated at a time."""
        return len(self._slots)

    def interrupt(self) -> None:
        """Have the rows end soon with a GenerationError; may be called from another thread."""
        self._context.interrupted = True

    def __call__(self, sequences: Iterable[tuple[Sequence[int], int]]) -> Iterator[Row]:
        """Yield rows of logits, those of one sequence in order, the sequences in order of completion.

        Args:
            sequences: Token ids, and after how many of the last of them a row is wanted, at least 1.
                Common prefixes of sequences that follow each other are evaluated once.

        Raises:
            ContextOverflowError: A sequence does not fit the context.
            GenerationError: llama.cpp fails.
        """
        waiting = enumerate(sequences)
        upcoming = next(waiting, None)
        try:
            while True:
                while upcoming is not None and self._begin(upcoming[0], *upcoming[1]):
                    upcoming = next(waiting, None)
                busy = [slot for slot in self._slots if slot.job is not None]
                if not busy:
                    return
                outputs = decode(self._context, busy)
                if outputs is None:
                    raise GenerationError("interrupted")
                for slot, output, n_tokens in outputs:
                    assert slot.job is not None
                    yield Row(slot.job, n_tokens, self._context.logits(output))
                    if not slot.pending and n_tokens == len(slot.tokens):
                        slot.release()
        finally:
            for slot in self._slots:
                slot.release()

    def _begin(self, index: int, tokens: Sequence[int], n_rows: int) -> bool:
        """Give a sequence a slot; return False if it has to wait."""
        if len(tokens) > self._context.n_ctx:
            raise ContextOverflowError(len(tokens), self._context.n_ctx)
        slot = reserve(self._slots, list(tokens), n_rows)
        if slot is None:
            return False
        slot.job = index
        return True
