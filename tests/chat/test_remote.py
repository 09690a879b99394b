"""One-shot answers by a running mink-serve: the same as by a model that is loaded."""

import json
import threading
from collections.abc import Iterator
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


def test_servers_that_do_not_answer(
    mink_chat: MinkChat, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'data: {"model": "x", "choices": []}\n\n')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        for url, status in (
            ("http://127.0.0.1:1", 1), ("127.0.0.1:8080", 2), ("http://localhost:99999", 2), (server.url, 1),
            (f"http://127.0.0.1:{other.server_port}", 1),
        ):  # fmt: skip
            monkeypatch.setenv("MINK_URL", url)
            result = mink_chat("Hi")
            assert (result.status, result.stdout.strip(), len(result.stderr.splitlines())) == (
                status,
                "",
                1,
            ), url
        other.shutdown()


def test_a_conversation_loads_its_model(mink_chat: MinkChat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINK_URL", "http://127.0.0.1:1")
    assert mink_chat("-n", "2", typed=["Hello"]).status == 0
    assert mink_chat("--continue", "Hello", "-n", "2").status == 0
