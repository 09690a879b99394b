"""Why a request is refused: a status, and a body in OpenAI's form or Anthropic's."""

import re
from collections.abc import Mapping
from typing import Any

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
        """Return the JSON object of the response; see `bodies.ErrorBody`."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": {**error, **self.details}}
