"""Bodies of responses; the OpenAPI document and docs/mink-serve-api.md are generated from these types."""

from msgspec import UNSET, Struct, UnsetType


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
