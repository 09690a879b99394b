"""Log-probabilities of given continuations, many at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.generation.slots import Slot, decode, reserve
from mink_local.llama.context import Context
from mink_local.samplers import kernels

N_OUTPUTS = 128  # tokens of a batch whose logits are computed: 78 MB of them at a vocabulary of 151,936


@dataclass
class Continuation:
    """A continuation of a context, with the log-probabilities of its tokens.

    Attributes:
        index: Number of the pair among those that were given together.
        tokens: Token ids of the continuation.
        logprobs: Natural logarithm of each token's probability after those before it, at temperature 1.
        is_greedy: Whether every token has the largest logit, of equal ones the lowest id.
    """

    index: int
    tokens: Sequence[int]
    logprobs: list[float] = field(default_factory=list)
    is_greedy: bool = True

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation."""
        return sum(self.logprobs)


def score(context: Context, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Iterator[Continuation]:
    """Yield continuations with their log-probabilities, in order of completion.

    Args:
        context: An empty KV cache, with room for the logits of several tokens of a batch.
        pairs: Token ids of a context and of its continuation, at least one each. Contexts with a common
            prefix that follow each other are evaluated once.

    Raises:
        ContextOverflowError: A pair does not fit the context.
        ValueError: One of a pair is empty.
        GenerationError: A row of logits has a NaN, or llama.cpp fails.
    """
    slots: list[Slot[Continuation]] = [Slot(context, i) for i in range(context.n_seq)]
    waiting = enumerate(pairs)
    upcoming = next(waiting, None)
    while True:
        while upcoming is not None and _begin(slots, context.n_ctx, upcoming[0], *upcoming[1]):
            upcoming = next(waiting, None)
        busy = [slot for slot in slots if slot.job]
        if not busy:
            return
        outputs = decode(context, busy)
        if outputs is None:
            raise GenerationError("interrupted")
        for slot, output, _ in outputs:
            assert slot.job is not None
            _append(slot.job, context.logits(output))
            if len(slot.job.logprobs) == len(slot.job.tokens):
                yield slot.job
                slot.release()


def logprob(logits: NDArray[np.float32], token: int) -> float:
    """Return the log-probability of a token at temperature 1. Raises GenerationError for a NaN."""
    found = float(kernels.log_probability(logits, token))
    if not found <= 0:
        raise GenerationError("the model gave a NaN among its logits: its file is damaged")
    return found


def _begin(
    slots: list[Slot[Continuation]], n_ctx: int, index: int, context: Sequence[int], tokens: Sequence[int]
) -> bool:
    """Give a pair a slot; return False if it has to wait."""
    if not context or not tokens:
        raise ValueError(f"pair {index} has an empty context or continuation")
    evaluated = [*context, *tokens[:-1]]
    if len(evaluated) > n_ctx:
        raise ContextOverflowError(len(evaluated), n_ctx)
    slot = reserve(slots, evaluated, len(tokens))
    if slot is None:
        return False
    slot.job = Continuation(index, tokens)
    return True


def _append(continuation: Continuation, logits: NDArray[np.float32]) -> None:
    """Append the log-probability of the next token."""
    token = continuation.tokens[len(continuation.logprobs)]
    continuation.logprobs.append(logprob(logits, token))
    continuation.is_greedy = continuation.is_greedy and int(logits.argmax()) == token
