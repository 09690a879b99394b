"""Bodies of responses, and the errors that become one.

The OpenAPI document and docs/mink-serve-api.md are generated from these types.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from mink_local.errors import MinkError
from mink_local.generation.request import SamplingParams
from mink_local.sandbox import ChildStartError

Json = dict[str, Any]

_ANTHROPIC = {
    "authentication_error": "authentication_error",
    "permission_error": "permission_error",
    "rate_limit_error": "rate_limit_error",
    "server_error": "api_error",
    "unavailable_error": "overloaded_error",
}


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
        """Return the JSON object of the response; see `ErrorBody`."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": {**error, **self.details}}


@contextmanager
def api_errors(field: str | None = None, *, default: str | None = None) -> Iterator[None]:
    """Turn what is wrong with a request into an ApiError.

    Args:
        field: The field that it is about; None if errors name theirs.
        default: The field of those that name none.
    """
    try:
        yield
    except ApiError:
        raise
    except ChildStartError as error:
        raise ApiError(500, str(error), kind="server_error") from None
    except (ValueError, MinkError) as error:
        message = f"{field}: {error}" if field else str(error)
        raise ApiError(400, message, param=field or getattr(error, "place", default)) from None


@dataclass(frozen=True)
class ResponseHead:
    """What is known of a response before there are answers.

    Attributes:
        request_id: Identifies the request.
        created: In seconds since 1970.
        model: The model id that was asked for.
        fingerprint: Identifies the model and the versions.
        params: How the answers are sampled.
        client: The name of the key that was used; "" without keys.
    """

    request_id: str
    created: int
    model: str
    fingerprint: str
    params: SamplingParams
    client: str


class TokenUsage(Output, kw_only=True):
    """Numbers of tokens; a prompt with several answers counts once.

    Attributes:
        prompt_tokens_details: `cached_tokens`: those that were in the KV cache already.
        completion_tokens_details: `reasoning_tokens`: those of reasoning.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class Timings(Output, kw_only=True):
    """Tokens and milliseconds before (`prompt`) and after the first token (`predicted`)."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
