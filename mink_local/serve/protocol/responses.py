"""Response bodies and errors; the OpenAPI document and docs/mink-serve-api.md are generated from them."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from mink_local.errors import MinkError

_ANTHROPIC = {
    "authentication_error": "authentication_error",
    "permission_error": "permission_error",
    "rate_limit_error": "rate_limit_error",
    "server_error": "api_error",
    "unavailable_error": "overloaded_error",
}


class ApiError(MinkError):
    """A request is refused; the message says what is wrong and what to do.

    Args:
        status: HTTP status, 400 to 599.
        message: One sentence.
        param: Path of the invalid field, such as `messages[0].content`.
        code: Short name of the case, for programs.
        kind: The body's `type`.
        headers: Response headers, such as Retry-After.
        details: Further fields of the body's `error`, such as `n_ctx`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = dict(headers or {})
        self.details = dict(details or {})

    def about(self, param: str) -> "ApiError":
        """Return the same error about a field of another name."""
        message = re.sub(rf"(?<!\w){re.escape(str(self.param))}(?!\w)", lambda _: param, str(self))
        return ApiError(
            self.status,
            message,
            param=param,
            code=self.code,
            kind=self.kind,
            headers=self.headers,
            details=self.details,
        )

    def as_anthropic(self) -> dict[str, Any]:
        """Return the JSON object of the response of `/v1/messages`."""
        kind = "not_found_error" if self.status == 404 else _ANTHROPIC.get(self.kind, "invalid_request_error")
        return {"type": "error", "error": self.body()["error"] | {"type": kind}}

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the response; see `responses.ErrorBody`."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": {**error, **self.details}}


class Output(Struct, kw_only=True):
    """Base class of what the server sends; a field that is UNSET is left out."""


class ErrorDetail(Output, kw_only=True):
    """What is wrong with a request.

    Attributes:
        message: What is wrong, and what to do.
        type: `invalid_request_error`, `server_error`, …
        param: Path of the invalid field.
        code: Short name of the case, for programs.
        n_prompt_tokens: Length of a prompt that is too long.
        n_ctx: Tokens that a prompt and its answer share, if the prompt is too long.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class ErrorBody(Output, kw_only=True):
    """The body of every response with a status of 400 or more."""

    error: ErrorDetail


class PromptTokensDetails(Output, kw_only=True):
    """Details of a prompt's tokens.

    Attributes:
        cached_tokens: Tokens that were in the KV cache already.
    """

    cached_tokens: int


class CompletionTokensDetails(Output, kw_only=True):
    """Details of an answer's tokens.

    Attributes:
        reasoning_tokens: Tokens of reasoning.
    """

    reasoning_tokens: int


class TokenUsage(Output, kw_only=True):
    """Numbers of tokens; a prompt with several answers counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Timings(Output, kw_only=True):
    """Tokens and milliseconds before (`prompt`) and after the first token (`predicted`)."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


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


class ModelMeta(Output, kw_only=True):
    """The model behind an id, and how it is sampled.

    Attributes:
        n_ctx: Tokens that a prompt and its answer share.
        n_ctx_train: Tokens that the model was trained for.
        ignores_client_sampling: Whether `sampler` and `temperature` override what a client sends.
    """

    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    sampler: str
    temperature: float
    ignores_client_sampling: bool


class ModelEntry(Output, kw_only=True):
    """A model id."""

    id: str
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    display_name: str
    created: int
    owned_by: str = "mink-local"
    max_model_len: int
    meta: ModelMeta


class ModelList(Output, kw_only=True):
    """All model ids, the model's own name first."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class TokenPiece(Output, kw_only=True):
    """A token with its text, or with its bytes if they are no whole character."""

    id: int
    piece: str | list[int]


class TokenizedText(Output, kw_only=True):
    """The tokens of a text; objects with `with_pieces`."""

    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int


class DetokenizedText(Output, kw_only=True):
    """The text of token ids, by llama-server's and vLLM's names."""

    content: str
    prompt: str


class TokenizerInfo(Output, kw_only=True):
    """The special tokens and the chat template."""

    bos_token: str
    eos_token: str
    chat_template: str | None


class InputTokens(Output, kw_only=True):
    """The number of tokens of a conversation's prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Health(Output, kw_only=True):
    """The state of a server that works."""

    status: Literal["ok"] = "ok"


class RecordedToken(Output, kw_only=True):
    """A token of an answer.

    Attributes:
        k: Number of candidates that it was sampled from.
    """

    id: int
    text: str
    k: int


class RecordedAnswer(Output, kw_only=True):
    """An answer, and how it was sampled.

    Attributes:
        prompt: Token ids of the prompt.
        prompt_text: The prompt as the model saw it, with its control tokens.
        finish_reason: `stop` or `length`; null if the client left.
    """

    prompt: list[int]
    prompt_text: str
    sampler: str
    temperature: float
    tokens: list[RecordedToken]
    finish_reason: str | None


class RecordedRequest(Output, kw_only=True):
    """One of the last requests, with its answers, at most four."""

    model: str
    created: int
    answers: list[RecordedAnswer]


class SlotState(Output, kw_only=True):
    """A slot of the engine.

    Attributes:
        n_answers: Number of answers that share it, since they have the same tokens so far.
        n_cached: Tokens in its KV cache.
        n_pending: Tokens still to be evaluated, of a prompt or one of an answer.
        n_generated: Tokens of its answer so far.
    """

    id: int
    is_processing: bool
    n_answers: int
    n_cached: int
    n_pending: int
    n_generated: int


class Candidate(Output, kw_only=True):
    """A token that the model might have sampled.

    Attributes:
        rank: Counts from 1.
        text: What it adds to the answer: nothing, if it is the beginning of a character.
        p: At temperature 1, of the whole vocabulary.
        ends: Whether it ends the answer.
    """

    rank: int
    id: int
    text: str
    logit: float
    p: float
    ends: bool


class Cut(Output, kw_only=True):
    """The cut of a sampler at each temperature.

    Attributes:
        first: Rank of the first candidate that it keeps, from 1; above 1 with `typical` and `xtc` only.
        k: Number of candidates that it keeps, from that rank on.
        members: For a chain, the number of candidates left after each of its cuts.
        weight: Sum of `exp((logit - largest) / temperature)` over the candidates.
    """

    sampler: str
    first: list[int]
    k: list[int]
    members: list[list[int]]
    weight: list[float]


class StepCandidates(Output, kw_only=True):
    """The answer of `POST /candidates`.

    Attributes:
        prompt_tokens: Number of tokens before the step.
        sampled: The token that the request names.
        curve: Ranks, evenly spaced on a logarithmic axis over the whole vocabulary, and their logits.
        cliff: Number of candidates before the largest weighted drop.
        entropy: Of the probabilities at temperature 1, in bits.
    """

    n_vocab: int
    prompt_tokens: int
    temperatures: list[float]
    candidates: list[Candidate]
    sampled: Candidate | None
    curve: list[tuple[int, float]]
    cliff: int
    entropy: float
    cuts: list[Cut]
