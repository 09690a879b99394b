"""The log: a line for each request with what it asked for and got, and lines about the server itself."""

import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from mink_local.cli import PrintableFormatter

_SAFE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")  # of a client

_LONGEST_PATH = 200  # characters
_REPEAT_SECONDS = 60  # in which what repeats is written once
_TEXT = "%(asctime)s %(levelname)s %(message)s"

_fields: ContextVar[dict[str, object]] = ContextVar("fields")
request_id: ContextVar[str] = ContextVar("request_id", default="0")
"""The id of the current request: what follows `req_` in its line and in the answer's id."""

POLLED = frozenset({"/health", "/ready", "/metrics"})
"""Paths that machines ask for every few seconds, however busy the server is."""

log = logging.getLogger("mink_local.serve")


def set_up(log_format: str) -> None:
    """Write the log to standard error, as lines of text or JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else PrintableFormatter(_TEXT))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    log.setLevel(logging.INFO)
    logging.getLogger("asyncio").addFilter(_without_repeats)


def _without_repeats(record: logging.LogRecord) -> bool:
    """Return whether to write a record of asyncio's: it says thousands of times that there are no files."""
    if "socket.accept() out of system resource" in record.getMessage():
        _say_no_files(int(time.monotonic() // _REPEAT_SECONDS))
        return False
    return True


@lru_cache(maxsize=1)
def _say_no_files(_: int) -> None:
    """Say once in a time that connections have to wait."""
    log.warning("connections have to wait: the process has as many open files as it may")


class _JsonFormatter(logging.Formatter):
    """A JSON object for each record, with the fields of a request as its own."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {"time": moment, "level": record.levelname}
        fields |= getattr(record, "request", None) or {"message": super().format(record)}
        return json.dumps(fields)


def say(message: str, **details: object) -> None:
    """Say what happens to the server itself: with a line for each detail, or as one object."""
    if any(isinstance(handler.formatter, _JsonFormatter) for handler in logging.root.handlers):
        log.info(message, extra={"request": {"message": message, **details}})
    else:
        lines = [message, *(f"{name:<11} {value}" for name, value in details.items())]
        print("\n".join(lines), file=sys.stderr, flush=True)


def begin(client_id: str, address: str) -> str:
    """Begin the line of a request, in the context of its task and the tasks that it starts.

    Args:
        client_id: The client's X-Request-Id, or "". It only names the request, as others may choose the same.
        address: Where the request comes from.

    Returns:
        The X-Request-Id of the response: the client's if it is safe to log.
    """
    own = secrets.token_hex(12)
    request_id.set(own)
    is_safe = _SAFE_ID.fullmatch(client_id)
    _fields.set({"address": address, **({"client_id": client_id} if is_safe else {})})
    return client_id if is_safe else f"req_{own}"


def note(**fields: object) -> None:
    """Add fields to the line of the current request, if there is one."""
    _fields.get({}).update(fields)


def write(method: str, path: str, status: int, seconds: float) -> None:
    """Write the line of a request that has ended; what strangers choose is cut."""
    method, path = method[:20], path[:_LONGEST_PATH]
    details = {**_fields.get(), "seconds": round(seconds, 3), "id": f"req_{request_id.get()}"}
    words = " ".join(f"{name}={_plain(value)}" for name, value in details.items())
    is_poll = path in POLLED and (status < 400 or details.get("code") == "loading")
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
