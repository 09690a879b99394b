"""One line of log for each request: what it asked for, what it got, how long that took."""

import json
import logging
import re
import secrets
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from mink_local.cli import PrintableFormatter

_POLLED = ("/health", "/ready", "/metrics", "/slots")  # every few seconds, by machines

_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")  # of a client

_TEXT = "%(asctime)s %(levelname)s %(message)s"

_fields: ContextVar[dict[str, object]] = ContextVar("fields")
_request_id: ContextVar[str] = ContextVar("request_id", default="0")

log = logging.getLogger("mink_local.requests")


def set_up(log_format: str) -> None:
    """Write the log to standard error, as lines of text or JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else PrintableFormatter(_TEXT))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    log.setLevel(logging.INFO)


class _JsonFormatter(logging.Formatter):
    """A JSON object for each record, with the fields of a request as its own."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {"time": time, "level": record.levelname}
        fields |= getattr(record, "request", None) or {"message": super().format(record)}
        return json.dumps(fields)


def begin(client_id: str) -> str:
    """Begin the line of a request, in the context of its task and the tasks that it starts.

    Args:
        client_id: The client's X-Request-Id, or "". It only names the request, as others may choose the same.

    Returns:
        The X-Request-Id of the response: the client's if it is safe to log.
    """
    request_id = secrets.token_hex(12)
    _request_id.set(request_id)
    is_safe = _SAFE_ID.fullmatch(client_id)
    _fields.set({"client_id": client_id} if is_safe else {})
    return client_id if is_safe else f"req_{request_id}"


def request_id() -> str:
    """Return the id of the current request: what follows `req_` in its line and in the answer's id."""
    return _request_id.get()


def note(**fields: object) -> None:
    """Add fields to the line of the current request, if there is one."""
    _fields.get({}).update(fields)


def write(method: str, path: str, status: int, seconds: float) -> None:
    """Write the line of a request that has ended."""
    details = {**_fields.get(), "seconds": round(seconds, 3), "id": f"req_{request_id()}"}
    words = " ".join(f"{name}={_plain(value)}" for name, value in details.items())
    is_poll = path.removeprefix("/v1") in _POLLED and status < 400
    log.log(
        logging.DEBUG if is_poll else logging.INFO,
        "%s",
        f"{method} {path!r} {status} {words}",
        extra={"request": {"method": method, "path": path, "status": status, **details}},
    )


def _plain(value: object) -> str:
    """Return a value in one word, or in quotes."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' \n"') else text
