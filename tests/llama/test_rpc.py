"""RPC servers: which addresses are refused, and that the process survives."""

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


@pytest.mark.usefixtures("server")
class TestRefused:
    """A wrong address is an error that names it, and the process goes on."""

    def check(self, address: str) -> None:
        with pytest.raises(MinkError, match=re.escape(address)):
            use_servers([address])
        assert address not in servers_in_use

    @pytest.mark.parametrize("address", ["127.0.0.1:9", "no-such-host.invalid:1"])
    def test_nobody_listens(self, address: str) -> None:
        self.check(address)

    def test_another_protocol(self) -> None:
        with TCPServer(("127.0.0.1", 0), MailServer) as server:
            threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
            self.check(f"127.0.0.1:{server.server_address[1]}")
            server.shutdown()

    def test_a_listener_that_is_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rpc, "_SECONDS", 1.0)
        with create_server(("127.0.0.1", 0)) as listener:
            self.check(f"127.0.0.1:{listener.getsockname()[1]}")

    def test_a_server_that_another_program_uses(
        self, server: RpcServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rpc, "_SECONDS", 1.0)
        with create_connection(("127.0.0.1", server.port)):
            self.check(server.address)
