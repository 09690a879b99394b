"""Errors that a client gets: an HTTP status, and the body in which OpenAI's clients look for the reason."""

from collections.abc import Mapping
from typing import Any

from mink_local.errors import MinkError


class ApiError(MinkError):
    """A request is refused; the message says what is wrong and what to do.

    Args:
        status: HTTP status, 400 to 599.
        message: One sentence for a person.
        param: Path of the field at fault, such as `messages[0].content`.
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

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the response."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": {**error, **self.details}}


def not_supported(message: str, param: str | None = None) -> ApiError:
    """Return the error for a part of the protocol that this server does not have; SDKs do not retry it."""
    return ApiError(
        501,
        message,
        param=param,
        code="not_supported",
        kind="not_supported_error",
        headers={"x-should-retry": "false"},
    )
