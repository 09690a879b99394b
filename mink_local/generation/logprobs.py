"""Log-probabilities of given continuations, many at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.generation.rows import RowReader
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


def score(rows: RowReader, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Iterator[Continuation]:
    """Yield continuations with their log-probabilities, in order of completion.

    Args:
        rows: Evaluates the pairs; it has room for the logits of several tokens of a batch, or takes longer.
        pairs: Token ids of a context and of its continuation, at least one each. Contexts with a common
            prefix that follow each other are evaluated once.

    Raises:
        ContextOverflowError: A pair does not fit the context.
        ValueError: One of a pair is empty.
        GenerationError: A row of logits has a NaN, or llama.cpp fails.
    """
    scored: dict[int, Continuation] = {}

    def sequences() -> Iterator[tuple[Sequence[int], int]]:
        for index, (prefix, tokens) in enumerate(pairs):
            if not prefix or not tokens:
                raise ValueError(f"pair {index} has an empty context or continuation")
            scored[index] = Continuation(index, tokens)
            yield [*prefix, *tokens[:-1]], len(tokens)

    for row in rows(sequences()):
        continuation = scored[row.sequence]
        _append(continuation, row.logits)
        if len(continuation.logprobs) == len(continuation.tokens):
            yield scored.pop(row.sequence)


def logprob(logits: NDArray[np.float32], token: int) -> float:
    """Return the log-probability of a token at temperature 1. Raises GenerationError for a NaN."""
    found = float(kernels.log_probability(logits, token))
    if not found <= 0:
        raise GenerationError("the model gave a NaN among its logits: its file is damaged")
    return found


def _append(continuation: Continuation, logits: NDArray[np.float32]) -> None:
    """Append the log-probability of the next token."""
    token = continuation.tokens[len(continuation.logprobs)]
    continuation.logprobs.append(logprob(logits, token))
    continuation.is_greedy = continuation.is_greedy and int(logits.argmax()) == token
