"""POST /v1/chat/completions and /v1/completions: as one JSON object, or as a stream of server-sent events."""

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mink_local.generation.answer import Answer, Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.model import Model
from mink_local.generation.request import Request
from mink_local.llama.constants import RANDOM_SEED
from mink_local.serve.guard import read_body
from mink_local.serve.protocol.fields import ChatRequest, CompletionRequest, parse
from mink_local.serve.protocol.messages import (
    ToolPlan,
    message_builder,
    needs_grammar,
    prepare_chat,
    usage_of,
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
    MessageDelta,
    SampledLogprob,
    TextCompletion,
    Timings,
    TokenLogprob,
    TokenUsage,
)
from mink_local.serve.protocol.sampling import sampling_params
from mink_local.serve.service import AnswerEvent, EventStream, Service

T = TypeVar("T")
AnyRequest = TypeVar("AnyRequest", bound=ChatRequest | CompletionRequest)
AnyBuilder: TypeAlias = "_ChatChoiceBuilder | _CompletionChoiceBuilder"

KEEP_ALIVE_SECONDS = 15.0  # between the comments of a stream that has nothing to send


class Clock:
    """Times the tokens of one response, for its `timings` and the server's metrics."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = self._end = time.perf_counter()
        self._first: float | None = None
        self._last: dict[Answer, float] = {}

    def note(self, event: AnswerEvent) -> None:
        """Count an event's token."""
        self._end = now = time.perf_counter()
        metrics, answer = self._service.metrics, event.answer
        if event.piece.token is not None:
            metrics.generated_tokens.inc()
            if answer in self._last:
                metrics.token_seconds.observe(now - self._last[answer])
            else:
                metrics.first_token_seconds.observe(now - self._started)
                metrics.prompt_tokens.inc(answer.prompt_tokens)
                metrics.cached_tokens.inc(answer.prompt_tokens - answer.evaluated_tokens)
            self._last[answer] = now
            self._first = self._first or now
        if event.finish_reason is not None:
            self._service.finished(answer.seconds)

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


class Exchange(ABC, Generic[AnyRequest]):
    """A request for answers and the response to it; each endpoint has a class of its own.

    Args:
        service: Answers the request.
        body: The request's JSON.

    Attributes:
        request_type: The type of the request.
        whole_type: The type of a response that is not streamed.
        chunk_type: The type of a stream's chunks.
        request: The request.
        params: Its sampling parameters.

    Raises:
        ApiError: The request is invalid.
    """

    request_type: ClassVar[Any]
    whole_type: ClassVar[Any]
    chunk_type: ClassVar[Any]

    def __init__(self, service: Service, body: bytes) -> None:
        self.service = service
        self._clock = Clock(service)
        self.request: AnyRequest
        self.request, options, unsupported = parse(body, self.request_type)
        preset = service.presets.find(self.request.model)
        self.params, overridden = sampling_params(self.request, options, preset, service.limits)
        ignored = ",".join(sorted({*overridden, *unsupported}))
        self._headers = {"x-mink-ignored": ignored} if ignored else {}
        self._head: dict[str, Any] = {
            "id": f"{self.whole_type.id_prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": preset.model_id,
            "system_fingerprint": service.fingerprint,
        }

    @property
    def n_answers(self) -> int:
        """Number of answers."""
        return self.request.n or 1

    @property
    def has_grammar(self) -> bool:
        """Whether preparing the requests includes trying a grammar."""
        return self.params.has_grammar

    @abstractmethod
    def engine_requests(self) -> Sequence[Request]:
        """Return the requests for the engine, one for each answer; called in a thread, after admission."""

    @abstractmethod
    def choice_builder(self, index: int, decoding: Decoding) -> AnyBuilder:
        """Return the builder of the choice with an index."""

    async def respond(self, receive: Receive) -> Response:
        """Return the response; if the client leaves, the answers are cancelled.

        Raises:
            ApiError: See `Service.begin`; or an answer fails that is not streamed.
            ClientDisconnect: The client has left.
        """
        begin = self.service.begin(self.n_answers, self.engine_requests, has_grammar=self.has_grammar)
        events = await while_connected(receive, begin)
        cancel = partial(self.service.cancel, events)
        if self.request.stream:
            return _EventStreamResponse(self._stream(events), cancel, self._headers)
        try:
            return json_response(await while_connected(receive, self._whole(events)), self._headers)
        finally:
            cancel()

    def _builders(self, events: EventStream) -> dict[Answer, AnyBuilder]:
        return {d.answer: self.choice_builder(i, d) for i, d in enumerate(events.decodings)}

    async def _whole(self, events: EventStream) -> Any:
        """Return the whole body."""
        builders = self._builders(events)
        async for event in events:
            self._clock.note(event)
            for _ in builders[event.answer].chunks(event):
                pass
        choices = [builder.whole() for builder in builders.values()]
        return self.whole_type(**self._head, choices=choices, **self._ending(builders))

    async def _stream(self, events: EventStream) -> AsyncIterator[bytes]:
        """Yield the server-sent events of a stream; an error is the last one."""
        builders = self._builders(events)
        try:
            while True:
                try:
                    event = await asyncio.wait_for(anext(events), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield b": waiting\n\n"
                    continue
                self._clock.note(event)
                for choice in builders[event.answer].chunks(event):
                    yield _server_sent(self.chunk_type(**self._head, choices=[choice]))
        except StopAsyncIteration:
            if self.request.include_usage:
                ending = self._ending(builders)
                yield _server_sent(self.chunk_type(**self._head, choices=[], **ending))
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            yield _server_sent(error.body())

    def _ending(self, builders: Mapping[Answer, AnyBuilder]) -> dict[str, Any]:
        answers, n = list(builders), self.request.n or 1
        prompts = [answers[i : i + n] for i in range(0, len(answers), n)]
        usage = usage_of(prompts, sum(builder.n_reasoning for builder in builders.values()))
        return {"usage": usage, "timings": self._clock.timings(usage)}


def json_response(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(msgspec.json.encode(value), 200, headers, "application/json")


def _server_sent(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


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


LEAST_LOGPROB = -9999.0  # in place of -inf, which JSON does not have


async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer a conversation, `n` times."""
    return await ChatExchange(http.app.state.service, await read_body(http)).respond(http.receive)


async def create_completion(http: HttpRequest) -> Response:
    """Continue texts or token ids, each `n` times."""
    return await CompletionExchange(http.app.state.service, await read_body(http)).respond(http.receive)


class ChatExchange(Exchange[ChatRequest]):
    """A chat completion."""

    request_type, whole_type, chunk_type = ChatRequest, ChatCompletion, ChatCompletionChunk
    _plan: ToolPlan

    @property
    def has_grammar(self) -> bool:
        return super().has_grammar or needs_grammar(self.request)

    def engine_requests(self) -> list[Request]:
        request, self._plan = prepare_chat(self.service.model, self.request, self.params)
        return with_seeds(request, self.n_answers)

    def choice_builder(self, index: int, decoding: Decoding) -> "_ChatChoiceBuilder":
        return _ChatChoiceBuilder(index, self.service.model, self.request, self._plan, decoding)


class CompletionExchange(Exchange[CompletionRequest]):
    """A completion of texts or token ids."""

    request_type, whole_type, chunk_type = CompletionRequest, TextCompletion, TextCompletion

    @property
    def n_answers(self) -> int:
        return len(self.request.prompts()) * super().n_answers

    def engine_requests(self) -> list[Request]:
        requests = [Request(prompt, self.params) for prompt in self.request.prompts()]
        return [one for request in requests for one in with_seeds(request, self.request.n or 1)]

    def choice_builder(self, index: int, decoding: Decoding) -> "_CompletionChoiceBuilder":
        return _CompletionChoiceBuilder(index, self.service.model, self.request, decoding)


def with_seeds(request: Request, n: int) -> list[Request]:
    """Return a request n times, with consecutive seeds."""
    seed = request.params.seed
    first = secrets.randbelow(RANDOM_SEED) if seed is None else seed
    return [
        replace(request, params=replace(request.params, seed=(first + i) % RANDOM_SEED)) for i in range(n)
    ]


class _ChatChoiceBuilder:
    """Builds one choice of a chat completion."""

    def __init__(
        self, index: int, model: Model, chat: ChatRequest, plan: ToolPlan, decoding: Decoding
    ) -> None:
        self._index = index
        self._model = model
        self._chat = chat
        self._answer = decoding.answer
        self._logprobs: list[SampledLogprob] = []
        self._is_first = True
        self._builder = message_builder(chat, plan, decoding.answer)
        self._builder.skip("".join(model.token_texts(chat.prefix_tokens or [])))

    @property
    def n_reasoning(self) -> int:
        """Number of tokens of reasoning so far."""
        return self._builder.n_reasoning

    def chunks(self, event: AnswerEvent) -> Iterator[ChatChunkChoice]:
        """Yield a choice for each delta of an event; the first has what is known of the token."""
        deltas = self._builder.deltas(event.piece, event.finish_reason)
        if self._is_first:
            deltas.insert(0, MessageDelta(role="assistant", content=""))
            self._is_first = False
        is_token = event.piece.token is not None and not event.piece.is_end_token
        if is_token and not deltas:
            deltas = [MessageDelta()]
        choices = [ChatChunkChoice(index=self._index, delta=delta) for delta in deltas]
        if is_token:
            self._describe_token(event.piece, choices[0])
        yield from choices
        if event.finish_reason is not None:
            reason = self._builder.finish_reason
            yield ChatChunkChoice(index=self._index, delta=MessageDelta(), finish_reason=reason)

    def whole(self) -> ChatChoice:
        """Return the whole choice."""
        return ChatChoice(
            index=self._index,
            message=self._builder.message(),
            logprobs=ChatLogprobs(content=self._logprobs) if self._chat.logprobs else None,
            finish_reason=self._builder.finish_reason,
            k=self._answer.k,
            tokens=self._answer.tokens if self._chat.return_tokens else UNSET,
        )

    def _describe_token(self, piece: Piece, choice: ChatChunkChoice) -> None:
        """Add what is known of a token to a choice of a chunk."""
        assert piece.token is not None
        choice.k = [piece.k]
        if self._chat.return_tokens:
            choice.tokens = [piece.token]
        if piece.logprob is not None:
            top = [token_logprob(self._model, *pair) for pair in piece.top_logprobs]
            sampled = token_logprob(self._model, piece.token, piece.logprob)
            entry = SampledLogprob(
                token=sampled.token, logprob=sampled.logprob, bytes=sampled.bytes, top_logprobs=top
            )
            self._logprobs.append(entry)
            choice.logprobs = ChatLogprobs(content=[entry])


def token_logprob(model: Model, token: int, logprob: float) -> TokenLogprob:
    """Return a token's text, bytes and log-probability."""
    data = model.weights.piece(token)
    return TokenLogprob(
        token=data.decode("utf-8", "replace"), logprob=max(logprob, LEAST_LOGPROB), bytes=list(data)
    )


class _CompletionChoiceBuilder:
    """Builds one choice of a completion, piece by piece in a stream."""

    n_reasoning = 0

    def __init__(self, index: int, model: Model, completion: CompletionRequest, decoding: Decoding) -> None:
        self._index = index
        self._model = model
        self._completion = completion
        self._prompt: Sequence[int] = decoding.prompt if completion.echo else ()
        self._only_echo = bool(completion.echo) and completion.token_limit == 0
        self._length = 0  # of the tokens that were sent, in characters
        self._choice = self._empty()

    def chunks(self, event: AnswerEvent) -> Iterator[CompletionChoice]:
        """Add an event to the choice; yield it in a stream."""
        choice = self._choice
        if self._prompt:
            self._add_prompt(event)
        if not self._only_echo:
            self._add_piece(event)
        choice.finish_reason = event.finish_reason
        if self._completion.stream:
            yield self.whole()
            self._choice = self._empty()

    def whole(self) -> CompletionChoice:
        """Return what was added since the last chunk."""
        if (logprobs := self._choice.logprobs) is not None:
            *offsets, self._length = accumulate(map(len, logprobs.tokens), initial=self._length)
            logprobs.text_offset = offsets
        return self._choice

    def _empty(self) -> CompletionChoice:
        choice = CompletionChoice(index=self._index, text="", k=[])
        if self._completion.return_tokens:
            choice.tokens = []
        if self._completion.logprobs is not None:
            choice.logprobs = CompletionLogprobs(
                tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[]
            )
        return choice

    def _add_prompt(self, event: AnswerEvent) -> None:
        self._choice.text += "".join(self._model.token_texts(self._prompt))
        if self._completion.logprobs is not None:
            answer = event.answer
            tops = answer.prompt_top_logprobs
            for token, logprob, top in zip(self._prompt, answer.prompt_logprobs, tops, strict=True):
                self._add_logprob(token, logprob, top)
        self._prompt = ()

    def _add_piece(self, event: AnswerEvent) -> None:
        piece = event.piece
        self._choice.text += piece
        if piece.token is None:
            return
        if piece.logprob is not None:  # also of the end: lm-eval takes the last entry for the generated one
            self._add_logprob(piece.token, piece.logprob, piece.top_logprobs)
        if not piece.is_end_token:
            assert self._choice.k is not UNSET
            self._choice.k.append(piece.k)
            if self._choice.tokens is not UNSET:
                self._choice.tokens.append(piece.token)

    def _add_logprob(self, token: int, logprob: float | None, top: Sequence[tuple[int, float]]) -> None:
        """Add a token with the most probable ones of its step, including itself."""
        logprobs = self._choice.logprobs
        assert logprobs is not None
        own = token_logprob(self._model, token, logprob or 0.0)
        value = None if logprob is None else own.logprob
        logprobs.tokens.append(own.token)
        logprobs.token_logprobs.append(value)
        entries = [token_logprob(self._model, *pair) for pair in top]
        best = {entry.token: entry.logprob for entry in entries}
        logprobs.top_logprobs.append({own.token: value, **best} if value is not None and best else None)
