"""An OpenAI-compatible server that says what a test wants, over HTTP."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.http import BROKEN_OFF, serving

Body = dict[str, Any]


class Said(NamedTuple):
    """What the server answers: a status, a body as JSON or as text, and headers.

    The status 0 breaks the answer off.
    """

    status: int
    body: Any
    headers: dict[str, str] = {}  # noqa: RUF012


def says(content: str | None) -> Said:
    """Return a chat completion with this text."""
    return Said(200, {"choices": [{"message": {"role": "assistant", "content": content}}]})


def fails(
    status: int, message: str = "it is broken", code: str | None = None, param: str = "", **headers: str
) -> Said:
    """Return an error, which is worth trying again at once unless a header says otherwise."""
    error = {"message": message, "code": code, "param": param}
    return Said(status, {"error": error}, headers or {"Retry_After_ms": "1"})


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
        owner: Who owns them.
        slots: How many requests it says that it answers at once.
        bodies: The bodies of the requests so far.
        headers: Their headers.
    """

    url: str
    answer: Callable[[Body], Said]
    models: list[str] = field(default_factory=lambda: ["judge-1"])
    owner: str = "me"
    slots: int | None = None
    bodies: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def judge_server(answer: Callable[[Body], Said]) -> Iterator[JudgeServer]:
    """Serve on a free port of this machine, in a thread; `answer` blocks all other requests."""

    async def models(_: Request) -> Response:
        return JSONResponse({"data": [{"id": name, "owned_by": server.owner} for name in server.models]})

    async def props(_: Request) -> Response:
        return JSONResponse({"total_slots": server.slots} if server.slots else {})

    async def complete(request: Request) -> Response:
        server.bodies.append(await request.json())
        server.headers.append(dict(request.headers))
        said = server.answer(server.bodies[-1])
        if said.status == 0:
            return Response(headers=BROKEN_OFF)
        content = said.body if isinstance(said.body, str) else json.dumps(said.body)
        headers = {name.replace("_", "-"): value for name, value in said.headers.items()}
        return Response(content, said.status, headers)

    completions = Route("/v1/chat/completions", complete, methods=["POST"])
    routes = [Route("/v1/models", models), Route("/props", props), completions]
    with serving(Starlette(routes=routes), http="h11") as port:
        server = JudgeServer(f"http://127.0.0.1:{port}/v1", answer)
        yield server
