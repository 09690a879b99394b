"""POST /v1/chat/completions and /v1/completions."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import UNSET
from starlette.responses import Response

from mink_local.generation.answer import Answer, FinishReason, Piece, TopLogprobs
from mink_local.generation.model import Model
from mink_local.generation.text import text_decoder
from mink_local.generation.tool_calls import ToolCallDelta, merged
from mink_local.serve.bodies import Timings, TokenUsage
from mink_local.serve.builder import ResponseBuilder, server_sent
from mink_local.serve.completions.bodies import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    CompletionChoice,
    CompletionLogprobs,
    FunctionCall,
    MessageDelta,
    ResponseToolCall,
    TextCompletion,
    TokenLogprob,
)
from mink_local.serve.exchange import Exchange
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.service import Service

LEAST_LOGPROB = -9999.0  # in place of -inf, which JSON does not have

Score = tuple[int, float | None, TopLogprobs]  # a token with its log-probability and the most probable ones


async def create_chat_completion(service: Service, chat: ChatRequest) -> Response:
    """Answer a conversation."""
    return await Exchange(service, chat, _ChatBuilder).respond()


async def create_completion(service: Service, completion: CompletionRequest) -> Response:
    """Continue texts."""
    return await Exchange(service, completion, _CompletionBuilder).respond()


class _Text:
    """The length of a text whose tokens come one by one."""

    def __init__(self) -> None:
        self.length = 0
        self._decoder = text_decoder()

    def add(self, piece: bytes) -> None:
        self.length += len(self._decoder.decode(piece))


class _ChoicesBuilder(ResponseBuilder):
    """Answers as choices: in a stream what each has grown by, else all of it.

    Attributes:
        whole_type: The type of a response that is not streamed.
        chunk_type: The type of a stream's chunks.
    """

    whole_type: ClassVar[Any]
    chunk_type: ClassVar[Any]

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._pieces: dict[Answer, list[Piece]] = {answer: [] for answer in self.answers}
        self._begun: dict[Answer, _Text] = {}  # with what was taken
        self._common = {
            "id": f"{self.whole_type.id_prefix}-{self.head.request_id}",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": self.head.fingerprint,
        }

    def add(self, answer: Answer, piece: Piece) -> None:
        self._pieces[answer].append(piece)

    def take(self, answer: Answer) -> bytes:
        # Text that may begin a tool call is held back.
        if not any(p.reasoning or p.content or p.tool_calls or p.finish_reason for p in self._pieces[answer]):
            return b""
        return server_sent(self.chunk_type(**self._common, choices=[self._choice(answer)]))

    def end(self, usage: TokenUsage, timings: Timings) -> bytes:
        options, last = self.request.stream_options, b""
        if options is not None and options.include_usage:
            last = server_sent(self.chunk_type(**self._common, choices=[], usage=usage, timings=timings))
        return last + b"data: [DONE]\n\n"

    def whole(self, usage: TokenUsage, timings: Timings) -> Any:
        taken = [self._choice(answer) for answer in self.answers]
        return self.whole_type(**self._common, choices=taken, usage=usage, timings=timings)

    def _choice(self, answer: Answer) -> Any:
        """Return a choice, and start its next chunk."""
        pieces, self._pieces[answer] = self._pieces[answer], []
        sampled = [piece for piece in pieces if piece.token is not None and not piece.is_end_token]
        choice = self._made(
            answer,
            pieces,
            index=self.answers.index(answer),
            k=[piece.k for piece in sampled],
            tokens=[piece.token for piece in sampled] if self.request.return_tokens else UNSET,
        )
        self._begun.setdefault(answer, _Text())
        return choice

    @abstractmethod
    def _made(self, answer: Answer, pieces: Sequence[Piece], **common: Any) -> Any:
        """Return pieces of an answer as the endpoint's choice."""


class _ChatBuilder(_ChoicesBuilder):
    whole_type, chunk_type = ChatCompletion, ChatCompletionChunk

    def _made(self, answer: Answer, pieces: Sequence[Piece], **common: Any) -> ChatChoice | ChatChunkChoice:
        common["finish_reason"] = message_finish_reason(pieces[-1].finish_reason, answer)
        if self.request.logprobs:  # not of the token that ends the answer
            entries = [self._entry(*score) for score in _scores(pieces)[: len(common["k"])]]
            common["logprobs"] = ChatLogprobs(content=entries)
        if not self.request.stream:
            return ChatChoice(message=whole_message(pieces), **common)
        delta = message_delta(pieces)
        delta.role = UNSET if answer in self._begun else "assistant"
        return ChatChunkChoice(delta=delta, **common)

    def _entry(self, token: int, logprob: float | None, top: TopLogprobs) -> TokenLogprob:
        entry = token_logprob(self.model, token, logprob)
        entry.top_logprobs = [token_logprob(self.model, *pair) for pair in top]
        return entry


class _CompletionBuilder(_ChoicesBuilder):
    whole_type, chunk_type = TextCompletion, TextCompletion

    @property
    def is_long(self) -> bool:
        return bool(self.request.echo) and len(self._begun) < len(self.answers)

    def _made(self, answer: Answer, pieces: Sequence[Piece], **common: Any) -> CompletionChoice:
        prompt = answer.prompt if self.request.echo and answer not in self._begun else ()
        logprobs = None
        if self.request.logprobs is not None:
            scores = zip(prompt, answer.prompt_logprobs, answer.prompt_top_logprobs, strict=False)
            logprobs = self._described(answer, [*scores, *_scores(pieces)])
        text = "".join([*self.model.token_texts(prompt), *pieces])
        return CompletionChoice(
            text=text, logprobs=logprobs, finish_reason=pieces[-1].finish_reason, **common
        )

    def _described(self, answer: Answer, scores: Sequence[Score]) -> CompletionLogprobs:
        """Return the log-probabilities, each token with the most probable ones of its step and itself."""
        described = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        text = self._begun.setdefault(answer, _Text())
        for token, logprob, top in scores:
            own = token_logprob(self.model, token, logprob)
            best = {one.token: one.logprob for one in (token_logprob(self.model, *pair) for pair in top)}
            described.tokens.append(own.token)
            described.token_logprobs.append(own.logprob)
            described.top_logprobs.append({own.token: own.logprob, **best} if best else None)
            described.text_offset.append(text.length)
            text.add(self.model.weights.piece(token))
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


def message_delta(pieces: Sequence[Piece]) -> MessageDelta:
    """Return what pieces of an answer add to its message, perhaps nothing."""
    message = MessageDelta(content="".join(piece.content for piece in pieces) or UNSET)
    if reasoning := "".join(piece.reasoning for piece in pieces):
        message.reasoning_content = message.reasoning = reasoning
    # Clients take one entry of a call from a chunk.
    if calls := [_call_delta(delta) for delta in merged(d for piece in pieces for d in piece.tool_calls)]:
        message.tool_calls = calls
    return message


def _call_delta(delta: ToolCallDelta) -> ResponseToolCall:
    call = ResponseToolCall(index=delta.index, function=FunctionCall(arguments=delta.arguments))
    if delta.id and delta.name:
        call.id, call.type, call.function.name = delta.id, "function", delta.name
    return call


def whole_message(pieces: Sequence[Piece]) -> AssistantMessage:
    """Return the message of an answer, given all of its pieces."""
    delta = message_delta(pieces)
    calls = delta.tool_calls or []
    for call in calls:
        call.index = UNSET
    return AssistantMessage(
        content=delta.content or (None if calls else ""),
        reasoning_content=delta.reasoning_content,
        reasoning=delta.reasoning,
        tool_calls=delta.tool_calls,
    )


def message_finish_reason(reason: FinishReason | None, answer: Answer) -> str | None:
    """Return why a message has ended, given why its answer has: "tool_calls" if with calls."""
    has_called = answer.tool_calls and not answer.has_cut_call
    return "tool_calls" if reason == "stop" and has_called else reason
