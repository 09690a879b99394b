"""Continuous batching: any number of requests share the slots of one KV cache, one `llama_decode` per step.

    engine.enqueue(engine.prepare(request))
    while not engine.idle:
        for answer, piece in engine.step():
            print(piece, end="")

Requests may come and go between any two steps. A free slot goes to the next request at once, and its prompt
is evaluated in the others' batches. What prompts have in common is evaluated once: a prefix that a prompt
shares with the tokens in any slot is copied from there. While another slot is still prefilling such a prefix,
the request waits for it and lets those behind it pass.

While answers are being generated, prompts are prefilled in chunks small enough not to delay the next tokens.
"""

import logging
import time
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.generation.answer import Answer, FinishReason, Piece
from mink_local.generation.engine.budget import PromptBudget
from mink_local.generation.engine.checkpoints import places_in, size, unique
from mink_local.generation.engine.decoding import Decoding
from mink_local.generation.engine.kept import MOST_BESIDE, KeptCaches
from mink_local.generation.engine.slots import (
    MUCH_LONGER,
    Batch,
    Slot,
    evaluate,
    find_free,
    next_batch,
    reserve,
)
from mink_local.generation.engine.table import Table
from mink_local.generation.format.call_grammar import with_call_grammar
from mink_local.generation.format.template import ChatTemplate
from mink_local.generation.format.tool_calls import ToolParser
from mink_local.generation.request import Request, read_prompt
from mink_local.llama.context import Context
from mink_local.llama.devices import n_beside
from mink_local.llama.token_data import SamplingBuffers
from mink_local.llama.token_sampler import RowSampler
from mink_local.llama.weights import Weights

log = logging.getLogger("mink_local")

Step = list[tuple[Answer, Piece]]
_MOST_WAITED = 8192  # tokens

Job = Callable[[], object]  # to be called while nothing is generated


class Engine:
    """Generates answers in the slots of `context`, which only the engine may use.

    Not thread-safe, except for `prepare`, `interrupt` and `unevaluated`. See `EngineThread`.

    Attributes:
        kept: Where caches go that are lost here, and come from; None if they are lost.
        most_of_client: Number of slots that a client has at most while others wait; None for no limit.
        last_slot: The slot of the last answer to end, or that a cache was loaded into since.
    """

    def __init__(self, context: Context, weights: Weights, template: ChatTemplate) -> None:
        self.kept: KeptCaches | None = None
        self.most_of_client: int | None = None
        # A GPU evaluates a batch while the text of the last one is told; on a CPU, that would only be later.
        self.tells_late = weights.on_gpu
        self.use(context)
        self._weights = weights
        self.template = template
        self._has_warned = False
        self._buffers = SamplingBuffers(weights.n_vocab)
        self._waiting: deque[Decoding | Job] = deque()
        self._turn = 0  # of the request that was the last to get a slot
        self._next_turns: dict[str, int] = {}  # of clients who must wait for others' turns
        self._budget = PromptBudget()
        self._began = 0.0  # the running step
        self._batch: Batch | None = None  # of that step
        # Its logits within prompts and texts that must follow: the answers, how many tokens precede, the row.
        self._within: list[tuple[Decoding, int, int]] = []
        self._ended: Step = []  # not told yet
        self._untold: list[
            tuple[Decoding, int, int]
        ] = []  # answers, their tokens whose text is not told, and k

    def use(self, context: Context) -> None:
        """Switch to another context. The engine must be idle."""
        self.context = context
        n_threads = context.n_threads if self.tells_late else n_beside(context.n_threads)
        self._rows = RowSampler(context.n_vocab, n_threads)
        engine = weakref.proxy(self)  # a circle would keep a dropped model until the next garbage collection
        self.slots: list[Slot] = [
            Slot(context, i, lambda slot: engine._keep(slot)) for i in range(context.n_seq)
        ]
        self.last_slot = self.slots[0]
        self._table = Table(context.n_seq)

    @property
    def idle(self) -> bool:
        """True if there is nothing to generate."""
        return not (self._waiting or self.n_busy or self._untold or self._ended)

    @property
    def n_busy(self) -> int:
        """Number of slots in use."""
        return sum(slot.job is not None for slot in self.slots)

    @property
    def checkpoints(self) -> tuple[int, int]:
        """Number of checkpoints, and the bytes they take. May be asked for from any thread."""
        found = unique(slot.checkpoints for slot in self.slots)
        return len(found), size(found)

    @property
    def n_waiting(self) -> int:
        """Number of requests waiting for a slot."""
        waiting = list(self._waiting)  # another thread may ask
        return sum(isinstance(each, Decoding) for each in waiting)

    def prepare(self, request: Request, answer: Answer | None = None, client: str = "") -> Decoding:
        """Tokenize a request and compile its constraints; pass the result to `enqueue`.

        May be called from any thread, even during a step.

        Args:
            answer: The object to fill in; None creates one.
            client: Who asks for it.

        Returns:
            The request with its answer, which grows with every step. If the prompt does not fit into the
            context, it is already finished, with finish_reason "overflow".

        Raises:
            ValueError: The prompt, the constraints or the stop tokens do not suit the model.
            MinkError: The chat template refuses the messages.
        """
        template, answer = self.template.suiting(request.tools), answer or Answer(request)
        request = replace(
            request, prompt=read_prompt(request.prompt), prefix=self._weights.ids("prefix", request.prefix)
        )
        texts = template.texts | (template.call_texts if request.tools else {})
        ids = {text.decode(): token for token, text in texts.items()}
        asked, request = request, with_call_grammar(request, template.style, ids, template.marks.text)
        answer.request = request
        parser = ToolParser(
            request.tools, template.form, is_parallel=request.parallel_tool_calls is not False
        )
        prompt = template.tokens(
            # `tokens` counts all of a text; of messages, it takes the beginning itself.
            template.beginning(request.prompt) if isinstance(request.prompt, str) else request.prompt,
            request.enable_thinking,
            request.tools,
            request.template_kwargs,
        )
        answer.model = self._weights.path.stem
        if request.params.has_phases and not (template.can_reason or self._has_warned):
            self._has_warned = True
            log.info(
                "%s does not reason: reasoning_sampler and reasoning_temperature do nothing", answer.model
            )
        splitter, begun = template.reasoning(request, prompt)
        answer.begun = Piece(begun)
        if begun.strip():
            answer.begun.reasoning, answer.begun.content = splitter.feed(begun)
        answer.has_call_grammar = request is not asked
        if answer.has_call_grammar:  # which has what begins an answer
            splitter.marks = splitter.marks._replace(text="")
        decoding = Decoding(
            answer,
            [*prompt, *request.prefix],
            self._weights,
            self._buffers,
            splitter,
            parser if request.tools else None,
            template.stop(request.prompt),
            texts,
        )
        decoding.client = client
        answer.request = asked
        if not self._fits(decoding):
            answer.finish_reason = "overflow"
        elif self.kept is not None:
            decoding.cache_file = self.kept.find(answer.prompt, self._n_cached(answer.prompt), client)
        if self.context.checkpoint_memory:
            decoding.places = places_in(answer.prompt, decoding.n_prompt_outputs, self._weights.control_ids)
        return decoding

    def enqueue(self, *decodings: Decoding) -> None:
        """Take prepared requests, except those whose answer is already finished; `step` does the others."""
        known = {} if self.idle else self._next_turns
        self._next_turns = {client: turn for client, turn in known.items() if turn > self._turn}
        for decoding in decodings:
            if decoding.answer.finish_reason is None:
                decoding.turn = self._next_turns.get(decoding.client, self._turn)
                self._next_turns[decoding.client] = decoding.turn + 1
                self._waiting.append(decoding)

    def when_idle(self, job: Job) -> None:
        """Have a function called when the answers before it have ended; requests after it wait for it."""
        self._waiting.append(job)

    def cancel(self, answers: Container[Answer] | None = None, error: BaseException | None = None) -> Step:
        """End answers, by default all, with finish_reason "interrupted", or "error" if there is one.

        Returns the last pieces of those that had not ended, and what else had to be told before.
        """
        told = self.tell()
        ended = [each for each in self._decodings() if answers is None or each.answer in answers]
        return [*told, *self._end(ended, error)]

    def _end(self, decodings: Sequence[Decoding], error: BaseException | None) -> Step:
        """End answers and free what they occupy; return their last pieces."""
        ended = set(decodings)
        self._waiting = deque(each for each in self._waiting if each not in ended)
        for slot in self.slots:
            if slot.job in ended:
                self._release(slot)
        return [(each.answer, _ended(each, error)) for each in decodings]

    def interrupt(self) -> None:
        """On a CPU, give up the batch that is being evaluated; a later step evaluates it again.

        May be called from another thread or a signal handler.
        """
        self.context.interrupted = True

    def step(self) -> Step:
        """Evaluate one batch and sample the next token of every answer for which it yields logits.

        Returns:
            The answers that have grown, each with the added text. What fails for one answer, such as logits
            that cannot be sampled from, ends only this one, with finish_reason "error"; if llama.cpp fails on
            the batch, all answers with a slot end that way.
        """
        self.launch()
        return [*self.tell(), *self.collect()]

    # The parts of a step. `tell` is called while a GPU evaluates the batch.

    def launch(self) -> None:
        """Begin a step: have a batch evaluated. On a GPU, that goes on when this returns."""
        self._ended += self._admit()
        self._batch = None
        self._began = time.perf_counter()
        try:
            if busy := self._compact():
                self._batch = self._evaluated(busy)
        except GenerationError as error:
            told = self.tell()
            failed = [slot.job for slot in self.slots if slot.job]
            self._ended = [*told, *self._end(failed, error)]

    def _evaluated(self, busy: Sequence[Slot]) -> Batch | None:
        """Have the next batch evaluated; return it, or None if that was interrupted."""
        waiting = [slot for slot in busy if slot.pending]
        is_burst = self._is_burst(busy)
        n_prompt = self._n_prompt(busy, is_burst) if waiting else 0
        batch = next_batch(self.context, self._table, waiting, n_prompt, starts=not is_burst)
        begun = [(slot.job, slot, part) for slot, part in batch.parts if part.n_outputs and slot.job]
        guides = [answer.guide for answer, _, _ in begun if answer.guide is not None]
        self._rows.fill_masks([*self._table.line_up.guides, *guides])
        if not evaluate(self.context, self._table, self.slots, batch):
            return None
        self._within = []
        for answer, slot, part in begun:
            ends = len(slot.tokens), batch.row_after[slot.seq_id]
            places = zip(*(range(end - part.n_outputs + 1, end + 1) for end in ends), strict=True)
            self._within += [(answer, *place) for place in places]
            if not slot.pending:
                self._within.pop()  # its next token is sampled
                slot.begin()
                self._table.join(slot.seq_id, answer)
        return batch

    def _n_prompt(self, busy: Sequence[Slot], is_burst: bool) -> int:
        """Return how many tokens of prompts are evaluated in a step."""
        reading = [slot for slot in busy if slot.pending and not slot.needs_logits]
        if not reading:
            return 0
        n_answers = 0 if is_burst else len(busy) - len(reading)
        if n_answers == 0 and len(busy) == len(self.slots):
            return self.context.n_batch  # nobody else could be served meanwhile
        return self._budget.tokens(sum(len(slot.pending) for slot in reading), n_answers)

    def _is_burst(self, busy: Sequence[Slot]) -> bool:
        """Return whether prompts are read before an answer is started.

        Were each answer started at once, the others' prompts would be read in small parts beside it, and few
        answers would be generated together. Those whose prompt is read wait only for prompts that are not
        much longer, and for no more tokens than a few batches. A single prompt may be the first of a burst
        whose others come during its first step, if that takes long.
        """
        if len(self.slots) == 1 or any(slot.has_begun for slot in busy):
            return False
        reading = [len(slot.pending) for slot in busy if len(slot.pending) > 1]
        if not reading:
            return False
        asked = {slot: slot.job.answer.evaluated_tokens for slot in busy if slot.job}
        if len(busy) == 1 and (reading[0] <= self._budget.unnoticed or reading[0] < asked[busy[0]]):
            return False
        ready = [slot for slot in busy if len(slot.pending) == 1]
        read = [asked[slot] for slot in ready]
        waited = self.context.n_evaluated - min((slot.deadline for slot in ready), default=0)
        return not ready or (min(reading) <= MUCH_LONGER * max(read) and waited <= _MOST_WAITED)

    def tell(self) -> Step:
        """Return the answers that have ended since the last step, or whose text has waited from then on."""
        told, self._ended = self._ended, []
        untold, self._untold = self._untold, []
        for decoding, token, k in untold:
            told += self._taken(decoding, decoding.take(token, k))
            if decoding.answer.finish_reason is not None:
                self._drop(decoding)
            elif decoding.must_follow:  # since its reasoning has to end
                self._table.line_up_again()
        return told

    def collect(self) -> Step:
        """End a step: sample the tokens that its batch yields; return those told now, like `step`."""
        if self._batch is None:
            return []
        told: Step = []
        if self._batch.row_after:
            rows = self.context.rows
            self._wait_for_masks()
            told += self._record(rows)
            told += self._sample(self._batch, rows)
        if not self.tells_late:
            told += self.tell()
        seconds = time.perf_counter() - self._began
        self._budget.note(seconds, self._batch.n_growing, self._batch.n_prompt)
        return told

    def _record(self, rows: NDArray[np.float32]) -> Step:
        """Give answers the logits within their prompts, and within texts that must follow."""
        told: Step = []
        for decoding, position, i in self._within:
            if decoding.answer.finish_reason is None:  # else it has ended meanwhile
                told += self._taken(decoding, decoding.record(rows[i], position))
            if decoding.answer.finish_reason is not None:
                self._drop(decoding)
        return told

    def _sample(self, batch: Batch, rows: NDArray[np.float32]) -> Step:
        """Sample the next token of every running answer, and queue it; return what is told at once."""
        known = self._known()
        line_up, n = self._table.line_up, self._table.line_up.n_late
        places = [batch.row_after[row] for row in line_up.rows]
        for i in line_up.phased:
            line_up.samplers[i] = line_up.answers[i].sampler
        for each in line_up.banning:
            each.update_bans()
        if known:
            ways = [each not in known for each in line_up.answers]
            sampled = [*compress(line_up.answers, ways)]
            samplers = [*compress(line_up.samplers, ways)]
            tokens, ks = self._rows(rows, [*compress(places, ways)], samplers)
        else:
            sampled = line_up.answers
            tokens, ks = self._rows(rows, places, line_up.samplers)
        if min(ks[:n], default=1) > 0:
            self._go_on(line_up.rows[:n], line_up.answers[:n], tokens[:n], ks[:n])
        else:
            n = 0  # one of them cannot be sampled from
        told: Step = []
        if n < len(line_up.answers):
            known |= zip(sampled, zip(tokens, ks, strict=True), strict=True)
            for row, place, each in zip(line_up.rows[n:], places[n:], line_up.answers[n:], strict=True):
                told += self._told_at_once(self.slots[row], each, rows[place], *known[each])
        return told

    def _wait_for_masks(self) -> None:
        """Wait for the masks; if they cannot be computed, that ends the answers that need one."""
        try:
            self._rows.wait()
        except BaseException as error:
            guided = [each for each in self._table.line_up.answers if each.guide is not None]
            self._ended += self._end(guided, error)

    def _known(self) -> dict[Decoding, tuple[int | None, int]]:
        """Return the answers that are not sampled with the others, with what `take_from` gets of each.

        Their token must come next, or their sampler is in Python. What fails here ends its answer.
        """
        line_up, known = self._table.line_up, dict[Decoding, tuple[int | None, int]]()
        for each in line_up.answers[line_up.n_late :]:
            try:
                token = each.forced()
            except BaseException as error:
                self._ended += self._end([each], error)
            else:
                if token is not None or not each.is_compiled:
                    known[each] = token, 0
        return known

    def _go_on(
        self,
        rows: Sequence[int],
        answers: Sequence[Decoding],
        tokens: Sequence[int],
        ks: Sequence[int],
    ) -> None:
        """Queue answers' tokens, whose text may be told later; free the slots of those that are over."""
        full, ends = self._table.go_on(rows, tokens), self._weights.end_tokens
        self._untold += zip(answers, tokens, ks, strict=True)
        ended = [row for row, token in zip(rows, tokens, strict=True) if token in ends]
        for row in {*full, *ended}:
            self._release(self.slots[row])

    def _told_at_once(
        self, slot: Slot, decoding: Decoding, row: NDArray[np.float32], token: int | None, k: int
    ) -> Step:
        """Give an answer a token, and queue it with what must follow."""
        n_before = decoding.answer.n_tokens
        told = self._taken(decoding, decoding.take_from(row, token, k))
        tokens = [*decoding.answer.tokens[n_before:], *decoding.ahead]
        if decoding.answer.finish_reason is not None:
            if slot.job is decoding:
                self._release(slot)
        elif len(tokens) == 1:
            self._table.go_on([slot.seq_id], tokens)
        else:
            self._table.leave(slot.seq_id)
            slot.begin(tokens, 1 + len(decoding.ahead))
        return told

    def _release(self, slot: Slot) -> None:
        self._table.leave(slot.seq_id)
        slot.release()
        self.last_slot = slot

    def _drop(self, decoding: Decoding) -> None:
        """Release the slot of an answer whose text has ended it, without the token evaluated meanwhile."""
        for slot in self.slots:
            if slot.job is decoding:
                if self.context.can_rewind:
                    slot.truncate(decoding.answer.prompt_tokens + decoding.answer.n_tokens - 1)
                self._release(slot)

    def _taken(self, decoding: Decoding, pieces: Iterable[Piece]) -> Step:
        """Return an answer's pieces; an error while they are made ends it."""
        told: Step = []
        try:
            for piece in pieces:
                told.append((decoding.answer, piece))
        except BaseException as error:  # also of `watch`, and of a sampler from another package
            told += self._end([decoding], error)
        return told

    def forget(self) -> None:
        """Empty the KV cache of every free slot."""
        for slot in self.slots:
            if slot.job is None:
                slot.truncate(0)

    def keep_all(self) -> None:
        """Have the caches of free slots kept. The engine must be idle."""
        for slot in self.slots:
            if self.kept is not None and slot.last_used:
                self.kept.keep(slot, waits=True)

    def _keep(self, slot: Slot) -> None:
        if self.kept is not None and self._may_copy(slot.n_bytes):
            self.kept.keep(slot)

    def _may_copy(self, n_bytes: int) -> bool:
        """Return whether so much of a cache may be copied, for which all that are being answered wait."""
        return self.n_busy == 0 or n_bytes <= MOST_BESIDE

    def _n_cached(self, prompt: Sequence[int]) -> int:
        """Return how much of a prompt a slot holds. May be called from any thread."""
        wanted = array("i", prompt)
        return max(slot.reusable(wanted) for slot in self.slots)

    def unevaluated(self, answer: Answer) -> int:
        """Return the number of prompt tokens not yet evaluated. May be called from any thread."""
        if answer.tokens or answer.finish_reason is not None:
            return 0
        of_slots = (len(slot.pending) for slot in self.slots if slot.job and slot.job.answer is answer)
        return next(of_slots, answer.prompt_tokens)  # without a slot, it waits for one

    def _decodings(self) -> Iterator[Decoding]:
        yield from (slot.job for slot in self.slots if slot.job)
        yield from (each for each in self._waiting if isinstance(each, Decoding))

    def _fits(self, decoding: Decoding) -> bool:
        return decoding.answer.prompt_tokens < self.context.n_ctx

    def _admit(self) -> Step:
        """Give slots to waiting requests, and do the jobs whose turn it is.

        A request that waits for a prefix stays first. Only the first few behind it are considered.

        Returns:
            The ends of answers that do not fit into the context: it may have changed since they were given.
        """
        while self._waiting and not isinstance(job := self._waiting[0], Decoding):
            if self.n_busy or self._untold or self._ended:  # a last token that is not told yet
                return []
            self._waiting.popleft()
            job()
        ended: Step = []
        for decoding in self._next() if self._waiting and self.n_busy < len(self.slots) else ():
            if not self._fits(decoding):
                ended.append((decoding.answer, decoding.end("overflow")))
            elif not self._place(decoding):
                if self.n_busy == len(self.slots):
                    break
                continue
            self._waiting.remove(decoding)
            self._turn = decoding.turn
        return ended

    def _next(self) -> list[Decoding]:
        """Return the next few requests that wait: of each client in turn, in the order in which they came."""
        waiting: list[Decoding] = []
        for each in self._waiting:
            if not isinstance(each, Decoding):
                break
            waiting.append(each)
        n_running = Counter(slot.job.client for slot in self.slots if slot.job)
        most = self.most_of_client or len(self.slots)
        waiting.sort(key=lambda each: (n_running[each.client] >= most, each.turn))
        return waiting[: len(self.slots)]

    def _place(self, decoding: Decoding) -> bool:
        """Give a request a slot; return False if it has to wait."""
        self._read_kept(decoding)
        free = reserve(self.slots, decoding.answer.prompt, decoding.n_prompt_outputs, decoding.places)
        if free is None:
            return False
        decoding.begin(len(free.pending), self.context.n_ctx)
        free.job, free.client = decoding, decoding.client
        return True

    def _read_kept(self, decoding: Decoding) -> None:
        """Read a prompt's beginning from disk into a free slot, unless a slot holds as much by now."""
        if (file := decoding.cache_file) is None or (slot := find_free(self.slots)) is None:
            return
        decoding.cache_file = None
        if self._n_cached(decoding.answer.prompt) < file.n_tokens and self._may_copy(file.n_bytes):
            snapshot = self.kept.read(file.path, decoding.client) if self.kept is not None else None
            if snapshot is not None:
                slot.read(snapshot)

    def _compact(self) -> list[Slot]:
        """Move busy slots together unless they are adjacent; return them.

        llama.cpp evaluates only adjacent sequences together; gaps cost more than the copies. The slots chosen
        are those that take the fewest copies and overwrite the fewest cached tokens.
        """
        busy = [slot for slot in self.slots if slot.job]
        if not busy or busy[-1].seq_id - busy[0].seq_id < len(busy):
            return busy
        starts = range(len(self.slots) - len(busy) + 1)
        places = [self.slots[start : start + len(busy)] for start in starts]
        place = min(places, key=_cost_of_moving)
        gaps = [slot for slot in place if not slot.job]
        outside = [slot for slot in busy if slot not in place]
        for gap, slot in zip(gaps, outside, strict=True):
            self._table.move(slot.seq_id, to=gap.seq_id)
            gap.take_over(slot)
        return place


def _ended(decoding: Decoding, error: BaseException | None) -> Piece:
    """End an answer early, whatever is wrong with it; return its last piece."""
    if error is not None and not (isinstance(error, Exception) and str(error)):  # such as SystemExit
        named = GenerationError(f"{type(error).__name__}: {error}".removesuffix(": "))
        named.__cause__ = error
        error = named
    reason: FinishReason = "error" if error else "interrupted"
    try:
        return decoding.end(reason, error)
    except BaseException:
        piece = Piece()
        piece.finish_reason = decoding.answer.finish_reason = reason
        decoding.answer.error = error
        return piece


def _cost_of_moving(place: Sequence[Slot]) -> tuple[int, int]:
    """Return how many copies it takes to fill adjacent slots, and how many tokens are overwritten."""
    gaps = [slot for slot in place if not slot.job]
    return len(gaps), sum(len(slot.tokens) for slot in gaps if slot.last_used)
