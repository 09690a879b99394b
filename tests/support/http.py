"""A real uvicorn on loopback for tests, and clients that write to its socket."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from mink_local.serve.connections import UVICORN
from mink_local.serve.process import listen

BROKEN_OFF = {"content-length": "1000000000"}  # uvicorn closes the connection after a shorter body


@dataclass(frozen=True)
class RawResponse:
    """What came back over a socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error of the body, which must have just the fields that clients look for."""
        body = json.loads(self.body)
        assert list(body) == ["error"]
        assert body["error"].keys() >= {"message", "type", "param", "code"}
        assert body["error"]["message"]
        assert isinstance(body["error"], dict)
        return body["error"]


@contextlib.contextmanager
def serving(app: ASGIApp, **options: Any) -> Iterator[int]:
    """Serve `app` in a thread, as mink-serve does; gives the port."""
    server = uvicorn.Server(uvicorn.Config(app, **{**UVICORN, "timeout_graceful_shutdown": 5, **options}))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread or process does."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def send(port: int, *parts: bytes) -> RawResponse:
    """Write the parts of a request over a connection of their own; return the response."""
    with connect(port) as client:
        for part in parts:
            client.sendall(part)
        return receive(client)


def receive(client: socket.socket) -> RawResponse:
    """Read one response that tells its length."""
    with HTTPResponse(client) as response:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return RawResponse(response.status, headers, response.read())


def request(method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    """Return a request of HTTP/1.1; `x_api_key` names the header X-Api-Key, and an empty one is left out."""
    fields = {"host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body is not None:
        fields = {"content-type": "application/json", "content-length": str(len(body)), **fields}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b"")
