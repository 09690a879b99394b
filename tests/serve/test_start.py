"""The program mink-serve: how it starts, drains and ends."""

import json
import re
import signal
import socket
import tomllib
from concurrent.futures import ThreadPoolExecutor
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from mink_local.serve.app import make_app
from mink_local.serve.cli import cli
from mink_local.serve.guard import Guard, allowed_hosts
from mink_local.serve.keys import Keys
from mink_local.serve.metrics import Metrics
from mink_local.serve.process import listen
from tests.support.http import serving, until
from tests.support.server import running_server

MESSAGES = [{"role": "user", "content": "Tell me a long story."}]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *((("--host", host), "--api-key") for host in ("0.0.0.0", "::", "", "192.168.1.5")),
        (("--host", "192.0.2.1", "--api-key", "k"), "192.0.2.1"),
        (("--host", "nosuchhost.invalid", "--api-key", "k"), "--host nosuchhost.invalid"),
        *(
            (("--preset", f"hot={text}"), f"--preset hot={text}")
            for text in ("min-q", "min-k:tau=x@1", "min-k@x", "min-k@-1", "min-k@inf", "min-k@nan")
        ),
        (("--preset", "hot"), "NAME="),
        *(
            (("--allowed-origin", page, "--port", "0"), repr(page))
            for page in ("https://example.com/x", "example.com", "*", "null", "https://")
        ),
        *(
            (("--allowed-host", name, "--port", "0"), repr(name))
            for name in ("", "no/name", "http://desk.lan", "two words")
        ),
        *((("--api-key", key), "--api-key") for key in ("", " ", "two words", "line\n", "schl\u00fcssel")),
        (("--api-key-file", "keys"), "utf-8"),
        (("--model", "parrot", "--port", "0"), "parrot"),
        (("--cache", "keys/sub"), f"--cache {Path('keys/sub')}"),
        pytest.param(("--cache", "/proc/x"), "--cache /proc/x", marks=pytest.mark.posix),
        (("--chat-template-file", "none.jinja"), "--chat-template-file"),
        (("--call-style", "keys"), "--call-style"),
        (("--chat-template-file", "keys"), "not UTF-8"),
        *(
            (("--template-kwargs", text), "--template-kwargs")
            for text in ("[1]", "{", "[" * 99_999, '{"bos_token": ""}')
        ),
    ],
    ids=range(38),
)
def test_what_cannot_be_served_is_one_sentence(
    options: tuple[str, ...], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").write_bytes(b"\xff")
    result = CliRunner().invoke(cli, options)
    assert result.exit_code != 0
    assert named in result.output + str(result.exception or "")


def test_a_folder_is_no_call_style(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hermes").mkdir()
    result = CliRunner().invoke(cli, ["--call-style", "hermes", "--model", "parrot", "--port", "0"])
    assert "parrot" in str(result.exception)


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as taken:
        result = CliRunner().invoke(cli, ["--port", str(taken.getsockname()[1])])
    assert "--port" in str(result.exception)


def test_an_empty_host_is_all_addresses() -> None:
    with listen("", 0) as bound:
        assert bound.getsockname()[0] in ("0.0.0.0", "::")


yaml: Any = pytest.importorskip("yaml")
READ = {
    "ini": RawConfigParser(strict=False).read_string,
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
DOCS = Path(__file__).parents[2] / "docs"
PAGES = "".join(
    (DOCS / f"{name}.md").read_text("utf-8") for name in ("clients", "operate", "several-servers")
)
FILES = re.findall(f"^```({'|'.join(READ)})\n(.*?)^```", PAGES, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("kind", "text"), FILES)
def test_files_in_the_documents_can_be_read(kind: str, text: str) -> None:
    READ[kind](text)


def test_a_response_does_not_wait_for_an_acknowledgement() -> None:
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_requests_are_refused_while_the_model_loads() -> None:
    app = Guard(make_app(Metrics()), hosts=allowed_hosts("127.0.0.1"), keys=Keys(["secret"]))
    with serving(app) as port:
        url = f"http://127.0.0.1:{port}"
        loading = httpx.get(f"{url}/ready")
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/metrics").status_code == 401
        numbers = httpx.get(f"{url}/metrics", headers={"x-api-key": "secret"})
        assert "mink_ready 0.0" in numbers.text
        message = httpx.post(f"{url}/v1/messages", headers={"x-api-key": "secret"}).json()
    assert (message["type"], message["error"]["type"]) == ("error", "overloaded_error")
    assert (loading.status_code, loading.json()["error"]["code"]) == (503, "loading")
    assert loading.headers["retry-after"]


# As on Windows: the first default event loop that serves a socket, or a duplicate of it, keeps it for good.
COMPLETION_PORTS = """
import asyncio, os, uvicorn

owners = {}

class Proactor(asyncio.SelectorEventLoop):
    def _start_serving(self, protocol_factory, sock, *options, **named):
        if owners.setdefault(os.fstat(sock.fileno()).st_ino, self) is not self:
            sock.close()  # after "Accept failed on a socket"
            return
        super()._start_serving(protocol_factory, sock, *options, **named)

asyncio.new_event_loop = Proactor
uvicorn.Config.get_loop_factory = lambda self: Proactor
"""


@pytest.mark.linux
def test_no_socket_is_served_by_two_of_windows_event_loops() -> None:
    with running_server(before=COMPLETION_PORTS) as server:
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}


SAID = ["loading", "reasoning:", "ready:", "stopping:", "stopped"]


@pytest.mark.slow
@pytest.mark.posix
def test_keys_presets_and_a_drain() -> None:
    options = (
        "--preset",
        "hot=top-k:k=5@9",
        "--alias",
        "m/\udcff",
        "--api-key",
        "alice:secret",
        "--log-format",
        "json",
        "--no-presets",
    )
    with running_server(*options) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/health").json() == {"status": "ok"}
        client.headers["Authorization"] = "Bearer secret"
        entry = client.get("/v1/models/m/\ufffd:hot").json()
        assert (entry["meta"]["sampler"], entry["meta"]["temperature"]) == ("top-k:k=5", 9)
        assert len(client.get("/v1/models").json()["data"]) == 2
        assert client.get("/v1/models/m/y").json()["error"]["code"] == "model_not_found"
        body = {"messages": MESSAGES, "max_tokens": 300, "stream": True, "ignore_eos": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            assert next(lines).startswith(": ")
            server.process.send_signal(signal.SIGTERM)
            until(lambda: client.get("/ready").status_code == 503)
            refused = client.post("/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
            assert client.get("/health").status_code == 200
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0
    log = list(map(json.loads, server.said))
    assert [record["message"].split()[0] for record in log if "path" not in record] == SAID
    assert all(record["client"] == "alice" for record in log if record.get("status") == 200)
    denied, *_, answered = [record for record in log if "path" in record and record["path"] != "/ready"]
    assert (denied["path"], denied["status"], "API key" in denied["error"]) == ("/v1/models", 401, True)
    assert answered["completion_tokens"] == 300
    assert answered["id"] == response.headers["x-request-id"]


@pytest.mark.slow
@pytest.mark.posix
def test_answers_that_outlast_the_drain_end_with_an_error() -> None:
    with running_server("--ctx", "4096", "--drain", "1") as server, ThreadPoolExecutor(2) as pool:
        fields = {"messages": MESSAGES, "ignore_eos": True}
        answers = [
            pool.submit(server.post, "/v1/chat/completions", stream=is_stream, **fields)
            for is_stream in (False, True)
        ]
        until(lambda: server.metric("slots_busy") == 2)
        server.process.send_signal(signal.SIGTERM)
        whole, stream = (answer.result() for answer in answers)
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "stopping")
        last = stream.text.strip().splitlines()[-1].removeprefix("data: ")
        assert json.loads(last)["error"]["code"] == "stopping"
        assert server.process.wait(60) == 0
        assert "Traceback" not in "".join(server.said)


@pytest.mark.slow
@pytest.mark.posix
def test_a_second_signal_ends_the_server_at_once() -> None:
    options = ("--ctx", "8192", "--parallel", "1", "--drain", "600")
    with running_server(*options) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.post, "/v1/chat/completions", messages=MESSAGES, ignore_eos=True)
        until(lambda: server.metric("slots_busy") == 1)
        server.process.send_signal(signal.SIGINT)
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0


DEAD = """
from mink_local.generation.engine.engine import Engine
step, steps = Engine.launch, iter(range(20))
def failing(engine):
    next(steps)
    return step(engine)
Engine.launch = failing
"""
STUCK = """
import time
from mink_local.generation.engine.engine import Engine
step, steps = Engine.launch, iter(range(20))
def failing(engine):
    next(steps, None) is None and time.sleep(1000)
    return step(engine)
Engine.launch = failing
"""


@pytest.mark.parametrize(
    ("fault", "watchdog", "reason"),
    [
        (DEAD, 300, "StopIteration"),
        pytest.param(STUCK, 3, "3 s", marks=pytest.mark.slow),
    ],
    ids=["dead", "stuck"],
)
def test_a_server_without_an_engine_says_so_and_ends(fault: str, watchdog: int, reason: str) -> None:
    with running_server("--watchdog", str(watchdog), before=fault) as server:
        fields = {"messages": MESSAGES, "max_tokens": 100, "stream": True, "ignore_eos": True}
        response = server.post("/v1/chat/completions", **fields)
        assert reason in response.text
        assert '"code":"engine_down"' in response.text
        assert server.process.wait(60) == 1
    assert any(reason in line for line in server.said)


@pytest.mark.slow
@pytest.mark.posix
def test_what_was_evaluated_is_read_after_a_restart(tmp_path: Path) -> None:
    prompt = "".join(f"The quick brown fox {i} jumps over the lazy dog. " for i in range(30))
    cached = []
    for _ in range(2):
        with running_server("--cache", str(tmp_path)) as server:
            usage = server.post("/v1/completions", prompt=prompt, max_tokens=1).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
    assert cached[0] == 0
    assert cached[1] > 300
