"""Where questions come from: given, bundled and downloaded files."""

import hashlib
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import DataError
from mink_local.evals.run.data import fetch, locate
from mink_local.evals.tasks import TASKS
from mink_local.evals.tasks.base import Published
from tests.conftest import shared

CONTENT = random.Random(0).randbytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class DataServer(ThreadingHTTPServer):
    """Serves CONTENT, or what it is told to serve instead."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), DataHandler)
        self.content = CONTENT
        self.n_sent: int | None = None  # bytes after which the connection breaks
        self.status = 200
        self.n_asked = 0

    @property
    def source(self) -> Published:
        return Published(f"http://127.0.0.1:{self.server_port}/questions.jsonl", SHA256, len(CONTENT))


class DataHandler(BaseHTTPRequestHandler):
    server: DataServer

    def do_GET(self) -> None:
        self.server.n_asked += 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content[: self.server.n_sent])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataServer]:
    monkeypatch.setattr("mink_local.evals.run.data.user_cache_path", lambda _: tmp_path)
    with DataServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_download_is_kept(server: DataServer, tmp_path: Path) -> None:
    path = fetch(server.source, "some")
    assert path.read_bytes() == CONTENT
    assert fetch(server.source, "some") == path
    assert server.n_asked == 1
    assert files(tmp_path) == [path]


def test_a_kept_file_that_was_damaged_is_fetched_again(server: DataServer) -> None:
    path = fetch(server.source, "some")
    path.write_bytes(CONTENT[:-1] + b"!")
    assert fetch(server.source, "some").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"content": CONTENT[:-1] + b"!"}, "the 200000 bytes that came are not the file"),
        ({"content": CONTENT + b"!!"}, "the 200001 bytes that came are not the file"),
        ({"content": b"<html>Please log in</html>"}, "the 26 bytes that came are not the file"),
        ({"n_sent": 70_000}, "the 70000 bytes that came are not the file"),
        ({"status": 404}, "HTTP 404 Not Found"),
    ],
)
def test_what_is_not_the_file_is_refused(
    server: DataServer, tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    for name, value in changes.items():
        setattr(server, name, value)
    with pytest.raises(DataError, match=rf"some cannot be downloaded \({complaint}"):
        fetch(server.source, "some")
    assert files(tmp_path) == []


@pytest.mark.usefixtures("server")
def test_offline_says_what_to_do() -> None:
    gone = Published("http://127.0.0.1:9/questions.jsonl", SHA256, len(CONTENT))
    with pytest.raises(DataError) as raised:
        fetch(gone, "some")
    assert "refused" in str(raised.value)
    assert f"fetch {gone.url} on a machine that reaches it" in str(raised.value)
    assert "--data FILE" in str(raised.value)


def test_a_cache_that_is_not_a_folder(server: DataServer, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(DataError, match="some cannot be kept in"):
        fetch(server.source, "some")


@pytest.mark.parametrize("name", ["gsm8k", "aqua", "math500"])
def test_the_pinned_sums_are_those_of_the_published_files(name: str) -> None:
    content = shared(f"data/{name}_test.jsonl").read_bytes()
    source = TASKS[name].source
    assert isinstance(source, Published)
    assert hashlib.sha256(content).hexdigest() == source.sha256
    assert len(content) == source.size


def test_locate(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text("")
    assert locate(TASKS["gsm8k"], file) == file
    assert locate(TASKS["sample-math"]).name == "sample-math.jsonl"
    with pytest.raises(DataError, match="is a folder"):
        locate(TASKS["gsm8k"], tmp_path)
    with pytest.raises(DataError, match="there is no file"):
        locate(TASKS["gsm8k"], tmp_path / "none")
    with pytest.raises(DataError, match="there is no file"):
        locate(TASKS["gsm8k"], tmp_path / ("long" * 999))
    with pytest.raises(
        DataError, match=r"gpqa needs your own copy of its data with --data FILE: .*gpqa_main\.csv"
    ):
        locate(TASKS["gpqa"])
