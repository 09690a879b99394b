"""Slots: the sequences of a KV cache, their reuse, and the batches that fill them and yield logits."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mink_local.llama.context import Context, Segment

N_OUTPUTS = 128  # logits rows per batch: 78 MB with a vocabulary of 151,936
MIN_SHARED_PREFIX = 4  # a shorter prefix is cheaper to evaluate again than to copy
MUCH_LONGER = 2  # times as long
CONTINUED = 0.75  # share of a slot's tokens that a prompt begins with if it continues the same conversation

Job = TypeVar("Job")


class Slot(Generic[Job]):
    """A sequence of the KV cache.

    Attributes:
        seq_id: llama.cpp's number of the sequence.
        tokens: Token ids whose keys and values are in the cache.
        pending: Token ids to be evaluated after `tokens`.
        n_outputs: Number of pending tokens, counted from the end, whose logits are computed.
        deadline: The slot with the lowest one comes first in a batch. A prompt's is the number of tokens that
            the context will have evaluated if it evaluates only this prompt from now on: a short prompt
            overtakes a long one that has just arrived, but not one that has been waiting.
        job: What the slot is used for; None if it is free.
        client: Whose conversation is in the cache.
        last_used: Number of tokens that the context had evaluated when the slot was released; 0 if it was
            never used, or if its tokens are in another slot too.

    Args:
        keep: Called before a free slot's cache is lost.
    """

    def __init__(
        self, context: Context, seq_id: int, keep: "Callable[[Slot[Job]], object] | None" = None
    ) -> None:
        self.seq_id = seq_id
        self.tokens: array[int] = array("i")
        self.pending: Sequence[int] = ()
        self.n_outputs = 1
        self.deadline = 0
        self.job: Job | None = None
        self.client = ""
        self.last_used = 0
        self._context = context
        self._keep = keep

    def queue(self, tokens: Sequence[int], n_outputs: int = 1) -> None:
        """Set the sequence to `tokens`: keep the prefix that is in the cache and queue the rest.

        The last `n_outputs` tokens are always queued, because their logits are needed.
        """
        self._lose_all_but(tokens)
        self.truncate(common_prefix(self.tokens, tokens[: len(tokens) - n_outputs]))
        self.pending, self.n_outputs = tokens[len(self.tokens) :], n_outputs
        self.deadline = self._context.n_evaluated + len(self.pending)

    def push(self, tokens: Sequence[int]) -> None:
        """Queue more tokens of an answer; the logits after them are needed before those of prompts."""
        self.pending, self.n_outputs, self.deadline = tokens, 1, 0

    @property
    def is_generating(self) -> bool:
        """Whether the pending tokens are an answer's own."""
        return self.deadline == 0

    @property
    def is_growing(self) -> bool:
        """Whether the pending tokens are an answer's own, or the last one of a prompt."""
        return self.deadline == 0 or len(self.pending) == 1

    def truncate(self, length: int) -> None:
        """Remove all but the first `length` tokens, or all tokens if the model cannot remove just the end."""
        if length < len(self.tokens):
            del self.tokens[length:]
            self.restore()

    def restore(self) -> None:
        """Remove anything an unfinished batch may have left after `tokens`, or everything; see `truncate`."""
        if not self._context.truncate(len(self.tokens), self.seq_id):
            self._context.clear(self.seq_id)
            self.tokens, self.pending = array("i"), [*self.tokens, *self.pending]

    def copy_from(self, other: "Slot[Job]") -> None:
        """Copy another slot's cache."""
        self._lose_all_but(other.tokens)
        self._context.clear(self.seq_id)
        self._context.copy(other.seq_id, self.seq_id)
        self.tokens, self.client, self.last_used = other.tokens[:], other.client, 0

    def read(self, snapshot: NDArray[np.uint8]) -> None:
        """Replace the cache by a snapshot; one that does not fit changes nothing."""
        if self._context.may_restore(snapshot, self.seq_id):
            self._lose_all_but(())
            self.tokens = array("i", self._context.restore(snapshot, self.seq_id))
            self.last_used = 0

    def _lose_all_but(self, tokens: Sequence[int]) -> None:
        """Have the cache kept elsewhere if most of it is about to be lost, and is in no other slot."""
        if (
            self._keep
            and self.last_used
            and common_prefix(self.tokens, tokens) < CONTINUED * len(self.tokens)
        ):
            self._keep(self)

    def take_over(self, other: "Slot[Job]") -> None:
        """Continue another slot's job and free that slot."""
        self.copy_from(other)
        self.job, self.pending = other.job, other.pending
        self.n_outputs, self.deadline = other.n_outputs, other.deadline
        other.release()
        other.last_used = 0

    def next_segment(self, n_tokens: int, n_outputs: int = 1) -> Segment:
        """Return as many pending tokens as a batch has room for."""
        first_output = len(self.pending) - self.n_outputs
        length = min(n_tokens, len(self.pending), first_output + n_outputs)
        outputs = max(0, length - first_output)
        return Segment(self.pending[:length], len(self.tokens), self.seq_id, outputs)

    def evaluated(self, segment: Segment) -> None:
        """Record that a segment of the pending tokens is now in the cache."""
        self.tokens.extend(segment.tokens)
        self.pending = self.pending[len(segment.tokens) :]
        self.n_outputs -= segment.n_outputs

    def release(self) -> None:
        """Free the slot. The cache keeps its tokens for a request with the same prefix."""
        if self.job is not None:
            self.last_used = self._context.n_evaluated
        self.job, self.pending = None, ()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences, of which arrays are compared fastest."""
    longest = min(len(a), len(b))
    differs = np.not_equal(a[:longest], b[:longest])
    return int(differs.argmax()) if differs.any() else longest


def find_free(slots: Iterable[Slot[Job]]) -> Slot[Job] | None:
    """Return an empty slot, or else the free one that was used least recently; None if all are busy."""
    free = (slot for slot in slots if slot.job is None)
    return min(free, key=lambda slot: (bool(slot.tokens), slot.last_used), default=None)


def reserve(slots: Sequence[Slot[Job]], tokens: Sequence[int], n_outputs: int = 1) -> Slot[Job] | None:
    """Queue `tokens` in a free slot and return it; the caller sets its `job`.

    A prompt that continues what a free slot holds gets that slot. Any other gets the one found by
    `find_free`, so that conversations taking turns keep their caches; a prefix in any slot is copied.

    Returns None if no slot is free, or if another slot is prefilling a longer shared prefix: the same call
    then succeeds some batches later.
    """
    found = find_free(slots)
    if found is None:
        return None
    reusable = array("i", tokens[: len(tokens) - n_outputs])  # the rest is evaluated again for its logits
    n_cached = {slot: common_prefix(slot.tokens, reusable) for slot in slots}
    best = max(slots, key=lambda slot: (n_cached[slot], slot.job is None))
    if any(
        _will_share(slot, reusable, n_cached[slot]) > n_cached[best] + MIN_SHARED_PREFIX - 1 for slot in slots
    ):
        return None
    if best.job is None and n_cached[best] >= CONTINUED * len(best.tokens):
        found = best
    elif n_cached[best] >= n_cached[found] + MIN_SHARED_PREFIX:
        found.copy_from(best)
    found.queue(tokens, n_outputs)
    return found


def _will_share(slot: Slot[Job], tokens: Sequence[int], n_cached: int) -> int:
    """Return how many of `tokens` a slot is about to hold, of which it has the first `n_cached`."""
    if n_cached < len(slot.tokens) or len(slot.pending) < MIN_SHARED_PREFIX:
        return n_cached
    return n_cached + common_prefix(slot.pending, tokens[n_cached:])


class Batch(NamedTuple, Generic[Job]):
    """What a batch has evaluated.

    Attributes:
        outputs: For every row of logits, its slot and the number of the slot's tokens that it follows.
        n_tokens: Number of tokens.
        n_growing: Number of slots that grow.
        n_prompt: Number of tokens of prompts.
    """

    outputs: list[tuple[Slot[Job], int]]
    n_tokens: int
    n_growing: int
    n_prompt: int


def decode(
    context: Context, busy: Sequence[Slot[Job]], n_prompt: int, *, starts: bool = True
) -> Batch[Job] | None:
    """Evaluate one batch: the next tokens of growing slots, then those of prompts.

    Args:
        n_prompt: Maximum number of tokens of prompts.
        starts: Whether the last token of a prompt is evaluated, so that its answer starts. If not, prompts of
            about the same length go on in step, too.

    Returns None if the batch was interrupted. Raises GenerationError if llama.cpp fails. In both cases, the
    slots are as before.
    """
    growing = [slot for slot in busy if slot.is_growing] if starts else []
    room = context.n_batch - len(busy) + 1
    # llama.cpp runs the model once for each length of the sequences in a batch: they go on in step.
    in_step = min([room // max(1, len(growing)), *(len(slot.pending) for slot in growing)])
    parts = [(slot, slot.next_segment(in_step)) for slot in growing]
    if n_prompt and len(growing) < len(busy):
        reading = [slot for slot in busy if not slot.is_growing]
        n_tokens = min(n_prompt, room - in_step * len(growing))
        parts += _of_prompts(reading, n_tokens, context.n_outputs - len(growing), starts=starts)
        parts.sort(key=lambda part: part[1].seq_id)
    if not _is_done(context, [slot for slot, _ in parts], context.decode, *(segment for _, segment in parts)):
        return None
    outputs = []
    n_evaluated = 0
    for slot, segment in parts:
        slot.evaluated(segment)
        n_evaluated += len(segment.tokens)
        end = len(slot.tokens) + 1
        for position in range(end - segment.n_outputs, end):
            outputs.append((slot, position))
    return Batch(outputs, n_evaluated, len(growing), n_evaluated - in_step * len(growing))


def decode_next(context: Context, slots: Sequence[Slot[Job]], tokens: Sequence[int]) -> bool:
    """Evaluate a token of each slot, whose last batch had one of each, too; see `decode`.

    Returns False if the batch was interrupted.
    """
    if not _is_done(context, slots, context.decode_next, tokens):
        return False
    for slot, token in zip(slots, tokens, strict=True):
        slot.tokens.append(token)
    return True


def _is_done(
    context: Context,
    slots: Iterable[Slot[Job]],
    evaluate: Callable[..., bool],
    *batch: Segment | Sequence[int],
) -> bool:
    """Evaluate a batch; restore its slots, and return False, if it was interrupted or llama.cpp fails."""
    done = False
    try:
        done = not context.interrupted and evaluate(*batch)
    finally:
        if not done:
            for slot in slots:
                slot.restore()
    return done


def _of_prompts(
    reading: Iterable[Slot[Job]], n_tokens: int, n_outputs: int, *, starts: bool
) -> list[tuple[Slot[Job], Segment]]:
    """Return the next tokens of prompts, in the order of their deadlines, and at least one of each.

    llama.cpp evaluates only adjacent sequences together. A gap costs more than these tokens.
    """
    in_turn = sorted(reading, key=lambda slot: slot.deadline)
    longest = n_tokens
    if not starts:
        most = MUCH_LONGER * len(in_turn[0].pending)
        lengths = [len(slot.pending) for slot in in_turn if len(slot.pending) <= most]
        longest //= len(lengths)
        n_tokens = min(n_tokens, sum(lengths))  # part of a longer one would delay the answers
    parts = []
    for slot in in_turn:
        length = max(1, min(n_tokens, longest, len(slot.pending) - (not starts)))
        segment = slot.next_segment(length, n_outputs)
        if segment.tokens:
            parts.append((slot, segment))
            n_tokens -= len(segment.tokens)
            n_outputs -= segment.n_outputs
    return parts
