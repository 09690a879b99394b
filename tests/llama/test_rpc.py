"""RPC servers: which addresses are refused, and with which words."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from socket import create_connection, create_server
from socketserver import BaseRequestHandler, TCPServer

import pytest

from mink_local import MinkError
from mink_local.llama import devices, rpc
from mink_local.llama.devices import Gpu, gpus_in_words
from mink_local.llama.rpc import parse_servers, servers_in_use, use_servers
from tests.support.rpc import COMMAND, RpcServer, free_port


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    with RpcServer() as server:
        yield server


def test_addresses() -> None:
    assert parse_servers("pc2:50052, 10.0.0.7:1") == ("pc2:50052", "10.0.0.7:1")


@pytest.mark.parametrize("text", ["", "pc2", "pc2:", ":1", "pc2:x", "pc2:1,", "[::1]:1", "a b:1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT, such as"):
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
    *_, warning, sentence = child.stderr.splitlines()
    assert warning == "mink-models: whoever reaches no-address:50052 can take over this machine"
    assert re.fullmatch(r"mink-models: .* was built without RPC: add -DGGML_RPC=ON .*==[\d.]+", sentence)


class MailServer(BaseRequestHandler):
    """Answers as a mail server does."""

    def handle(self) -> None:
        self.request.sendall(b"220 parrot ready\r\n" * 10)


@pytest.mark.usefixtures("server")
class TestRefused:
    """Every wrong address is one sentence, and the process goes on."""

    def check(self, address: str, sentence: str) -> None:
        with pytest.raises(MinkError, match=sentence):
            use_servers([address])
        assert address not in servers_in_use()

    def test_nobody_listens(self) -> None:
        port = free_port()
        self.check(f"127.0.0.1:{port}", rf"no RPC server can be reached at 127\.0\.0\.1:{port} \(.*refused")

    def test_no_such_host(self) -> None:
        self.check("no-such-host.invalid:1", r"can be reached at no-such-host\.invalid:1 \(.*\): start one")

    def test_another_protocol(self) -> None:
        with TCPServer(("127.0.0.1", 0), MailServer) as server:
            thread = threading.Thread(target=server.serve_forever, args=[0.05])
            thread.start()
            try:
                port = server.server_address[1]
                self.check(f"127.0.0.1:{port}", "is no RPC server of this llama.cpp: start")
            finally:
                server.shutdown()
                thread.join()

    def test_a_listener_that_is_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rpc, "_SECONDS", 1.0)
        with create_server(("127.0.0.1", 0)) as listener:
            self.check(f"127.0.0.1:{listener.getsockname()[1]}", "does not answer as an RPC server")

    def test_a_server_that_another_program_uses(
        self, server: RpcServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rpc, "_SECONDS", 1.0)
        with create_connection(("127.0.0.1", server.port)):
            self.check(server.address, "wait until another program that uses it has ended")
