"""A request for answers and its response, whatever the protocol: whole, or as server-sent events."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mink_local.generation.answer import Answer, Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.engine_thread import Event
from mink_local.generation.request import Request
from mink_local.llama.constants import RANDOM_SEED
from mink_local.serve import request_log
from mink_local.serve.bodies import CompletionTokensDetails, PromptTokensDetails, Timings, TokenUsage
from mink_local.serve.builder import ResponseBuilder, ResponseHead
from mink_local.serve.errors import ApiError
from mink_local.serve.metrics import Metrics
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.request.parsing import naming
from mink_local.serve.request.sampling import engine_requests, sampling_params
from mink_local.serve.service import EventStream, Service

KEEP_ALIVE_SECONDS = 10.0  # between the comments of a stream that has nothing to send
# Buffering proxies such as nginx would hold the tokens back.
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class Clock:
    """Times the tokens of one response, for its `timings` and the server's metrics.

    Args:
        metrics: The server's numbers.
        head: What is known of the response.
    """

    def __init__(self, metrics: Metrics, head: ResponseHead) -> None:
        self._metrics = metrics
        self._model = head.model
        self._who = (head.model, head.client)
        self._started = self._end = self._slot = time.perf_counter()
        self._first: float | None = None  # when the first token came
        self._last: dict[Answer, float] = {}
        self._prompts: set[int] = set()  # those that were counted

    def note(self, decoding: Decoding, piece: Piece) -> None:
        """Count a piece's token."""
        self._end = now = time.perf_counter()
        metrics, answer = self._metrics, decoding.answer
        if piece.token is None:
            return
        metrics.generated_tokens.labels(*self._who).inc()
        if answer in self._last:
            metrics.token_seconds.labels(self._model).observe(now - self._last[answer])
        else:
            metrics.queue_seconds.labels(self._model).observe(decoding.began - self._started)
            metrics.first_token_seconds.labels(self._model).observe(now - self._started)
            self._count_prompt(answer)
        self._last[answer] = now
        if self._first is None:
            self._first, self._slot = now, decoding.began

    def _count_prompt(self, answer: Answer) -> None:
        """Count a prompt once, however many answers it has."""
        if id(answer.request.prompt) not in self._prompts:
            self._prompts.add(id(answer.request.prompt))
            self._metrics.prompt_tokens.labels(*self._who).inc(answer.prompt_tokens)
            self._metrics.cached_tokens.labels(*self._who).inc(answer.prompt_tokens - answer.evaluated_tokens)

    @property
    def first_token_seconds(self) -> float | None:
        """Time from the request to its first token, in seconds; None if it has none."""
        return None if self._first is None else round(self._first - self._started, 3)

    @property
    def queue_seconds(self) -> float:
        """Time from the request to its first slot, in seconds."""
        return round(self._slot - self._started, 3)

    def timings(self, usage: TokenUsage) -> Timings:
        """Return tokens and milliseconds with llama-server's names, without the time in the queue."""
        first = self._first or self._end
        prompt_ms, predicted_ms = 1000 * (first - self._slot), 1000 * (self._end - first)
        n_cached = usage.prompt_tokens_details.cached_tokens
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


class Exchange:
    """A request for answers and the response to it.

    Args:
        service: Answers the request.
        request: The request.
        builder: Makes what builds the response.

    Raises:
        ApiError: The request is invalid.
    """

    def __init__(
        self,
        service: Service,
        request: ChatRequest | CompletionRequest,
        builder: Callable[..., ResponseBuilder],
    ) -> None:
        self._service = service
        self._request = request
        self._make_builder = builder
        preset = service.presets.find(request.model)
        params, ignored = sampling_params(request, preset, service.model, service.max_tokens)
        request_log.note(model=preset.model_id, sampler=str(params.sampler), temperature=params.temperature)
        self._headers = {"x-mink-ignored": ",".join(ignored)} if ignored else {}
        self._head = ResponseHead(
            request_log.request_id(),
            int(time.time()),
            preset.model_id,
            service.fingerprint,
            params,
            request_log.key_name(),
        )
        self._clock = Clock(service.metrics, self._head)

    async def respond(self) -> Response:
        """Return the response.

        Raises:
            ApiError: See `Service.begin`; or an answer fails that is not streamed.
        """
        request, model = self._request, self._service.model
        prompts = partial(engine_requests, model, request, self._head.params)
        requests = partial(_with_seeds, prompts, request.n or 1)
        with naming(request.sources):
            events = await self._service.begin(request.n_answers, requests, request_log.client())
        close = partial(self._close, events)
        builder = self._make_builder(model, request, self._head, events.answers)
        if request.stream:
            stream = _EventStreamResponse(
                self._stream(events, builder),
                headers=_STREAM_HEADERS | self._headers,
                media_type="text/event-stream",
            )
            stream.close = close
            return stream
        try:
            async for event in events:
                self._add(event, events, builder)
            content = await self._service.off_loop(builder.whole, *self._numbers(builder))
        finally:
            close()
        return Response(msgspec.json.encode(content), headers=self._headers, media_type="application/json")

    def _close(self, events: EventStream) -> None:
        """End the answers that are not finished; keep what was generated, and note it for the log."""
        answers, engine = events.answers, self._service.model.engine
        n_evaluated = sum(max(0, one.evaluated_tokens - engine.unevaluated(one)) for one in answers)
        self._service.cancel(events)
        self._service.history.add(self._head, answers)
        reasons = {one.finish_reason or ("error" if events.has_failed else "left") for one in answers}
        if "left" in reasons:
            self._service.metrics.cancelled.labels(self._head.model, self._head.client).inc()
        request_log.note(
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            evaluated_tokens=n_evaluated,
            completion_tokens=sum(answer.n_tokens for answer in answers),
            finish_reason=",".join(sorted(reasons)),
            queue_seconds=self._clock.queue_seconds,
            first_token_seconds=self._clock.first_token_seconds,
        )

    async def _stream(self, events: EventStream, builder: ResponseBuilder) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a stream, one for each token that shows; an error is the last one.

        Comments keep the connection alive until then: `waiting` for a slot, `keepalive`; for clients that
        count events only, the builder has one.
        """
        sent = time.monotonic()
        yield b": waiting\n\n" + builder.start()  # a proxy may hold the headers back until something follows
        try:
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        event = await anext(events)
                except TimeoutError:
                    has_begun = any(decoding.began for decoding in events.decodings)
                    yield (b"" if has_begun else b": waiting\n\n") + builder.keep_alive()
                    continue
                answer = self._add(event, events, builder)
                taken = (
                    await self._service.off_loop(builder.take, answer)
                    if builder.is_long
                    else builder.take(answer)
                )
                if not taken and time.monotonic() - sent < KEEP_ALIVE_SECONDS:
                    continue
                yield taken or builder.keep_alive()
                sent = time.monotonic()
        except StopAsyncIteration:
            yield builder.end(*self._numbers(builder))
        except ApiError as error:
            yield builder.fail(error)

    def _add(self, event: Event, events: EventStream, builder: ResponseBuilder) -> Answer:
        """Add an event to its builder; return the answer."""
        answer, piece = event
        self._clock.note(events.decoding(answer), piece)
        if piece.finish_reason is not None:
            self._service.finished(answer.seconds)
        if self._request.token_limit == 0:  # one token was sampled all the same
            piece = Piece()
            piece.finish_reason = "length"
        builder.add(answer, piece)
        return answer

    def _numbers(self, builder: ResponseBuilder) -> tuple[TokenUsage, Timings]:
        answers, n = builder.answers, self._request.n or 1
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


def usage_of(prompts: Sequence[Sequence[Answer]]) -> TokenUsage:
    """Return the numbers of tokens, given the answers to each prompt: a prompt counts once."""
    n_prompt = sum(answers[0].prompt_tokens for answers in prompts)
    n_evaluated = sum(max(answer.evaluated_tokens for answer in answers) for answers in prompts)
    n_generated = sum(answer.n_tokens for answers in prompts for answer in answers)
    n_reasoning = sum(answer.n_reasoning for answers in prompts for answer in answers)
    return TokenUsage(
        prompt_tokens=n_prompt,
        completion_tokens=n_generated,
        total_tokens=n_prompt + n_generated,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=n_prompt - n_evaluated),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=n_reasoning),
    )


class _EventStreamResponse(StreamingResponse):
    """A stream of server-sent events; `close` is called at its end, even if it never starts."""

    close: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()
