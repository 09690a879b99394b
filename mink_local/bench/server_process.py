"""Servers as child processes on free ports of this machine."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import httpx
import psutil

from mink_local.errors import MinkError

HOST = "127.0.0.1"
_START_SECONDS = 300
_STOP_SECONDS = 20
_INTERVAL = 0.1  # seconds between two looks at a server that starts


@dataclass(frozen=True)
class ServerOptions:
    """Options of the servers, so that all of them do the same work.

    Attributes:
        model: The GGUF file.
        n_parallel: Number of slots.
        n_ctx: Tokens of one slot.
        n_threads: CPU threads.
        gpu_layers: Layers on the GPU; -1 is all of them.
    """

    model: Path
    n_parallel: int
    n_ctx: int
    n_threads: int
    gpu_layers: int | Literal["auto"]

    def mink_serve(self) -> "ServerProcess":
        """Start mink-serve. Raises MinkError if it does not start."""
        options = {
            "--model": self.model,
            "--parallel": self.n_parallel,
            "--ctx": self.n_ctx,
            "--threads": self.n_threads,
            "--gpu-layers": self.gpu_layers,
        }
        return ServerProcess("mink-serve", [sys.executable, "-m", "mink_local.serve.cli", *_words(options)])

    def llama_server(self, program: str) -> "ServerProcess":
        """Start a llama-server of llama.cpp. Raises MinkError if it does not start."""
        options = {
            "--model": self.model,
            "--parallel": self.n_parallel,
            "--ctx-size": self.n_parallel * self.n_ctx,
            "--threads": self.n_threads,
            "--gpu-layers": "all" if self.gpu_layers == -1 else self.gpu_layers,
            "--cache-ram": 0,  # keeps no copies of prompts, which are never sent twice
        }
        return ServerProcess("llama-server", [program, *_words(options)])


def _words(options: Mapping[str, object]) -> list[str]:
    return [str(word) for option in options.items() for word in option]


class ServerProcess:
    """A server of OpenAI's protocol as a child process, from its start until the end of a `with` block.

    Args:
        name: What messages call it.
        command: The program and its options, without --host and --port, which it must know.

    Raises:
        MinkError: The server ends, or does not answer `GET /health` with status 200 in time.

    Attributes:
        url: Where it listens, without a slash at the end.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        port = _free_port()
        self.url = f"http://{HOST}:{port}"
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        try:
            self._child = subprocess.Popen(
                [*command, "--host", HOST, "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self._output.close()
            raise MinkError(f"{name} does not start: {error}") from None
        self.process = psutil.Process(self._child.pid)
        try:
            self._wait_until_healthy()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server: ask it to, and kill it if it takes too long."""
        self._child.terminate()
        try:
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._output.close()

    def cpu_seconds(self) -> float:
        """Return the processor time, user and system, that the server and its children have taken."""
        seconds = 0.0
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
        return seconds

    def _family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def _wait_until_healthy(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if (status := self._child.poll()) is not None:
                raise MinkError(f"{self.name} ended with status {status}: {self._last_line()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=5).status_code == httpx.codes.OK:
                    return
            time.sleep(_INTERVAL)
        raise MinkError(f"{self.name} did not answer within {_START_SECONDS} s: {self._last_line()}")

    def _last_line(self) -> str:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
