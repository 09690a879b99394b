"""Checks on every HTTP request before an endpoint sees it; each refusal has OpenAI's error body.

    app = Guard(Starlette(routes=..., exception_handlers=EXCEPTION_HANDLERS), hosts=AllowedHosts("127.0.0.1"))
    uvicorn.Config(app, **UVICORN)

`Guard` is plain ASGI, because `BaseHTTPMiddleware` would hide from the endpoints that a client has left.
`GuardedProtocol` has the limits that only a connection can keep.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mink_local.errors import MinkError
from mink_local.serve.api_errors import ApiError, not_supported

log = logging.getLogger("mink_local")

MAX_BODY = 4 << 20  # bytes
MAX_DISCARDED = 64 << 20  # bytes of a body that is too large: a client that still sends does not read its 413
MAX_REQUESTS = 512  # at one time; bounds the memory for bodies
MAX_CONNECTIONS = 900  # at one time; most systems allow a process 1024 files
HEAD_SECONDS = 10.0  # for the request line and the headers
BODY_SECONDS = 30.0
WRITE_SECONDS = 60.0  # that a client may leave a full buffer unread
CLIENT_LEFT = 499  # nginx's status for a response that its client did not wait for

PUBLIC = frozenset({"/", "/health", "/v1/health"})  # without a key
NOT_SUPPORTED = re.compile(r"(/v1)?/(embeddings|moderations|rerank|(audio|images)/\w+)")

_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/@\s]+)(:\d{1,5})?")
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def check_start(host: str, keys: Iterable[str]) -> None:
    """Refuse an address that others can reach without a key, and keys that protect nothing.

    Raises:
        MinkError: The address or a key cannot be used.
    """
    keys = list(keys)
    if any(re.fullmatch(r"[!-~]+", key) is None for key in keys):
        raise MinkError("an API key is empty or has other characters than ASCII ones: choose another key")
    if not keys and not _is_loopback(host):
        raise MinkError(
            f"other machines can reach {host or 'all addresses'}: give a key with --api-key, "
            "or listen on 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class AllowedHosts:
    """Names and addresses by which clients may call the server; another name is a sign of DNS rebinding.

    A server that listens on all addresses may be called by any address: only names can be rebound.

    Args:
        bound: The name or address that the server listens on; empty for all addresses.
        others: More names, with or without a port.

    Raises:
        MinkError: One of the names cannot be a host's.
    """

    def __init__(self, bound: str, others: Iterable[str] = ()) -> None:
        self._any_address = bound in ("", "0.0.0.0", "::")
        self._names = set(_LOCAL_HOSTS)
        for name in (f"[{bound}]" if ":" in bound else bound or "localhost", *others):
            if (host := _without_port(name)) is None:
                raise MinkError(f"{name!r} is not the name of a host: give it as in  example.com:8080")
            self._names.add(host)

    def __contains__(self, header: str) -> bool:
        """Return whether the value of a Host header is allowed."""
        host = _without_port(header)
        return host is not None and (host in self._names or (self._any_address and _is_address(host)))


def _without_port(host: str) -> str | None:
    """Return the lower-case name or address of `host[:port]`; None if it is neither."""
    match = _HOST.fullmatch(host)
    return match[1].lower() if match else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """Lets pass the requests that are allowed, each with its whole body read.

    Args:
        app: The endpoints.
        hosts: The names and addresses that the Host header may have.
        origins: The web pages, beside those of this machine, that may use the server: `https://example.com`.
        keys: API keys; without one, everybody may use the server.
        on_response: Called with the path and the status of each response; CLIENT_LEFT if nobody waits for it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: AllowedHosts,
        origins: Iterable[str] = (),
        keys: Iterable[str] = (),
        on_response: Callable[[str, int], None] | None = None,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)
        self._keys = [_digest(key) for key in keys]
        self._on_response = on_response
        self._n_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _Response(send)
        self._n_requests += 1
        try:
            await self._answer(scope, receive, response)
        except ClientDisconnect:
            pass
        except ApiError as error:
            await error_response(error)(scope, receive, response.send)
        except Exception as error:
            log.error("%s %s failed: %s: %s", scope["method"], scope["path"], type(error).__name__, error)
            log.debug("the failure", exc_info=True)
            if response.status is None:
                await error_response(INTERNAL_ERROR)(scope, receive, response.send)
        finally:
            self._n_requests -= 1
            if self._on_response is not None:
                self._on_response(scope["path"], response.status or CLIENT_LEFT)

    async def _answer(self, scope: Scope, receive: Receive, response: "_Response") -> None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        self._check_host(headers)
        if origin := self._checked_origin(headers):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "*"
            response.headers["Vary"] = "Origin"
            if method == "OPTIONS" and "access-control-request-method" in headers:
                await _preflight(headers)(scope, receive, response.send)
                return
        if path not in PUBLIC:
            self._check_key(headers)
            if self._n_requests > MAX_REQUESTS:
                raise ApiError(
                    503,
                    "the server has too many requests: try again later",
                    kind="unavailable_error",
                    headers={"Retry-After": "5"},
                )
        if method == "POST":
            _check_content_type(headers)
            receive = await _with_body(receive)
        await self._app(scope, receive, response.send)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host")  # absent in HTTP/1.0, which health checks speak and browsers do not
        if host is not None and host not in self._hosts:
            raise ApiError(
                421,
                f"the host {host[:100]!r} is not allowed: call the server by 127.0.0.1, "
                "or start it with --allowed-host",
                code="host_not_allowed",
            )

    def _checked_origin(self, headers: Headers) -> str | None:
        """Return the web page that asks; None if no page of another server asks."""
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2] == headers.get("host"):
            return None
        if origin not in self._origins and not _LOCAL_ORIGIN.fullmatch(origin):
            raise ApiError(
                403,
                f"the web page {origin[:100]!r} may not use this server: start it with --allowed-origin",
                kind="permission_error",
                code="origin_not_allowed",
            )
        return origin

    def _check_key(self, headers: Headers) -> None:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = _digest(bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))
        matches = [hmac.compare_digest(given, key) for key in self._keys]  # all, in a time that tells nothing
        if self._keys and not any(matches):
            raise ApiError(
                401,
                "the API key is missing or wrong: send it as  Authorization: Bearer KEY",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _digest(key: str) -> bytes:
    """Return a hash, which has one length for keys of any length."""
    return hashlib.sha256(key.encode()).digest()


class _Response:
    """Sends a response with the headers that all have, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self.headers = {**_HEADERS, "X-Request-Id": f"req_{secrets.token_hex(12)}"}
        self.status: int | None = None
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in self.headers.items():
                headers.setdefault(name, value)
        await self._send(message)


def _preflight(headers: Headers) -> Response:
    """Answer a browser that asks if a page may send a request."""
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "*"),
            "Access-Control-Max-Age": "600",
        },
    )


def _check_content_type(headers: Headers) -> None:
    """Refuse what a page of any origin can send without a preflight."""
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ApiError(415, "a request needs the header Content-Type: application/json")


async def _with_body(receive: Receive) -> Receive:
    """Read a whole body; return a `receive` that gives it again, and then tells if the client leaves."""
    try:
        body: bytes | None = await asyncio.wait_for(_read(receive), BODY_SECONDS)
    except TimeoutError:
        raise ApiError(
            408, f"the body did not arrive in {BODY_SECONDS:g} s", headers={"Connection": "close"}
        ) from None

    async def receive_again() -> Message:
        nonlocal body
        if body is None:
            return await receive()
        message = {"type": "http.request", "body": body, "more_body": False}
        body = None
        return message

    return receive_again


async def _read(receive: Receive) -> bytes:
    parts, size, more = [], 0, True
    while more and size <= MAX_DISCARDED:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size <= MAX_BODY:
            parts.append(part)
    if size > MAX_BODY:
        raise ApiError(
            413, f"the body is longer than {MAX_BODY} bytes: shorten it", headers={"Connection": "close"}
        )
    return b"".join(parts)


INTERNAL_ERROR = ApiError(500, "the server failed: its log says why", kind="server_error")


def error_response(error: ApiError) -> Response:
    """Return an error as a response with OpenAI's body."""
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _handle_api_error(request: HttpRequest, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, ApiError)
    return error_response(error)


async def _handle_http_error(request: HttpRequest, error: Exception) -> Response:
    """Return what Starlette refuses, a path or a method, with OpenAI's body."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    if error.status_code == 404 and NOT_SUPPORTED.fullmatch(path):
        return error_response(not_supported(f"{path} is not supported: this server only generates text"))
    message = {
        404: f"there is no {path!r}: see GET /v1/models and POST /v1/chat/completions",
        405: f"{path} does not take {request.method[:20]}: the header Allow says what it takes",
    }.get(error.status_code, error.detail)
    return error_response(ApiError(error.status_code, message, headers=error.headers))


async def _handle_disconnect(request: HttpRequest, error: Exception) -> Response:  # noqa: ARG001
    return Response(status_code=CLIENT_LEFT)  # which nobody reads


async def _handle_failure(request: HttpRequest, error: Exception) -> Response:  # noqa: ARG001
    return error_response(INTERNAL_ERROR)  # `Guard` writes it to the log


EXCEPTION_HANDLERS: Mapping[Any, Callable[[HttpRequest, Exception], Awaitable[Response]]] = {
    ApiError: _handle_api_error,
    HTTPException: _handle_http_error,
    ClientDisconnect: _handle_disconnect,
    Exception: _handle_failure,
}


class GuardedProtocol(H11Protocol):
    """Ends connections that hold the server up; answers what is not HTTP with OpenAI's error body."""

    _slow: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, "the server has too many connections: try again later", "unavailable_error")
        else:
            self._limit_time()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._slow, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._limit_time()
        if self.conn.their_state is h11.DONE and not self.transport.is_closing():
            # uvicorn stops reading if the next request comes early, and would not see that the client leaves
            if len(self.conn.trailing_data[0]) > UVICORN["h11_max_incomplete_event_size"]:
                self.transport.abort()
            else:
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_time()

    def _limit_time(self) -> None:
        """Limit the time for the rest of a request's head, and of a body that nobody waits for."""
        if self.conn.their_state is h11.IDLE or (
            self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        ):
            if self._slow is None:
                self._slow = self.loop.call_later(HEAD_SECONDS, self._end_slow)
        elif self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _end_slow(self) -> None:
        if self.conn.our_state is h11.IDLE:
            self._refuse(408, f"the headers did not arrive in {HEAD_SECONDS:g} s")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"{msg.rstrip('.')}: this server speaks HTTP/1.1")

    def _refuse(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # in the middle of a response
            self.transport.abort()
            return
        body = json.dumps(ApiError(status, message, kind=kind).body()).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        events = (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()


UVICORN: Mapping[str, Any] = {
    "http": GuardedProtocol,
    "ws": "none",
    "server_header": False,
    "proxy_headers": False,  # the address of a client counts for nothing here
    "h11_max_incomplete_event_size": 32 << 10,  # bytes of a request's head
    "timeout_keep_alive": 75,  # seconds; more than clients keep idle connections, so that they close first
    "log_config": None,
    "access_log": False,
}
