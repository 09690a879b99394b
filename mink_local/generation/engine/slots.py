"""Slots: the sequences of a KV cache, their reuse, and the batches that fill them and yield logits."""

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.generation.engine.checkpoints import Checkpoint, size, unique
from mink_local.generation.engine.decoding import Decoding
from mink_local.generation.engine.table import Table
from mink_local.llama.context import Context, Segment

N_OUTPUTS = 128  # logits rows per batch: 78 MB with a vocabulary of 151,936
MIN_SHARED_PREFIX = 4  # tokens; a shorter prefix is cheaper to evaluate again than to copy,
MIN_CHECKPOINT_PREFIX = 8  # and this if that takes a checkpoint
MUCH_LONGER = 2  # times as long
_IN_STEP = 64  # tokens of each prompt, at least: read 32 at a time, 16 prompts take a tenth longer
CONTINUED = 0.75  # share of a slot's tokens that a prompt begins with if it continues the same conversation


class Slot:
    """A sequence of the KV cache.

    Attributes:
        seq_id: llama.cpp's number of the sequence.
        tokens: Token ids whose keys and values are in the cache.
        pending: Token ids to be evaluated after `tokens`, of a prompt or a text that must follow. A running
            answer's next token is in the table instead.
        n_outputs: Number of pending tokens, counted from the end, whose logits are computed.
        deadline: The slot with the lowest one comes first in a batch. A prompt's is the number of tokens that
            the context will have evaluated if it evaluates only this prompt from now on: a short prompt
            overtakes a long one that has just arrived, but not one that has been waiting.
        job: The answer that it is used for; None if it is free.
        client: Whose conversation is in the cache.
        has_begun: Whether the pending tokens are an answer's own.
        last_used: Number of tokens that the context had evaluated when the slot was released; 0 if it was
            never used, or if its tokens are in another slot too.
        checkpoints: Those of `tokens`, by the number of tokens before them; none if the model can rewind.

    Args:
        keep: Called before a free slot's cache is lost.
    """

    def __init__(self, context: Context, seq_id: int, keep: "Callable[[Slot], object]") -> None:
        self.seq_id = seq_id
        self.tokens: array[int] = array("i")
        self.pending: Sequence[int] = ()
        self.n_outputs = 1
        self.deadline = 0
        self.has_begun = False
        self.job: Decoding | None = None
        self.client = ""
        self.last_used = 0
        self.checkpoints: dict[int, Checkpoint] = {}
        self._places: Sequence[int] = ()  # where to make others, in ascending order
        self._context = context
        self._keep = keep

    def queue(self, tokens: Sequence[int], n_outputs: int = 1, places: Iterable[int] = ()) -> None:
        """Set the sequence to `tokens`: keep the prefix that is in the cache and queue the rest.

        The last `n_outputs` tokens are always queued, because their logits are needed.

        Args:
            places: Where to make checkpoints, in ascending order.
        """
        self._lose_all_but(tokens)
        self.truncate(common_prefix(self.tokens, tokens[: len(tokens) - n_outputs]))
        self._read(tokens[len(self.tokens) :], n_outputs)
        self._places = [place for place in places if place > len(self.tokens)]

    def _read(self, tokens: Sequence[int], n_outputs: int) -> None:
        self.pending, self.n_outputs, self.has_begun = tokens, n_outputs, False
        self.deadline = self._context.n_evaluated + len(tokens)

    def begin(self, tokens: Sequence[int] = (), n_outputs: int = 1) -> None:
        """Let an answer begin or go on, with a text that must follow; its logits come before prompts'."""
        self.pending, self.n_outputs, self.has_begun = tokens, n_outputs, True

    @property
    def least_shared(self) -> int:
        """Number of tokens that another prompt has to share before it waits for them to be read here."""
        if self._context.can_rewind:
            return MIN_SHARED_PREFIX
        return MIN_CHECKPOINT_PREFIX if self._context.checkpoint_memory else sys.maxsize

    @property
    def needs_logits(self) -> bool:
        """Whether the pending tokens are an answer's own, or the last one of a prompt."""
        return len(self.pending) == 1 or (self.has_begun and len(self.pending) > 0)

    def reusable(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, from the first, need not be evaluated again."""
        return reusable(self.tokens, tokens, None if self._context.can_rewind else [*self.checkpoints])

    def truncate(self, length: int) -> None:
        """Remove all but the first `length` tokens, or all that are after the last checkpoint among these."""
        if length < len(self.tokens):
            self._go_back(length)

    def restore(self) -> bool:
        """Remove anything an unfinished batch may have left after `tokens`.

        Returns False if the model cannot: what is after the last checkpoint has to be read again.
        """
        before = self.tokens[:]
        self._go_back(len(before))
        lost = before[len(self.tokens) :]
        if lost and self.job is not None:
            self._read([*lost, *self.pending], self.n_outputs)
        return not lost

    def _go_back(self, length: int) -> None:
        context = self._context
        if context.can_rewind:
            is_back = context.truncate(length, self.seq_id)
        else:
            length = max((place for place in self.checkpoints if place <= length), default=0)
            is_back = length > 0 and self._restored(self.checkpoints[length], length)
        if not is_back:
            context.clear(self.seq_id)
            length = 0
        del self.tokens[length:]
        self.checkpoints = {place: each for place, each in self.checkpoints.items() if place <= length}

    def _restored(self, checkpoint: Checkpoint, length: int) -> bool:
        checkpoint.last_used = self._context.n_evaluated
        return self._context.rewind(length, checkpoint.state, self.seq_id)

    def copy_from(self, other: "Slot") -> None:
        """Copy another slot's cache."""
        self._lose_all_but(other.tokens)
        self._context.clear(self.seq_id)
        self._context.copy(other.seq_id, self.seq_id)
        self.tokens, self.client, self.last_used = other.tokens[:], other.client, 0
        self.checkpoints = dict(other.checkpoints)

    @property
    def n_bytes(self) -> int:
        """Size of a snapshot, without the tokens."""
        return self._context.state_size(self.seq_id) + size(self.checkpoints.values())

    def snapshot(self) -> bytearray:
        """Return the cache and its checkpoints, for `read`."""
        states = {place: each.state for place, each in self.checkpoints.items()}
        return self._context.snapshot(self.tokens, self.seq_id, states)

    def read(self, snapshot: NDArray[np.uint8]) -> None:
        """Replace the cache by a snapshot; one that does not fit changes nothing."""
        if self._context.may_restore(snapshot, self.seq_id):
            self._lose_all_but(())
            tokens, states = self._context.restore(snapshot, self.seq_id)
            self.tokens, self.last_used = array("i", tokens), 0
            now = self._context.n_evaluated
            self.checkpoints = {place: Checkpoint(state, now) for place, state in states.items()}

    def _lose_all_but(self, tokens: Sequence[int]) -> None:
        """Have the cache kept elsewhere if most of it is about to be lost, and is in no other slot."""
        if self.last_used and self.reusable(tokens) < CONTINUED * len(self.tokens):
            self._keep(self)

    def take_over(self, other: "Slot") -> None:
        """Continue another slot's job and free that slot."""
        self.copy_from(other)
        self.job, self.pending, self.n_outputs = other.job, other.pending, other.n_outputs
        self.deadline, self.has_begun, self._places = other.deadline, other.has_begun, other._places
        other.release()
        other.last_used = 0

    def next_segment(self, n_tokens: int, n_outputs: int = 1) -> Segment:
        """Return as many pending tokens as a batch has room for."""
        first_output = len(self.pending) - self.n_outputs
        length = min(n_tokens, len(self.pending), first_output + n_outputs)
        if self._places:
            length = min(length, self._places[0] - len(self.tokens))
        outputs = max(0, length - first_output)
        return Segment(self.pending[:length], len(self.tokens), self.seq_id, outputs)

    def evaluated(self, segment: Segment) -> None:
        """Record that a segment of the pending tokens is now in the cache."""
        self.tokens.extend(segment.tokens)
        self.pending = self.pending[len(segment.tokens) :]
        self.n_outputs -= segment.n_outputs
        if self._places and self._places[0] == len(self.tokens):
            self._places = self._places[1:]
            state = self._context.checkpoint(self.seq_id)
            self.checkpoints[len(self.tokens)] = Checkpoint(state, self._context.n_evaluated)

    def checkpoint_at(self, place: int) -> None:
        """Make a checkpoint after so many tokens, the last of which is pending."""
        if not self._context.can_rewind:
            self._places = sorted({*self._places, place})

    def release(self) -> None:
        """Free the slot. The cache keeps its tokens for a request with the same prefix."""
        if self.job is not None:
            self.last_used = self._context.n_evaluated
        self.job, self.pending, self.has_begun, self._places = None, (), False, ()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences, of which arrays are compared fastest."""
    longest = min(len(a), len(b))
    a, b = a[:longest], b[:longest]
    if a == b:
        return longest
    differs = np.not_equal(a, b)
    return int(differs.argmax()) if differs.any() else longest


def reusable(held: Sequence[int], tokens: Sequence[int], places: Iterable[int] | None) -> int:
    """Return how many of `tokens`, from the first, need not be evaluated where some are held.

    Args:
        places: Where there are checkpoints to go back to; None if the model can rewind.
    """
    n_common = common_prefix(held, tokens)
    if places is None or n_common == len(held):
        return n_common
    return max((place for place in places if place <= n_common), default=0)


def find_free(slots: Iterable[Slot]) -> Slot | None:
    """Return an empty slot, or else the free one that was used least recently; None if all are busy."""
    free = (slot for slot in slots if slot.job is None)
    return min(free, key=lambda slot: (bool(slot.tokens), slot.last_used), default=None)


def reserve(
    slots: Sequence[Slot], tokens: Sequence[int], n_outputs: int = 1, places: Iterable[int] = ()
) -> Slot | None:
    """Queue `tokens` in a free slot and return it; the caller sets its `job`.

    A prompt that continues what a free slot holds gets that slot. Any other gets the one found by
    `find_free`, so that conversations taking turns keep their caches; a prefix in any slot is copied.

    Args:
        places: Where to make checkpoints, if the model cannot rewind; none if nothing is to be remembered.

    Returns None if no slot is free, or if another slot is prefilling a longer shared prefix: the same call
    then succeeds some batches later.
    """
    found = find_free(slots)
    if found is None:
        return None
    wanted = array("i", tokens[: len(tokens) - n_outputs])  # the rest is evaluated again for its logits
    n_cached = {slot: slot.reusable(wanted) for slot in slots}
    best = max(slots, key=lambda slot: (n_cached[slot], slot.job is None))
    will_share = {slot: _will_share(slot, wanted, n_cached[slot]) for slot in slots if slot.pending}
    source = max(will_share, key=will_share.__getitem__, default=None)
    if source is not None and will_share[source] >= n_cached[best] + source.least_shared:
        source.checkpoint_at(will_share[source])
        return None
    if best.job is None and n_cached[best] >= CONTINUED * len(best.tokens):
        found = best
    elif n_cached[best] >= n_cached[found] + MIN_SHARED_PREFIX:
        found.copy_from(best)
    found.queue(tokens, n_outputs, places)
    return found


def _will_share(slot: Slot, tokens: Sequence[int], n_cached: int) -> int:
    """Return how many of `tokens` a slot is about to hold, of which it has the first `n_cached`."""
    if n_cached < len(slot.tokens) or len(slot.pending) < slot.least_shared:
        return n_cached
    return n_cached + common_prefix(slot.pending, tokens[n_cached:])


class Batch(NamedTuple):
    """What a step evaluates.

    Attributes:
        rows: The rows of the table whose next token it has.
        parts: Segments of other slots, in the order of these.
        n_growing: Number of answers that get a token.
        n_prompt: Number of tokens of prompts.
        row_after: The row of logits after the last token of each sequence that has some.
    """

    rows: list[int]
    parts: list[tuple[Slot, Segment]]
    n_growing: int
    n_prompt: int
    row_after: dict[int, int]


def next_batch(
    context: Context, table: Table, waiting: Sequence[Slot], n_prompt: int, *, starts: bool
) -> Batch:
    """Return the next batch: the next tokens of answers, then those of prompts.

    Args:
        waiting: The slots with pending tokens.
        n_prompt: Maximum number of tokens of prompts.
        starts: Whether the last token of a prompt is evaluated, so that its answer starts. If not, prompts of
            about the same length go on in step, too.
    """
    rows = table.line_up.in_order
    if not waiting:
        return Batch(rows, [], len(rows), 0, _numbered(rows))
    growing = [slot for slot in waiting if slot.needs_logits] if starts else []
    n_growing = len(rows) + len(growing)
    room = context.n_batch - len(rows) - len(waiting) + 1
    # llama.cpp runs the model once for each length of the sequences in a batch: they go on in step.
    longest = 1 if len(rows) else room // max(1, n_growing)
    n_outputs = (context.n_outputs - len(rows)) // max(1, len(growing))  # of each
    in_step = min([longest, *(len(slot.next_segment(longest, n_outputs).tokens) for slot in growing)])
    parts = [(slot, slot.next_segment(in_step, n_outputs)) for slot in growing]
    if n_prompt and len(growing) < len(waiting):
        reading = [slot for slot in waiting if not slot.needs_logits]
        n_tokens = min(n_prompt, room - in_step * n_growing)
        n_outputs = context.n_outputs - len(rows) - sum(part.n_outputs for _, part in parts)
        parts += _of_prompts(reading, n_tokens, n_outputs, starts=starts)
        parts.sort(key=lambda part: part[1].seq_id)
    n_evaluated = len(rows) + sum(len(segment.tokens) for _, segment in parts)
    outputs = [(False, row) for row in rows]
    for _, part in parts:
        outputs += [(len(rows) > 0 and part.is_later, part.seq_id)] * part.n_outputs
    row_after = _numbered([seq_id for _, seq_id in sorted(outputs)])
    return Batch(rows, parts, n_growing, n_evaluated - in_step * n_growing, row_after)


def _numbered(seq_ids: Sequence[int]) -> dict[int, int]:
    """Return the number of each sequence among those of the rows of logits: its last, if it has several."""
    return dict(zip(seq_ids, range(len(seq_ids)), strict=True))


def evaluate(context: Context, table: Table, slots: Sequence[Slot], batch: Batch) -> bool:
    """Evaluate a batch.

    Returns False if it was interrupted. Raises GenerationError if llama.cpp fails. In both cases, the slots
    and the table are as before, or those of a model that cannot rewind have everything to read again.
    """
    rows, done = batch.rows, False
    if context.interrupted:
        return False
    tokens, positions = [table.token[row] for row in rows], [len(slots[row].tokens) for row in rows]
    try:
        done = context.decode(*(part for _, part in batch.parts), following=(tokens, positions, rows))
    finally:
        if not done:
            running = set(rows)
            for slot in slots:  # llama.cpp may have begun to move states of sequences that have no part
                if slot.seq_id in running:
                    _take_back(table, slot)
                else:
                    slot.restore()
    if done:
        for row, token in zip(rows, tokens, strict=True):
            slots[row].tokens.append(token)
        for slot, segment in batch.parts:
            slot.evaluated(segment)
        if batch.parts and not context.can_rewind:
            _drop_checkpoints(slots, context.checkpoint_memory)
    return done


def _drop_checkpoints(slots: Sequence[Slot], most_bytes: int) -> None:
    """Drop the least recently used checkpoints beyond a limit, but never the last one."""
    found = unique(slot.checkpoints for slot in slots)[::-1]
    sizes = accumulate(each.state.nbytes for each in found)
    kept = {*found[:1], *(each for each, n_bytes in zip(found, sizes, strict=True) if n_bytes <= most_bytes)}
    for slot in slots:
        slot.checkpoints = {place: each for place, each in slot.checkpoints.items() if each in kept}


def _take_back(table: Table, slot: Slot) -> None:
    """Let a running answer go on with the same token after an unfinished batch."""
    slot.pending = [table.token[slot.seq_id]]
    if slot.restore():
        slot.pending = ()
    else:
        table.leave(slot.seq_id)


def _of_prompts(
    reading: Iterable[Slot], n_tokens: int, n_outputs: int, *, starts: bool
) -> list[tuple[Slot, Segment]]:
    """Return the next tokens of prompts: at least one of each, by their deadlines, or of those `_in_step`.

    llama.cpp evaluates only adjacent sequences together. A gap costs more than these tokens.
    """
    in_turn = sorted(reading, key=lambda slot: slot.deadline)
    longest = n_tokens
    if not starts:
        in_turn = _in_step(in_turn, n_tokens)
        longest //= len(in_turn)
    parts = []
    for slot in in_turn:
        length = max(1, min(n_tokens, longest, len(slot.pending) - (not starts)))
        segment = slot.next_segment(length, n_outputs)
        if segment.tokens:
            parts.append((slot, segment))
            n_tokens -= len(segment.tokens)
            n_outputs -= segment.n_outputs
    return parts


def _in_step(in_turn: Sequence[Slot], n_tokens: int) -> list[Slot]:
    """Return slots whose prompts are read in step: adjacent ones, so few that much of each is read.

    The others wait, and so do prompts that are much longer than the first in turn: their answers start later.
    """
    most = MUCH_LONGER * len(in_turn[0].pending)
    slots = sorted((slot for slot in in_turn if len(slot.pending) <= most), key=lambda slot: slot.seq_id)
    sums = accumulate(min(_IN_STEP, len(slot.pending)) for slot in slots)
    return slots[: max(1, sum(n <= n_tokens for n in sums))]
