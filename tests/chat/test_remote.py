"""One-shot answers by a running mink-serve: the same as by a model that is loaded."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.chat.conftest import MinkChat
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.usefixtures("own_files")

ASKED = ("Tell me a story about a dog.", "-t", "0", "-n", "12")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--api-key", "a-secret", "--threads", "1") as running:
        yield running


@pytest.fixture
def remote(mink_chat: MinkChat, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> MinkChat:
    """The program with the server's address and key; a model is not to be loaded."""

    def run(*arguments: str, **options: object) -> object:
        monkeypatch.setattr("mink_local.generation.loading.load_model", None)
        monkeypatch.setenv("MINK_URL", f"{server.url}/v1")
        monkeypatch.setenv("MINK_API_KEY", "a-secret")
        return mink_chat(*arguments, **options)

    return run  # type: ignore[return-value]


@pytest.mark.parametrize(
    "options",
    [
        ["-t", "5", "--seed", "7"],
        ["-t", "5", "--seed", "7", "--floor", "1.4", "--system", "Be brief."],
        ["-s", "top-k:k=5", "-t", "2", "--seed", "3"],
        ["--repeat-penalty", "1.5", "--presence-penalty", "0.5", "--logit-bias", "30=-inf"],
    ],
)
def test_the_answer_is_the_same(mink_chat: MinkChat, remote: MinkChat, options: list[str]) -> None:
    here = json.loads(mink_chat(*ASKED, "--ctx", "512", *options, "--json").stdout)
    there = json.loads(remote(*ASKED, *options, "--json").stdout)
    differ = {"timings", "evaluated_tokens", "seed", "k"}
    assert {**here, **dict.fromkeys(differ)} == {**there, **dict.fromkeys(differ)}
    assert (here.keys(), here["k"][: len(there["k"])]) == (there.keys(), there["k"])
    assert remote(*ASKED, *options).stdout == here["text"] + "\n"


def test_input_and_ends(remote: MinkChat, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Alpha.")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    file = ("--file", str(tmp_path / "a.txt"))
    piped = remote("Which?", "-t", "0", "-n", "3", *file, stdin="Beta.\n")
    typed = remote("a.txt:\n```\nAlpha.\n```\n\nBeta.\n\nWhich?", "-t", "0", "-n", "3")
    assert (piped.status, piped.stdout, piped.stderr) == (0, typed.stdout, typed.stderr)
    assert "3 tokens" in typed.stderr
    assert isinstance(json.loads(remote("A number", "--json-schema", str(schema)).stdout)["n"], int)
    looping = remote("Hi", "-t", "0", "-n", "300", "--logit-bias", "1492=100", "--json")
    assert json.loads(looping.stdout)["finish_reason"] == "repetition"


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (["--ctx", "300"], 2, "--ctx"),
        (["-m", "parrot"], 1, "parrot"),
        (["--file", "no-such-file"], 2, "no-such-file"),
        (["--logit-bias", "99999999=1"], 1, "99999999"),
    ],
)
def test_what_is_refused(remote: MinkChat, options: list[str], status: int, complaint: str) -> None:
    result = remote("Hi", *options)
    result.refused(status, complaint)
    assert result.stdout == ""


Answered = Callable[[int, bytes, dict[str, str]], str]


@pytest.fixture
def answered() -> Iterator[Answered]:
    """`answered(status, body, headers)` has a server answer so, and returns its URL."""
    response: tuple[int, bytes, dict[str, str]]

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body, headers = response
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()

        def answer(status: int, body: bytes, headers: dict[str, str]) -> str:
            nonlocal response
            response = status, body, headers
            return f"http://127.0.0.1:{other.server_port}"

        yield answer
        other.shutdown()


@pytest.mark.parametrize(
    ("url", "status"), [("http://127.0.0.1:1", 1), ("127.0.0.1:8080", 2), ("http://localhost:99999", 2)]
)
def test_servers_that_are_not_there(
    mink_chat: MinkChat, monkeypatch: pytest.MonkeyPatch, url: str, status: int
) -> None:
    monkeypatch.setenv("MINK_URL", url)
    mink_chat("Hi").refused(status)


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (200, b'data: {"model": "x", "choices": []}', "early"),
        (200, b'data: {"object": "x"}', "early"),
        (200, b'data: {"choices": {"a": 1}}', "mink-serve"),
        (200, b'data: {"choices": [1]}', "mink-serve"),
        (200, b'data: {"choices": [{"delta": {"content": ["a"]}}]}', "mink-serve"),
        (200, b'data: {"choices": [{"delta": "a"}]}', "mink-serve"),
        (200, b'data: {"usage": 1}', "mink-serve"),
        (200, b'data: {"usage": {"prompt_tokens": "1"}}', "mink-serve"),
        (200, b'data: {"error": "it is tired"}', "it is tired"),
        (200, b'data: {"error": {"code": 1}}', "failed"),
        (200, b'data: {"choices": [\xff]}', "early"),
        (200, b"<html>", "early"),
        (302, b"", "http://elsewhere"),
        (404, b'{"detail": "Not Found"}', "404"),
        (400, b'["no"]', "400"),
        (400, b'{"error": "it is tired"}', "it is tired"),
        (400, b'{"error": null}', "400"),
        (502, b"\xff<html>", "502"),
        (401, b'{"error": {"message": "which key?"}}', "which key?"),
    ],
)
def test_servers_that_are_none_of_ours(
    mink_chat: MinkChat,
    answered: Answered,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: bytes,
    complaint: str,
) -> None:
    monkeypatch.setenv("MINK_URL", answered(status, body + b"\n\n", {"location": "http://elsewhere/v1"}))
    result = mink_chat("Hi")
    result.refused(1, complaint)
    assert result.stdout.strip() == ""


def test_a_server_that_leaves_fields_out(
    mink_chat: MinkChat, answered: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = (
        {"choices": [{"delta": {"content": "Hello"}}], "usage": None},
        {"choices": [{"delta": None, "finish_reason": "stop"}]},
        {"choices": None, "usage": {"prompt_tokens": 3, "prompt_tokens_details": None}},
        {"model": "other"},
    )
    body = b"".join(f"data:{json.dumps(chunk)}\n\n".encode() for chunk in chunks)
    monkeypatch.setenv("MINK_URL", answered(200, body, {}))
    result = json.loads(mink_chat("Hi", "--json").stdout)
    assert (result["text"], result["model"], result["prompt_tokens"]) == ("Hello", "other", 3)


def test_a_conversation_loads_its_model(mink_chat: MinkChat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINK_URL", "http://127.0.0.1:1")
    assert mink_chat("-n", "2", typed=["Hello"]).status == 0
    assert mink_chat("--continue", "Hello", "-n", "2").status == 0
