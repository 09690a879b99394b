"""A request for answers and its response, whatever the protocol: whole, or as a stream of messages.

`respond` has answers begun. From then on an `_Exchange` has them: it passes their events to the protocol's
`ResponseBuilder`, and closes them whatever happens: a stream's when its response is over, even if that never
began because the client had left.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mink_local.generation.answer import Answer, FinishReason, Piece
from mink_local.generation.engine.thread import Event
from mink_local.generation.format.tool_calls import ToolCallDelta
from mink_local.generation.model import Model
from mink_local.serve import request_log
from mink_local.serve.bodies import ApiError, ResponseHead, Timings, TokenUsage
from mink_local.serve.clients import Client
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.request.parsing import Parsed
from mink_local.serve.request.sampling import engine_requests, sampling_params
from mink_local.serve.service import EventStream, Service

PartKind = Literal["reasoning", "text", "call"]

KEEP_ALIVE_SECONDS = 10.0  # until a stream that has nothing to send sends something all the same
# Buffering proxies such as nginx would hold the tokens back.
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


@dataclass
class Part:
    """A part of an answer: reasoning, text, or a call of a tool.

    Attributes:
        answer: The answer.
        index: Its number.
        texts: The pieces of its text so far; of a call, its arguments.
        call: The call's id and name.
        is_open: Whether it may still grow.
    """

    answer: Answer
    kind: PartKind
    index: int
    texts: list[str] = field(default_factory=list)
    call: ToolCallDelta | None = None
    is_open: bool = True

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


class ResponseBuilder(ABC):
    """Builds an endpoint's response to a request: whole, or as the messages of a stream.

    Every response is built of its answers' parts: a stream opens, fills and closes them one after another,
    or sends what each step adds to them.

    Args:
        model: The model.
        request: The request as its client sent it.
        head: What is known so far.
        answers: The answers, which grow meanwhile.

    Attributes:
        parts: Of each answer, in the order in which the model wrote them; only the last one grows.
    """

    def __init__(self, model: Model, request: Any, head: ResponseHead, answers: Sequence[Answer]) -> None:
        self.model = model
        self.request = request
        self.head = head
        self.answers = answers
        self.parts: dict[Answer, list[Part]] = {answer: [] for answer in answers}
        self._unsent: list[bytes] = []  # messages of a stream

    @property
    def is_long(self) -> bool:
        """Whether what comes next describes many tokens, which takes too long for the event loop."""
        return False

    def add(self, answer: Answer, piece: Piece) -> None:
        """Take what one step adds to an answer, and send it if there is something to show."""
        if piece.reasoning:
            self._grow(answer, "reasoning", piece.reasoning)
        for found in piece.parts:
            if isinstance(found, str):
                self._grow(answer, "text", found)
            else:
                self._grow(answer, "call", found.arguments, found)
        self.stepped(answer, piece)

    def _grow(self, answer: Answer, kind: PartKind, text: str, call: ToolCallDelta | None = None) -> None:
        """Add a text to an answer's open part, or open one."""
        parts = self.parts[answer]
        if call or not parts or parts[-1].kind != kind:
            self.close(answer)
            parts.append(Part(answer, kind, len(parts), call=call))
            if self.request.stream:
                self.opened(parts[-1])
        parts[-1].texts.append(text)
        if self.request.stream:
            self.grown(parts[-1], text)

    def close(self, answer: Answer) -> None:
        """Close an answer's open part, if there is one."""
        for part in self.parts[answer][-1:]:
            if part.is_open:
                part.is_open = False
                if self.request.stream:
                    self.closed(part)

    def start(self) -> None:  # noqa: B027  # most have nothing to send
        """Send what comes before the first token."""

    def keep_alive(self) -> None:
        """Send something, as a stream has had nothing to send for a while."""
        self._unsent.append(b": keepalive\n\n")

    def opened(self, part: Part) -> None:  # noqa: B027
        """Send what begins a part."""

    def grown(self, part: Part, text: str) -> None:  # noqa: B027
        """Send what a part has grown by, or keep it until the step's end."""

    def closed(self, part: Part) -> None:  # noqa: B027
        """Send what ends a part."""

    @abstractmethod
    def stepped(self, answer: Answer, piece: Piece) -> None:
        """Take the numbers of a step, after its texts."""

    @abstractmethod
    def end(self, usage: TokenUsage, timings: Timings) -> None:
        """Send the last messages of a stream."""

    def fail(self, error: ApiError) -> None:
        """Send the last message of a stream that fails."""
        self.send(error.body())

    @abstractmethod
    def whole(self, usage: TokenUsage, timings: Timings) -> Any:
        """Return the body of a response that is not streamed; called in a thread."""

    def send(self, value: Any, name: str = "") -> None:
        """Add a value, perhaps with a name, to the messages that a stream sends next."""
        if self.request.stream:
            named = f"event: {name}\n".encode() if name else b""
            self._unsent.append(named + b"data: " + msgspec.json.encode(value) + b"\n\n")

    def take(self) -> bytes:
        """Return the messages since the last call."""
        sent, self._unsent = b"".join(self._unsent), []
        return sent


class NamedMessagesBuilder(ResponseBuilder):
    """Builds a response of one answer, whose stream's messages have names.

    Attributes:
        answer: The answer.
        finish_reason: Why it has ended, once all of it was added.
    """

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        [self.answer] = self.answers
        self.finish_reason: FinishReason | None = None

    def stepped(self, answer: Answer, piece: Piece) -> None:  # noqa: ARG002
        self.finish_reason = piece.finish_reason

    def send_named(self, kind: str, **fields: Any) -> None:
        """Send a message of a kind, which is its name too."""
        self.send({"type": kind, **fields}, kind)


async def respond(
    service: Service,
    client: Client,
    parsed: Parsed[Any],
    make_builder: Callable[..., ResponseBuilder],
) -> Response:
    """Return the response to a request for answers.

    Args:
        service: Answers the request.
        client: Who sends it.
        parsed: The request, of any protocol.
        make_builder: Makes what builds its protocol's response.

    Raises:
        ApiError: The request is invalid; see also `Service.begin`; or an answer fails that is not streamed.
    """
    given = parsed.request
    request: ChatRequest | CompletionRequest = given.normal()
    preset = service.presets.find(request.model)
    params, ignored = sampling_params(request, preset, service.model, service.max_tokens)
    parsed.ignored.update([*ignored, *given.left_out])
    sampler = str(params.effective_sampler)
    request_log.note(model=preset.model_id, sampler=sampler, temperature=params.temperature)
    head = ResponseHead(
        request_log.request_id.get(),
        int(time.time()),
        preset.model_id,
        service.fingerprint,
        params,
        client.name,
    )
    requests = partial(engine_requests, service.model, request, params)
    events = await service.begin(client, request.n_answers, requests, preset.model_id, request.n or 1)
    is_strict = isinstance(request, ChatRequest) and request.has_strict_tools
    if is_strict and not events.answers[0].has_call_grammar:
        parsed.ignored.add("tools.function.strict" if given is request else "tools.strict")
    builder = make_builder(service.model, given, head, events.answers)
    exchange = _Exchange(service, events, builder)
    if given.stream:
        stream = _MessageStream(exchange.stream(), headers=_STREAM_HEADERS, media_type="text/event-stream")
        stream.close = exchange.close
        return stream
    content = await exchange.whole()
    return Response(msgspec.json.encode(content), media_type="application/json")


@dataclass(frozen=True)
class _Exchange:
    """A response that is being generated.

    Args:
        service: Generates it.
        events: Of its answers.
        builder: Builds it.
    """

    service: Service
    events: EventStream
    builder: ResponseBuilder

    async def whole(self) -> Any:
        """Return the body of a response that is not streamed. Raises ApiError if an answer fails."""
        events = self.events
        try:
            async for event in events:
                await self._add(event)
            whole = partial(self.builder.whole, events.clock.usage, events.clock.timings)
            return await self.service.threads.run(events.client, whole)
        finally:
            self.close()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the messages of a stream, one for each token that shows; an error is the last one.

        Until then, something is sent every few seconds to keep the connection alive.
        """
        builder, now = self.builder, asyncio.get_running_loop().time
        builder.start()
        yield b": waiting\n\n" + builder.take()  # a proxy may hold the headers back until something follows
        sent = now()
        try:
            while True:
                try:
                    async with asyncio.timeout_at(sent + KEEP_ALIVE_SECONDS):
                        event = await anext(self.events)
                except TimeoutError:
                    builder.keep_alive()
                else:
                    await self._add(event)
                if taken := builder.take():
                    yield taken
                    sent = now()
        except StopAsyncIteration:
            builder.end(self.events.clock.usage, self.events.clock.timings)
        except ApiError as error:
            request_log.note(error=str(error))
            builder.fail(error)
        yield builder.take()

    def close(self) -> None:
        """End the answers that are not finished, and keep what was generated."""
        self.service.close(self.events)
        self.service.history.add(self.builder.head, self.events.answers)

    async def _add(self, event: Event) -> None:
        if self.builder.is_long:
            await self.service.threads.run(self.events.client, self.builder.add, *event)
        else:
            self.builder.add(*event)


class _MessageStream(StreamingResponse):
    """A stream of messages; `close` is called at its end, even if it never starts."""

    close: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()
