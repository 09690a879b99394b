"""The model behind all endpoints: admission, the events of answers, what they take."""

import asyncio
import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import fmean
from typing import Any, TypeVar

from mink_local.errors import MinkError
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.engine.decoding import Decoding
from mink_local.generation.engine.thread import Event
from mink_local.generation.model import Model
from mink_local.generation.request import Prompt, Request, is_token_ids
from mink_local.llama.guide import tokenizer_of
from mink_local.llama.library import binding
from mink_local.serve.bodies import ApiError, Timings, TokenUsage, api_errors
from mink_local.serve.clients import Client, FairThreads
from mink_local.serve.history import SIZE, History
from mink_local.serve.keys import Keys
from mink_local.serve.metrics import Metrics
from mink_local.serve.request.presets import Presets
from mink_local.serve.request_log import log, note
from mink_local.version import __version__

T = TypeVar("T")

_ADDRESSES = 16  # clients without keys that find a place in a full queue
_LAST_ANSWERS = 32  # whose mean time tells how long a place takes to fall free
_WATCH_SECONDS = 0.5  # between two looks at the engine
_END_SECONDS = 10.0  # for the running batch to end when the server stops


class Clock:
    """Times and counts the tokens of one response, for the response itself, the log and the metrics.

    Args:
        metrics: The server's numbers.
        model: The model id that was asked for.
        client: Who asked.
        answers: The answers, n to each prompt, which counts once.
        started: When the request came, as `time.perf_counter`.
    """

    def __init__(
        self, metrics: Metrics, model: str, client: Client, answers: Sequence[Answer], n: int, started: float
    ) -> None:
        self._metrics = metrics
        self._model = model
        self._who = (model, client.name)
        # For each token, looking these up would take longer than counting.
        self._tokens = metrics.generated_tokens.labels(*self._who)
        self._token_seconds = metrics.token_seconds.labels(model)
        self._answers = answers
        self._n = n
        self._started = self._end = started
        self._slot: float | None = None  # when the first answer got it
        self._first: float | None = None  # when the first token came
        self._last: dict[Answer, float] = {}  # when each answer's last token came, or its slot
        self._counted: set[int] = set()  # prompts, by their numbers

    def note(self, answer: Answer, piece: Piece) -> None:
        """Count a piece's token."""
        self._end = now = time.perf_counter()
        if piece.token is None:
            return
        self._tokens.inc()
        if answer in self._last:
            self._token_seconds.observe(now - self._last[answer])
        else:
            self._count_prompt(answer)
            self._metrics.first_token_seconds.labels(self._model).observe(now - self._started)
        if self._first is None:
            self._first = now
        self._last[answer] = now

    def _count_prompt(self, answer: Answer, n_unread: int = 0) -> None:
        """Count the prompt of an answer that has, or had, a slot.

        Args:
            n_unread: Number of its tokens that were not evaluated: the client has left.
        """
        if answer in self._last or not answer.began:
            return
        self._last[answer] = answer.began
        self._metrics.queue_seconds.labels(self._model).observe(answer.began - self._started)
        self._slot = min(self._slot or answer.began, answer.began)
        if (prompt := self._answers.index(answer) // self._n) not in self._counted:
            self._counted.add(prompt)
            n_cached = answer.prompt_tokens - answer.evaluated_tokens
            self._metrics.prompt_tokens.labels(*self._who).inc(answer.prompt_tokens - n_unread)
            self._metrics.cached_tokens.labels(*self._who).inc(n_cached)

    def report(self, n_unread: Mapping[Answer, int], *, has_failed: bool) -> Mapping[str, object]:
        """Count what was not counted as it came, and return the fields of the log's line.

        Args:
            n_unread: Numbers of the prompts' tokens that were not evaluated.
            has_failed: Whether answers that have not ended did so for an error, not for a client that left.
        """
        for answer in self._answers:
            self._count_prompt(answer, n_unread[answer])
        reasons = {answer.finish_reason or ("error" if has_failed else "left") for answer in self._answers}
        if "left" in reasons:
            self._metrics.cancelled.labels(*self._who).inc()
        waits = {"queue_seconds": self._slot, "first_token_seconds": self._first}
        return {
            "prompt_tokens": self.usage.prompt_tokens,
            "evaluated_tokens": sum(max(0, one.evaluated_tokens - n_unread[one]) for one in self._answers),
            "completion_tokens": self.usage.completion_tokens,
            "finish_reason": ",".join(sorted(reasons)),
            **{name: round(time - self._started, 3) for name, time in waits.items() if time is not None},
        }

    @property
    def usage(self) -> TokenUsage:
        """The numbers of tokens."""
        answers, n = self._answers, self._n
        n_prompt = sum(answer.prompt_tokens for answer in answers[::n])
        evaluated = [answer.evaluated_tokens for answer in answers]
        n_evaluated = sum(max(evaluated[i : i + n]) for i in range(0, len(answers), n))
        n_generated = sum(answer.n_tokens for answer in answers)
        return TokenUsage(
            prompt_tokens=n_prompt,
            completion_tokens=n_generated,
            total_tokens=n_prompt + n_generated,
            prompt_tokens_details={"cached_tokens": n_prompt - n_evaluated},
            completion_tokens_details={"reasoning_tokens": sum(answer.n_reasoning for answer in answers)},
        )

    @property
    def timings(self) -> Timings:
        """Tokens and milliseconds with llama-server's names, without the time in the queue."""
        usage, first = self.usage, self._first or self._end
        prompt_ms, predicted_ms = 1000 * (first - (self._slot or first)), 1000 * (self._end - first)
        n_cached = usage.prompt_tokens_details["cached_tokens"]
        n_evaluated = usage.prompt_tokens - n_cached
        n_intervals = usage.completion_tokens - len(self._last)  # between the tokens of an answer
        return Timings(
            cache_n=n_cached,
            prompt_n=n_evaluated,
            prompt_ms=round(prompt_ms, 3),
            prompt_per_second=_rate(n_evaluated, prompt_ms),
            predicted_n=usage.completion_tokens,
            predicted_ms=round(predicted_ms, 3),
            predicted_per_second=_rate(n_intervals, predicted_ms),
        )


def _rate(n: int, milliseconds: float) -> float:
    """Return a number per second; 0 if there is nothing to measure."""
    return round(1000 * n / milliseconds, 2) if n > 0 and milliseconds > 0 else 0.0


class EventStream:
    """The events of one client's answers: an asynchronous iterator that ends with the last answer.

    It raises ApiError if an answer or the engine fails.

    Args:
        answers: The answers, which grow in the model's thread.
        client: Who asked for them.
        clock: Times and counts the tokens as they are read.

    Attributes:
        has_failed: Whether it has raised.
    """

    def __init__(self, answers: Sequence[Answer], client: Client, clock: Clock) -> None:
        self.answers = answers
        self.client = client
        self.clock = clock
        self.has_failed = False
        self._open = len(answers)
        self._arrived: asyncio.Queue[Event | ApiError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if not self._open:
            raise StopAsyncIteration
        event = await self._arrived.get()
        if isinstance(event, ApiError):
            self.has_failed = True
            raise event
        answer, piece = event
        self.clock.note(answer, piece)
        self._open -= piece.finish_reason is not None
        if piece.finish_reason == "error":
            self.has_failed = True
            raise _error(answer)
        return event

    def put(self, events: Sequence[Event | ApiError]) -> None:
        """Add events, or the error that ends the iteration, from any thread; a slow reader finds all."""
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._add, events)

    def _add(self, events: Sequence[Event | ApiError]) -> None:
        for event in events:
            self._arrived.put_nowait(event)


def _error(answer: Answer) -> ApiError:
    """Return the error of an answer that has failed."""
    if answer.error is not None and answer.error.__cause__ is not None:
        return _down(f"the engine has ended: {answer.error.__cause__!r}")
    if answer.no_token_left:  # the client's fault: it must not retry
        return ApiError(400, str(answer.error), code="generation_failed")
    return ApiError(500, str(answer.error), kind="server_error", code="generation_failed")


def _down(reason: str) -> ApiError:
    return ApiError(503, f"{reason}: restart mink-serve", code="engine_down", kind="server_error")


def _stopping() -> ApiError:
    retry = {"retry-after": "5"}  # by then another server may be there
    return ApiError(503, "the server is stopping", kind="unavailable_error", code="stopping", headers=retry)


class Service:
    """Answers the requests of all clients with one model.

    What a request needs before and after the model, `FairThreads` do for each client in turn, and the engine
    gives its slots to each client in turn. How much may wait is limited here: `--queue` answers of all
    clients together, and one more of each client that has nothing else here.

    Args:
        model: The model, which nothing else may use from now on.
        presets: Its model ids.
        metrics: Counts what is generated.
        keys: Of the clients.
        max_waiting: Maximum number of answers that wait for a slot; more are refused.
        key_slots: Number of slots that a client has at most while others wait; None for no limit.
        max_tokens: Maximum length of an answer, whatever the client asks for; None is the context's.
        stall_seconds: Time without a step after which the engine counts as stuck.
        n_kept: Number of requests in the history.

    Attributes:
        failure: The reason why nothing can be generated any more, or None.
        history: The last requests, with their answers.
        max_tokens: Maximum length of an answer, or None.
        fingerprint: The same for the same model and versions.
        is_draining: Whether new requests are refused.
        threads: For what would hold up the event loop.
    """

    def __init__(
        self,
        model: Model,
        presets: Presets,
        metrics: Metrics,
        keys: Keys | None = None,
        *,
        max_waiting: int = 64,
        key_slots: int | None = None,
        max_tokens: int | None = None,
        stall_seconds: float = 300,
        n_kept: int = SIZE,
    ) -> None:
        self.model = model
        self.presets = presets
        self.history = History(n_kept)
        self.failure: ApiError | None = None
        self._streams: set[EventStream] = set()
        self.max_tokens = max_tokens
        self.metrics = metrics
        self.created = int(time.time())
        identity = f"{__version__} {binding.__version__} {model.name}"
        self.fingerprint = f"b-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        self._capacity = model.n_parallel + max_waiting
        self._stall_seconds = stall_seconds
        self.is_draining = False
        self._over: ApiError | None = None  # why no answer comes any more
        self._keys = keys or Keys()
        self._preparing: Counter[str] = Counter()  # answers and other work, by client
        self._seconds: deque[float] = deque(maxlen=_LAST_ANSWERS)  # that the last answers took
        self.threads = FairThreads()
        engine = model.core.engine
        engine.most_of_client = key_slots
        metrics.describe(
            {"model": presets.default.model_id, "version": __version__},
            {
                "slots": ("Slots of the engine.", lambda: model.n_parallel),
                "slots_busy": ("Slots in use.", lambda: engine.n_busy),
                "requests_waiting": (
                    "Answers that wait for a slot.",
                    lambda: self._preparing.total() + engine.n_waiting,
                ),
                "requests_running": (
                    "Answers that have a slot.",
                    lambda: max(0, self._n_begun - engine.n_waiting),
                ),
                "checkpoints": ("Checkpoints to go back to.", lambda: engine.checkpoints[0]),
                "checkpoint_bytes": ("Memory that they take.", lambda: engine.checkpoints[1]),
            },
        )

    async def start(self) -> None:
        """Watch the engine: `failure` tells if it ends or is stuck. Prepare for constraints meanwhile."""
        tokenizer_of(self.model.weights)
        self._watch = asyncio.create_task(self._watch_engine())

    async def stop(self) -> None:
        """End all answers and free the model, unless its thread is stuck."""
        self._watch.cancel()
        self.interrupt()
        await asyncio.to_thread(self._keep_caches)
        ended = await asyncio.to_thread(self.model.core.thread.end, "the server is stopping", _END_SECONDS)
        # A request in preparation uses the model's vocabulary.
        await self.threads.close()
        if ended:
            self.model.close()

    def _keep_caches(self) -> None:
        core = self.model.core
        if core.engine.kept is not None and self.failure is None:
            with suppress(MinkError):  # the engine has ended
                core.thread.call_when_idle(core.engine.keep_all)
            core.engine.kept.close()

    @property
    def n_present(self) -> int:
        """Number of answers that are being prepared, waiting or being generated."""
        return self._preparing.total() + self._n_begun

    @property
    def _n_begun(self) -> int:
        return sum(answer.finish_reason is None for stream in self._streams for answer in stream.answers)

    def _is_present(self, client: Client) -> bool:
        return self._preparing[client.identity] > 0 or any(
            stream.client.identity == client.identity for stream in self._streams
        )

    def check_ready(self) -> None:
        """Raise ApiError if the server accepts no requests: it is stopping, or its engine is down."""
        if self.failure is not None:
            raise self.failure
        if self.is_draining:
            raise _stopping()

    def interrupt(self) -> None:
        """End all answers with an ApiError, those that are being prepared or wait too."""
        self._end(_stopping())
        self.model.interrupt()

    def fail(self, reason: str) -> None:
        """End all streams with an error, and accept no more requests."""
        self.failure = _down(reason)
        log.error("%s", self.failure)
        self._end(self.failure)

    def _end(self, error: ApiError) -> None:
        self._over = error
        for stream in self._streams:
            stream.put([error])

    @contextmanager
    def admitted(self, client: Client, n: int = 1) -> Iterator[None]:
        """Count n answers, or other work, as being prepared.

        Raises:
            ApiError: There is no room for them, the server is stopping, or the engine is down.
        """
        self.check_ready()
        if n > self._capacity:
            raise ApiError(
                400,
                f"this request asks for {n} answers; the server takes at most {self._capacity} at a time",
                param="n",
            )
        n_over = self.n_present + n - self._capacity
        if n_over > 0 and (self._is_present(client) or n_over > (len(self._keys) or _ADDRESSES)):
            raise self._full(n_over)
        who = client.identity
        self._preparing[who] += n
        try:
            yield
        finally:
            self._preparing[who] -= n
            self._preparing += Counter()  # without those that have nothing here

    def _full(self, n_over: int) -> ApiError:
        """Return the error for a request that has to wait until some more answers have ended."""
        now = time.perf_counter()
        answers = [answer for stream in self._streams for answer in stream.answers]
        running = [now - one.began for one in answers if one.began and one.finish_reason is None]
        rounds = math.ceil(n_over / self.model.n_parallel)
        seconds = math.ceil(rounds * fmean([*self._seconds, *running] or [1.0]))
        return ApiError(
            429,
            f"the server is full ({self.n_present} answers running or queued): retry in {seconds} s",
            code="queue_full",
            kind="rate_limit_error",
            headers={"retry-after": str(seconds)},
        )

    async def begin(
        self,
        client: Client,
        n: int,
        make: Callable[[], Sequence[Request]],
        model: str = "",
        n_of_prompt: int = 1,
    ) -> EventStream:
        """Prepare n requests off the event loop, and have them answered; whoever reads them calls `close`.

        Args:
            client: Who asks for them.
            n: Number of requests.
            make: Returns the requests; called in a thread, unless the queue is full.
            model: The model id that was asked for.
            n_of_prompt: Number of requests that have the same prompt, one after another.

        Raises:
            ApiError: This model cannot answer a request; see also `admitted`.
        """
        started = time.perf_counter()
        with self.admitted(client, n):
            with api_errors():
                requests = await self.threads.run(client, make)
            decodings = [
                await self.threads.run(client, self._prepare, request, client) for request in requests
            ]
        if self._over is not None:
            raise self._over
        answers = [decoding.answer for decoding in decodings]
        clock = Clock(self.metrics, model, client, answers, n_of_prompt, started)
        stream = EventStream(answers, client, clock)
        try:
            self.model.core.thread.generate(decodings, stream.put)
        except MinkError as error:  # `_watch_engine` is about to notice
            raise _down(str(error)) from None
        self._streams.add(stream)
        return stream

    def close(self, stream: EventStream) -> None:
        """End those of a stream's answers that have not ended; count and log what was generated."""
        engine = self.model.core.engine
        n_unread = {answer: engine.unevaluated(answer) for answer in stream.answers}
        self._streams.discard(stream)
        self._seconds += [answer.seconds for answer in stream.answers if answer.seconds]
        self.model.core.thread.cancel([answer for answer in stream.answers if answer.finish_reason is None])
        note(**stream.clock.report(n_unread, has_failed=stream.has_failed))

    async def work(self, client: Client, function: Callable[..., T], *arguments: Any) -> T:
        """Do other work than answers in a thread. Raises ApiError if there is no room for it."""
        with self.admitted(client):
            return await self.threads.run(client, function, *arguments)

    def tokens(self, request: Request) -> list[int]:
        """Return the token ids of a request's prompt. Raises ApiError if the model refuses it."""
        self._refuse_giant(request.prompt)
        with api_errors(default=_name(request.prompt)):
            return self.model.prompt_tokens(
                request.prompt, request.enable_thinking, request.tools, request.template_kwargs
            )

    def _prepare(self, request: Request, client: Client) -> Decoding:
        """Render, tokenize, and make the constraints of a request."""
        self._refuse_giant(request.prompt)
        with api_errors(default=_name(request.prompt)):
            decoding = self.model.core.engine.prepare(request, client=client.identity)
        if decoding.answer.finish_reason == "overflow":
            raise _overflow(request.prompt, decoding.answer.prompt_tokens, self.model.n_ctx)
        return decoding

    def _refuse_giant(self, prompt: Prompt) -> None:
        """Refuse a text that cannot fit before it is tokenized, which takes seconds for each megabyte."""
        longest_token = self.model.weights.longest_token
        if isinstance(prompt, str):
            n_least = max(len(prompt) // longest_token, self.n_control_tokens(prompt))
        else:
            texts = [part.get("content") or "" for part in prompt if isinstance(part, Mapping)]
            n_least = sum(map(len, texts)) // longest_token
        if n_least > self.model.n_ctx:
            raise _overflow(prompt, n_least, self.model.n_ctx)

    def n_control_tokens(self, text: str) -> int:
        """Return the number of control tokens in a text; llama.cpp's time grows with its square."""
        return sum(text.count(token) for token in self.model.weights.control_tokens if token)

    async def _watch_engine(self) -> None:
        """Wait until the engine ends or is stuck; then fail all requests."""
        thread = self.model.core.thread
        while self.failure is None:
            await asyncio.sleep(_WATCH_SECONDS)
            if thread.failure is not None:
                self.fail(f"the engine has ended: {thread.failure!r}")
            elif self._n_begun and time.monotonic() - thread.last_step > self._stall_seconds:
                self.fail(f"the engine has made no step for {self._stall_seconds:g} s")


def _name(prompt: Prompt) -> str:
    """Return the name of the field that a prompt comes from."""
    return "prompt" if isinstance(prompt, str) or is_token_ids(prompt) else "messages"


def _overflow(prompt: Prompt, n_tokens: int, n_ctx: int) -> ApiError:
    """Return the error for a prompt that does not fit; LiteLLM and LangChain look for its words."""
    return ApiError(
        400,
        f"This model's maximum context length is {n_ctx} tokens; the prompt is too long, with {n_tokens}: "
        "shorten it, or start mink-serve with a larger --ctx",
        param=_name(prompt),
        code="context_length_exceeded",
        kind="exceed_context_size_error",
        details={"n_prompt_tokens": n_tokens, "n_ctx": n_ctx},
    )
