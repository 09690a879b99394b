"""A mink-serve process for tests."""

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass
class RunningServer:
    """A mink-serve process.

    Attributes:
        url: `http://127.0.0.1:PORT`.
        process: The process.
        said: The last lines of its standard error.
    """

    url: str
    process: "subprocess.Popen[str]"
    said: deque[str]

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """Send a JSON object to a path."""
        return httpx.post(f"{self.url}{path}", json=fields, timeout=120)

    def metric(self, name: str) -> float:
        """Return one of the numbers of /metrics, the sum over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        return sum(float(n) for n in re.findall(rf"^mink_{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


@contextmanager
def running_server(*options: str, before: str = "") -> Iterator[RunningServer]:
    """Start mink-serve with a small context on a free port; end it afterwards.

    `before` is a program in Python that the process runs first.
    """
    program = f"{before}\nfrom mink_local.serve.cli import main\nmain()"
    command = [sys.executable, "-c", program, "--port", "0", "--ctx", "512", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stderr is not None
    said: list[str] = []
    stderr = process.stderr
    for line in stderr:
        said.append(line)
        if found := re.search(r"""playground(?: +|": ")(http[^\s"]+)""", line):
            break
    else:
        raise AssertionError(f"mink-serve ended with status {process.wait()}: {''.join(said)}")
    server = RunningServer(found[1], process, deque(said, maxlen=20_000))
    threading.Thread(target=lambda: server.said.extend(stderr), daemon=True).start()
    try:
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        stderr.close()
