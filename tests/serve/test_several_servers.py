"""Two servers behind a load balancer that is configured as docs/several-servers.md says."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.http import until
from tests.support.rpc import free_port
from tests.support.server import RunningServer, running_server

pytestmark = [pytest.mark.slow, pytest.mark.posix]

DOCUMENT = Path(__file__).parents[2] / "docs" / "several-servers.md"
NGINX = """
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {configuration}
}}
"""


@dataclass
class Balanced:
    """Two servers, and a client of the balancer before them."""

    servers: list[RunningServer]
    client: httpx.Client

    def ask(self, session: str, *turns: str, **options: Any) -> dict[str, Any]:
        """Return the answer to turns of which every second one is the assistant's."""
        roles = ["user", "assistant"] * len(turns)
        messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, **options}
        headers = {"X-Session-Id": session}
        response = self.client.post("/v1/chat/completions", json=body, headers=headers)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def n_busy(self) -> float:
        """Return how many slots of both servers are in use."""
        return sum(server.metric("slots_busy") for server in self.servers)

    def n_answered(self) -> list[int]:
        """Return how many requests for answers each server has had."""
        texts = [httpx.get(f"{server.url}/metrics").text for server in self.servers]
        pattern = r"^mink_\w*responses_total\{.*chat/completions.*\} (\d+)"
        return [sum(int(float(n)) for n in re.findall(pattern, text, re.MULTILINE)) for text in texts]


@pytest.fixture(params=["nginx", "haproxy"])
def balanced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Balanced]:
    program: str = request.param
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    (configuration,) = re.findall(rf"```{program}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    with ExitStack() as stack:
        servers = [stack.enter_context(running_server("--threads", "1")) for _ in range(2)]
        port = free_port()
        for before, after in (("8081", servers[0].url), ("8082", servers[1].url), ("8080", f":{port}")):
            configuration = configuration.replace(before, after.rpartition(":")[2])
        if program == "nginx":
            configuration = NGINX.format(folder=tmp_path, configuration=configuration)
        file = tmp_path / "balancer.conf"
        file.write_text(configuration, encoding="utf-8")
        options: list[str | Path] = ["-p", tmp_path, "-c", file] if program == "nginx" else ["-f", file]
        process = subprocess.Popen([program, *options])
        stack.callback(process.wait)
        stack.callback(process.terminate)
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120))
        until(lambda: is_healthy(client))
        yield Balanced(servers, client)


def is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_conversations_stay_with_their_servers_and_a_killed_one_is_not_noticed(balanced: Balanced) -> None:
    # Both servers have some of the conversations. The hash depends on the servers' ports, so there are many.
    sessions = [f"conversation {i}" for i in range(12)]
    questions = {session: f"Tell me what you know about {session}." for session in sessions}
    answers = {s: balanced.ask(s, q)["choices"][0]["message"]["content"] for s, q in questions.items()}
    assert sum(balanced.n_answered()) == len(sessions)
    assert min(balanced.n_answered()) > 0

    # The last conversation of each server goes on where its KV cache is.
    for session in sessions[-2:]:
        usage = balanced.ask(session, questions[session], answers[session], "Go on.")["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 10

    # The first token comes while others are generated, and a client that leaves frees its slot.
    body = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True, "stream": True}
    with balanced.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        lines = stream.iter_lines()  # httpx closes the connection when this is freed
        next(line for line in lines if line.startswith("data: "))
        assert balanced.n_busy() == 1
    until(lambda: balanced.n_busy() == 0)

    # A server is killed while it answers: the other does so in its place.
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(balanced.ask, s, q, max_tokens=60) for s, q in questions.items()]
        until(lambda: balanced.servers[0].metric("slots_busy"))
        balanced.servers[0].process.kill()
        assert all(answer.result()["usage"]["completion_tokens"] for answer in running)
    for session in sessions:
        assert balanced.ask(session, "Hello")["choices"]
