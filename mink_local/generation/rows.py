"""Rows of logits of many sequences, evaluated together, and log-probabilities of continuations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.generation.slots import Slot, decode, reserve
from mink_local.llama.context import Context
from mink_local.samplers import kernels

N_OUTPUTS = 128  # logits rows of a batch: 78 MB at a vocabulary of 151,936


class Row(NamedTuple):
    """The logits after the first `n_tokens` tokens of a sequence.

    Attributes:
        sequence: Number of the sequence in the call.
        n_tokens: From 1 to the length of the sequence.
        logits: Raw, float32 (V,): llama.cpp's memory, valid until the next row.
    """

    sequence: int
    n_tokens: int
    logits: NDArray[np.float32]


class RowReader:
    """Evaluates many token sequences at a time, in a KV cache that is kept between calls.

    Args:
        context: The KV cache. Several rows of a sequence are faster with several logits rows per batch.
        slots: Its sequences, all free; None: it is empty.
    """

    def __init__(self, context: Context, slots: Sequence[Slot[Any]] | None = None) -> None:
        self._context = context
        self._slots = slots or [Slot(context, i) for i in range(context.n_seq)]

    @property
    def n_parallel(self) -> int:
        """Number of sequences evaluated at a time."""
        return len(self._slots)

    def interrupt(self) -> None:
        """End a running call soon, with a GenerationError. May be called from another thread."""
        self._context.interrupted = True

    def __call__(self, sequences: Iterable[tuple[Sequence[int], int]]) -> Iterator[Row]:
        """Yield rows of logits: those of one sequence in order, sequences in order of completion.

        Args:
            sequences: Token ids, and the number of last tokens whose logits are wanted, at least 1.
                A prefix shared by successive sequences is evaluated once.

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
        """Give a sequence a slot, or return False if none is free."""
        if len(tokens) > self._context.n_ctx:
            raise ContextOverflowError(len(tokens), self._context.n_ctx)
        slot = reserve(self._slots, list(tokens), n_rows)
        if slot is None:
            return False
        slot.job = index
        return True


@dataclass
class Continuation:
    """A continuation of a context, with the log-probabilities of its tokens.

    Attributes:
        index: Number of the pair in the call.
        tokens: Token ids of the continuation.
        logprobs: Log-probability of each token given those before it, at temperature 1, in nats.
        is_greedy: Whether greedy sampling would give this continuation; of equal logits the lowest id counts.
    """

    index: int
    tokens: Sequence[int]
    logprobs: list[float] = field(default_factory=list)
    is_greedy: bool = True

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return sum(self.logprobs)


def score(rows: RowReader, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Continuation]:
    """Return continuations with their log-probabilities.

    Args:
        rows: Evaluates the pairs; faster if its context has several logits rows per batch.
        pairs: Token ids of a context and of its continuation, at least one each. A prefix shared by
            successive contexts is evaluated once.

    Raises:
        ContextOverflowError: A pair does not fit the context.
        ValueError: A context or a continuation is empty.
        GenerationError: The logits contain a NaN, or llama.cpp fails.
    """
    for index, (context, tokens) in enumerate(pairs):
        if not context or not tokens:
            raise ValueError(f"pair {index} has an empty context or continuation")
    scored = [Continuation(index, tokens) for index, (_, tokens) in enumerate(pairs)]
    sequences = (([*context, *tokens[:-1]], len(tokens)) for context, tokens in pairs)
    for row in rows(sequences):
        continuation = scored[row.sequence]
        token = continuation.tokens[len(continuation.logprobs)]
        continuation.logprobs.append(logprob(row.logits, token))
        continuation.is_greedy &= int(row.logits.argmax()) == token
    return scored


def logprob(logits: NDArray[np.float32], token: int) -> float:
    """Return the log-probability of a token at temperature 1. Raises GenerationError for a NaN."""
    found = float(kernels.log_probability(logits, token))
    if not found <= 0:
        raise GenerationError("the model gave a NaN among its logits: its file is damaged")
    return found
