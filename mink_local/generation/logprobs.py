"""Log-probabilities of given continuations, many at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.generation.slots import Slot, decode, reserve
from mink_local.llama.context import Context
from mink_local.samplers import kernels

N_OUTPUTS = 128  # tokens of a batch whose logits are computed: 78 MB of them at a vocabulary of 151,936


@dataclass
class Continuation:
    """How probable a model finds a continuation of a context.

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


class Scorer:
    """Computes log-probabilities in the slots of a context of its own.

    Args:
        context: A KV cache that has room for the logits of several tokens of a batch.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._slots: list[Slot[Continuation]] = [Slot(context, i) for i in range(context.n_seq)]

    def score(self, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Iterator[Continuation]:
        """Yield the continuations with their log-probabilities, in order of completion.

        Args:
            pairs: Token ids of a context, at least one, and of what follows it, at least one. Contexts with a
                common prefix that follow each other are evaluated once.

        Raises:
            ContextOverflowError: A pair does not fit the context.
            ValueError: One of a pair is empty.
            GenerationError: A row of logits has a NaN, or llama.cpp fails.
        """
        waiting = enumerate(pairs)
        upcoming = next(waiting, None)
        while True:
            while upcoming is not None and self._begin(upcoming[0], *upcoming[1]):
                upcoming = next(waiting, None)
            busy = [slot for slot in self._slots if slot.job]
            if not busy:
                return
            outputs = decode(self._context, busy)
            if outputs is None:
                raise GenerationError("interrupted")
            for slot, output in outputs:
                assert slot.job is not None
                self._take(slot.job, output)
                if len(slot.job.logprobs) == len(slot.job.tokens):
                    yield slot.job
                    slot.release()

    def _begin(self, index: int, context: Sequence[int], continuation: Sequence[int]) -> bool:
        """Give a pair a slot; return False if it has to wait."""
        if not context or not continuation:
            raise ValueError(f"pair {index} has an empty context or continuation")
        tokens = [*context, *continuation[:-1]]
        if len(tokens) > self._context.n_ctx:
            raise ContextOverflowError(len(tokens), self._context.n_ctx)
        slot = reserve(self._slots, tokens, len(continuation))
        if slot is None:
            return False
        slot.job = Continuation(index, continuation)
        return True

    def _take(self, continuation: Continuation, output: int) -> None:
        """Take the next token's log-probability from a row of the last batch."""
        token = continuation.tokens[len(continuation.logprobs)]
        logits = self._context.logits(output)
        logprob = float(kernels.log_probability(logits, token))
        if not logprob <= 0:
            raise GenerationError("the model gave a NaN among its logits: its file is damaged")
        continuation.logprobs.append(logprob)
        continuation.is_greedy = continuation.is_greedy and int(logits.argmax()) == token
