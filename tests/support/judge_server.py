"""An OpenAI-compatible server that says what a test wants, over HTTP."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Body = dict[str, Any]


class Said(NamedTuple):
    """What the server answers: a status, a body as JSON or as text, and headers.

    The status 0 closes the connection instead.
    """

    status: int
    body: Any
    headers: dict[str, str] = {}  # noqa: RUF012


def says(content: str | None) -> Said:
    """Return a chat completion with this text."""
    return Said(200, {"choices": [{"message": {"role": "assistant", "content": content}}]})


def fails(status: int, message: str = "it is broken", code: str | None = None, **headers: str) -> Said:
    return Said(status, {"error": {"message": message, "code": code}}, headers)


def shown_answers(body: Body) -> tuple[str, str]:
    """Return the two answers of a judge's prompt."""
    prompt = body["messages"][0]["content"]
    a, b = (
        re.search(rf": answer {x}[^\n]*\]\n(.*)\n\[\w+: end of answer {x}\]", prompt, re.DOTALL) for x in "AB"
    )
    assert a
    assert b
    return a[1], b[1]


@dataclass
class JudgeServer:
    """`answer` is called with each request's body, one at a time; it may be replaced.

    Attributes:
        models: Ids that GET /v1/models names.
        bodies: The bodies of the requests so far.
        keys: Their Authorization headers.
    """

    url: str
    answer: Callable[[Body], Said]
    models: list[str] = field(default_factory=lambda: ["judge-1"])
    bodies: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def judge_server(answer: Callable[[Body], Said]) -> Iterator[JudgeServer]:
    """Serve on a free port of this machine, in a thread."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body are sent together: a client's late ACK of the first takes 40 ms

        def do_GET(self) -> None:
            self._write(Said(200, {"data": [{"id": name} for name in server.models]}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                server.bodies.append(body)
                server.keys.append(self.headers["authorization"])
                said = server.answer(body)
            if self.path != "/v1/chat/completions":
                said = fails(404, "there is no such page")
            self._write(said)

        def _write(self, said: Said) -> None:
            if said.status == 0:
                self.close_connection = True
                return
            data = (said.body if isinstance(said.body, str) else json.dumps(said.body)).encode()
            self.send_response(said.status)
            for name, value in {"content-length": str(len(data)), **said.headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = JudgeServer(f"http://127.0.0.1:{http.server_address[1]}/v1", answer)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
