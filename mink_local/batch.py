"""Continuous batching: one loop of decode, cut, draw for any number of answers at a time."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mink_local.answer import Answer
from mink_local.errors import GenerationError
from mink_local.graph import GraphDraw, has_graph
from mink_local.llamacpp import Context, Part

log = logging.getLogger("mink_local")

SHARED = 4  # tokens of a common beginning from which on it is copied from another sequence, or waited for


Job = TypeVar("Job")


class Slot(Generic[Job]):
    """A sequence of the KV cache, and what it is used for.

    tokens: what the cache holds for certain. pending: what is to be evaluated behind them.
    """

    def __init__(self, context: Context, seq_id: int) -> None:
        self.seq_id = seq_id
        self.tokens: list[int] = []
        self.pending: Sequence[int] = ()
        self.job: Job | None = None
        self.graph: GraphDraw | None = None
        self._context = context

    def rewind(self, tokens: Sequence[int], outputs: int = 1) -> None:
        """Forget what the cache holds beyond its common beginning with `tokens`, the rest of which is
        pending then. So are the last `outputs` in any case: their logits are wanted."""
        self.cut(common_prefix(self.tokens, tokens[: len(tokens) - outputs]))
        self.pending = tokens[len(self.tokens) :]

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens, or all where the model cannot forget just its end."""
        if length == len(self.tokens):
            return
        if not self._context.truncate(length, self.seq_id):
            self._context.clear(self.seq_id)
            length = 0
        del self.tokens[length:]

    def copy_from(self, other: "Slot[Job]") -> None:
        self._context.clear(self.seq_id)
        self._context.copy(other.seq_id, self.seq_id)
        self.tokens = other.tokens.copy()

    def take(self, room: int) -> Part:
        """The next of what is pending, at most `room` tokens."""
        return Part(self.pending[:room], len(self.tokens), self.seq_id, int(room >= len(self.pending)))

    def evaluated(self, part: Part) -> None:
        self.tokens += part.tokens
        self.pending = self.pending[len(part.tokens) :]

    def evaluate(self) -> bool:
        """Evaluate what is pending, on its own; False where it was interrupted."""
        while self.pending:
            part = self.take(self._context.n_batch)
            if self._context.interrupted or not self._context.decode(part):
                self._context.truncate(part.position, self.seq_id)
                self.pending = ()
                return False
            self.evaluated(part)
        return True

    def repeat(self) -> None:
        """Have the last token evaluated again, for its logits."""
        tokens = self.tokens.copy()
        self.cut(len(tokens) - 1)
        self.pending = tokens[len(self.tokens) :]

    def release(self) -> None:
        """What is in the cache stays there, for an answer that begins in the same way."""
        self.job, self.pending = None, ()
        self.detach()

    def detach(self) -> None:
        if self.graph is not None:
            self.graph.detach()
            self.graph = None


class Batch:
    """Writes answers, one in every sequence of `context`, with one llama_decode a step for all.

    A sequence that has ended is given to the next answer at once, whose prompt is read in the batches
    of the others. What a prompt has in common with a sequence is copied from there; while such a
    beginning is being read, an answer waits for it. So the prompt of answers that follow each
    other with the same prompt is evaluated once, but for its last token, whose logits each needs.
    """

    def __init__(self, context: Context) -> None:
        self.slots: list[Slot[Answer]] = [Slot(context, seq_id) for seq_id in range(context.n_seq)]
        self._context = context
        self._runs = 0  # how many were begun: only the last may go on

    def run(self, answers: Iterable[Answer], in_graph: bool = False) -> Iterator[tuple[Answer, str]]:
        """Write answers, drawn from the iterable as there is room for them; yields every answer's pieces
        of text as they come, empty ones included, the last one when it has its finish_reason.

        in_graph: draw tokens inside llama.cpp's graph where that can be done. Ends early, with the answers
        that were begun, where the context is interrupted. Raises GenerationError where a row of logits
        is broken, llama.cpp fails, or another run has begun.
        """
        self._runs += 1
        run = self._runs
        for slot in self.slots:
            slot.release()
        waiting = iter(answers)
        upcoming = next(waiting, None)
        while True:
            while upcoming is not None and (upcoming.finish_reason or self._begin(upcoming, in_graph)):
                if upcoming.finish_reason:
                    yield upcoming, ""
                upcoming = next(waiting, None)
            busy = [slot for slot in self.slots if slot.job is not None]
            if not busy:
                return
            if (outputs := self._decode(busy)) is None:
                yield from self._interrupted(busy)
                return
            for slot, output in outputs:
                answer = slot.job
                if answer is None or (drawn := self._draw(slot, output)) is None:
                    continue
                token, k = drawn
                text = answer.accept(token, k)
                slot.pending = [token]
                if answer.finish_reason:
                    slot.release()
                yield answer, text
                if run != self._runs:
                    raise GenerationError("another answer was begun on this model before this one ended")

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The raw logits (V,) of what follows `tokens`, which end what was being written. Where llama.cpp
        holds them, until the next batch. Raises GenerationError where it was interrupted."""
        self._runs += 1
        for slot in self.slots:
            slot.release()
        slot = max(self.slots, key=lambda slot: common_prefix(slot.tokens, tokens))
        slot.rewind(tokens)
        if not slot.evaluate():
            raise GenerationError("interrupted")
        return self._context.logits()

    def _begin(self, answer: Answer, in_graph: bool) -> bool:
        """Give an answer a sequence; False where it has to wait."""
        slot = place(self.slots, answer.prompt)
        if slot is None:
            return False
        answer.begin(len(slot.pending))
        slot.job = answer
        slot.graph = _graph_draw(answer, self._context, slot.seq_id) if in_graph else None
        return True

    def _decode(self, busy: list[Slot[Answer]]) -> list[tuple[Slot[Answer], int]] | None:
        """Evaluate a batch: one token of each sequence that writes, and as much as there is room for of
        the prompts that are being read. Returns the sequences that have an output, and its place in
        the batch, or None where it was interrupted."""
        room = self._context.n_batch
        parts = []
        outputs = []
        for slot in sorted(busy, key=lambda slot: len(slot.pending)):
            if room == 0:
                break
            part = slot.take(room)
            parts.append((slot, part))
            room -= len(part.tokens)
            if part.outputs:
                outputs.append((slot, self._context.n_batch - room - 1))
        if self._context.interrupted or not self._context.decode(*(part for _, part in parts)):
            for slot, part in parts:
                self._context.truncate(part.position, slot.seq_id)
            return None
        for slot, part in parts:
            slot.evaluated(part)
        return outputs

    def _interrupted(self, busy: list[Slot[Answer]]) -> Iterator[tuple[Answer, str]]:
        for slot in busy:
            if (answer := slot.job) is not None:
                text = answer.end("interrupted")
                slot.release()
                yield answer, text

    def _draw(self, slot: Slot[Answer], output: int) -> tuple[int, int | None] | None:
        """The next token and, if it is not the answer's own draw, its k; None where the graph was not
        certain and the logits have to be asked for."""
        answer = slot.job
        assert answer is not None
        if slot.graph is None:
            return answer.draw(self._context.logits(output)), None
        if (token := slot.graph.next(output)) is not None:
            return token, slot.graph.k
        log.warning(
            "the graph cannot make sure of the cut at step %d: on from here on the host", len(answer.k) + 1
        )
        slot.detach()
        slot.repeat()
        return None


def place(slots: Sequence[Slot[Job]], tokens: Sequence[int], outputs: int = 1) -> Slot[Job] | None:
    """A free sequence in which `tokens` are pending, but for a beginning that it holds or that was copied
    from another; None where there is none free, or another reads such a beginning right now.

    outputs: the logits of so many of the last tokens are wanted, so they are not part of the beginning.
    """
    free = [slot for slot in slots if slot.job is None]
    if not free:
        return None
    beginning = tokens[: len(tokens) - outputs]
    has = {slot.seq_id: common_prefix(slot.tokens, beginning) for slot in slots}
    slot = max(free, key=lambda slot: has[slot.seq_id])
    source = max(slots, key=lambda slot: has[slot.seq_id])
    enough = has[source.seq_id] + SHARED
    for other in slots:
        if other.pending and common_prefix([*other.tokens, *other.pending], beginning) >= enough:
            return None
    if has[source.seq_id] >= has[slot.seq_id] + SHARED:
        slot.copy_from(source)
    slot.rewind(tokens, outputs)
    return slot


def _graph_draw(answer: Answer, context: Context, seq_id: int) -> GraphDraw | None:
    """What draws inside the graph, attached; None, with a warning, where tokens are drawn on the host."""
    sampler = answer.request.rule
    if answer.request.constraints:
        log.warning("penalties, bias and grammar have no graph form: tokens are drawn on the host")
        return None
    if not has_graph(sampler):
        log.warning("%s has no graph form: its tokens are drawn on the host", sampler)
        return None
    draw = GraphDraw(sampler, answer.request.temperature, answer.seed, context, seq_id)
    if draw.attach():
        return draw
    log.warning("%s: this device lacks an operation of its graph form: drawn on the host", sampler)
    return None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with that are the same."""
    longest = min(len(a), len(b))
    if a[:longest] == b[:longest]:  # mostly so, and compared at C's speed
        return longest
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
