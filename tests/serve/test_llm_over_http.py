"""The plugin of `llm` with a running mink-serve, which asks for a key."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import llm
import pytest

from tests.support.llm_program import SHOUT, ask, details, logged, register_plugin, run, write_talker
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.slow

KEY = "a-key"
MODEL = "mink/scripted"


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model writes what `SCRIPTS` says."""
    path = write_talker(tmp_path_factory.mktemp("model") / "scripted.gguf")
    with running_server("--model", str(path), "--api-key", KEY) as running:
        yield running


@pytest.fixture(autouse=True)
def url(talker: RunningServer, own_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tell `llm` the server and its key; return the server's address."""
    assert own_files
    register_plugin()
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    monkeypatch.setenv("MINK_URL", f"{talker.url}/v1/")
    monkeypatch.setenv("MINK_API_KEY", KEY)
    return talker.url


def test_models_and_presets_are_listed() -> None:
    lines = ask("models", "-q", "mink/").splitlines()
    assert f"mink-local: {MODEL}" in lines
    assert f"mink-local: {MODEL}:min-k-t5" in lines
    assert "mink-local: mink/smollm2-135m" in lines  # on this machine


@pytest.mark.parametrize("how", [(), ("--no-stream",), ("--async",), ("--async", "--no-stream")])
def test_an_answer(how: tuple[str, ...], url: str) -> None:
    assert ask("-m", MODEL, *how, "-o", "temperature", "5", "-o", "seed", "7", "Well?") == "Plainly yes!\n"
    [entry] = logged()
    assert entry["response_json"] == {
        "model": "scripted",
        "server": url,
        "finish_reason": "stop",
        "seed": 7,
        "k": [1, 1],
    }
    assert (entry["output_tokens"], details(entry)["median_k"]) == (2, 1)


def test_a_conversation_goes_on() -> None:
    ask("-m", MODEL, "-s", "Be brief.", "Well?")
    ask("-c", "And now?")
    first, second = logged(2)
    assert second["input_tokens"] > first["input_tokens"] + first["output_tokens"]
    assert details(second)["cached_tokens"] > 0


def test_reasoning() -> None:
    result = run("-m", MODEL, "-o", "think", "true", "Well?")
    assert (result.stdout, "Hm…" in result.stderr) == ("Yes.\n", True)
    assert logged()[0]["reasoning"] == "Hm…"


def test_tools() -> None:
    assert ask("-m", MODEL, "--functions", SHOUT, "Say hey") == "It says HEY.\n"
    first, second = logged(2)
    assert [call["arguments"] for call in first["tool_calls"]] == [{"text": "hey"}]
    assert [result["output"] for result in second["tool_results"]] == ["HEY"]


def test_schema() -> None:
    text = ask("-m", MODEL, "-o", "max_tokens", "40", "--schema", "happy bool", "Invent a dog.")
    assert set(json.loads(text)) == {"happy"}


def test_a_preset_has_its_own_sampling() -> None:
    result = run("-m", f"{MODEL}:top-p", "-o", "temperature", "5", "Well?")
    assert result.stdout == "Plainly yes!\n"
    assert result.stderr == "mink: scripted:top-p has its own way of sampling, without your temperature\n"


def test_what_the_server_refuses_is_a_sentence(url: str) -> None:
    result = run("-m", MODEL, "word " * 400)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: mink-serve at {url}: This model's maximum context length is 512")


def test_a_wrong_key_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llm.get_model(MODEL)
    assert model.prompt("Well?", key=KEY).text() == "Plainly yes!"
    monkeypatch.setenv("MINK_API_KEY", "wrong")
    with pytest.raises(llm.ModelError, match="refuses the API key: set MINK_API_KEY, or type "):
        model.prompt("Well?").text()


def test_a_key_of_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINK_API_KEY")
    assert "Unknown model" in run("-m", MODEL, "Well?").stderr
    ask("keys", "set", "mink", "--value", KEY)
    assert ask("-m", MODEL, "Well?") == "Plainly yes!\n"


def test_many_at_a_time() -> None:
    model = llm.get_async_model(MODEL)

    async def answers() -> list[str]:
        return await asyncio.gather(*(model.prompt(f"Number {i}?").text() for i in range(8)))

    assert asyncio.run(answers()) == ["Plainly yes!"] * 8


def test_a_model_that_the_server_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llm.get_model(MODEL)
    monkeypatch.setenv("MINK_URL", "http://127.0.0.1:1")
    with pytest.raises(llm.ModelError, match="has scripted: start mink-serve, or set MINK_URL"):
        model.prompt("Well?").text()


@contextmanager
def other_server(status: int, body: bytes) -> Iterator[str]:
    """Run a server that answers everything the same; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b'{"data": [{"id": "scripted", "owned_by": "llamacpp"}]}'),
        (200, b'{"data": [{"id": "scripted"}]}'),
        (200, b"[1]"),
        (200, b"<html>"),
        (200, b"\xff"),
        (404, b""),
        (500, b"{}"),
    ],
)
def test_another_program_on_the_port_is_left_alone(
    status: int, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_server(status, body) as address:
        monkeypatch.setenv("MINK_URL", address)
        assert ask("models", "-q", "mink/").splitlines() == ["mink-local: mink/smollm2-135m"]


def test_a_server_that_says_nothing_does_not_hold_up_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MINK_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert ask("models", "-q", "mink/").splitlines() == ["mink-local: mink/smollm2-135m"]
