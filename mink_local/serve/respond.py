"""Responses: the events of answers as one JSON object, or as a stream of server-sent events."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mink_local.generation.answer import Answer
from mink_local.generation.request import Request
from mink_local.serve.answers import Json
from mink_local.serve.api_errors import ApiError
from mink_local.serve.engine_thread import EngineDownError, Event, EventStream
from mink_local.serve.service import Service, down

T = TypeVar("T")


class Body(Protocol):
    """Makes the body of a response from the events of its answers."""

    def chunks(self, event: Event) -> Iterable[Json]:
        """Take an event; return the chunks of a stream that it gives, perhaps none."""

    def usage(self) -> Json:
        """Return OpenAI's `usage`, after the last event."""

    def last_chunks(self, usage: Json, timings: Json) -> Iterable[Json]:
        """Return the chunks after the last event."""

    def whole(self, usage: Json, timings: Json) -> Json:
        """Return the body of a response that is no stream, after the last event."""


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def respond(
    http: HttpRequest,
    service: Service,
    requests: Sequence[Request],
    make_body: Callable[[EventStream], Body],
    *,
    is_stream: bool,
    headers: dict[str, str],
) -> Response:
    """Have requests answered, and return the response.

    A client that leaves ends its answers, wherever they are. A stream begins with the first event, so that
    what goes wrong before it has a status.

    Raises:
        ApiError: See `Service.begin`; or the first step fails.
        ClientDisconnect: The client has left.
    """
    clock = _Clock(service)
    events = await while_connected(http.receive, service.begin(requests))
    try:
        body = make_body(events)
        first = await while_connected(http.receive, anext(events))
        check_event(first)
        if is_stream:
            return _EventStreamResponse(
                _encoded(clock, first, events, body), partial(service.cancel, events), headers
            )
        rest = _consumed(clock, first, events, body)
        value = await while_connected(http.receive, rest)
    except EngineDownError as error:
        raise down(str(error)) from None
    except BaseException:
        service.cancel(events)
        raise
    return json_response(value, headers=headers)


class _Clock:
    """Times the tokens of one response, for its `timings` and the server's metrics."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._began = self._end = time.perf_counter()
        self._first: float | None = None
        self._last: dict[Answer, float] = {}

    def note(self, event: Event) -> None:
        """Count an event's token."""
        self._end = now = time.perf_counter()
        metrics, answer = self._service.metrics, event.answer
        if event.piece.token is not None:
            if answer in self._last:
                metrics.count_token(now - self._last[answer])
            else:
                metrics.count_first_token(now - self._began)
                metrics.count_prompt(answer.prompt_tokens, answer.prompt_tokens - answer.evaluated_tokens)
            self._last[answer] = now
            self._first = self._first or now
        if event.finish_reason is not None:
            self._service.finished(answer.seconds)

    def timings(self, usage: Json) -> Json:
        """Return tokens and milliseconds under llama-server's names."""
        first = self._first or self._end
        prompt_ms, predicted_ms = 1000 * (first - self._began), 1000 * (self._end - first)
        n_cached, n_generated = usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
        n_evaluated = usage["prompt_tokens"] - n_cached
        return {
            "cache_n": n_cached,
            "prompt_n": n_evaluated,
            "prompt_ms": round(prompt_ms, 3),
            "prompt_per_second": round(1000 * n_evaluated / max(prompt_ms, 1e-3), 2),
            "predicted_n": n_generated,
            "predicted_ms": round(predicted_ms, 3),
            "predicted_per_second": round(1000 * n_generated / max(predicted_ms, 1e-3), 2),
        }


async def _consumed(clock: _Clock, first: Event, events: EventStream, body: Body) -> Json:
    """Return the body of a response that is no stream."""
    async for event in _all(clock, first, events):
        check_event(event)
        for _ in body.chunks(event):
            pass
    usage = body.usage()
    return body.whole(usage, clock.timings(usage))


async def _encoded(clock: _Clock, first: Event, events: EventStream, body: Body) -> AsyncIterator[bytes]:
    """Yield the server-sent events of a stream. What goes wrong now can only be its last event."""
    try:
        async for event in _all(clock, first, events):
            check_event(event)
            for chunk in body.chunks(event):
                yield _server_sent(chunk)
        usage = body.usage()
        for chunk in body.last_chunks(usage, clock.timings(usage)):
            yield _server_sent(chunk)
    except EngineDownError as error:
        yield _server_sent(down(str(error)).body())
    except ApiError as error:
        yield _server_sent(error.body())
    yield b"data: [DONE]\n\n"


async def _all(clock: _Clock, first: Event, events: EventStream) -> AsyncIterator[Event]:
    clock.note(first)
    yield first
    async for event in events:
        clock.note(event)
        yield event


def check_event(event: Event) -> None:
    """Raise ApiError if an answer has failed."""
    if event.finish_reason == "error":
        if event.answer.request.params.constraints is not None:  # the client's, who must not try again
            raise ApiError(400, str(event.answer.error), code="generation_failed")
        raise ApiError(500, str(event.answer.error), kind="server_error", code="generation_failed")
    if event.finish_reason == "interrupted":
        raise ApiError(503, "the server is stopping: try another", kind="server_error", code="stopping")


def _server_sent(chunk: Json) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


class _EventStreamResponse(StreamingResponse):
    """A stream of server-sent events; `close` is called at its end, even if it never starts."""

    def __init__(
        self, content: AsyncIterator[bytes], close: Callable[[], None], headers: dict[str, str]
    ) -> None:
        # Buffering proxies such as nginx would hold the tokens back.
        headers = {**headers, "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; if the client leaves first, cancel it and raise ClientDisconnect."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for future in (task, left):
            future.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
