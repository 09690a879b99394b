"""GPUs according to llama.cpp, cores without efficiency cores, and RPC servers."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection, create_server
from socketserver import BaseRequestHandler, TCPServer

import llama_cpp
import psutil
import pytest

from mink_local import MinkError
from mink_local.llama import devices, rpc
from mink_local.llama.devices import Gpu, backends, gpu_missing, gpus, gpus_in_words, n_beside, servers_in_use
from mink_local.llama.library import is_separate
from mink_local.llama.rpc import parse_servers, use_servers
from tests.support.rpc import COMMAND, RpcServer


def test_the_cpu_is_a_backend_and_no_gpu() -> None:
    assert backends()["CPU"] == 1
    assert all(gpu.total >= gpu.free >= 0 for gpu in gpus())
    assert (gpu_missing() is None) == bool(gpus())


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"CPU": 1}, "llama-cpp-python was built without GPU support"),
        ({"BLAS": 1, "CPU": 1}, "llama-cpp-python was built without GPU support"),
        ({"RPC": 0, "CPU": 1}, "llama-cpp-python was built without GPU support"),
        ({"CUDA": 0, "CPU": 1}, "no GPU was found"),
        ({"MTL": 0, "BLAS": 1, "CPU": 1}, "no GPU was found"),
        ({"Vulkan": 0, "CPU": 1}, "no GPU was found"),
    ],
)
def test_why_no_layer_goes_to_a_gpu(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, int], reason: str
) -> None:
    monkeypatch.setattr(devices, "gpu_pointers", list)
    monkeypatch.setattr(devices, "backends", lambda: found)
    assert gpu_missing() == reason


@pytest.mark.gpu
def test_a_gpu_that_this_build_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not devices.nvidia_is_unused(tmp_path)
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    for reason, is_unused in ((devices._WITHOUT_GPUS, True), ("no GPU was found", False), (None, False)):
        monkeypatch.setattr(devices, "gpu_missing", lambda reason=reason: reason)
        assert devices.nvidia_is_unused(tmp_path) == is_unused


def test_a_gpu_says_what_it_is() -> None:
    assert all(gpu.name and gpu.total > 1 << 28 for gpu in gpus())


def test_as_many_as_there_are() -> None:
    assert 1 <= devices.n_cores() <= (psutil.cpu_count(logical=False) or 1)


@pytest.mark.parametrize("n_threads", [1, 2, 1000])
def test_no_thread_waits_for_one_of_llama_cpps_that_spins(
    monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert n_beside(n_threads) == n_threads
    monkeypatch.delenv("OMP_WAIT_POLICY")
    spare = n_beside(n_threads) - 1
    assert spare >= 0
    assert n_threads + spare <= max(n_threads, os.cpu_count() or 1)


def test_a_hybrid_processor(tmp_path: Path) -> None:
    """Two performance cores of two threads each beside four efficiency cores."""
    (tmp_path / "cpu_core").mkdir()
    (tmp_path / "cpu_core/cpus").write_text("0-3\n")
    for cpu in range(8):
        folder = tmp_path / f"system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(
            f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n" if cpu < 4 else f"{cpu}\n"
        )
    assert devices.linux_performance_cores(tmp_path) == 2
    assert devices.linux_performance_cores(tmp_path / "nothing") is None
    assert devices.parse_cpu_list("0-3,8\n") == [0, 1, 2, 3, 8]


# RPC servers: addresses that are refused without ending the process


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    with RpcServer() as server:
        yield server


@pytest.mark.parametrize("text", ["", "pc2", "pc2:", ":1", "pc2:x", "pc2:1,", "[::1]:1", "a b:1"])
def test_addresses(text: str) -> None:
    assert parse_servers("pc2:50052, 10.0.0.7:1") == ("pc2:50052", "10.0.0.7:1")
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
    build = ("-DGGML_RPC=ON", f"llama-cpp-python=={llama_cpp.__version__}")
    assert all(words in error for words in (("BUILD=1",) if is_separate() else build))


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
        use_servers([refused], trust=refused.endswith(":9"))  # where nobody listens, without a child too
    assert refused not in servers_in_use
