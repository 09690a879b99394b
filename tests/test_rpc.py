"""Models over RPC servers in the programs, and what remains if a server goes away."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mink_local import Greedy, Model
from mink_local.llama.devices import gpus
from tests.conftest import forget
from tests.support.python import output_of, run_python
from tests.support.rpc import RpcServer
from tests.support.server import running_server

pytestmark = [pytest.mark.usefixtures("own_files"), pytest.mark.slow]

MINK_CHAT = ["-m", "mink_local.chat"]
SEA = "Tell me about the sea."
GONE = "mink-local: llama.cpp failed"


@pytest.fixture
def servers() -> Iterator[list[RpcServer]]:
    with RpcServer() as one, RpcServer() as two:
        yield [one, two]


@pytest.fixture
def rpc(servers: list[RpcServer]) -> str:
    """The option for two servers."""
    return f"--rpc={','.join(server.address for server in servers)}"


def has_own_gpu() -> bool:
    """Return whether this machine has a GPU, beside those of servers in use."""
    return any(not gpu.remote for gpu in gpus())


def test_two_servers_answer_as_the_cpu(smollm2: Model, rpc: str) -> None:
    options = ["--prompt", SEA, "--temp", 0, "-n", 12, "--json", "--verbose"]
    child = run_python(*MINK_CHAT, rpc, *options).succeeded()
    own = "the GPU, " if has_own_gpu() else ""
    assert f"on {own}{rpc[6:].replace(',', ' and ')}, all layers" in child.stderr.replace("\n", " ")
    reply = forget(smollm2).chat([{"role": "user", "content": SEA}], sampler=Greedy(), max_tokens=12)
    assert json.loads(child.stdout)["text"] == reply.read()


WITHOUT_SERVER = """
import os, signal, sys
from mink_local import load_model
from mink_local.llama.rpc import use_servers
use_servers([sys.argv[1]])
os.kill(int(sys.argv[2]), signal.SIGTERM)
with load_model("smollm2-135m", n_ctx=512, n_gpu_layers=0) as model:
    print(model.placement)
    print(*next(model.generate(["The sea " * 40], temperature=0, max_tokens=8)).tokens)  # more than 32 tokens
"""


def test_no_layer_on_a_gpu_means_no_gpu(smollm2: Model, servers: list[RpcServer]) -> None:
    """A device that is gone ends the process that uses it: with 0 layers it is not used at all."""
    server = servers[0]
    placement, tokens = output_of("-c", WITHOUT_SERVER, server.address, server.pid).splitlines()
    assert placement.startswith("on the CPU")
    answer = next(smollm2.generate(["The sea " * 40], sampler=Greedy(), max_tokens=8))
    assert tokens.split() == [str(token) for token in answer.tokens]


TWO_MODELS = """
import sys
from mink_local import load_model
with load_model("smollm2-135m", n_ctx=256, n_gpu_layers=-1, rpc=[sys.argv[1]]) as model:
    reply = model.chat([{"role": "user", "content": "Count."}], temperature=0, max_tokens=20)
    for _ in range(4):
        next(reply)
    load_model(sys.argv[2], n_ctx=64, n_gpu_layers=-1).close()
    reply.read()
    print(reply.finish_reason)
"""


def test_a_model_outlives_another(servers: list[RpcServer], tiny_path: Path) -> None:
    """llama.cpp ends the process if a graph is used again after anything is freed on the server."""
    assert output_of("-c", TWO_MODELS, servers[0].address, tiny_path) == "length\n"


def test_mink_serve_over_two_servers(servers: list[RpcServer], rpc: str) -> None:
    """It answers, and ends with status 1 if a server goes away."""
    body: dict[str, Any] = {"prompt": "The sea is", "temperature": 0, "max_tokens": 8}
    with running_server(rpc) as server:
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert response.json()["usage"]["completion_tokens"] == 8
        servers[0].kill()
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert server.process.wait(10) == 1
        assert any(line.startswith(GONE) for line in server.said)
