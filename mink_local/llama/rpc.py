"""Devices of other machines through llama.cpp's RPC backend: use them, and offer those of this machine.

llama.cpp aborts the process if a server is missing, and waits for ever for one that does not answer. So an
address is tried in a child process first.
"""

import ctypes
import os
import re
import signal
import socket
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as C

from mink_local.errors import MinkError
from mink_local.llama.constants import RPC_PORT
from mink_local.llama.devices import CPU, DEDICATED, INTEGRATED, device_pointers
from mink_local.llama.ggml import function
from mink_local.llama.log import logged
from mink_local.sandbox import GIB, ChildTimeoutError, SandboxError, ask, serve

_SERVER = "mink-models rpc-server"

_PTR, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_SECONDS = 10.0  # for a server to answer

_load_backend = function("ggml_backend_load", _PTR, _TEXT)
_backend_by_name = function("ggml_backend_reg_by_name", _PTR, _TEXT)
_address_of = function("ggml_backend_reg_get_proc_address", _PTR, _PTR, _TEXT)
_register = function("ggml_backend_register", None, _PTR)
_first_device = function("ggml_backend_reg_dev_get", _PTR, _PTR, _SIZE)
_use_device = function("ggml_backend_dev_init", _PTR, _PTR, _TEXT)

_used: list[str] = []


def parse_servers(text: str) -> tuple[str, ...]:
    """Return the addresses in `HOST:PORT,HOST:PORT,…`. Raises ValueError for another text."""
    servers = tuple(server.strip() for server in text.split(","))
    for server in servers:
        if not re.fullmatch(r"[^\s:]+:\d{1,5}", server):
            raise ValueError(f"{server!r} is not HOST:PORT, such as 10.0.0.7:{RPC_PORT} or pc2:{RPC_PORT}")
    return servers


def use_servers(servers: Sequence[str], trust: bool = False) -> None:
    """Add the devices of RPC servers to the GPUs of this process.

    They are used for every model that is loaded from now on. A server serves one process at a time. If it
    goes away, llama.cpp ends this process, with a sentence and status 1.

    Args:
        servers: Addresses, each `HOST:PORT`.
        trust: Do not try the addresses in a child process first.

    Raises:
        ValueError: An address is malformed.
        MinkError: llama-cpp-python was built without RPC, or no server answers at an address.
    """
    servers = [server for text in servers for server in parse_servers(text)]
    new = [server for server in dict.fromkeys(servers) if server not in _used]
    if not new:
        return
    add = _function_of_backend("add_server", _PTR, _TEXT)
    if not trust:
        for server in new:
            _try_in_child(server)
    function("ggml_set_abort_callback", _PTR, type(_end_process))(_end_process)
    # A server forgets its graphs when a context or a model is freed, but llama.cpp asks it for them again
    # and aborts: so every step has a new graph, in the contexts that are made from now on.
    os.environ["LLAMA_GRAPH_REUSE_DISABLE"] = "1"
    for server in new:
        backend = add(server.encode())
        _register(backend)
        _use_device(_first_device(backend, 0), None)  # keeps the connection, which another program could get
        _used.append(server)


def servers_in_use() -> tuple[str, ...]:
    """Return the addresses of the servers whose devices this process uses."""
    return tuple(_used)


def run_server(host: str, port: int, n_threads: int) -> None:
    """Offer this machine's GPUs to another, or its CPU if there are none, until the process is ended.

    Args:
        host: An IPv4 address of this machine. Whoever reaches it can run code here: llama.cpp has no
            protection.
        n_threads: Threads of the CPU.

    Raises:
        MinkError: llama-cpp-python was built without RPC, or llama.cpp cannot listen there.
    """
    start = _function_of_backend("start_server", None, _TEXT, _TEXT, _SIZE, _SIZE, ctypes.POINTER(_PTR))
    devices = device_pointers(DEDICATED, INTEGRATED) or device_pointers(CPU)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # llama.cpp does not return to Python
    start(f"{host}:{port}".encode(), None, n_threads, len(devices), (_PTR * len(devices))(*devices))
    raise MinkError(
        f"llama.cpp cannot listen on {host}:{port}: give an IPv4 address of this machine, or another port"
    )


@cache
def _backend() -> int:
    """Return llama.cpp's RPC backend: part of it, or the library that GGML_BACKEND_PATH names."""
    library = os.environ.get("GGML_BACKEND_PATH")  # llama.cpp itself reads it only if it has no backend
    with logged(False):
        C.llama_backend_init()
        backend = _backend_by_name(b"RPC") or (library and _load_backend(library.encode()))
    if not backend:
        raise MinkError(
            "llama-cpp-python was built without RPC: add -DGGML_RPC=ON to CMAKE_ARGS and type  python -m pip "
            "install --force-reinstall --no-deps --no-cache-dir "
            f"llama-cpp-python=={llama_cpp.__version__}"
        )
    return int(backend)


def _function_of_backend(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a function of the RPC backend; only the backend itself knows where it is."""
    address = _address_of(_backend(), f"ggml_backend_rpc_{name}".encode())
    return ctypes.CFUNCTYPE(result, *arguments)(address)


@ctypes.CFUNCTYPE(None, _TEXT)  # type: ignore[untyped-decorator]
def _end_process(message: bytes) -> None:
    """End the process in place of llama.cpp's abort, which leaves a backtrace and a core dump."""
    reason = message.decode("utf-8", "replace").partition(": ")[2]
    sentence = (
        f"llama.cpp cannot go on ({reason}): if an RPC server has ended, start it again, and this program"
    )
    os.write(2, f"\nmink-local: {sentence}\n".encode())  # half a line of an answer may be on the screen
    os._exit(1)


def _try_in_child(server: str) -> None:
    try:
        complaint = ask("mink_local.llama.rpc", server, seconds=_SECONDS, memory=4 * GIB)
    except ChildTimeoutError:
        raise MinkError(
            f"{server} does not answer as an RPC server: wait until another program that uses it has ended, "
            f"or start one there with  {_SERVER}"
        ) from None
    except SandboxError:
        raise MinkError(
            f"what listens at {server} is no RPC server of this llama.cpp: start one there with  {_SERVER}  "
            f"and llama-cpp-python {llama_cpp.__version__}"
        ) from None
    if complaint:
        raise MinkError(f"no RPC server can be reached at {server} ({complaint}): start one with  {_SERVER}")


def _begin(_: object) -> Callable[[str], str | None]:
    os.environ["GGML_NO_BACKTRACE"] = "1"  # a crash starts no debugger
    return _complaint


def _complaint(server: str) -> str | None:
    """Return why a server cannot be reached, or None; llama.cpp may also end the process, or wait."""
    host, _, port = server.partition(":")
    try:
        socket.create_connection((socket.gethostbyname(host), int(port))).close()
    except OSError as error:
        return error.strerror or str(error)
    _function_of_backend("add_server", _PTR, _TEXT)(server.encode())
    return None


if __name__ == "__main__":
    serve(_begin)
