"""POST /v1/chat/completions and /v1/completions: their responses."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from mink_local.generation.answer import Answer, Loop, Piece, TopLogprobs
from mink_local.generation.format.text import text_decoder
from mink_local.generation.model import Model
from mink_local.serve.bodies import ApiError, Output, Timings, TokenUsage
from mink_local.serve.clients import Client
from mink_local.serve.exchange import Part, ResponseBuilder, respond
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.request.parsing import Parsed
from mink_local.serve.service import Service

LEAST_LOGPROB = -9999.0  # in place of -inf, which JSON does not have

Score = tuple[int, float | None, TopLogprobs]  # a token with its log-probability and the most probable ones


class TokenLogprob(Output, kw_only=True):
    """A token with its log-probability in nats, -9999 for minus infinity.

    Attributes:
        token: Its text; an incomplete character is U+FFFD.
        bytes: Its UTF-8 bytes.
        top_logprobs: The most probable tokens of its step; not for these.
    """

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: "list[TokenLogprob] | UnsetType" = UNSET


class ChatLogprobs(Output, kw_only=True):
    """Log-probabilities of a choice."""

    content: list[TokenLogprob]


class CompletionLogprobs(Output, kw_only=True):
    """Log-probabilities of a choice, one entry a token; the first token of a prompt has none.

    Attributes:
        text_offset: Where in the text each token starts.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class FunctionCall(Output, kw_only=True):
    """A function that is called.

    Attributes:
        name: In a stream only in a call's first piece.
        arguments: JSON, or a piece of it.
    """

    name: str | UnsetType = UNSET
    arguments: str


class ResponseToolCall(Output, kw_only=True):
    """A tool call, or in a stream a piece of one: `id` and `type` come with the first piece.

    Attributes:
        index: Number of the call; in streams only.
    """

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCall


class AnswerMessage(Output, kw_only=True):
    """An answer, or what a chunk adds to one. Reasoning has two names as clients differ in the one they read.

    Attributes:
        content: Null if a whole answer only has tool calls.
    """

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ResponseToolCall] | UnsetType = UNSET


class AnswerChoice(Output, kw_only=True):
    """The fields that the choices of all endpoints have.

    Attributes:
        finish_reason: `stop`, `length`, `tool_calls` or, with `end_loops`, `repetition`; null in a stream
            until the choice's last chunk.
        loops: Where the answer repeats itself, if it does; with its end.
        k: Number of candidates that the sampler kept for each token.
        tokens: Token ids, with `return_tokens`.
    """

    index: int
    finish_reason: str | None = None
    k: list[int] | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET
    loops: list[Loop] | UnsetType = UNSET


class ChatChoice(AnswerChoice, kw_only=True):
    """An answer to a conversation."""

    message: AnswerMessage
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(AnswerChoice, kw_only=True):
    """A piece of an answer to a conversation."""

    delta: AnswerMessage
    logprobs: ChatLogprobs | None = None


class CompletionChoice(AnswerChoice, kw_only=True):
    """A continuation of a prompt, or in a stream a piece of one."""

    text: str
    logprobs: CompletionLogprobs | None = None


class Generated(Output, kw_only=True):
    """The fields that all generated responses have.

    Attributes:
        created: Seconds since 1970.
        system_fingerprint: The same for the same model and versions.
    """

    id_prefix: ClassVar[str] = "chatcmpl"

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: TokenUsage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ChatCompletion(Generated, kw_only=True):
    """The answer of `POST /v1/chat/completions`."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatCompletionChunk(Generated, kw_only=True):
    """A chunk of a streamed answer; the one with `usage` has no choices."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class TextCompletion(Generated, kw_only=True):
    """The answer of `POST /v1/completions`, or a chunk of it."""

    id_prefix: ClassVar[str] = "cmpl"

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class LlamaCompletion(Output, kw_only=True):
    """The answer of `POST /completion`, as llama-server's, or in a stream a piece of it.

    Attributes:
        stop: Whether it has ended; a stream's last piece has the fields below.
        stop_type: `eos`, `word` or `limit`.
        stopping_word: The stop string that ended the answer.
        tokens_evaluated: Length of the prompt.
        tokens_predicted: Length of the answer.
    """

    content: str
    stop: bool
    model: str | UnsetType = UNSET
    stop_type: str | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


async def create_chat_completion(service: Service, client: Client, parsed: Parsed[ChatRequest]) -> Response:
    """Answer a conversation."""
    return await respond(service, client, parsed, ChatBuilder)


async def create_completion(service: Service, client: Client, parsed: Parsed[CompletionRequest]) -> Response:
    """Continue texts."""
    return await respond(service, client, parsed, CompletionBuilder)


async def create_llama_completion(
    service: Service, client: Client, parsed: Parsed[CompletionRequest]
) -> Response:
    """Continue a text, as llama-server does without OpenAI's protocol."""
    if parsed.request.n_answers > 1:
        raise ApiError(400, "n: one text and one answer at a time: use /v1/completions", param="n")
    return await respond(service, client, parsed, LlamaBuilder)


class _Unsent:
    """What a choice has to send next.

    Attributes:
        grown: What its parts have grown by since the last chunk.
        pieces: The steps since then.
        is_first: Whether there was no chunk yet.
        n_characters: Length of the text whose tokens were described.
        n_shown: Length of the text that was shown.
        decoder: Decodes these tokens.
    """

    def __init__(self) -> None:
        self.grown: list[tuple[Part, str]] = []
        self.pieces: list[Piece] = []
        self.is_first = True
        self.n_characters = self.n_shown = 0
        self.decoder = text_decoder()


class ChoicesBuilder(ResponseBuilder):
    """Answers as choices: in a stream what each has grown by, else all of it.

    Attributes:
        whole_type: The type of a response that is not streamed.
        chunk_type: The type of a stream's chunks.
    """

    whole_type: ClassVar[Any]
    chunk_type: ClassVar[Any]

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self.unsent = {answer: _Unsent() for answer in self.answers}
        self._common = {
            "id": f"{self.whole_type.id_prefix}-{self.head.request_id}",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": self.head.fingerprint,
        }

    def grown(self, part: Part, text: str) -> None:
        self.unsent[part.answer].grown.append((part, text))

    def stepped(self, answer: Answer, piece: Piece) -> None:
        unsent = self.unsent[answer]
        unsent.pieces.append(piece)
        if self.request.stream and (unsent.grown or piece.finish_reason):
            self.send(self.chunk_type(**self._common, choices=[self._choice(answer)]))

    def end(self, usage: TokenUsage, timings: Timings) -> None:
        if self.request.stream_options is not None and self.request.stream_options.include_usage:
            self.send(self.chunk_type(**self._common, choices=[], usage=usage, timings=timings))
        self.send(msgspec.Raw(b"[DONE]"))

    def whole(self, usage: TokenUsage, timings: Timings) -> Any:
        taken = [self._choice(answer) for answer in self.answers]
        return self.whole_type(**self._common, choices=taken, usage=usage, timings=timings)

    def _choice(self, answer: Answer) -> Any:
        """Return a choice, and start its next chunk."""
        unsent = self.unsent[answer]
        sampled = [piece for piece in unsent.pieces if piece.token is not None and not piece.is_end_token]
        choice = self.made(
            answer,
            unsent,
            index=self.answers.index(answer),
            k=[piece.k for piece in sampled],
            tokens=[piece.token for piece in sampled] if self.request.return_tokens else UNSET,
            loops=(unsent.pieces[-1].finish_reason and answer.loops) or UNSET,
        )
        unsent.grown, unsent.pieces, unsent.is_first = [], [], False
        return choice

    def placed(
        self, answer: Answer, unsent: _Unsent, text: str, scores: Iterable[Score]
    ) -> Iterator[tuple[Score, int]]:
        """Yield tokens with where in the text they start, without those that a stop string has cut off.

        Args:
            text: What is shown with them.
        """
        unsent.n_shown += len(text)
        is_cut = unsent.pieces[-1].finish_reason == "stop" and isinstance(answer.stopped_by, str)
        for score in scores:
            start = unsent.n_characters
            unsent.n_characters += len(unsent.decoder.decode(self.model.weights.piece(score[0])))
            if start < unsent.n_shown or not is_cut:
                yield score, start

    @abstractmethod
    def made(self, answer: Answer, unsent: _Unsent, **common: Any) -> Any:
        """Return what is unsent of an answer as the endpoint's choice."""


class ChatBuilder(ChoicesBuilder):
    whole_type, chunk_type = ChatCompletion, ChatCompletionChunk

    def made(self, answer: Answer, unsent: _Unsent, **common: Any) -> ChatChoice | ChatChunkChoice:
        reason = unsent.pieces[-1].finish_reason
        common["finish_reason"] = "tool_calls" if reason == "stop" and answer.tool_calls else reason
        if self.request.logprobs:  # not of the token that ends the answer
            scores, text = _scores(unsent.pieces)[: len(common["k"])], "".join(unsent.pieces)
            entries = [self._entry(*score) for score, _ in self.placed(answer, unsent, text, scores)]
            common["logprobs"] = ChatLogprobs(content=entries)
        if not self.request.stream:
            message = AnswerMessage(role="assistant", content=None if answer.tool_calls else "")
            fill(message, [(part, part.text) for part in self.parts[answer]])
            return ChatChoice(message=message, **common)
        delta = AnswerMessage(role="assistant" if unsent.is_first else UNSET)
        fill(delta, unsent.grown, is_chunk=True)
        return ChatChunkChoice(delta=delta, **common)

    def _entry(self, token: int, logprob: float | None, top: TopLogprobs) -> TokenLogprob:
        entry = token_logprob(self.model, token, logprob)
        entry.top_logprobs = [token_logprob(self.model, *pair) for pair in top]
        return entry


class CompletionBuilder(ChoicesBuilder):
    whole_type, chunk_type = TextCompletion, TextCompletion

    @property
    def is_long(self) -> bool:
        return bool(self.request.echo) and any(one.is_first for one in self.unsent.values())

    def made(self, answer: Answer, unsent: _Unsent, **common: Any) -> CompletionChoice:
        pieces, prompt = unsent.pieces, answer.prompt if self.request.echo and unsent.is_first else ()
        logprobs, text = None, "".join([*self.model.token_texts(prompt), *pieces])
        if self.request.logprobs is not None:
            scores = zip(prompt, answer.prompt_logprobs, answer.prompt_top_logprobs, strict=False)
            logprobs = self._described(self.placed(answer, unsent, text, [*scores, *_scores(pieces)]))
        reason = pieces[-1].finish_reason
        return CompletionChoice(text=text, logprobs=logprobs, finish_reason=reason, **common)

    def _described(self, placed: Iterable[tuple[Score, int]]) -> CompletionLogprobs:
        """Return the log-probabilities, each token with the most probable ones of its step and itself."""
        described = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for (token, logprob, top), start in placed:
            own = token_logprob(self.model, token, logprob)
            best = {own.token: own.logprob}
            for other, value in top:
                if (
                    other != token
                ):  # a text that is another's too, as all parts of characters are, gets its id
                    text = token_logprob(self.model, other, value)
                    best[text.token if text.token not in best else f"token_id:{other}"] = text.logprob
            described.tokens.append(own.token)
            described.token_logprobs.append(own.logprob)
            described.top_logprobs.append(best if top else None)
            described.text_offset.append(start)
        return described


class LlamaBuilder(ResponseBuilder):
    """An answer as llama-server's own endpoint gives it."""

    def stepped(self, answer: Answer, piece: Piece) -> None:  # noqa: ARG002
        if piece:
            self.send(LlamaCompletion(content=str(piece), stop=False))

    def end(self, usage: TokenUsage, timings: Timings) -> None:
        last = self.whole(usage, timings)
        last.content = ""
        self.send(last)

    def whole(self, usage: TokenUsage, timings: Timings) -> LlamaCompletion:
        [answer] = self.answers
        is_word = isinstance(answer.stopped_by, str)
        is_cut = answer.finish_reason in ("length", "repetition")
        return LlamaCompletion(
            content=answer.text,
            stop=True,
            model=self.head.model,
            stop_type="limit" if is_cut else "word" if is_word else "eos",
            stopping_word=str(answer.stopped_by) if is_word else "",
            tokens_evaluated=usage.prompt_tokens,
            tokens_predicted=usage.completion_tokens,
            truncated=False,
            timings=timings,
        )


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


def fill(message: AnswerMessage, grown: Sequence[tuple[Part, str]], *, is_chunk: bool = False) -> None:
    """Set the fields of a message, or of what a chunk adds to one, that parts have grown by."""
    reasoning, content = (
        "".join(text for part, text in grown if part.kind == kind) for kind in ("reasoning", "text")
    )
    if reasoning:
        message.reasoning_content = message.reasoning = reasoning
    if content:
        message.content = content
    if calls := [part.call for part, _ in grown if part.call]:
        message.tool_calls = [
            ResponseToolCall(
                index=call.index if is_chunk else UNSET,
                id=call.id,
                type="function",
                function=FunctionCall(name=call.name, arguments=call.arguments),
            )
            for call in calls
        ]
