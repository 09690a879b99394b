"""A request for answers and its response, whatever an endpoint's form: whole, or as server-sent events."""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mink_local.generation.answer import Answer, Piece
from mink_local.generation.engine_thread import Event
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constants import RANDOM_SEED
from mink_local.serve import request_log
from mink_local.serve.protocol.fields import ChatRequest, CompletionRequest, naming
from mink_local.serve.protocol.messages import engine_requests, usage_of
from mink_local.serve.protocol.responses import ApiError, Timings, TokenUsage
from mink_local.serve.protocol.sampling import sampling_params
from mink_local.serve.service import EventStream, Service

KEEP_ALIVE_SECONDS = 15.0  # between the comments of a stream that has nothing to send
# Buffering proxies such as nginx would hold the tokens back.
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Clock:
    """Times the tokens of one response, for its `timings` and the server's metrics."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = self._end = time.perf_counter()
        self._first: float | None = None  # when the first token came
        self._last: dict[Answer, float] = {}

    def note(self, answer: Answer, piece: Piece) -> None:
        """Count a piece's token."""
        self._end = now = time.perf_counter()
        metrics = self._service.metrics
        if piece.token is not None:
            metrics.generated_tokens.inc()
            if answer in self._last:
                metrics.token_seconds.observe(now - self._last[answer])
            else:
                metrics.first_token_seconds.observe(now - self._started)
                metrics.prompt_tokens.inc(answer.prompt_tokens)
                metrics.cached_tokens.inc(answer.prompt_tokens - answer.evaluated_tokens)
            self._last[answer] = now
            self._first = self._first or now
        if piece.finish_reason is not None:
            self._service.finished(answer.seconds)

    @property
    def first_token_seconds(self) -> float | None:
        """Time from the request to its first token, in seconds; None if it has none."""
        return None if self._first is None else round(self._first - self._started, 3)

    def timings(self, usage: TokenUsage) -> Timings:
        """Return tokens and milliseconds with llama-server's names."""
        first = self._first or self._end
        prompt_ms, predicted_ms = 1000 * (first - self._started), 1000 * (self._end - first)
        n_cached = usage.prompt_tokens_details.cached_tokens
        n_evaluated = usage.prompt_tokens - n_cached
        return Timings(
            cache_n=n_cached,
            prompt_n=n_evaluated,
            prompt_ms=round(prompt_ms, 3),
            prompt_per_second=round(1000 * n_evaluated / max(prompt_ms, 1e-3), 2),
            predicted_n=usage.completion_tokens,
            predicted_ms=round(predicted_ms, 3),
            predicted_per_second=round(1000 * usage.completion_tokens / max(predicted_ms, 1e-3), 2),
        )


@dataclass(frozen=True)
class ResponseHead:
    """What is known of a response before there are answers.

    Attributes:
        request_id: Identifies the request.
        created: In seconds since 1970.
        model: The model id that was asked for.
        fingerprint: Identifies the model and the versions.
        params: How the answers are sampled.
    """

    request_id: str
    created: int
    model: str
    fingerprint: str
    params: SamplingParams


class Form(ABC):
    """The form that an endpoint gives to answers: whole, or as the events of a stream.

    Args:
        model: The model.
        request: The request.
        head: What is known so far.
        answers: The answers, which grow meanwhile.
    """

    def __init__(self, model: Model, request: Any, head: ResponseHead, answers: Sequence[Answer]) -> None:
        self.model = model
        self.request = request
        self.head = head
        self.answers = answers

    @property
    def is_long(self) -> bool:
        """Whether the next event describes many tokens, which takes too long for the event loop."""
        return False

    def start(self) -> bytes:
        """Return the events before the first token."""
        return b""

    def keep_alive(self) -> bytes:
        """Return what a stream sends when it has had nothing to send for a while."""
        return b": keepalive\n\n"

    @abstractmethod
    def add(self, answer: Answer, piece: Piece) -> None:
        """Take what one step adds to an answer."""

    @abstractmethod
    def take(self, answer: Answer) -> bytes:
        """Return the events for what an answer has grown by; none if there is nothing to show."""

    @abstractmethod
    def end(self, usage: TokenUsage, timings: Timings) -> bytes:
        """Return the last events of a stream."""

    def fail(self, error: ApiError) -> bytes:
        """Return the last event of a stream that fails."""
        return server_sent(error.body())

    @abstractmethod
    def whole(self, usage: TokenUsage, timings: Timings) -> Any:
        """Return the body of a response that is not streamed; called in a thread."""


class NamedEventsForm(Form):
    """The form of one answer whose stream is made of events with names.

    Args:
        of_form: What `Form` takes.

    Attributes:
        answer: The answer.
    """

    def __init__(self, *of_form: Any) -> None:
        super().__init__(*of_form)
        [self.answer] = self.answers
        self._events: list[bytes] = []

    def send(self, kind: str, **fields: Any) -> None:
        """Add an event to those that are sent next."""
        self._events.append(server_sent({"type": kind, **fields}, kind))

    def sent(self) -> bytes:
        """Return the events since the last call."""
        sent, self._events = b"".join(self._events), []
        return sent

    def take(self, answer: Answer) -> bytes:  # noqa: ARG002
        return self.sent()


class Exchange:
    """A request for answers and the response to it.

    Args:
        service: Answers the request.
        request: The request.
        form: Makes the form of its answers.

    Raises:
        ApiError: The request is invalid.
    """

    def __init__(
        self, service: Service, request: ChatRequest | CompletionRequest, form: Callable[..., Form]
    ) -> None:
        self._service = service
        self._request = request
        self._form = form
        preset = service.presets.find(request.model)
        params, ignored = sampling_params(request, preset, service.model, service.max_tokens)
        request_log.note(model=preset.model_id, sampler=str(params.sampler), temperature=params.temperature)
        self._headers = {"x-mink-ignored": ",".join(ignored)} if ignored else {}
        self._clock = Clock(service)
        self._head = ResponseHead(
            request_log.request_id(), int(time.time()), preset.model_id, service.fingerprint, params
        )

    async def respond(self) -> Response:
        """Return the response.

        Raises:
            ApiError: See `Service.begin`; or an answer fails that is not streamed.
        """
        request, model = self._request, self._service.model
        prompts = partial(engine_requests, model, request, self._head.params)
        requests = partial(_with_seeds, prompts, request.n or 1)
        with naming(request.sources):
            events = await self._service.begin(request.n_answers, requests)
        close = partial(self._close, events)
        form = self._form(model, request, self._head, events.answers)
        if request.stream:
            stream = _EventStreamResponse(
                self._stream(events, form),
                headers=_STREAM_HEADERS | self._headers,
                media_type="text/event-stream",
            )
            stream.close = close
            return stream
        try:
            async for event in events:
                self._add(event, form)
            content = await self._service.off_loop(form.whole, *self._numbers(form))
        finally:
            close()
        return Response(msgspec.json.encode(content), headers=self._headers, media_type="application/json")

    def _close(self, events: EventStream) -> None:
        """End the answers that are not finished; keep what was generated, and note it for the log."""
        self._service.cancel(events)
        answers = events.answers
        self._service.history.add(self._head.request_id, self._head.model, answers)
        request_log.note(
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            evaluated_tokens=sum(answer.evaluated_tokens for answer in answers),
            completion_tokens=sum(answer.n_tokens for answer in answers),
            finish_reason=",".join(sorted({answer.finish_reason or "left" for answer in answers})),
            first_token_seconds=self._clock.first_token_seconds,
        )

    async def _stream(self, events: EventStream, form: Form) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a stream, one for each token that shows; an error is the last one.

        Comments keep the connection alive until then: `waiting` for a slot, `keepalive`; for clients that
        count events only, the form has one.
        """
        sent = time.monotonic()
        yield b": waiting\n\n" + form.start()  # a proxy may hold the headers back until something follows
        try:
            while True:
                try:
                    event = await asyncio.wait_for(anext(events), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    has_begun = any(decoding.has_begun for decoding in events.decodings)
                    yield (b"" if has_begun else b": waiting\n\n") + form.keep_alive()
                    continue
                answer = self._add(event, form)
                taken = await self._service.off_loop(form.take, answer) if form.is_long else form.take(answer)
                if not taken and time.monotonic() - sent < KEEP_ALIVE_SECONDS:
                    continue
                yield taken or form.keep_alive()
                sent = time.monotonic()
        except StopAsyncIteration:
            yield form.end(*self._numbers(form))
        except ApiError as error:
            yield form.fail(error)

    def _add(self, event: Event, form: Form) -> Answer:
        """Add an event to its answer's form; return the answer."""
        answer, piece = event
        self._clock.note(answer, piece)
        if self._request.token_limit == 0:  # one token was sampled all the same
            piece = Piece()
            piece.finish_reason = "length"
        form.add(answer, piece)
        return answer

    def _numbers(self, form: Form) -> tuple[TokenUsage, Timings]:
        answers, n = form.answers, self._request.n or 1
        usage = usage_of([answers[i : i + n] for i in range(0, len(answers), n)])
        if self._request.token_limit == 0:
            usage = msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)
        return usage, self._clock.timings(usage)


def _with_seeds(prompts: Callable[[], Sequence[Request]], n: int) -> list[Request]:
    """Return each prompt's request n times, with consecutive seeds."""
    requests = []
    for request in prompts():
        seed = request.params.seed
        first = secrets.randbelow(RANDOM_SEED) if seed is None else seed
        seeds = [(first + i) % RANDOM_SEED for i in range(n)]
        requests += [replace(request, params=replace(request.params, seed=seed)) for seed in seeds]
    return requests


def server_sent(value: Any, name: str = "") -> bytes:
    """Return a value as a server-sent event, perhaps with a name."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + msgspec.json.encode(value) + b"\n\n"


class _EventStreamResponse(StreamingResponse):
    """A stream of server-sent events; `close` is called at its end, even if it never starts."""

    close: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()
