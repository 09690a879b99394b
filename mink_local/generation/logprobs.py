"""How likely a model finds given texts: log-probabilities of tokens, many texts at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.generation.engine import Slot, place
from mink_local.generation.parallel import make_context
from mink_local.llama.context import Context, Segment
from mink_local.llama.weights import Weights
from mink_local.samplers import kernels

N_OUTPUTS = 128  # tokens of a batch whose logits are wanted: 78 MB of them at a vocabulary of 151,936


@dataclass
class Likelihood:
    """What a model makes of a continuation.

    index: the place of its request among those that were given together.
    log_probabilities: natural logarithm of each token's probability after those before it, at temperature 1.
    is_greedy: whether every token has the largest logit, of equal ones the lowest id.
    """

    index: int
    log_probabilities: list[float]
    is_greedy: bool

    @property
    def total(self) -> float:
        return sum(self.log_probabilities)


class _Request:
    """A continuation that is being scored: its tokens behind the context, and how far it has come."""

    def __init__(self, index: int, continuation: Sequence[int]) -> None:
        self.continuation = continuation
        self.likelihood = Likelihood(index, [], True)

    @property
    def left(self) -> int:
        return len(self.continuation) - len(self.likelihood.log_probabilities)


class Scorer:
    """Scores continuations, one in every sequence of a context of its own.

    n_ctx: tokens of the longest context and continuation together. n_parallel: see `make_context`.
    """

    def __init__(
        self, weights: Weights, n_ctx: int, n_threads: int, n_parallel: int | Literal["auto"] = "auto"
    ) -> None:
        self._context: Context = make_context(weights, n_ctx, n_threads, n_parallel, N_OUTPUTS)
        self._slots: list[Slot[_Request]] = [Slot(self._context, i) for i in range(self._context.n_seq)]
        self.n_ctx = self._context.n_ctx

    def score(self, requests: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Iterator[Likelihood]:
        """Log-probabilities of continuations, in order of completion.

        requests: token ids of a context, at least one, and of what follows it, at least one. Contexts that
        follow each other and begin alike are evaluated once.

        Raises ContextOverflowError where both do not fit, ValueError where one is empty, GenerationError
        where logits are broken.
        """
        for slot in self._slots:
            slot.release()
        waiting = enumerate(requests)
        upcoming = next(waiting, None)
        while True:
            while upcoming is not None and self._begin(upcoming[0], *upcoming[1]):
                upcoming = next(waiting, None)
            if not any(slot.job for slot in self._slots):
                return
            yield from self._step()

    def _begin(self, index: int, context: Sequence[int], continuation: Sequence[int]) -> bool:
        """Give a request a sequence; False where it has to wait."""
        if not context or not continuation:
            raise ValueError(f"request {index} has no context or no continuation")
        tokens = [*context, *continuation[:-1]]
        if len(tokens) > self.n_ctx:
            raise ContextOverflowError(len(tokens), self.n_ctx)
        slot = place(self._slots, tokens, len(continuation))
        if slot is None:
            return False
        slot.job = _Request(index, continuation)
        return True

    def _step(self) -> Iterator[Likelihood]:
        """Evaluate a batch, and yield what is complete with it."""
        parts: list[tuple[Slot[_Request], Segment]] = []
        room, outputs = self._context.n_batch, self._context.n_outputs
        for slot in self._slots:
            if slot.job is not None and (part := _next_part(slot, slot.job, room, outputs)).tokens:
                parts.append((slot, part))
                room -= len(part.tokens)
                outputs -= part.n_outputs
        if not self._context.decode(*(part for _, part in parts)):
            raise GenerationError("the scoring was interrupted")
        end = 0
        for slot, part in parts:
            end += len(part.tokens)
            slot.evaluated(part)
            request = slot.job
            assert request is not None
            for output in range(end - part.n_outputs, end):
                self._take(request, output)
            if request.left == 0:
                yield request.likelihood
                slot.release()

    def _take(self, request: _Request, output: int) -> None:
        """Take the next token's log-probability from a row of the last batch."""
        likelihood = request.likelihood
        token = request.continuation[len(likelihood.log_probabilities)]
        logits = self._context.logits(output)
        log_probability = kernels.log_probability(logits, token)
        if not log_probability <= 0:
            raise GenerationError("the model gave a NaN among its logits: its file is damaged")
        likelihood.log_probabilities.append(log_probability)
        likelihood.is_greedy = likelihood.is_greedy and int(logits.argmax()) == token


def _next_part(slot: Slot[_Request], request: _Request, room: int, outputs: int) -> Segment:
    """As much of what is pending as there is room for, and no more outputs than there is room for."""
    before = len(slot.pending) - request.left  # tokens whose logits are not wanted
    length = min(room, len(slot.pending), before + outputs)
    return Segment(slot.pending[:length], len(slot.tokens), slot.seq_id, max(0, length - before))
