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
from mink_local.serve.bodies import ApiError, Timings, TokenUsage
from mink_local.serve.clients import Client
from mink_local.serve.history import ResponseHead
from mink_local.serve.metrics import Metrics
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


class Clock:
    """Times the tokens of one response, for its `timings` and the server's metrics.

    Args:
        metrics: The server's numbers.
        model: The model id that was asked for.
        client: Who asked.
    """

    def __init__(self, metrics: Metrics, model: str, client: Client) -> None:
        self._metrics = metrics
        self._model = model
        self._who = (model, client.name)
        # For each token, looking these up would take longer than counting.
        self._tokens = metrics.generated_tokens.labels(*self._who)
        self._token_seconds = metrics.token_seconds.labels(model)
        self._started = self._end = time.perf_counter()
        self._slot: float | None = None  # when the first answer got it
        self._first: float | None = None  # when the first token came
        self._last: dict[Answer, float] = {}  # when each answer's last token came, or its slot
        self._prompts: list[object] = []  # those that were counted

    def note(self, answer: Answer, piece: Piece) -> None:
        """Count a piece's token."""
        self._end = now = time.perf_counter()
        if piece.token is None:
            return
        self._tokens.inc()
        if answer in self._last:
            self._token_seconds.observe(now - self._last[answer])
        else:
            self.count_prompt(answer)
            self._metrics.first_token_seconds.labels(self._model).observe(now - self._started)
        if self._first is None:
            self._first = now
        self._last[answer] = now

    def count_prompt(self, answer: Answer, n_unread: int = 0) -> None:
        """Count the prompt of an answer that has, or had, a slot: once for all answers to it.

        Args:
            n_unread: Number of its tokens that were not evaluated: the client has left.
        """
        if answer in self._last or not answer.began:
            return
        self._last[answer] = answer.began
        self._metrics.queue_seconds.labels(self._model).observe(answer.began - self._started)
        self._slot = min(self._slot or answer.began, answer.began)
        if not any(prompt is answer.request.prompt for prompt in self._prompts):
            self._prompts.append(answer.request.prompt)
            n_cached = answer.prompt_tokens - answer.evaluated_tokens
            self._metrics.prompt_tokens.labels(*self._who).inc(answer.prompt_tokens - n_unread)
            self._metrics.cached_tokens.labels(*self._who).inc(n_cached)

    def count_cancelled(self) -> None:
        """Count a request whose client has left."""
        self._metrics.cancelled.labels(*self._who).inc()

    @property
    def waits(self) -> dict[str, float]:
        """Seconds from the request to its first slot, and to its first token, if it has one."""
        times = {"queue_seconds": self._slot, "first_token_seconds": self._first}
        return {name: round(time - self._started, 3) for name, time in times.items() if time is not None}

    def timings(self, usage: TokenUsage) -> Timings:
        """Return tokens and milliseconds with llama-server's names, without the time in the queue."""
        first = self._first or self._end
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
    clock = Clock(service.metrics, preset.model_id, client)
    requests = partial(engine_requests, service.model, request, params)
    events = await service.begin(client, request.n_answers, requests)
    is_strict = isinstance(request, ChatRequest) and request.has_strict_tools
    if is_strict and not events.answers[0].has_call_grammar:
        parsed.ignored.add("tools.function.strict" if given is request else "tools.strict")
    builder = make_builder(service.model, given, head, events.answers)
    exchange = _Exchange(service, events, builder, clock, request.n or 1)
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
        clock: Times its tokens.
        n: Number of answers to each prompt.
    """

    service: Service
    events: EventStream
    builder: ResponseBuilder
    clock: Clock
    n: int

    async def whole(self) -> Any:
        """Return the body of a response that is not streamed. Raises ApiError if an answer fails."""
        try:
            async for event in self.events:
                await self._add(event)
            return await self.service.off_loop(self.events.client, self.builder.whole, *self._numbers())
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
            builder.end(*self._numbers())
        except ApiError as error:
            request_log.note(error=str(error))
            builder.fail(error)
        yield builder.take()

    def close(self) -> None:
        """End the answers that are not finished; keep, count and log what was generated."""
        finish(self.service, self.events, self.clock, self.n)
        self.service.history.add(self.builder.head, self.events.answers)

    async def _add(self, event: Event) -> None:
        self.clock.note(*event)
        if self.builder.is_long:
            await self.service.off_loop(self.events.client, self.builder.add, *event)
        else:
            self.builder.add(*event)

    def _numbers(self) -> tuple[TokenUsage, Timings]:
        usage = _usage(self.events.answers, self.n)
        return usage, self.clock.timings(usage)


def finish(service: Service, events: EventStream, clock: Clock, n: int = 1) -> None:
    """End answers, n to each prompt, if they are not finished, and note for the log what was generated."""
    answers, has_failed = events.answers, events.has_failed
    n_unread = {answer: service.model.core.engine.unevaluated(answer) for answer in answers}
    service.cancel(events)
    for answer in answers:
        clock.count_prompt(answer, n_unread[answer])
    reasons = {answer.finish_reason or ("error" if has_failed else "left") for answer in answers}
    if "left" in reasons:
        clock.count_cancelled()
    request_log.note(
        prompt_tokens=_usage(answers, n).prompt_tokens,
        evaluated_tokens=sum(max(0, one.evaluated_tokens - n_unread[one]) for one in answers),
        completion_tokens=sum(answer.n_tokens for answer in answers),
        finish_reason=",".join(sorted(reasons)),
        **clock.waits,
    )


def _usage(answers: Sequence[Answer], n: int) -> TokenUsage:
    """Return the numbers of tokens of answers, n to each prompt, which counts once."""
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


class _MessageStream(StreamingResponse):
    """A stream of messages; `close` is called at its end, even if it never starts."""

    close: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()
