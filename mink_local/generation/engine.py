"""Continuous batching: one loop of decode, cut, draw for any number of answers at a time."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.generation.answer import Answer
from mink_local.llama.backend_sampler import BackendSampler, has_backend_form
from mink_local.llama.context import Context, Segment

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
        self.graph: BackendSampler | None = None
        self._context = context

    def rewind(self, tokens: Sequence[int], outputs: int = 1) -> None:
        """Forget what the cache holds beyond its common beginning with `tokens`, the rest of which is
        pending then. So are the last `outputs` in any case: their logits are wanted."""
        self.cut(common_prefix(self.tokens, tokens[: len(tokens) - outputs]))
        self.pending = tokens[len(self.tokens) :]

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens, or all where the model cannot forget just its end."""
        if length < len(self.tokens):
            del self.tokens[length:]
            self.restore()

    def restore(self) -> None:
        """Forget what a batch that was interrupted may have left behind `tokens`, or all as in `cut`."""
        if not self._context.truncate(len(self.tokens), self.seq_id):
            self._context.clear(self.seq_id)
            self.tokens.clear()

    def copy_from(self, other: "Slot[Job]") -> None:
        self._context.clear(self.seq_id)
        self._context.copy(other.seq_id, self.seq_id)
        self.tokens = other.tokens.copy()

    def take_over(self, other: "Slot[Job]") -> None:
        """Go on with what another sequence is used for."""
        self.copy_from(other)
        self.job, self.pending = other.job, other.pending
        other.release()

    def take(self, room: int) -> Segment:
        """The next of what is pending, at most `room` tokens."""
        return Segment(self.pending[:room], len(self.tokens), self.seq_id, int(room >= len(self.pending)))

    def evaluated(self, part: Segment) -> None:
        self.tokens += part.tokens
        self.pending = self.pending[len(part.tokens) :]

    def evaluate(self) -> bool:
        """Evaluate what is pending, on its own; False where it was interrupted."""
        while self.pending:
            part = self.take(self._context.n_batch)
            if self._context.interrupted or not self._context.decode(part):
                self.restore()
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


Group = list[Answer]  # answers that are the same so far, prompt included


class Batch:
    """Writes answers in the sequences of `context`, with one llama_decode a step for all.

    A sequence that has ended is given to the next answer at once, whose prompt is read in the batches of
    the others. Answers that follow each other with the same prompt share a sequence, each drawing from
    the same logits, until they draw different tokens: then they part, and the sequence is copied, or
    where none is free they wait for one. So whatever they have in common is evaluated once. What
    other prompts have in common with a sequence is copied from there too; while such a beginning is
    being read, an answer waits for it.
    """

    def __init__(self, context: Context) -> None:
        self.slots: list[Slot[Group]] = [Slot(context, seq_id) for seq_id in range(context.n_seq)]
        self.context = context
        self._parted: list[Group] = []  # those that wait for a sequence
        self._runs = 0  # how many were begun: only the last may go on

    def run(self, answers: Iterable[Answer], in_graph: bool = False) -> Iterator[tuple[Answer, str]]:
        """Write answers, drawn from the iterable as there is room for them; yields every answer's pieces
        of text as they come, empty ones included, the last one when it has its finish_reason.

        in_graph: draw tokens inside llama.cpp's graph where that can be done. Ends early, with the answers
        that were begun, where the context is interrupted. Raises GenerationError where a row of logits
        is broken, llama.cpp fails, or another run has begun.
        """
        self._release()
        run = self._runs
        waiting = iter(answers)
        upcoming = next(waiting, None)
        while True:
            self._resume()
            while upcoming is not None and (upcoming.finish_reason or self._begin(upcoming, in_graph)):
                if upcoming.finish_reason:
                    yield upcoming, ""
                upcoming = next(waiting, None)
            busy = self._close_ranks()
            if not busy:
                return
            if (outputs := self._decode(busy)) is None:
                yield from self._interrupted()
                return
            for slot, output in outputs:
                for written in self._write(slot, output):
                    yield written
                    if run != self._runs:
                        raise GenerationError("another answer was begun on this model before this one ended")

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The raw logits (V,) of what follows `tokens`, which end what was being written. Where llama.cpp
        holds them, until the next batch. Raises GenerationError where it was interrupted."""
        self._release()
        slot = max(self.slots, key=lambda slot: common_prefix(slot.tokens, tokens))
        slot.rewind(tokens)
        if not slot.evaluate():
            raise GenerationError("interrupted")
        return self.context.logits()

    def _release(self) -> None:
        """End what is being written."""
        self._runs += 1
        self._parted.clear()
        for slot in self.slots:
            slot.release()

    def _groups(self) -> list[Group]:
        return [slot.job for slot in self.slots if slot.job] + self._parted

    def _resume(self) -> None:
        """Give a sequence to those that wait for one, as far as there are any free."""
        while self._parted:
            answer = self._parted[0][0]
            slot = place(self.slots, [*answer.prompt, *answer.tokens])
            if slot is None:
                return
            slot.job = self._parted.pop(0)

    def _begin(self, answer: Answer, in_graph: bool) -> bool:
        """Give an answer a sequence; False where it has to wait."""
        groups = self._groups()
        # Twice the sequences keep them all in use. A single one is for one answer after the other.
        if sum(map(len, groups)) >= 2 * len(self.slots) - 1:
            return False
        if not in_graph:  # a sampler that is attached to a sequence draws for one answer
            for group in groups:
                if not group[0].k and group[0].prompt == answer.prompt:
                    answer.begin(0)
                    group.append(answer)
                    return True
        free = place(self.slots, answer.prompt)
        if free is None:
            return False
        answer.begin(len(free.pending))
        free.job = [answer]
        free.graph = _graph_draw(answer, self.context, free.seq_id) if in_graph else None
        return True

    def _close_ranks(self) -> list[Slot[Group]]:
        """The sequences that are written in, after those behind a gap have moved into it: llama.cpp
        evaluates only neighbours at once, which costs much more than to copy a sequence."""
        busy = [slot for slot in self.slots if slot.job]
        if not any(slot.graph for slot in busy):  # a sampler that is attached stays where it is
            for gap in [slot for slot in self.slots[: len(busy)] if not slot.job]:
                gap.take_over(busy.pop())
        return [slot for slot in self.slots if slot.job]

    def _decode(self, busy: list[Slot[Group]]) -> list[tuple[Slot[Group], int]] | None:
        """Evaluate a batch: one token of each sequence that writes, and as much as there is room for of
        the prompts that are being read. Returns the sequences that have an output, and its place in
        the batch, or None where it was interrupted."""
        room = self.context.n_batch
        parts = []
        for slot in sorted(busy, key=lambda slot: len(slot.pending)):
            if room == 0:
                break
            part = slot.take(room)
            parts.append((slot, part))
            room -= len(part.tokens)
        parts.sort(key=lambda item: item[1].seq_id)  # in the order in which llama.cpp takes neighbours
        if self.context.interrupted or not self.context.decode(*(part for _, part in parts)):
            for slot, _ in parts:
                slot.restore()
            return None
        outputs = []
        end = 0
        for slot, part in parts:
            slot.evaluated(part)
            end += len(part.tokens)
            if part.n_outputs:
                outputs.append((slot, end - 1))
        return outputs

    def _interrupted(self) -> Iterator[tuple[Answer, str]]:
        groups = self._groups()
        self._release()
        for group in groups:
            for answer in group:
                yield answer, answer.end("interrupted")

    def _write(self, slot: Slot[Group], output: int) -> Iterator[tuple[Answer, str]]:
        """Sample the next token of every answer in a sequence. Those that go on with the first one's stay
        there, and those with another in a copy of it, as soon as there is room for one."""
        groups: dict[int, Group] = {}
        for answer in slot.job or ():
            if (drawn := self._draw(answer, slot, output)) is None:
                return
            token, k = drawn
            text = answer.accept(token, k)
            if not answer.finish_reason:
                groups.setdefault(token, []).append(answer)
            yield answer, text
        if not groups:
            slot.release()
            return
        for token in [*groups][1:]:
            group = groups.pop(token)
            if (copy := next((other for other in self.slots if not other.job), None)) is None:
                self._parted.append(group)
            else:
                copy.copy_from(slot)
                copy.job, copy.pending = group, [token]
        [(token, slot.job)] = groups.items()
        slot.pending = [token]

    def _draw(self, answer: Answer, slot: Slot[Group], output: int) -> tuple[int, int | None] | None:
        """The next token and, if it is not the answer's own draw, its k; None where the graph was not
        certain and the logits have to be asked for."""
        if slot.graph is None:
            return answer.draw(self.context.logits(output)), None
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


def _graph_draw(answer: Answer, context: Context, seq_id: int) -> BackendSampler | None:
    """What draws inside the graph, attached; None, with a warning, where tokens are drawn on the host."""
    sampler = answer.request.rule
    if answer.request.constraints:
        log.warning("penalties, bias and grammar have no graph form: tokens are drawn on the host")
        return None
    if not has_backend_form(sampler):
        log.warning("%s has no graph form: its tokens are drawn on the host", sampler)
        return None
    draw = BackendSampler(sampler, answer.request.temperature, answer.seed, context, seq_id)
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
