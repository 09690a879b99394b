"""Connections that take a place and give nothing: answered in the middle of a body, silent, not reading."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mink_local.serve import connections, guard
from mink_local.serve.bodies import ApiError
from mink_local.serve.connections import raise_file_limit
from mink_local.serve.guard import EXCEPTION_HANDLERS, Guard, allowed_hosts, read_body
from mink_local.serve.keys import Keys
from tests.support.http import connect, receive, request, send, serving
from tests.support.server import RunningServer, running_server

LARGE = 64 << 20  # bytes, more than the buffers of two sockets

UNREAD = {  # how to be answered in the middle of a body, and with what
    401: {},
    404: {"path": "/none", "x_api_key": "k"},
    405: {"path": "/health", "x_api_key": "k"},
    415: {"content_type": "text/plain", "x_api_key": "k"},
    421: {"host": "evil.example"},
    429: {"path": "/busy", "x_api_key": "k"},
    503: {"path": "/stopping", "x_api_key": "k"},
}


async def length(http: Request) -> Response:
    return Response(str(len(await read_body(http))))


async def refuse(http: Request) -> Response:
    raise ApiError({"/busy": 429, "/stopping": 503}[http.url.path], "come later")


async def pause(_: Request) -> Response:
    """Keep the server from looking at any connection."""
    paused.set()
    time.sleep(0.5)
    return Response()


async def large(_: Request) -> Response:
    return Response(bytes(LARGE))


paused = threading.Event()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server with a key."""
    posts = [Route(path, refuse, methods=["POST"]) for path in ("/busy", "/stopping")]
    routes = [
        Route("/health", length),
        Route("/large", large),
        Route("/pause", pause),
        Route("/length", length, methods=["POST"]),
    ]
    app = Starlette(routes=[*routes, *posts], exception_handlers=EXCEPTION_HANDLERS)
    with serving(Guard(app, hosts=allowed_hosts(""), keys=Keys(["k"]))) as port:
        yield port


def unread(status: int, **more: str) -> bytes:
    """Return the head of a request that is answered with a status before its body has come."""
    headers = dict(UNREAD[status])
    return request(
        "POST", headers.pop("path", "/length"), b"", **{"content_length": "1000000", **headers, **more}
    )


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def trickle(client: socket.socket) -> None:
    """Send chunks, slowly, for half a minute."""
    for _ in range(600):
        client.sendall(b"1\r\nx\r\n")
        time.sleep(0.05)


@pytest.mark.parametrize("status", UNREAD)
@pytest.mark.parametrize(
    "more",
    [{}, {"content_length": "", "transfer_encoding": "chunked"}, {"expect": "100-continue"}],
    ids=["length", "chunks", "continue"],
)
def test_answered_connections_with_unread_bodies_make_room(
    port: int, status: int, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_IDLE", 3)
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(6):
            clients.append(stack.enter_context(connect(port)))
            clients[-1].sendall(unread(status, **more))
            assert receive(clients[-1]).status == status
        assert all(map(is_closed, clients[:3]))
        assert send(port, request("GET", "/health")).status == 200


@pytest.mark.parametrize("more", [{}, {"content_length": "", "transfer_encoding": "chunked"}])
def test_more_of_an_unread_body_does_not_keep_a_connection_open(
    port: int, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.5)
    with connect(port) as client:
        client.sendall(unread(401, **more))
        assert receive(client).status == 401
        with pytest.raises(ConnectionError):
            trickle(client)


def test_a_connection_goes_on_after_a_body_that_nobody_read(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_BODY", 1000)
    with connect(port) as client:
        for status in (401, 404, 415) * 3:
            client.sendall(unread(status, content_length="300000") + b"x" * 300_000)
            assert receive(client).status == status
        client.sendall(request("POST", "/length", b"x" * 300_000, x_api_key="k"))
        assert receive(client).status == 413
        client.sendall(request("POST", "/length", b"abc", x_api_key="k"))
        assert receive(client).body == b"3"


@pytest.mark.parametrize("how", ["close", "keep-alive", "half-closed"])
def test_who_does_not_read_the_end_of_a_response_is_cut_off(
    port: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WRITE_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(connections, name, 0.3)
    with connect(port) as client:
        client.sendall(
            request("GET", "/large", x_api_key="k", connection=how.replace("half-closed", "close"))
        )
        assert client.recv(1)
        if how == "half-closed":
            client.shutdown(socket.SHUT_WR)
        time.sleep(1.0)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := client.recv(1 << 20):
                received += len(data)
        assert received < LARGE


def test_a_request_that_has_just_come_keeps_its_connection(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A health check that came before a flood of the same address, while the server was busy."""
    monkeypatch.setattr(connections, "MAX_IDLE", 3)
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(connect(port))
        paused.clear()
        busy.sendall(request("GET", "/pause", x_api_key="k"))
        assert paused.wait(10)
        probe = stack.enter_context(connect(port))
        probe.sendall(request("GET", "/health"))
        silent = [stack.enter_context(connect(port)) for _ in range(12)]
        assert receive(probe).status == 200
        assert all(map(is_closed, silent[:9]))


def test_a_head_that_is_not_http_gets_an_error_with_an_id(port: int) -> None:
    response = send(port, b"hello\r\n\r\n")
    assert (response.status, response.headers["connection"]) == (400, "close")
    assert response.error["code"] == "invalid_http"
    assert response.headers["x-request-id"].startswith("req_")


# --- the whole program with few files


FILES = 512
FEW_FILES = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, {FILES}))"
N_CONNECTIONS = 2000


@pytest.fixture(scope="module")
def strict(tiny_path: Path) -> Iterator[RunningServer]:
    """A server with a key that may have 512 files, and begins with 64."""
    with running_server("--model", str(tiny_path), "--api-key", "k", before=FEW_FILES) as server:
        yield server


def kinds() -> dict[str, tuple[bytes, bytes]]:
    """Return what strangers send first, and then again and again."""
    head = request("POST", "/v1/chat/completions", b"", content_length="100000000")
    chunked = request("POST", "/v1/completions", b"", content_length="", transfer_encoding="chunked")
    return {
        "silent": (b"", b""),
        "slow": (b"GET /health HTTP/1.1\r\n", b"X: y\r\n"),
        "unread": (head, b" "),
        "chunks": (chunked, b"1\r\nx\r\n"),
        "continue": (head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), b" "),
        "resting": (request("GET", "/health"), b""),
    }


@pytest.mark.linux
@pytest.mark.parametrize("kind", kinds())
def test_two_thousand_strangers_do_not_stop_health_checks(strict: RunningServer, kind: str) -> None:
    raise_file_limit()
    first, then = kinds()[kind]
    n_before = len(strict.said)
    with contextlib.ExitStack() as stack:
        clients = []
        for i in range(N_CONNECTIONS):
            clients.append(stack.enter_context(connect(strict.port)))
            with contextlib.suppress(ConnectionError):
                clients[-1].sendall(first)
            if i % 500 == 499:
                assert httpx.get(f"{strict.url}/health", timeout=30).status_code == 200
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.sendall(then)
        assert httpx.get(f"{strict.url}/health", timeout=30).status_code == 200
        assert len(os.listdir(f"/proc/{strict.process.pid}/fd")) < FILES
    assert sum(map(len, [*strict.said][n_before:])) < 1_000_000


@pytest.mark.linux
def test_the_limit_of_files_is_raised(strict: RunningServer) -> None:
    limits = Path(f"/proc/{strict.process.pid}/limits").read_text(encoding="utf-8")
    [line] = [line.split() for line in limits.splitlines() if line.startswith("Max open files")]
    assert line[3:5] == [str(FILES), str(FILES)]
