"""The model behind all endpoints: admission, the events of answers, metrics."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import llama_cpp
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from mink_local.errors import MinkError
from mink_local.generation.answer import Answer
from mink_local.generation.decoding import Decoding
from mink_local.generation.engine_thread import Event
from mink_local.generation.events import Events
from mink_local.generation.model import Model
from mink_local.generation.request import Prompt, Request, is_token_ids
from mink_local.llama.guide import tokenizer_of
from mink_local.sandbox import ChildStartError
from mink_local.serve.errors import ApiError
from mink_local.serve.history import SIZE, History
from mink_local.serve.request.presets import Presets
from mink_local.version import __version__

T = TypeVar("T")

_PREPARERS = 4  # threads that render and tokenize prompts; llama.cpp's own threads need the cores
_WATCH_SECONDS = 0.5  # between two looks at the engine
_END_SECONDS = 10.0  # for the running batch to end when the server stops
_USUAL_SECONDS = 5.0  # an answer's time before one is finished
_FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)

log = logging.getLogger("mink_local")


class EventStream:
    """The events of one client's answers: an asynchronous iterator that ends with the last answer.

    It raises ApiError if an answer or the engine fails.
    """

    def __init__(self, decodings: Sequence[Decoding]) -> None:
        self.decodings = decodings
        self._open = len(decodings)
        self._arrived: Events[Event | ApiError] = Events()

    @property
    def answers(self) -> list[Answer]:
        """The answers, which grow in the model's thread."""
        return [decoding.answer for decoding in self.decodings]

    @property
    def unfinished(self) -> list[Answer]:
        """Those that have not ended."""
        return [answer for answer in self.answers if answer.finish_reason is None]

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if not self._open:
            raise StopAsyncIteration
        event = await self._arrived.wait()
        if isinstance(event, ApiError):
            raise event
        answer, piece = event
        self._open -= piece.finish_reason is not None
        if piece.finish_reason in ("error", "interrupted"):
            raise _error(answer)
        return event

    def put(self, *events: Event | ApiError) -> None:
        """Add events, or the error that ends the iteration, from any thread; a slow reader finds all."""
        for event in events:
            self._arrived.put(event)


def _error(answer: Answer) -> ApiError:
    """Return the error of an answer that has failed."""
    if answer.error is not None and answer.error.__cause__ is not None:
        return _down(f"the engine has ended: {answer.error.__cause__!r}")
    if answer.finish_reason == "interrupted":
        return _stopping()
    if answer.no_token_left:  # the client's fault: it must not retry
        return ApiError(400, str(answer.error), code="generation_failed")
    return ApiError(500, str(answer.error), kind="server_error", code="generation_failed")


def _down(reason: str) -> ApiError:
    return ApiError(503, f"{reason}: restart mink-serve", code="engine_down", kind="server_error")


def _stopping() -> ApiError:
    return ApiError(503, "the server is stopping", kind="unavailable_error", code="stopping")


class Metrics:
    """Requests, tokens and times since the start, for Prometheus.

    Args:
        info: Labels that identify the server, such as the model and the version.
    """

    def __init__(self, info: Mapping[str, str]) -> None:
        self.registry = registry = CollectorRegistry()
        Info("mink", "The server.", registry=registry).info(dict(info))
        self._responses = Counter("mink_responses", "Responses.", ("endpoint", "status"), registry=registry)
        self.prompt_tokens = Counter(
            "mink_prompt_tokens", "Tokens of prompts, including cached ones.", registry=registry
        )
        self.cached_tokens = Counter(
            "mink_cached_tokens", "Tokens of prompts found in the KV cache.", registry=registry
        )
        self.generated_tokens = Counter("mink_generated_tokens", "Tokens of answers.", registry=registry)
        self.cancelled = Counter(
            "mink_requests_cancelled", "Requests whose client left before the end.", registry=registry
        )
        self.first_token_seconds = Histogram(
            "mink_first_token_seconds",
            "Time from a request to its first token.",
            buckets=_FIRST_TOKEN_SECONDS,
            registry=registry,
        )
        self.token_seconds = Histogram(
            "mink_token_seconds",
            "Time from one token of an answer to the next.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )

    def count_response(self, endpoint: str, status: int) -> None:
        """Count a response of an endpoint."""
        self._responses.labels(endpoint, status).inc()


class Service:
    """Answers the requests of all clients with one model.

    Args:
        model: The model, which nothing else may use from now on.
        presets: Its model ids.
        metrics: Counts what is generated.
        max_waiting: Maximum number of answers that wait for a slot; more are refused.
        max_tokens: Maximum length of an answer, whatever the client asks for; None is the context's.
        stall_seconds: Time without a step after which the engine counts as stuck.
        n_kept: Number of requests in the history.

    Attributes:
        failure: The reason why nothing can be generated any more, or None.
        history: The last requests, with their answers.
        max_tokens: Maximum length of an answer, or None.
        fingerprint: The same for the same model and versions.
        is_draining: Whether new requests are refused.
    """

    def __init__(
        self,
        model: Model,
        presets: Presets,
        metrics: Metrics,
        *,
        max_waiting: int = 64,
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
        identity = f"{__version__} {llama_cpp.__version__} {model.name}"
        self.fingerprint = f"b-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        self._capacity = model.n_parallel + max_waiting
        self._stall_seconds = stall_seconds
        self.is_draining = False
        self._is_over = False
        self._n_preparing = 0
        self._seconds = _USUAL_SECONDS  # of an answer, a moving average
        self._pool = ThreadPoolExecutor(_PREPARERS, "prepare")
        engine = model.engine
        for name, text, value in (
            ("slots", "Slots of the engine.", lambda: model.n_parallel),
            ("slots_busy", "Slots in use.", lambda: engine.n_busy),
            (
                "requests_waiting",
                "Requests that wait for a slot.",
                lambda: self._n_preparing + engine.n_waiting,
            ),
            (
                "requests_running",
                "Requests that have a slot.",
                lambda: self._n_begun - engine.n_waiting,
            ),
        ):
            Gauge(f"mink_{name}", text, registry=metrics.registry).set_function(value)

    async def start(self) -> None:
        """Watch the engine: `failure` tells if it ends or is stuck. Prepare for constraints meanwhile."""
        tokenizer_of(self.model.weights)
        self._watch = asyncio.create_task(self._watch_engine())

    async def stop(self) -> None:
        """End all answers and free the model, unless its thread is stuck."""
        self._watch.cancel()
        self.interrupt()
        ended = await asyncio.to_thread(self.model.thread.end, "the server is stopping", _END_SECONDS)
        # A request in preparation uses the model's vocabulary.
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
        if ended:
            self.model.close()

    @property
    def n_present(self) -> int:
        """Number of answers that are being prepared, waiting or being generated."""
        return self._n_preparing + self._n_begun

    @property
    def _n_begun(self) -> int:
        return sum(len(stream.unfinished) for stream in self._streams)

    def check_ready(self) -> None:
        """Raise ApiError if the server accepts no requests: it is stopping, or its engine is down."""
        if self.failure is not None:
            raise self.failure
        if self.is_draining:
            raise _stopping()

    def interrupt(self) -> None:
        """End all answers with an ApiError, those that are being prepared too."""
        self._is_over = True
        self.model.interrupt()

    def fail(self, reason: str) -> None:
        """End all streams with an error, and accept no more requests."""
        self.failure = _down(reason)
        log.error("%s", self.failure)
        for stream in self._streams:
            stream.put(self.failure)

    async def begin(self, n: int, make: Callable[[], Sequence[Request]]) -> EventStream:
        """Prepare n requests off the event loop, and have them answered.

        Args:
            n: Number of requests.
            make: Returns the requests; called in a thread, after admission.

        Raises:
            ApiError: This model cannot answer a request, the queue is full, the server is stopping, or the
                engine is down.
        """
        self.check_ready()
        if n > self._capacity:
            raise ApiError(400, f"{n} answers: this server takes at most {self._capacity}", param="n")
        n_present = self.n_present
        if n_present + n > self._capacity:
            seconds = max(1, round(n_present / self.model.n_parallel * self._seconds))
            raise ApiError(
                429,
                f"the server is busy with {n_present} of at most {self._capacity} answers: try again later",
                code="queue_full",
                kind="rate_limit_error",
                headers={"retry-after": str(seconds)},
            )
        self._n_preparing += n
        try:
            requests = await self.off_loop(make)
            decodings = [await self.off_loop(self._prepare, request) for request in requests]
        finally:
            self._n_preparing -= n
        if self._is_over:
            raise _stopping()
        if self.failure is not None:
            raise self.failure
        stream = EventStream(decodings)
        self._streams.add(stream)
        self.model.thread.generate(decodings, lambda events: stream.put(*events))
        return stream

    def cancel(self, stream: EventStream) -> None:
        """End those of a stream's answers that have not ended; others go on."""
        self._streams.discard(stream)
        if unfinished := stream.unfinished:
            self.model.thread.cancel(unfinished)
            self.metrics.cancelled.inc()

    def finished(self, seconds: float) -> None:
        """Note the time that an answer took, for the Retry-After of clients that are refused."""
        self._seconds += 0.1 * (seconds - self._seconds)

    async def off_loop(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread, so that other clients are served meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def tokens(self, request: Request) -> list[int]:
        """Return the token ids of a request's prompt. Raises ApiError if the model refuses it."""
        self._refuse_giant(request.prompt)
        with api_errors():
            return self.model.prompt_tokens(
                request.prompt, request.enable_thinking, request.tools, request.template_kwargs
            )

    def _prepare(self, request: Request) -> Decoding:
        """Render, tokenize, and make the constraints of a request."""
        self._refuse_giant(request.prompt)
        with api_errors():
            decoding = self.model.prepare(request)
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
        thread = self.model.thread
        while self.failure is None:
            await asyncio.sleep(_WATCH_SECONDS)
            if thread.failure is not None:
                self.fail(f"the engine has ended: {thread.failure!r}")
            elif self._n_begun and time.monotonic() - thread.last_step > self._stall_seconds:
                self.fail(f"the engine has made no step for {self._stall_seconds:g} s")


@contextmanager
def api_errors() -> Iterator[None]:
    """Turn what is wrong with a request into an ApiError."""
    try:
        yield
    except ChildStartError as error:
        raise ApiError(500, str(error), kind="server_error") from None
    except (ValueError, MinkError) as error:
        raise ApiError(400, str(error), param=getattr(error, "place", None)) from None


def _overflow(prompt: Prompt, n_tokens: int, n_ctx: int) -> ApiError:
    """Return the error for a prompt that does not fit; LiteLLM and LangChain look for its words."""
    return ApiError(
        400,
        f"This model's maximum context length is {n_ctx} tokens, and the prompt is too long with {n_tokens}: "
        "shorten it, or start mink-serve with a larger --ctx",
        param="prompt" if isinstance(prompt, str) or is_token_ids(prompt) else "messages",
        code="context_length_exceeded",
        kind="exceed_context_size_error",
        details={"n_prompt_tokens": n_tokens, "n_ctx": n_ctx},
    )
