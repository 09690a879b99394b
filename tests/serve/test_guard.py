"""The guard before small endpoints, over real connections."""

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from mink_local.serve import connections, guard
from mink_local.serve.bodies import ApiError
from mink_local.serve.guard import EXCEPTION_HANDLERS, Guard, allowed_hosts, read_body
from mink_local.serve.keys import Keys
from tests.support.http import connect, receive, request, send, serving, until

KEY = "sk-0123456789abcdef"
CAME, LEFT = threading.Event(), threading.Event()  # set when /leave begins, and sees that its client leaves


async def hello(request: Request) -> Response:  # noqa: ARG001
    return PlainTextResponse("hello")


async def length(request: Request) -> Response:
    return JSONResponse({"length": len(await read_body(request))})


async def leave(request: Request) -> Response:
    await read_body(request)
    CAME.set()
    while (await request.receive())["type"] != "http.disconnect":
        pass
    LEFT.set()
    raise ClientDisconnect


async def fail(request: Request) -> Response:  # noqa: ARG001
    raise ZeroDivisionError("a defect")


async def endless(request: Request) -> Response:  # noqa: ARG001
    async def pieces() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)
        finally:
            LEFT.set()

    return StreamingResponse(pieces())


async def refuse(request: Request) -> Response:  # noqa: ARG001
    raise ApiError(429, "come later", code="queue_full", headers={"Retry-After": "3"})


APP = Starlette(
    routes=[
        Route("/", hello),
        Route("/health", hello),
        Route("/v1/models", hello),
        Route("/length", length, methods=["POST"]),
        Route("/leave", leave, methods=["POST"]),
        Route("/fail", fail),
        Route("/endless", endless),
        Route("/refuse", refuse),
    ],
    exception_handlers=EXCEPTION_HANDLERS,
)
HOSTS = allowed_hosts("127.0.0.1")
PAGES = ["https://chat.example.com", "app://notes", "tauri://localhost", "chrome-extension://abcdef"]


@pytest.fixture(scope="module")
def responses() -> list[tuple[str, int]]:
    """Paths and statuses of the responses so far."""
    return []


@pytest.fixture(scope="module")
def port(responses: list[tuple[str, int]]) -> Iterator[int]:
    """The port of a server that wants no key."""

    def note(path: str, status: int) -> None:
        responses.append((path, status))

    app = Guard(APP, hosts=HOSTS, origins=[f"{page}/" for page in PAGES], on_response=note)
    with serving(app) as port:
        yield port


@pytest.fixture(scope="module")
def locked_port() -> Iterator[int]:
    """The port of a server that wants a key."""
    with serving(Guard(APP, hosts=HOSTS, keys=Keys(["sk-other", f"ann:{KEY}"]))) as port:
        yield port


def test_a_response_has_the_headers_of_all_and_names_no_server(port: int) -> None:
    response = send(port, request("GET", "/v1/models"))
    assert (response.status, response.body) == (200, b"hello")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-request-id"].startswith("req_")
    assert "server" not in response.headers
    assert "access-control-allow-origin" not in response.headers


# --- hosts


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models"])
def test_other_names_are_refused_on_every_path(port: int, path: str) -> None:
    assert send(port, request("GET", path, host="localhost:1")).status == 200
    response = send(port, request("GET", path, host="evil.example"))
    assert (response.status, response.error["code"]) == (421, "host_not_allowed")
    assert send(port, f"GET {path} HTTP/1.0\r\n\r\n".encode()).status == 200  # as health checks do


@pytest.mark.parametrize("host", ["desk.lan", "desk.lan:8080", "[fe80::2]", "[fe80::2]:80", "10.1.2.3"])
def test_the_remedy_for_a_name_that_is_not_allowed_works(port: int, host: str) -> None:
    message = send(port, request("GET", "/", host=host)).error["message"]
    named = re.search("--allowed-host '(.*?)'", message)
    assert named is not None
    assert allowed_hosts("127.0.0.1", [named[1]]).fullmatch(host)


LOCAL = ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]", "[::1]:80"]
FOREIGN = [
    "evil.example",
    "evil.example:8080",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.example#localhost",
    "user@localhost",
    "localhost:80:80",
    "localhost:port",
    "0.0.0.0",
    "192.168.1.5",
    "[::2]",
    "[::1",
    "l\u00f6calhost",
    "evil.example?localhost",
    "evil.example/localhost",
    "localhost localhost",
    "localhost,evil.example",
]


@pytest.mark.parametrize(
    ("bound", "others", "host", "allowed"),
    [
        *(("127.0.0.1", [], host, True) for host in LOCAL),
        *(("127.0.0.1", [], host, False) for host in FOREIGN),
        ("192.168.1.5", [], "192.168.1.5:8080", True),
        ("192.168.1.5", [], "192.168.1.6", False),
        ("fe80::1", [], "[fe80::1]:80", True),
        ("Desk.lan", [], "desk.LAN:80", True),
        ("127.0.0.1", ["mink.example.com:443"], "Mink.example.com", True),
        ("127.0.0.1", ["mink.example.com"], "x.mink.example.com", False),
        ("0.0.0.0", [], "10.1.2.3:80", True),
        ("::", [], "[fe80::2]", True),
        ("0.0.0.0", [], "desk.lan", False),
        ("0.0.0.0", [], "10.1.2.3.evil.example", False),
        ("0.0.0.0", [], "", False),
        ("", [], "10.1.2.3", True),
    ],
)
def test_which_names_are_allowed(bound: str, others: list[str], host: str, allowed: bool) -> None:
    assert bool(allowed_hosts(bound, others).fullmatch(host)) is allowed


# --- origins


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "http://127.0.0.1:5173",
        "https://[::1]:8443",
        *PAGES,
    ],
)
def test_pages_of_this_machine_and_allowed_ones_may_read_responses_without_credentials(
    port: int, origin: str
) -> None:
    response = send(port, request("GET", "/v1/models", origin=origin))
    assert response.status == 200
    assert response.headers["access-control-allow-origin"] == origin
    assert response.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize("path", ["/v1/models", "/none", "/fail", "/refuse"])
def test_pages_can_also_read_errors(port: int, path: str) -> None:
    response = send(port, request("GET", path, origin="http://localhost:3000"))
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://localhost.evil.example",
        "https://localhost@evil.example",
        "http://localhost:3000.evil.example",
        "http://127.0.0.10",
        "https://chat.example.com.evil.example",
        "https://chat.example.com:444",
        "http://chat.example.com",
        "file://",
        "null",
        "*",
    ],
)
def test_other_pages_are_refused_before_anything_is_done(port: int, origin: str) -> None:
    preflight = request("OPTIONS", "/length", origin=origin, access_control_request_method="POST")
    real = [request(method, "/length", b"", origin=origin) for method in ("GET", "POST")]
    for sent, status in ((preflight, 400), *((sent, 403) for sent in real)):
        response = send(port, sent)
        assert response.status == status
        assert "access-control-allow-origin" not in response.headers
    assert response.error["code"] == "origin_not_allowed"


def test_the_own_page_may_use_the_server_by_any_allowed_name() -> None:
    app = Guard(APP, hosts=allowed_hosts("127.0.0.1", ["desk.lan"]))
    with serving(app) as port:
        for origin, status in [
            ("http://desk.lan:8080", 200),
            ("http://desk.lan:8081", 403),
            ("http://lan", 403),
        ]:
            assert send(port, request("GET", "/", host="desk.lan:8080", origin=origin)).status == status


def test_a_preflight_needs_no_key_and_allows_the_headers_of_clients(locked_port: int) -> None:
    asked: dict[str, Any] = {
        "origin": "http://localhost:3000",
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type,x-stainless-lang",
        "access_control_request_private_network": "true",
    }
    response = send(locked_port, request("OPTIONS", "/length", **asked))
    assert response.status == 200
    assert response.headers["access-control-allow-private-network"] == "true"
    assert send(locked_port, request("OPTIONS", "/length", host="evil.example", **asked)).status == 421
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "x-stainless-lang" in response.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in response.headers


# --- keys


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"authorization": "Bearer sk-other"},
        {"x_api_key": KEY},
    ],
)
def test_a_key_opens_the_server(locked_port: int, headers: dict[str, str]) -> None:
    assert send(locked_port, request("GET", "/v1/models", None, **headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer sk-wrong"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY.upper()}"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": KEY},
        {"authorization": "Bearer \u00fc\u00ff"},
        {"x_api_key": "sk-wrong"},
        {"x_api_key": f"Bearer {KEY}"},
        {"cookie": f"key={KEY}"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/none", "//none", "/health//", "/%2e/health", "/health%00"])
def test_without_the_key_a_request_learns_nothing(
    locked_port: int, headers: dict[str, str], path: str
) -> None:
    response = send(locked_port, request("GET", path, None, **headers))
    assert response.status == 401
    assert response.error["code"] == "invalid_api_key"
    assert response.error["type"] == "authentication_error"
    assert response.headers["www-authenticate"] == "Bearer"
    assert KEY not in response.body.decode()


@pytest.mark.parametrize("path", ["/", "/health", "/health?x=1"])
def test_the_page_and_health_checks_need_no_key(locked_port: int, path: str) -> None:
    assert send(locked_port, request("GET", path)).status == 200


# --- bodies


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


CHUNKED = request("POST", "/length", b"", transfer_encoding="chunked", content_length="")
JSON = {"content_type": "Application/JSON ; charset=utf-8"}


@pytest.mark.parametrize(
    ("parts", "length"),
    [
        ([request("POST", "/length", b"", content_length="6", **JSON), b"abc", b"def"], 6),
        ([CHUNKED, chunk(b"abc"), chunk(b"de"), b"0\r\n\r\n"], 5),
        ([request("POST", "/length", b"abc", content_type="")], 3),
        ([request("POST", "/length", b" " * 100_000)], 100_000),
    ],
    ids=["in parts", "in chunks", "without a type", "of the greatest length"],
)
def test_a_body_reaches_its_endpoint_whole(
    port: int, parts: list[bytes], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_BODY", 100_000)
    assert send(port, *parts).body == b'{"length":%d}' % length


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
    ],
)
def test_a_page_cannot_post_without_a_preflight(port: int, content_type: str) -> None:
    response = send(port, request("POST", "/length", b"{}", content_type=content_type))
    assert response.status == 415
    assert "application/json" in response.error["message"]


@pytest.mark.parametrize(
    ("limits", "parts", "status"),
    [
        ({"MAX_BODY": 999}, [request("POST", "/length", b" " * 1000)], 413),
        ({"MAX_BODY": 999}, [CHUNKED, chunk(b" " * 9000)], 413),  # and no end
        ({"BODY_SECONDS": 0.2}, [request("POST", "/length", b"", content_length="10"), b"abc"], 408),
    ],
    ids=["long", "endless", "late"],
)
def test_a_body_is_limited_in_length_and_time(
    port: int, limits: dict[str, float], parts: list[bytes], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(guard, name, value)
    response = send(port, *parts)
    assert response.status == status
    assert response.error


@pytest.mark.parametrize(
    "body",
    [b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\nabc\r\n", b"3\r\nabcdef\r\n", b"1" * 100_000],
)
def test_malformed_chunks_are_refused(port: int, body: bytes) -> None:
    assert send(port, CHUNKED, body).status == 400


# --- errors


@pytest.mark.parametrize(
    ("method", "path", "status", "headers"),
    [
        *(
            ("GET", path, 404, {})
            for path in (
                "/none",
                "/v1/nothing",
                "/v1/models/../../etc/passwd",
                "//none",
                "/%00",
            )
        ),
        ("DELETE", "/length", 405, {"allow": "POST"}),
        ("GET", "/refuse", 429, {"retry-after": "3"}),
    ],
)
def test_what_is_refused_has_an_error_body_and_headers(
    port: int, method: str, path: str, status: int, headers: dict[str, str]
) -> None:
    response = send(port, request(method, path, b"{}"))
    assert (response.status, response.error["param"]) == (status, None)
    assert response.headers.items() >= headers.items()


def test_a_defect_is_in_the_log_and_not_in_the_response(port: int, caplog: pytest.LogCaptureFixture) -> None:
    response = send(port, request("GET", "/fail"))
    assert response.status == 500
    assert response.error["type"] == "server_error"
    assert b"defect" not in response.body
    until(lambda: caplog.records)  # it is written when the response is sent
    record = caplog.records[0]
    assert "/fail" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


# --- connections


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000,
        b"GET /" + b"x" * 100_000,
    ],
    ids=range(11),
)
def test_what_is_not_http_is_refused(port: int, garbage: bytes) -> None:
    with connect(port) as client:
        client.sendall(garbage)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 400")


def test_requests_that_come_early_are_answered_in_their_order(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"".join(request("POST", "/length", b"x" * n) for n in range(20)))
        with client.makefile("rb") as stream:
            received = b""
            while received.count(b'{"length":') < 20:
                received += stream.read1()
    assert [int(part.split(b"}")[0]) for part in received.split(b'{"length":')[1:]] == list(range(20))


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR], ids=["half", "whole"])
@pytest.mark.parametrize("early", [b"", request("GET", "/"), b"garbage"], ids=["none", "request", "garbage"])
def test_an_endpoint_sees_that_its_client_leaves(port: int, early: bytes, how: int) -> None:
    CAME.clear()
    LEFT.clear()
    with connect(port) as client:
        client.sendall(request("POST", "/leave", b"{}") + early)
        assert CAME.wait(30)
        client.sendall(early)
        client.shutdown(how)
        assert LEFT.wait(30)


@pytest.mark.parametrize(("path", "length"), [("/leave", "3"), ("/length", "10")])
def test_who_leaves_an_endpoint_or_in_the_middle_of_a_body_is_no_failure(
    port: int, path: str, length: str, responses: list[tuple[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    responses.clear()
    with connect(port) as client:
        client.sendall(request("POST", path, b"abc", content_length=length))
    until(lambda: (path, 499) in responses)
    assert not any(record.levelno > logging.INFO for record in caplog.records)


def write_without_end(client: socket.socket) -> None:
    while True:
        client.sendall(b"x" * 65536)


def test_who_sends_without_end_during_a_response_is_cut_off(
    port: int, responses: list[tuple[str, int]]
) -> None:
    responses.clear()
    with connect(port) as client:
        client.sendall(request("POST", "/leave", b"{}"))
        with pytest.raises(ConnectionError):
            write_without_end(client)
    until(lambda: len(responses) == 1)


def test_who_does_not_read_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.3)
    LEFT.clear()
    with connect(port) as client:
        client.sendall(request("GET", "/endless"))
        assert LEFT.wait(30)


def test_a_silent_connection_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with connect(port) as silent, connect(port) as slow, connect(port) as second:
        slow.sendall(b"GET / HTTP/1.1\r\nhost:")
        second.sendall(request("GET", "/"))
        assert receive(second).status == 200
        second.sendall(b"GET / HT")
        for client in (silent, slow, second):
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
    with connect(port) as patient:  # a connection that is kept alive may rest for longer
        patient.sendall(request("GET", "/"))
        assert receive(patient).status == 200
        time.sleep(0.5)
        patient.sendall(request("GET", "/"))
        assert receive(patient).status == 200


def test_silent_connections_take_nobodys_place() -> None:
    with serving(Guard(APP, hosts=HOSTS)) as port, contextlib.ExitStack() as stack:
        working = stack.enter_context(connect(port))
        for i in range(700):
            if i % 100 == 0:
                working.sendall(request("GET", "/health"))
                assert receive(working).status == 200
            stack.enter_context(connect(port))
        assert send(port, request("GET", "/v1/models")).status == 200
        assert send(port, request("GET", "/health")).status == 200


def test_resting_connections_are_closed_before_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_IDLE", 3)
    with serving(Guard(APP, hosts=HOSTS)) as port, contextlib.ExitStack() as stack:
        clients = []
        for _ in range(5):
            clients.append(stack.enter_context(connect(port)))
            clients[-1].sendall(request("GET", "/"))
            assert receive(clients[-1]).status == 200
        with contextlib.suppress(ConnectionResetError):
            assert clients[0].recv(1) == b""
        clients[-1].sendall(request("GET", "/"))
        assert receive(clients[-1]).status == 200


def test_too_many_requests_are_refused_but_not_health_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_REQUESTS", 1)
    CAME.clear()
    with serving(Guard(APP, hosts=HOSTS)) as port, connect(port) as first:
        first.sendall(request("POST", "/leave", b"{}"))
        assert CAME.wait(30)
        refused = send(port, request("GET", "/v1/models"))
        assert (refused.status, refused.error["code"]) == (503, "too_many_requests")
        assert refused.headers["retry-after"]
        assert refused.headers["x-request-id"]
        assert send(port, request("GET", "/health")).status == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/models/", "http://127.0.0.1/v1/models", "http://127.0.0.1:8080/v1/models/", "/v1/models?a=1"],
)
def test_a_target_may_be_absolute_or_end_with_a_slash(port: int, path: str) -> None:
    assert send(port, request("GET", path)).status == 200
    assert send(port, request("GET", "http://127.0.0.1")).status == 200


@pytest.mark.parametrize(
    ("encoding", "status"), [("gzip", 415), ("zstd", 415), ("gzip, br", 415), ("identity", 200), ("", 200)]
)
def test_a_compressed_body_is_refused_by_its_name(port: int, encoding: str, status: int) -> None:
    response = send(port, request("POST", "/length", b"{}", content_encoding=encoding))
    assert response.status == status
    if status != 200:
        assert encoding in response.error["message"]
        assert response.headers["accept-encoding"] == "identity"
