"""llama.cpp's RPC backend: use other machines' devices, or offer those of this one.

llama.cpp aborts the process if a server is missing, and waits forever for one that does not answer. So each
address is first tried in a child process, which runs this module.
"""

import ctypes
import os
import re
import signal
import socket
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from mink_local.errors import MinkError
from mink_local.llama import ggml
from mink_local.llama.constants import RPC_PORT
from mink_local.llama.devices import CPU, DEDICATED, INTEGRATED, device_pointers, servers_in_use
from mink_local.llama.library import SEPARATE, C, binding, is_separate
from mink_local.llama.log import logged
from mink_local.sandbox import GIB, SandboxError, ask, serve

_SERVER = "mink-models rpc-server"
_SECONDS = 10.0  # how long a server may take to answer
_PTR, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t


def parse_servers(text: str) -> tuple[str, ...]:
    """Return the addresses in `HOST:PORT,HOST:PORT,…`. Raises ValueError for anything else."""
    servers = tuple(server.strip() for server in text.split(","))
    for server in servers:
        if not re.fullmatch(r"[^\s:]+:\d{1,5}", server):
            raise ValueError(f"{server!r} is not HOST:PORT, such as 10.0.0.7:{RPC_PORT} or pc2:{RPC_PORT}")
    return servers


def use_servers(servers: Sequence[str], trust: bool = False) -> None:
    """Add the devices of RPC servers to this process's GPUs, for all models loaded from now on.

    A server serves one process at a time. If it goes away, this process exits with status 1.

    Args:
        servers: Addresses, each `HOST:PORT`.
        trust: Skip trying in a child process first whether llama.cpp can use what answers there.

    Raises:
        ValueError: An address is malformed.
        MinkError: llama-cpp-python was built without RPC, or no server answers at an address.
    """
    servers = [server for text in servers for server in parse_servers(text)]
    new = [server for server in dict.fromkeys(servers) if server not in servers_in_use]
    if not new:
        return
    add = _backend_function("add_server", _PTR, _TEXT)
    for server in new:
        _require_reachable(server)
        if not trust:
            _try_in_child(server)
    ggml.set_abort_callback(_end_process)
    # A server forgets its graphs when a context or model is freed, but llama.cpp still asks for them and
    # aborts: disable graph reuse in contexts created from now on.
    os.environ["LLAMA_GRAPH_REUSE_DISABLE"] = "1"
    for server in new:
        backend = add(server.encode())
        ggml.backend_register(backend)
        # Initializing a device keeps the connection, so that no other program can take it.
        ggml.backend_dev_init(ggml.backend_reg_dev_get(backend, 0), None)
        servers_in_use.append(server)


def run_server(host: str, port: int, n_threads: int) -> None:
    """Offer this machine's GPUs, or its CPU if it has none, to another machine until the process is ended.

    Args:
        host: An IPv4 address of this machine. Anyone who can reach it can run code here: llama.cpp offers
            no protection.
        n_threads: CPU threads.

    Raises:
        MinkError: llama-cpp-python was built without RPC, or llama.cpp cannot listen there.
    """
    start = _backend_function("start_server", None, _TEXT, _TEXT, _SIZE, _SIZE, ctypes.POINTER(_PTR))
    devices = device_pointers(DEDICATED, INTEGRATED) or device_pointers(CPU)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # llama.cpp does not return to Python
    start(f"{host}:{port}".encode(), None, n_threads, len(devices), (_PTR * len(devices))(*devices))
    raise MinkError(
        f"llama.cpp cannot listen on {host}:{port}: give an IPv4 address of this machine, or another port"
    )


@cache
def _backend() -> int:
    """Return llama.cpp's RPC backend: the built-in one, or the library in GGML_BACKEND_PATH."""
    if is_separate():
        raise MinkError(
            f"{SEPARATE}'s build of llama.cpp has a protocol of its own for RPC: compile llama.cpp "
            "(BUILD=1 scripts/setup) to use other machines' devices"
        )
    library = os.environ.get("GGML_BACKEND_PATH")  # llama.cpp reads it only if it has no backend
    with logged(False):
        C.llama_backend_init()
        backend = ggml.backend_reg_by_name(b"RPC") or (library and ggml.backend_load(library.encode()))
    if not backend:
        raise MinkError(
            "llama-cpp-python was built without RPC: add -DGGML_RPC=ON to CMAKE_ARGS and run  python -m pip "
            "install --force-reinstall --no-deps --no-cache-dir "
            f"llama-cpp-python=={binding.__version__}"
        )
    return int(backend)


def _backend_function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a function of the RPC backend, which only the backend itself can look up."""
    address = ggml.backend_reg_get_proc_address(_backend(), f"ggml_backend_rpc_{name}".encode())
    return ctypes.CFUNCTYPE(result, *arguments)(address)


@ggml.ABORT_CALLBACK  # type: ignore[untyped-decorator]
def _end_process(message: bytes) -> None:
    """Exit in place of llama.cpp's abort, which would leave a backtrace and a core dump."""
    reason = message.decode("utf-8", "replace").partition(": ")[2]
    sentence = f"llama.cpp failed ({reason}): if an RPC server has ended, restart it and this program"
    os.write(2, f"\nmink-local: {sentence}\n".encode())  # the screen may show part of an answer
    os._exit(1)


def _try_in_child(server: str) -> None:
    try:
        ask("mink_local.llama.rpc", server, seconds=_SECONDS, memory=4 * GIB)
    except SandboxError as error:  # it times out if another program is using the server
        raise _unusable(server, f"llama.cpp {error}") from None


def _unusable(server: str, complaint: str) -> MinkError:
    return MinkError(
        f"no free RPC server for llama-cpp-python {binding.__version__} at {server} ({complaint}): "
        f"start one there with  {_SERVER}"
    )


def _require_reachable(server: str) -> None:
    """Raise MinkError unless something listens at an address; llama.cpp would end the process."""
    host, _, port = server.partition(":")
    try:
        socket.create_connection((socket.gethostbyname(host), int(port)), _SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unusable(server, getattr(error, "strerror", None) or str(error)) from None


def _add(server: str) -> None:
    """Add a server, in a child, as llama.cpp may abort or wait forever."""
    _backend_function("add_server", _PTR, _TEXT)(server.encode())


if __name__ == "__main__":
    serve(lambda _: _add)
