"""RPC servers: addresses that are refused without ending the process."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from socket import create_connection, create_server
from socketserver import BaseRequestHandler, TCPServer

import llama_cpp
import pytest

from mink_local import MinkError
from mink_local.llama import devices, rpc
from mink_local.llama.devices import Gpu, gpus_in_words, servers_in_use
from mink_local.llama.rpc import parse_servers, use_servers
from tests.support.rpc import COMMAND, RpcServer


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    with RpcServer() as server:
        yield server


def test_addresses() -> None:
    assert parse_servers("pc2:50052, 10.0.0.7:1") == ("pc2:50052", "10.0.0.7:1")


@pytest.mark.parametrize("text", ["", "pc2", "pc2:", ":1", "pc2:x", "pc2:1,", "[::1]:1", "a b:1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_servers(text)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([Gpu("Parrot", 1, 1), Gpu("Parrot", 1, 1)], "the GPU"),
        ([Gpu("a:1", 1, 1, remote=True), Gpu("a:1", 1, 1, remote=True)], "a:1"),
        ([Gpu("a:1", 1, 1, remote=True), Gpu("Parrot", 1, 1)], "a:1 and the GPU"),
        ([Gpu(name, 1, 1, remote=True) for name in ("a:1", "b:1", "c:1")], "a:1, b:1 and c:1"),
    ],
)
def test_where_layers_are_in_words(monkeypatch: pytest.MonkeyPatch, found: list[Gpu], words: str) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: found)
    assert gpus_in_words() == words


def test_a_build_without_rpc_says_how_to_get_it() -> None:
    environment = {**os.environ, "GGML_BACKEND_PATH": ""}
    command = [*COMMAND, "--host", "no-address"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if "cannot listen" in child.stderr:
        pytest.skip("llama.cpp is built with RPC")
    assert (child.returncode, child.stdout) == (1, "")
    *_, warning, error = child.stderr.splitlines()
    assert "no-address:50052" in warning
    assert "-DGGML_RPC=ON" in error
    assert f"llama-cpp-python=={llama_cpp.__version__}" in error


class MailServer(BaseRequestHandler):
    """Answers as a mail server does."""

    def handle(self) -> None:
        self.request.sendall(b"220 parrot ready\r\n" * 10)


@pytest.fixture
def refused(server: RpcServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """An address at which no free RPC server listens."""
    with (
        TCPServer(("127.0.0.1", 0), MailServer) as mail,
        create_server(("127.0.0.1", 0)) as silent,
        create_connection(("127.0.0.1", server.port)),
    ):
        threading.Thread(target=mail.serve_forever, args=[0.05], daemon=True).start()
        yield {
            "nobody": "127.0.0.1:9",
            "no host": "no-such-host.invalid:1",
            "another protocol": f"127.0.0.1:{mail.server_address[1]}",
            "silent": f"127.0.0.1:{silent.getsockname()[1]}",
            "in use": server.address,
        }[request.param]
        mail.shutdown()


@pytest.mark.parametrize(
    "refused", ["nobody", "no host", "another protocol", "silent", "in use"], indirect=True
)
def test_a_wrong_address_is_an_error_that_names_it(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "_SECONDS", 2.0)
    with pytest.raises(MinkError, match=re.escape(refused)):
        use_servers([refused])
    assert refused not in servers_in_use
