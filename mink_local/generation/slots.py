"""Slots: the sequences of a KV cache, their reuse, and the batches that fill them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from mink_local.llama.context import Context, Segment

if TYPE_CHECKING:
    from mink_local.llama.backend_sampler import BackendSampler

MIN_SHARED_PREFIX = 4  # a shorter prefix is cheaper to evaluate again than to copy

Job = TypeVar("Job")


class Slot(Generic[Job]):
    """A sequence of the KV cache.

    Attributes:
        seq_id: llama.cpp's number of the sequence.
        tokens: Token ids whose keys and values are in the cache.
        pending: Token ids that are to be evaluated after `tokens`.
        n_outputs: Number of the last pending tokens whose logits are computed.
        job: What the slot is used for; None if it is free.
        backend_sampler: Samples the slot's tokens inside llama.cpp's graph, if one is attached.
    """

    def __init__(self, context: Context, seq_id: int) -> None:
        self.seq_id = seq_id
        self.tokens: list[int] = []
        self.pending: Sequence[int] = ()
        self.n_outputs = 1
        self.job: Job | None = None
        self.backend_sampler: BackendSampler | None = None
        self._context = context

    def queue(self, tokens: Sequence[int], n_outputs: int = 1) -> None:
        """Make the sequence `tokens`: keep the prefix that is in the cache and queue the rest.

        The last `n_outputs` tokens are always queued, because their logits are needed.
        """
        self.truncate(common_prefix(self.tokens, tokens[: len(tokens) - n_outputs]))
        self.pending, self.n_outputs = tokens[len(self.tokens) :], n_outputs

    def push(self, token: int) -> None:
        """Queue one more token, whose logits are needed."""
        self.pending, self.n_outputs = [token], 1

    def truncate(self, length: int) -> None:
        """Remove all but the first `length` tokens, or all if the model cannot remove just the end."""
        if length < len(self.tokens):
            del self.tokens[length:]
            self.restore()

    def restore(self) -> None:
        """Remove what an unfinished batch may have left after `tokens`, or all as `truncate` does."""
        if not self._context.truncate(len(self.tokens), self.seq_id):
            self._context.clear(self.seq_id)
            self.tokens.clear()

    def copy_from(self, other: "Slot[Job]") -> None:
        """Copy another slot's cache."""
        self._context.clear(self.seq_id)
        self._context.copy(other.seq_id, self.seq_id)
        self.tokens = other.tokens.copy()

    def take_over(self, other: "Slot[Job]") -> None:
        """Continue another slot's job; the other slot is free then."""
        self.copy_from(other)
        self.job, self.pending, self.n_outputs = other.job, other.pending, other.n_outputs
        other.release()

    def next_segment(self, n_tokens: int, n_outputs: int) -> Segment:
        """Return as many of the pending tokens as a batch has room for."""
        first_output = len(self.pending) - self.n_outputs
        length = min(n_tokens, len(self.pending), first_output + n_outputs)
        outputs = max(0, length - first_output)
        return Segment(self.pending[:length], len(self.tokens), self.seq_id, outputs)

    def evaluated(self, segment: Segment) -> None:
        """Note that a segment of the pending tokens is in the cache now."""
        self.tokens += segment.tokens
        self.pending = self.pending[len(segment.tokens) :]
        self.n_outputs -= segment.n_outputs

    def evaluate_last_again(self) -> None:
        """Queue the last token again, for its logits."""
        self.queue(self.tokens.copy())

    def release(self) -> None:
        """Make the slot free. The cache keeps its tokens, for a request with the same prefix."""
        self.job, self.pending = None, ()
        self.detach()

    def detach(self) -> None:
        """Sample on the host from here on."""
        if self.backend_sampler is not None:
            self.backend_sampler.detach()
            self.backend_sampler = None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    longest = min(len(a), len(b))
    if a[:longest] == b[:longest]:  # nearly always, and compared at C's speed
        return longest
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def reserve(slots: Sequence[Slot[Job]], tokens: Sequence[int], n_outputs: int = 1) -> Slot[Job] | None:
    """Queue `tokens` in a free slot and return it; the caller sets its `job`.

    The free slot with the longest cached prefix is taken; if another slot holds a longer one, it is copied.

    Returns None if no slot is free, or if another slot is prefilling a longer shared prefix: then the same
    call succeeds some batches later.
    """
    reusable = tokens[: len(tokens) - n_outputs]  # the others are evaluated again, for their logits
    n_cached = {slot: common_prefix(slot.tokens, reusable) for slot in slots}
    free = [slot for slot in slots if slot.job is None]
    if not free:
        return None
    best, best_free = max(slots, key=n_cached.__getitem__), max(free, key=n_cached.__getitem__)
    if _is_prefilling_more(slots, reusable, n_cached[best] + MIN_SHARED_PREFIX):
        return None
    if n_cached[best] >= n_cached[best_free] + MIN_SHARED_PREFIX:
        best_free.copy_from(best)
    best_free.queue(tokens, n_outputs)
    return best_free


def _is_prefilling_more(slots: Sequence[Slot[Job]], tokens: Sequence[int], enough: int) -> bool:
    """Return whether a slot is about to hold at least the first `enough` of `tokens`."""
    return any(
        slot.pending and common_prefix([*slot.tokens, *slot.pending], tokens) >= enough for slot in slots
    )


def decode(context: Context, busy: Sequence[Slot[Job]]) -> list[tuple[Slot[Job], int, int]] | None:
    """Evaluate one batch: pending tokens of `busy` slots, those with the fewest first.

    Returns for every row of logits that was computed its slot, its place in the batch, and the number of the
    slot's tokens that it follows; None if the batch was interrupted. Raises GenerationError if llama.cpp
    fails. In both cases the slots are as before.
    """
    n_tokens, n_outputs = context.n_batch, context.n_outputs
    parts: list[tuple[Slot[Job], Segment]] = []
    for slot in sorted(busy, key=lambda slot: len(slot.pending)):
        segment = slot.next_segment(n_tokens, n_outputs)
        if segment.tokens:
            parts.append((slot, segment))
            n_tokens -= len(segment.tokens)
            n_outputs -= segment.n_outputs
    parts.sort(key=lambda part: part[1].seq_id)  # llama.cpp evaluates neighbouring sequences together
    done = False
    try:
        done = not context.interrupted and context.decode(*(segment for _, segment in parts))
    finally:
        if not done:
            for slot, _ in parts:
                slot.restore()
    if not done:
        return None
    outputs = []
    end = 0
    for slot, segment in parts:
        end += len(segment.tokens)
        slot.evaluated(segment)
        outputs += [(slot, end - i, len(slot.tokens) - i + 1) for i in range(segment.n_outputs, 0, -1)]
    return outputs
