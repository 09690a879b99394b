"""Checks on every HTTP request before an endpoint sees it; each refusal has OpenAI's error body.

    app = Guard(Starlette(routes=..., exception_handlers=EXCEPTION_HANDLERS), hosts=allowed_hosts(""))
    uvicorn.Config(app, **UVICORN)

`Guard` is plain ASGI, because `BaseHTTPMiddleware` would hide from the endpoints that a client has left.
"""

import asyncio
import ipaddress
import re
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import click
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mink_local.serve import request_log
from mink_local.serve.bodies import ApiError
from mink_local.serve.clients import Client
from mink_local.serve.connections import most_requests
from mink_local.serve.keys import Keys

T = TypeVar("T")

MAX_BODY = 4 << 20  # bytes
BODY_SECONDS = 30.0
CLIENT_LEFT = 499  # nginx's status for a response that its client did not wait for

PUBLIC = frozenset({"/", "/health", "/ready"})  # without a key
_ANTHROPIC = re.compile(r"(/v1)?/messages(/count_tokens)?")  # paths whose errors have Anthropic's form

_LOCAL_HOSTS = (r"127\.0\.0\.1", "localhost", r"\[::1\]")
_ADDRESSES = (r"\[[0-9a-f:.]+\]", r"[\d.]+")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/@\s]+)(:\d{1,5})?")
_LOCAL_ORIGIN = rf"https?://({'|'.join(_LOCAL_HOSTS)})(:\d{{1,5}})?"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def check_start(host: str, *, has_keys: bool) -> None:
    """Refuse an address that others can reach without a key.

    Raises:
        click.UsageError: It is one, or cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host or None, 0, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise click.UsageError(
            f"--host {host}: {error.strerror}: use a name or an address of this machine"
        ) from None
    is_local = all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)
    if not has_keys and not is_local:
        raise click.UsageError(
            f"other machines can reach {host or 'all addresses'}: give a key with --api-key, "
            "or listen on 127.0.0.1"
        )


def allowed_hosts(bound: str, others: Iterable[str] = ()) -> re.Pattern[str]:
    """Return a pattern for the Host headers of clients; another name is a sign of DNS rebinding.

    A server that listens on all addresses accepts any IP address: DNS rebinding needs a name.

    Args:
        bound: The name or address that the server listens on; empty for all addresses.
        others: More names, with or without a port.

    Raises:
        click.UsageError: One of the names cannot be a host's.
    """
    patterns = [*_LOCAL_HOSTS, *_ADDRESSES] if bound in ("", "0.0.0.0", "::") else [*_LOCAL_HOSTS]
    for name in (f"[{bound}]" if ":" in bound else bound or "localhost", *others):
        host = _HOST.fullmatch(name)
        if host is None:
            raise click.UsageError(f"{name!r} is not a host: write it as in  example.com:8080")
        patterns.append(re.escape(host[1]))
    return re.compile(rf"({'|'.join(patterns)})(:\d{{1,5}})?", re.IGNORECASE | re.ASCII)


class Guard:
    """Passes on the requests that are allowed.

    Args:
        app: The endpoints.
        hosts: What the Host header may be.
        origins: Web pages that may use the server, besides those of this machine: `https://example.com`.
        keys: API keys; without one, nobody needs a key.
        on_response: Called with the path and the status of each response; CLIENT_LEFT if the client left.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: re.Pattern[str],
        origins: Iterable[str] = (),
        keys: Keys | None = None,
        on_response: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(map(_origin, origins))
        self._keys = keys or Keys()
        self._n_requests = 0  # in progress
        self._on_response = on_response
        self._admitted = ExceptionMiddleware(self._admit, {ApiError: _handle})
        self._cors = CORSMiddleware(
            ExceptionMiddleware(self._answer, {ApiError: _handle}),
            allow_origins=list(self._origins),
            allow_origin_regex=_LOCAL_ORIGIN,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["*"],
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _with_target(scope)
        path, status, is_whole, began = scope["path"], CLIENT_LEFT, False, time.perf_counter()
        request_id = request_log.begin(Headers(scope=scope).get("x-request-id", ""), _address(scope))

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                sent = MutableHeaders(scope=message)
                sent["X-Request-Id"] = sent["Request-Id"] = request_id  # OpenAI's name, and Anthropic's
                for name, value in _HEADERS.items():
                    sent.setdefault(name, value)
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body")

        self._n_requests += 1
        try:
            await self._admitted(scope, receive, send_with_headers)
        except Exception:  # Starlette has answered, unless it was in the middle of a response
            request_log.log.exception("%s %r failed", scope["method"], path)
            status, is_whole = 500, True
        finally:
            self._n_requests -= 1
            status = status if is_whole else CLIENT_LEFT
            request_log.write(scope["method"], path, status, time.perf_counter() - began)
            self._on_response(path, status)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, preflights too, by an allowed name, while there are not too many."""
        check_host(Headers(scope=scope), self._hosts)
        if self._n_requests > most_requests() and scope["path"] not in request_log.POLLED:
            raise ApiError(
                503,
                f"the server has {most_requests()} requests in progress: try again soon",
                code="too_many_requests",
                kind="unavailable_error",
                headers={"retry-after": "1"},
            )
        await self._cors(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a non-preflight request; pages whose origin is allowed may read errors too."""
        headers = Headers(scope=scope)
        check_origin(headers, self._origins)
        name = "" if scope["path"] in PUBLIC else check_key(headers, self._keys)
        if name:
            request_log.note(client=name)
        client = Client(name, _address(scope))
        await self._app({**scope, "state": {**scope.get("state", {}), "client": client}}, receive, send)


def _with_target(scope: Scope) -> Scope:
    """Return a request whose path has no slash at its end, nor a host before it."""
    path, headers = scope["path"].removesuffix("/") or "/", scope["headers"]
    if absolute := re.match(r"https?://([^/]*)", path):  # for proxies; it wins over Host (RFC 9112)
        path = path[absolute.end() :] or "/"
        headers = [pair for pair in headers if pair[0] != b"host"] + [(b"host", absolute[1].encode())]
    return {**scope, "path": path, "headers": headers}


def _address(scope: Scope) -> str:
    """Return where a request comes from."""
    return str((scope.get("client") or ("",))[0])


def check_host(headers: Headers, hosts: re.Pattern[str]) -> None:
    """Refuse hosts that are not allowed. Raises ApiError."""
    host = headers.get("host")  # absent in HTTP/1.0, which health checks speak and browsers do not
    if host is not None and not hosts.fullmatch(host):
        raise ApiError(
            421,
            f"the host is not allowed: start mink-serve with --allowed-host {host[:100]!r}, or use 127.0.0.1 "
            "on its own machine",
            code="host_not_allowed",
        )


def check_origin(headers: Headers, origins: Collection[str]) -> None:
    """Refuse web pages of other servers before anything is done for them. Raises ApiError."""
    origin = headers.get("origin")
    if origin is None or origin in origins or origin.partition("://")[2] == headers.get("host"):
        return
    if not re.fullmatch(_LOCAL_ORIGIN, origin):
        raise ApiError(
            403,
            f"the web page {origin[:100]!r} may not use this server: start it with --allowed-origin",
            kind="permission_error",
            code="origin_not_allowed",
        )


def _origin(text: str) -> str:
    """Return an origin as browsers send it. Raises click.UsageError if a text is none."""
    origin = text.rstrip("/").lower()
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
        raise click.UsageError(f"{text!r} is not an origin: write it as in  https://example.com")
    return origin


def check_key(headers: Headers, keys: Keys) -> str:
    """Return the name of who has a request's key; "" without keys. Raises ApiError if nobody has it."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    name = keys.name_of(bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))
    if keys and name is None:
        raise ApiError(
            401,
            "the API key is missing or wrong: send it as  Authorization: Bearer KEY",
            kind="authentication_error",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return name or ""


async def read_body(http: HttpRequest) -> bytes:
    """Return the JSON body of a request.

    Raises:
        ApiError: It is too long or too slow, or its type is one that an HTML form on any web page can send. A
            body without a type comes from a program, or from a script whose Origin has been checked.
        ClientDisconnect: The client has left.
    """
    content_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ("", "application/json"):
        raise ApiError(415, "the body must be JSON: send the header Content-Type: application/json")
    if (encoding := http.headers.get("content-encoding", "identity").strip().lower()) != "identity":
        message = f"Content-Encoding: {encoding[:40]} is not supported: send the body as it is"
        raise ApiError(415, message, headers={"Accept-Encoding": "identity"})
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in http.stream():
                parts.append(part)
                size += len(part)
                if size > MAX_BODY:  # whose rest a connection discards
                    raise ApiError(413, f"the body is longer than {MAX_BODY} bytes")
    except TimeoutError:
        message = f"the body did not arrive in {BODY_SECONDS:g} s"
        raise ApiError(408, message, headers={"Connection": "close"}) from None
    return b"".join(parts)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; if the client leaves first, cancel it and raise ClientDisconnect."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for future in (task, left):
            future.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _handle(request: HttpRequest, error: Exception) -> Response:
    """Return the response to an exception, and note it; `Guard` logs those that are not expected."""
    path = request.url.path[:100]
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_LEFT)  # which nobody reads
    if isinstance(error, HTTPException):
        message = {
            404: f"there is no {path!r}: see GET /openapi.json",
            405: f"{path} does not allow {request.method[:20]}: see the header Allow",
        }.get(error.status_code, error.detail)
        error = ApiError(error.status_code, message, headers=error.headers)
    elif isinstance(error, RecursionError):
        error = ApiError(400, "the body is nested too deeply", code="invalid_json")
    elif not isinstance(error, ApiError):
        error = ApiError(500, "internal error: see the server log", kind="server_error")
    request_log.note(error=str(error), **({"code": error.code} if error.code else {}))
    body = error.as_anthropic() if _ANTHROPIC.fullmatch(path) else error.body()
    return JSONResponse(body, status_code=error.status, headers=error.headers)


EXCEPTION_HANDLERS: Mapping[Any, Callable[[HttpRequest, Exception], Awaitable[Response]]] = dict.fromkeys(
    (ApiError, HTTPException, ClientDisconnect, RecursionError, Exception), _handle
)
