"""RPC servers on this machine, in place of those of other machines."""

import contextlib
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager

import pytest

COMMAND = [sys.executable, "-c", "from mink_local.manage.cli import main; main()", "rpc-server"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RpcServer(AbstractContextManager["RpcServer"]):
    """`mink-models rpc-server` in a process of its own; if llama.cpp has no RPC, the test is skipped."""

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "--port", str(self.port), "--threads", "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while not self._is_listening():
            if self._process.poll() is not None:
                sentence = self._process.communicate()[1].strip()
                assert "RPC" in sentence
                pytest.skip(sentence)
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def _is_listening(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False
