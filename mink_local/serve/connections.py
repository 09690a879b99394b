"""Connections: what each is doing, how long it may do that, and how many there may be."""

import asyncio
import enum
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from mink_local.serve import request_log
from mink_local.serve.bodies import ApiError

if sys.platform != "win32":
    import resource

MAX_REQUESTS = 512  # in progress
MAX_IDLE = 256  # connections without a request in progress
BACKLOG = 128  # connections that are accepted before any of them is looked at
READ_SIZE = 32 << 10  # bytes of a body that are read at a time: 256 KiB of small chunks take a second
HEAD_SIZE = 32 << 10  # bytes of a request's head
HEAD_SECONDS = 10.0
UNREAD_SECONDS = 10.0  # for the rest of a body that nobody reads
WRITE_SECONDS = 60.0  # for a client to read a full buffer, or the end of its last response
IDLE_SECONDS = 75  # more than clients keep idle connections, so that they close first


class State(enum.Enum):
    """What a connection is doing."""

    HEAD = "sending the head of a request"
    REQUEST = "sending a body that an endpoint reads, or waiting for the response"
    STALLED = "not reading a response"
    UNREAD = "sending the body of a request that has its response already"
    IDLE = "resting after a response"
    CLOSING = "reading the end of its last response"
    GONE = "nothing more"


_AT_WORK = frozenset({State.REQUEST, State.STALLED, State.GONE})  # states that make nobody else wait


class Connection(H11Protocol):
    """A client's connection, which may stay in any state but REQUEST for a limited time.

    An endpoint limits the time for a body and sees that its client has left. While too many connections have
    no request in progress, one is closed: the oldest of the address that has most of them, unless its next
    request has just come.
    """

    state = State.GONE
    _since = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(State.GONE)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.max_size = READ_SIZE  # type: ignore[attr-defined]
        self._look()

    def eof_received(self) -> None:
        self.transport.close()  # as asyncio does next: the client has left
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look()

    def _look(self) -> None:
        """Enter another state if this connection's has changed."""
        if self.state is not (now := self._present()):
            self._enter(now)

    def _present(self) -> State:
        if self.transport.is_closing():
            return State.CLOSING
        if self.cycle is not None and not self.cycle.response_complete:
            return State.STALLED if self.flow.write_paused else State.REQUEST
        if self.conn.their_state is h11.SEND_BODY:
            return State.UNREAD
        return State.HEAD if self.cycle is None or self.conn.trailing_data[0] else State.IDLE

    def _enter(self, state: State) -> None:
        """Limit the time in a state, and make room if there are too many connections."""
        self.state, self._since = state, self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        seconds = {
            State.HEAD: HEAD_SECONDS,
            State.STALLED: WRITE_SECONDS,
            State.UNREAD: UNREAD_SECONDS,
            State.IDLE: IDLE_SECONDS,
            State.CLOSING: WRITE_SECONDS,
        }.get(state)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._abort)
        if state not in _AT_WORK:
            self._make_room()

    def _make_room(self) -> None:
        resting = [
            one for one in self.connections if isinstance(one, Connection) and one.state not in _AT_WORK
        ]
        if len(resting) > min(MAX_IDLE, file_limit() // 5):
            counts = Counter(one._address for one in resting)
            resting.sort(key=lambda one: (-counts[one._address], one._since))
            next((one for one in resting if not one._has_sent()), resting[0])._abort()

    def _has_sent(self) -> bool:
        """Whether the client has sent something that nobody has looked at yet, perhaps a health check."""
        with suppress(OSError), self.transport.get_extra_info("socket").dup() as twin:
            return bool(twin.recv(1, socket.MSG_PEEK))
        return False

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _abort(self) -> None:
        self._enter(State.GONE)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with an error like all others, and close the connection."""
        error = ApiError(
            400, f"this is not HTTP/1.1, which clients of http:// addresses speak: {msg}", code="invalid_http"
        )
        body = msgspec.json.encode(error.body())
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": request_log.begin("", self._address),
        }
        response = h11.Response(status_code=400, headers=[*headers.items()], reason=b"Bad Request")
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: Java's clients offer HTTP/2 with each request."""

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is h11.DONE and not self.transport.is_closing():
            # uvicorn stops reading if the next request comes early, and would not see that the client leaves
            if len(self.conn.trailing_data[0]) > HEAD_SIZE:
                self._abort()
            else:
                self.flow.resume_reading()


UVICORN: Mapping[str, Any] = {
    "http": Connection,
    "ws": "none",
    "backlog": BACKLOG,
    "server_header": False,
    "proxy_headers": False,  # anybody can send them
    "h11_max_incomplete_event_size": HEAD_SIZE,
    "timeout_keep_alive": IDLE_SECONDS,
    "log_config": None,
    "access_log": False,
    "lifespan": "off",
}


def most_requests() -> int:
    """Return how many requests may be in progress, so that files are left for health checks."""
    return min(MAX_REQUESTS, 2 * file_limit() // 5)


def file_limit() -> int:
    """Return how many files the process may have open; connections are files."""
    limit = -1
    if sys.platform != "win32":
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit < 0 else limit


def raise_file_limit() -> None:
    """Let the process have as many files as it may allow itself: systemd's default is 1,024 of 524,288."""
    if sys.platform != "win32":
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        for wanted in (most, min(most, 10_240)):  # macOS allows fewer than it says
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
                return
