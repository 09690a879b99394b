"""Bodies of the responses of /v1/chat/completions and /v1/completions."""

from typing import ClassVar, Literal

from msgspec import UNSET, UnsetType

from mink_local.serve.bodies import Output, Timings, TokenUsage


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


class MessageDelta(Output, kw_only=True):
    """What a chunk adds to a message. Reasoning has two names because clients differ in the one they read."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ResponseToolCall] | UnsetType = UNSET


class AssistantMessage(MessageDelta, kw_only=True):
    """An answer; `content` is null if it only has tool calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None


class AnswerChoice(Output, kw_only=True):
    """The fields that the choices of all endpoints have.

    Attributes:
        finish_reason: `stop`, `length` or `tool_calls`; null in a stream until the choice's last chunk.
        k: Number of candidates that the sampler kept for each token.
        tokens: Token ids, with `return_tokens`.
    """

    index: int
    finish_reason: str | None = None
    k: list[int] | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET


class ChatChoice(AnswerChoice, kw_only=True):
    """An answer to a conversation."""

    message: AssistantMessage
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(AnswerChoice, kw_only=True):
    """A piece of an answer to a conversation."""

    delta: MessageDelta
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
