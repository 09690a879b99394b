"""POST /v1/chat/completions and /v1/completions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar, Literal

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from mink_local.generation.answer import Answer, Piece, TopLogprobs
from mink_local.generation.model import Model
from mink_local.serve.endpoints.exchange import Exchange, Form, ResponseHead, server_sent
from mink_local.serve.protocol.fields import ChatRequest, CompletionRequest
from mink_local.serve.protocol.messages import (
    message_delta,
    message_finish_reason,
    whole_message,
)
from mink_local.serve.protocol.responses import (
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
from mink_local.serve.service import Service

LEAST_LOGPROB = -9999.0  # in place of -inf, which JSON does not have

Score = tuple[int, float | None, TopLogprobs]  # a token with its log-probability and the most probable ones


async def create_chat_completion(service: Service, chat: ChatRequest) -> Response:
    """Answer a conversation."""
    return await Exchange(service, chat, _ChatForm).respond()


async def create_completion(service: Service, completion: CompletionRequest) -> Response:
    """Continue texts."""
    return await Exchange(service, completion, _CompletionForm).respond()


class _ChoicesForm(Form):
    """Answers as choices.

    Attributes:
        whole_type: The type of a response that is not streamed.
        chunk_type: The type of a stream's chunks.
        choice_type: What makes the choice of an answer.
    """

    whole_type: ClassVar[Any]
    chunk_type: ClassVar[Any]
    choice_type: "ClassVar[type[_Choice]]"

    def __init__(self, model: Model, request: Any, head: ResponseHead, answers: Sequence[Answer]) -> None:
        super().__init__(model, request, head, answers)
        self._choices = {
            answer: self.choice_type(i, model, request, answer) for i, answer in enumerate(answers)
        }
        self._common = {
            "id": f"{self.whole_type.id_prefix}-{head.request_id}",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }

    @property
    def is_long(self) -> bool:
        return any(choice.is_long for choice in self._choices.values())

    def add(self, answer: Answer, piece: Piece) -> None:
        self._choices[answer].add(piece)

    def take(self, answer: Answer) -> bytes:
        choice = self._choices[answer]
        return server_sent(self.chunk_type(**self._common, choices=[choice.take()])) if choice.shows else b""

    def end(self, usage: TokenUsage, timings: Timings) -> bytes:
        options, last = self.request.stream_options, b""
        if options is not None and options.include_usage:
            last = server_sent(self.chunk_type(**self._common, choices=[], usage=usage, timings=timings))
        return last + b"data: [DONE]\n\n"

    def whole(self, usage: TokenUsage, timings: Timings) -> Any:
        taken = [choice.take() for choice in self._choices.values()]
        return self.whole_type(**self._common, choices=taken, usage=usage, timings=timings)


class _Choice(ABC):
    """One choice: what was generated since the last chunk of a stream, or all of it."""

    def __init__(self, index: int, model: Model, request: Any, answer: Answer) -> None:
        self._index = index
        self._model = model
        self._request = request
        self._answer = answer
        self._pieces: list[Piece] = []

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

    _request: ChatRequest

    def __init__(self, index: int, model: Model, chat: ChatRequest, answer: Answer) -> None:
        super().__init__(index, model, chat, answer)
        self._role: Literal["assistant"] | UnsetType = "assistant"  # in the first chunk

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

    _request: CompletionRequest

    def __init__(self, index: int, model: Model, completion: CompletionRequest, answer: Answer) -> None:
        super().__init__(index, model, completion, answer)
        self._prompt: Sequence[int] = answer.prompt if completion.echo else ()  # in the first chunk
        self._length = 0  # of the tokens that were taken, in characters

    @property
    def is_long(self) -> bool:
        return bool(self._prompt)

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


class _ChatForm(_ChoicesForm):
    whole_type, chunk_type, choice_type = ChatCompletion, ChatCompletionChunk, _ChatChoice


class _CompletionForm(_ChoicesForm):
    whole_type, chunk_type, choice_type = TextCompletion, TextCompletion, _CompletionChoice


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
