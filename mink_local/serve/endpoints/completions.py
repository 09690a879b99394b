"""POST /v1/chat/completions and /v1/completions: as one JSON object, or as a stream of server-sent events."""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mink_local.generation.answer import Answer, Piece, TopLogprobs
from mink_local.generation.engine_thread import Event
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constants import RANDOM_SEED
from mink_local.serve import request_log
from mink_local.serve.protocol.fields import ChatRequest, CompletionRequest
from mink_local.serve.protocol.messages import (
    message_delta,
    message_finish_reason,
    prepare_chat,
    usage_of,
    whole_message,
)
from mink_local.serve.protocol.responses import (
    ApiError,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    CompletionChoice,
    CompletionLogprobs,
    TextCompletion,
    Timings,
    TokenLogprob,
    TokenUsage,
)
from mink_local.serve.protocol.sampling import sampling_params
from mink_local.serve.service import EventStream, Service

KEEP_ALIVE_SECONDS = 15.0  # between the comments of a stream that has nothing to send
# Buffering proxies such as nginx would hold the tokens back.
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
LEAST_LOGPROB = -9999.0  # in place of -inf, which JSON does not have

Score = tuple[int, float | None, TopLogprobs]  # a token with its log-probability and the most probable ones


async def create_chat_completion(service: Service, chat: ChatRequest) -> Response:
    """Answer a conversation."""
    return await Exchange(service, chat, _ChatChoice).respond()


async def create_completion(service: Service, completion: CompletionRequest) -> Response:
    """Continue texts."""
    return await Exchange(service, completion, _CompletionChoice).respond()


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


class Exchange:
    """A request for answers and the response to it.

    Args:
        service: Answers the request.
        request: The request.
        kind: What makes its choices.

    Raises:
        ApiError: The request is invalid.
    """

    def __init__(
        self, service: Service, request: ChatRequest | CompletionRequest, kind: "type[_Choice]"
    ) -> None:
        self._service = service
        self._request = request
        self._kind = kind
        preset = service.presets.find(request.model)
        self._params, ignored = sampling_params(request, preset, service.model, service.max_tokens)
        request_log.note(
            model=preset.model_id, sampler=str(self._params.sampler), temperature=self._params.temperature
        )
        self._headers = {"x-mink-ignored": ",".join(ignored)} if ignored else {}
        self._clock = Clock(service)
        self._head: dict[str, Any] = {
            "id": f"{kind.whole_type.id_prefix}-{request_log.request_id()}",
            "created": int(time.time()),
            "model": preset.model_id,
            "system_fingerprint": service.fingerprint,
        }

    async def respond(self) -> Response:
        """Return the response.

        Raises:
            ApiError: See `Service.begin`; or an answer fails that is not streamed.
        """
        request, model = self._request, self._service.model
        prompts = partial(self._kind.prompts, request, model, self._params)
        requests = partial(_with_seeds, prompts, request.n or 1)
        try:
            events = await self._service.begin(request.n_answers, requests, has_grammar=request.has_grammar)
        except ApiError as error:
            if "grammar" in str(error):
                error.param = error.param or request.grammar_field
            raise
        close = partial(self._close, events)
        if request.stream:
            stream = _EventStreamResponse(
                self._stream(events), headers=_STREAM_HEADERS | self._headers, media_type="text/event-stream"
            )
            stream.close = close
            return stream
        try:
            content = msgspec.json.encode(await self._whole(events))
        finally:
            close()
        return Response(content, headers=self._headers, media_type="application/json")

    def _close(self, events: EventStream) -> None:
        """End the answers that are not finished; keep what was generated, and note it for the log."""
        self._service.cancel(events)
        answers = events.answers
        self._service.history.add(request_log.request_id(), self._head["model"], answers)
        request_log.note(
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            evaluated_tokens=sum(answer.evaluated_tokens for answer in answers),
            completion_tokens=sum(answer.n_tokens for answer in answers),
            finish_reason=",".join(sorted({answer.finish_reason or "left" for answer in answers})),
            first_token_seconds=self._clock.first_token_seconds,
        )

    def _choices(self, events: EventStream) -> "dict[Answer, _Choice]":
        model = self._service.model
        return {
            answer: self._kind(i, model, self._request, answer) for i, answer in enumerate(events.answers)
        }

    async def _whole(self, events: EventStream) -> Any:
        """Return the whole body."""
        choices = self._choices(events)
        async for event in events:
            self._add(event, choices)
        taken = [await self._service.off_loop(choice.take) for choice in choices.values()]
        return self._kind.whole_type(**self._head, choices=taken, **self._ending(choices))

    async def _stream(self, events: EventStream) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a stream, one for each token that shows; an error is the last one.

        Comments keep the connection alive until then: `waiting` for a slot, `keepalive`.
        """
        choices, sent = self._choices(events), time.monotonic()
        yield b": waiting\n\n"  # a proxy may hold the headers back until something follows
        try:
            while True:
                try:
                    event = await asyncio.wait_for(anext(events), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    has_begun = any(decoding.has_begun for decoding in events.decodings)
                    yield b": keepalive\n\n" if has_begun else b": waiting\n\n"
                    continue
                choice = self._add(event, choices)
                if choice.shows:
                    taken = await self._service.off_loop(choice.take) if choice.is_long else choice.take()
                    yield _server_sent(self._kind.chunk_type(**self._head, choices=[taken]))
                elif time.monotonic() - sent < KEEP_ALIVE_SECONDS:
                    continue
                else:
                    yield b": keepalive\n\n"
                sent = time.monotonic()
        except StopAsyncIteration:
            options = self._request.stream_options
            if options is not None and options.include_usage:
                yield _server_sent(self._kind.chunk_type(**self._head, choices=[], **self._ending(choices)))
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            yield _server_sent(error.body())

    def _add(self, event: Event, choices: "dict[Answer, _Choice]") -> "_Choice":
        """Add an event to its choice; return the choice."""
        answer, piece = event
        self._clock.note(answer, piece)
        if self._request.token_limit == 0:  # one token was sampled all the same
            piece = Piece()
            piece.finish_reason = "length"
        choices[answer].add(piece)
        return choices[answer]

    def _ending(self, choices: "dict[Answer, _Choice]") -> dict[str, Any]:
        answers, n = list(choices), self._request.n or 1
        prompts = [answers[i : i + n] for i in range(0, len(answers), n)]
        usage = usage_of(prompts)
        if self._request.token_limit == 0:
            usage = msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)
        return {"usage": usage, "timings": self._clock.timings(usage)}


def _with_seeds(prompts: Callable[[], Sequence[Request]], n: int) -> list[Request]:
    """Return each prompt's request n times, with consecutive seeds."""
    requests = []
    for request in prompts():
        seed = request.params.seed
        first = secrets.randbelow(RANDOM_SEED) if seed is None else seed
        seeds = [(first + i) % RANDOM_SEED for i in range(n)]
        requests += [replace(request, params=replace(request.params, seed=seed)) for seed in seeds]
    return requests


def _server_sent(value: Any) -> bytes:
    """Return a value as a server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class _EventStreamResponse(StreamingResponse):
    """A stream of server-sent events; `close` is called at its end, even if it never starts."""

    close: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()


class _Choice(ABC):
    """One choice: what was generated since the last chunk of a stream, or all of it.

    Attributes:
        whole_type: The type of a response that is not streamed.
        chunk_type: The type of a stream's chunks.
    """

    whole_type: ClassVar[Any]
    chunk_type: ClassVar[Any]

    def __init__(self, index: int, model: Model, request: Any, answer: Answer) -> None:
        self._index = index
        self._model = model
        self._request = request
        self._answer = answer
        self._pieces: list[Piece] = []

    @staticmethod
    @abstractmethod
    def prompts(request: Any, model: Model, params: SamplingParams) -> Sequence[Request]:
        """Return a request for the engine for each prompt; called in a thread, after admission."""

    @property
    def is_long(self) -> bool:
        """Whether the next chunk describes many tokens, which takes too long for the event loop."""
        return False

    def add(self, piece: Piece) -> None:
        """Add what one step brings."""
        self._pieces.append(piece)

    @property
    def shows(self) -> bool:
        """Whether a chunk would have anything to show; text that may begin a tool call is held back."""
        return any(
            piece.reasoning or piece.content or piece.tool_calls or piece.finish_reason
            for piece in self._pieces
        )

    @property
    def _finish_reason(self) -> str | None:
        return self._pieces[-1].finish_reason

    def take(self) -> ChatChoice | ChatChunkChoice | CompletionChoice:
        """Return the choice, and start the next chunk."""
        sampled = [piece for piece in self._pieces if piece.token is not None and not piece.is_end_token]
        choice = self._form(
            index=self._index,
            finish_reason=self._finish_reason,
            k=[piece.k for piece in sampled],
            tokens=[piece.token for piece in sampled] if self._request.return_tokens else UNSET,
        )
        self._pieces = []
        return choice

    @abstractmethod
    def _form(self, **common: Any) -> ChatChoice | ChatChunkChoice | CompletionChoice:
        """Return the choice in the form of the endpoint."""


class _ChatChoice(_Choice):
    """A choice of a chat completion."""

    whole_type, chunk_type = ChatCompletion, ChatCompletionChunk
    _request: ChatRequest

    def __init__(self, index: int, model: Model, chat: ChatRequest, answer: Answer) -> None:
        super().__init__(index, model, chat, answer)
        self._role: Literal["assistant"] | UnsetType = "assistant"  # in the first chunk

    @staticmethod
    def prompts(chat: ChatRequest, model: Model, params: SamplingParams) -> Sequence[Request]:
        return [prepare_chat(model, chat, params)]

    @property
    def _finish_reason(self) -> str | None:
        return message_finish_reason(self._pieces[-1].finish_reason, self._answer)

    def _form(self, **common: Any) -> ChatChoice | ChatChunkChoice:
        if self._request.logprobs:  # not of the token that ends the answer
            entries = [self._entry(*score) for score in _scores(self._pieces)[: len(common["k"])]]
            common["logprobs"] = ChatLogprobs(content=entries)
        if not self._request.stream:
            return ChatChoice(message=whole_message(self._pieces), **common)
        delta = message_delta(self._pieces)
        delta.role, self._role = self._role, UNSET
        return ChatChunkChoice(delta=delta, **common)

    def _entry(self, token: int, logprob: float | None, top: TopLogprobs) -> TokenLogprob:
        entry = token_logprob(self._model, token, logprob)
        entry.top_logprobs = [token_logprob(self._model, *pair) for pair in top]
        return entry


class _CompletionChoice(_Choice):
    """A choice of a completion of a text or token ids."""

    whole_type, chunk_type = TextCompletion, TextCompletion
    _request: CompletionRequest

    def __init__(self, index: int, model: Model, completion: CompletionRequest, answer: Answer) -> None:
        super().__init__(index, model, completion, answer)
        self._prompt: Sequence[int] = answer.prompt if completion.echo else ()  # in the first chunk
        self._length = 0  # of the tokens that were taken, in characters

    @property
    def is_long(self) -> bool:
        return bool(self._prompt)

    @staticmethod
    def prompts(completion: CompletionRequest, model: Model, params: SamplingParams) -> Sequence[Request]:
        prompts = completion.prompts()
        if completion.suffix:
            try:
                prompts = [model.weights.infill(str(prompt), completion.suffix) for prompt in prompts]
            except ValueError as error:
                message = f"{error}: put the text after the gap into the prompt"
                raise ApiError(400, message, param="suffix", code="unsupported_parameter") from None
        return [Request(prompt, params) for prompt in prompts]

    def _form(self, **common: Any) -> CompletionChoice:
        prompt, answer = self._prompt, self._answer
        self._prompt = ()
        logprobs = None
        if self._request.logprobs is not None:
            scores = zip(prompt, answer.prompt_logprobs, answer.prompt_top_logprobs, strict=False)
            logprobs = self._described([*scores, *_scores(self._pieces)])
        text = "".join([*self._model.token_texts(prompt), *self._pieces])
        return CompletionChoice(text=text, logprobs=logprobs, **common)

    def _described(self, scores: Sequence[Score]) -> CompletionLogprobs:
        """Return the log-probabilities, each token with the most probable ones of its step and itself."""
        described = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token, logprob, top in scores:
            own = token_logprob(self._model, token, logprob)
            best = {one.token: one.logprob for one in (token_logprob(self._model, *pair) for pair in top)}
            described.tokens.append(own.token)
            described.token_logprobs.append(own.logprob)
            described.top_logprobs.append({own.token: own.logprob, **best} if best else None)
        *described.text_offset, self._length = accumulate(map(len, described.tokens), initial=self._length)
        return described


def _scores(pieces: Sequence[Piece]) -> list[Score]:
    """Return the tokens of pieces with their log-probabilities, if these are asked for."""
    return [
        (piece.token, piece.logprob, piece.top_logprobs)
        for piece in pieces
        if piece.token is not None and piece.logprob is not None
    ]


def token_logprob(model: Model, token: int, logprob: float | None) -> TokenLogprob:
    """Return a token's text, bytes and log-probability; the first token of a prompt has none."""
    data = model.weights.piece(token)
    value = None if logprob is None else max(logprob, LEAST_LOGPROB)
    return TokenLogprob(token=data.decode("utf-8", "replace"), logprob=value, bytes=list(data))
