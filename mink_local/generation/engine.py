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

import time
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.generation.answer import Answer, FinishReason, Piece
from mink_local.generation.call_styles import with_call_grammar
from mink_local.generation.decoding import Decoding
from mink_local.generation.kept import MOST_BESIDE, KeptCaches
from mink_local.generation.prompt_budget import PromptBudget
from mink_local.generation.request import Request, read_prompt
from mink_local.generation.slots import (
    MUCH_LONGER,
    Batch,
    Slot,
    common_prefix,
    decode,
    decode_next,
    find_free,
    reserve,
)
from mink_local.generation.template import ChatTemplate
from mink_local.generation.tool_calls import ToolParser
from mink_local.llama.context import Context
from mink_local.llama.devices import n_beside
from mink_local.llama.token_data import SamplingBuffers
from mink_local.llama.token_sampler import RowSampler, TokenSampler
from mink_local.llama.weights import Weights

Step = list[tuple[Answer, Piece]]
Ready = tuple[Sequence[int], Sequence[Decoding], list[TokenSampler]]  # rows, their answers, what samples them
_MOST_WAITED = 8192  # tokens


class _Round:
    """Answers that are generated together, one in each slot: their next batch differs in its tokens alone.

    So a step touches few objects of each, which a pass over the logits has driven out of the CPU's cache: the
    next tokens are queued here, and in the slots only when the round ends.

    Attributes:
        ready: What samples them together; their tokens never depend on text.
    """

    def __init__(self, slots: Sequence[Slot[Decoding]], ready: Ready, weights: Weights) -> None:
        self.ready = ready
        self._slots = slots
        self._tokens: Sequence[int] = ()  # one of each slot, not evaluated yet
        self._n_left = min(decoding.n_alike for decoding in ready[1])  # steps
        self._ends_generation = weights.ends_generation
        self._stop_tokens = frozenset[int]().union(*(decoding.stop_tokens for decoding in ready[1]))
        self._harmless = set[int]()  # tokens that end no answer
        for slot in slots:
            slot.push(())  # its answer has begun: no other one may share it

    def go_on(self, tokens: Sequence[int], ks: Sequence[int]) -> bool:
        """Queue everybody's token; return False if some answer may end, which is not the round's to tell."""
        self._n_left -= 1
        if self._n_left <= 0 or min(ks) <= 0 or self._may_end(tokens):
            return False
        self._tokens = tokens
        return True

    def _may_end(self, tokens: Sequence[int]) -> bool:
        """Return whether one of the tokens ends an answer."""
        if self._harmless.issuperset(tokens):
            return False
        if not self._stop_tokens.isdisjoint(tokens) or any(map(self._ends_generation, tokens)):
            return True
        self._harmless.update(tokens)
        return False

    def evaluate(self, context: Context) -> bool:
        """Evaluate everybody's token; return False if that was interrupted."""
        if not decode_next(context, self._slots, self._tokens):
            return False
        self._tokens = ()
        return True

    def end(self) -> None:
        """Leave it to the slots to have the tokens evaluated."""
        for slot, token in zip(self._slots, self._tokens, strict=False):
            slot.push((*slot.pending, token))


Job = Callable[[], object]  # to be called while nothing is generated


class Engine:
    """Generates answers in the slots of `context`, which only the engine may use.

    Not thread-safe, except for `prepare`, `interrupt` and `unevaluated`. See `EngineThread`.

    Attributes:
        kept: Where caches go that are lost here, and come from; None if they are lost.
        most_of_client: Number of slots that a client has at most while others wait; None for no limit.
    """

    def __init__(self, context: Context, weights: Weights, template: ChatTemplate) -> None:
        self.kept: KeptCaches | None = None
        self.most_of_client: int | None = None
        # A GPU evaluates a batch while the text of the last one is told; on a CPU, that would only be later.
        self.tells_late = weights.on_gpu
        self.use(context)
        self._weights = weights
        self._template = template
        self._buffers = SamplingBuffers(weights.n_vocab)
        self._waiting: deque[Decoding | Job] = deque()
        self._turn = 0  # of the request that was the last to get a slot
        self._next_turns: dict[str, int] = {}  # of clients who must wait for others' turns
        self._budget = PromptBudget()
        self._began = 0.0  # the running step
        self._batch: Batch[Decoding] | None = None  # of that step
        self._round: _Round | None = None  # the answers that it goes on with, and nothing else
        self._ended: Step = []  # not told yet
        # Tokens whose text is not told yet, and k
        self._sampled: list[tuple[Sequence[Decoding], Sequence[int], Sequence[int]]] = []

    def use(self, context: Context) -> None:
        """Switch to another context. The engine must be idle."""
        self.context = context
        n_threads = context.n_threads if self.tells_late else n_beside(context.n_threads)
        self._rows = RowSampler(context.n_vocab, n_threads)
        engine = weakref.proxy(self)  # a circle would keep a dropped model until the next garbage collection
        self.slots: list[Slot[Decoding]] = [
            Slot(context, i, lambda slot: engine._keep(slot)) for i in range(context.n_seq)
        ]

    @property
    def idle(self) -> bool:
        """True if there is nothing to generate."""
        return not (self._waiting or self.n_busy or self._sampled)

    @property
    def n_busy(self) -> int:
        """Number of slots in use."""
        return sum(slot.job is not None for slot in self.slots)

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
        template, answer = self._template, answer or Answer(request)
        request = replace(
            request, prompt=read_prompt(request.prompt), prefix=self._weights.ids("prefix", request.prefix)
        )
        asked, request = request, with_call_grammar(request, template.style)
        answer.request = request
        parser = ToolParser(
            request.tools, template.call_marks, is_parallel=request.parallel_tool_calls is not False
        )
        prompt = template.tokens(
            # `tokens` counts all of a text; of messages, it takes the beginning itself.
            template.beginning(request.prompt) if isinstance(request.prompt, str) else request.prompt,
            request.enable_thinking,
            request.tools,
            request.template_kwargs,
        )
        answer.model = self._weights.path.stem
        splitter, answer.begun = template.reasoning(request, prompt)
        decoding = Decoding(
            answer,
            [*prompt, *request.prefix],
            self._weights,
            self._buffers,
            splitter,
            parser if request.tools else None,
            template.stop(request.prompt),
            template.texts | (template.call_texts if request.tools else {}),
        )
        decoding.client = client
        answer.request = asked
        if not self._fits(decoding):
            answer.finish_reason = "overflow"
        elif self.kept is not None:
            decoding.kept = self.kept.find(answer.prompt, self._n_cached(answer.prompt), client)
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
        last, self._batch = self._batch, None
        self._began = time.perf_counter()
        try:
            if self._round is not None:
                self._batch = last if self._round.evaluate(self.context) else None
            elif busy := self._compact():
                self._batch = self._decode(busy)
        except GenerationError as error:
            told = self.tell()
            failed = [slot.job for slot in self.slots if slot.job]
            self._ended = [*told, *self._end(failed, error)]
        if self._batch is None:
            self._end_round()

    def _decode(self, busy: Sequence[Slot[Decoding]]) -> Batch[Decoding] | None:
        """Have a batch of slots evaluated, whatever they hold."""
        jobs = [slot.job for slot in busy if slot.job]
        self._rows.fill_masks([each.sampler for each in jobs if not each.is_plain and each.is_compiled])
        is_burst = self._is_burst(busy)
        return decode(self.context, busy, self._n_prompt(busy, is_burst), starts=not is_burst)

    def _n_prompt(self, busy: Sequence[Slot[Decoding]], is_burst: bool) -> int:
        """Return how many tokens of prompts are evaluated in a step."""
        reading = [slot for slot in busy if not slot.is_growing]
        if not reading:
            return 0
        if not is_burst and len(reading) < len(busy):
            return self._budget.tokens(len(busy))
        # Without a free slot, nobody else could be served meanwhile.
        return self._budget.longest if len(busy) < len(self.slots) else self.context.n_batch

    def _is_burst(self, busy: Sequence[Slot[Decoding]]) -> bool:
        """Return whether prompts are read before an answer is started.

        Were each answer started at once, the others' prompts would be read in small parts beside it, and few
        answers would be generated together. Those whose prompt is read wait only for prompts that are not
        much longer, and for no more tokens than a few batches. A single prompt may be the first of a burst
        whose others come while it is read, if that takes long.
        """
        if len(self.slots) == 1 or any(slot.is_generating for slot in busy):
            return False
        reading = [len(slot.pending) for slot in busy if len(slot.pending) > 1]
        if not reading or (len(busy) == 1 and reading[0] <= self._budget.unnoticed):
            return False
        ready = [slot for slot in busy if len(slot.pending) == 1]
        read = [slot.job.answer.evaluated_tokens for slot in ready if slot.job]
        waited = self.context.n_evaluated - min((slot.deadline for slot in ready), default=0)
        return not ready or (min(reading) <= MUCH_LONGER * max(read) and waited <= _MOST_WAITED)

    def tell(self) -> Step:
        """Return the answers that have ended since the last step, or whose text has waited from then on."""
        told, self._ended = self._ended, []
        for decoding, token, k in (each for columns in self._sampled for each in zip(*columns, strict=True)):
            told += self._taken(decoding, decoding.take(token, k))
            if decoding.answer.finish_reason is not None:
                self._drop(decoding)
        self._sampled = []
        return told

    def collect(self) -> Step:
        """End a step: sample the tokens that its batch yields; return those told now, like `step`."""
        if self._batch is None:
            return []
        told = self._sample_rows(self._batch) if self._batch.outputs else []
        seconds = time.perf_counter() - self._began
        self._budget.note(seconds, self._batch.n_growing, self._batch.n_prompt)
        return told

    def _sample_rows(self, batch: Batch[Decoding]) -> Step:
        """Sample from every row of a batch."""
        rows, told = self.context.rows, Step()
        ready = self._round.ready if self._round else _ready(batch.outputs)
        if self._round is None:
            self._round = _round_of(batch, ready, self._weights, self.n_busy)
        numbers, decodings, samplers = ready
        tokens, ks = self._rows(rows, numbers, samplers) if decodings else ([], [])
        if self._round is not None and self._round.go_on(tokens, ks):
            self._sampled.append((decodings, tokens, ks))
            return [] if self.tells_late else self.tell()
        self._round = None
        each = zip(decodings, tokens, ks, strict=True)
        sampled = {decoding: (token, k) for decoding, token, k in each if k > 0}
        outputs = [(slot, slot.job, position) for slot, position in batch.outputs]
        for i, (slot, decoding, position) in enumerate(outputs):
            if decoding is None or slot.job is not decoding:  # it has ended, and another may have its slot
                continue
            if position < decoding.answer.prompt_tokens:
                told += self._taken(decoding, decoding.record(rows[i], position))
            elif self.tells_late and decoding.is_plain and decoding in sampled:
                self._go_on(slot, decoding, *sampled[decoding])
            else:
                told += self._sample(slot, decoding, rows[i], sampled.get(decoding))
        return told

    def _go_on(self, slot: Slot[Decoding], decoding: Decoding, token: int, k: int) -> None:
        """Queue a token whose text is told later, unless it is the last one."""
        self._sampled.append(([decoding], [token], [k]))
        if decoding.is_last(token):
            self._release(slot)
        else:
            slot.push([token])

    def _release(self, slot: Slot[Decoding]) -> None:
        self._end_round()
        slot.release()

    def _end_round(self) -> None:
        if self._round is not None:
            self._round.end()
        self._round = None

    def _drop(self, decoding: Decoding) -> None:
        """Release the slot of an answer whose text has ended it, without the token evaluated meanwhile."""
        for slot in self.slots:
            if slot.job is decoding:
                # First: a model that cannot forget just the end would have the free slot evaluate all again.
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
                self.kept.keep(slot.tokens, slot.seq_id, slot.client, waits=True)

    def _keep(self, slot: Slot[Decoding]) -> None:
        if self.kept is not None and self._may_copy(self.context.state_size(slot.seq_id)):
            self.kept.keep(slot.tokens, slot.seq_id, slot.client)

    def _may_copy(self, n_bytes: int) -> bool:
        """Return whether so much of a cache may be copied, for which all that are being answered wait."""
        return self.n_busy == 0 or n_bytes <= MOST_BESIDE

    def _n_cached(self, prompt: Sequence[int]) -> int:
        """Return how much of a prompt a slot holds. May be called from any thread."""
        wanted = array("i", prompt)
        return max(common_prefix(slot.tokens, wanted) for slot in self.slots)

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
            if self.n_busy or self._sampled:  # a last token that is not told yet
                return []
            self._waiting.popleft()
            job()
        ended: Step = []
        for decoding in self._next() if self._waiting else ():
            if not self._fits(decoding):
                ended.append((decoding.answer, decoding.end("overflow")))
            elif not self._place(decoding):
                if self.n_busy == len(self.slots):
                    break
                continue
            self._end_round()
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
        free = reserve(self.slots, decoding.answer.prompt, decoding.n_prompt_outputs)
        if free is None:
            return False
        decoding.begin(len(free.pending), self.context.n_ctx)
        free.job, free.client = decoding, decoding.client
        return True

    def _read_kept(self, decoding: Decoding) -> None:
        """Read a prompt's beginning from disk into a free slot, unless a slot holds as much by now."""
        slot = find_free(self.slots)
        if decoding.kept is not None and slot is not None:
            (path, n_tokens, n_bytes), decoding.kept = decoding.kept, None
            if self._n_cached(decoding.answer.prompt) < n_tokens and self._may_copy(n_bytes):
                snapshot = self.kept.read(path, decoding.client) if self.kept is not None else None
                if snapshot is not None:
                    slot.read(snapshot)

    def _compact(self) -> list[Slot[Decoding]]:
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
            gap.take_over(slot)
        return place

    def _sample(
        self,
        slot: Slot[Decoding],
        decoding: Decoding,
        row: NDArray[np.float32],
        sampled: tuple[int, int] | None,
    ) -> Step:
        """Give an answer its token, and what must follow."""
        n_before = decoding.answer.n_tokens
        told = self._taken(decoding, decoding.take(*sampled) if sampled else decoding.sample(row))
        if decoding.answer.finish_reason is None:
            slot.push(decoding.answer.tokens[n_before:])
        elif slot.job is decoding:
            self._release(slot)
        return told


def _ready(outputs: Sequence[tuple[Slot[Decoding], int]]) -> Ready:
    """Return the answers that are sampled together."""
    ready = [
        (i, slot.job)
        for i, (slot, position) in enumerate(outputs)
        if slot.job and slot.job.is_compiled and position >= slot.job.answer.prompt_tokens
    ]
    decodings = [decoding for _, decoding in ready]
    return [i for i, _ in ready], decodings, [decoding.sampler for decoding in decodings]


def _round_of(batch: Batch[Decoding], ready: Ready, weights: Weights, n_busy: int) -> _Round | None:
    """Return the round that a batch is the first of, if each of its tokens is that of one answer's slot.

    A round evaluates nothing else, so there is none while one of the busy slots still reads its prompt.
    """
    decodings, slots = ready[1], [slot for slot, _ in batch.outputs]
    is_alone = [slot.job for slot in slots] == decodings
    is_reading = max(n_busy, batch.n_tokens) > len(decodings)
    if is_reading or not is_alone or not all(each.is_plain for each in decodings):
        return None
    return _Round(slots, ready, weights)


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


def _cost_of_moving(place: Sequence[Slot[Decoding]]) -> tuple[int, int]:
    """Return how many copies it takes to fill adjacent slots, and how many tokens are overwritten."""
    gaps = [slot for slot in place if not slot.job]
    return len(gaps), sum(len(slot.tokens) for slot in gaps if slot.last_used)
