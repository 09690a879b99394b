"""Where questions come from: given, bundled and downloaded files."""

import hashlib
import random
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mink_local.errors import DataError
from mink_local.evals.run.questions import fetch, locate
from mink_local.evals.tasks import TASKS
from mink_local.evals.tasks.base import Published
from tests.conftest import shared

CONTENT = random.Random(0).randbytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Website(ThreadingHTTPServer):
    """Serves a folder, in which CONTENT is published."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
        self.file = folder / "questions.jsonl"
        self.file.write_bytes(CONTENT)
        self.source = Published(f"http://127.0.0.1:{self.server_port}/{self.file.name}", SHA256, len(CONTENT))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr("mink_local.evals.run.questions.user_cache_path", lambda _: folder)
    return folder


@pytest.fixture
def website(tmp_path: Path) -> Iterator[Website]:
    with Website(tmp_path) as website:
        threading.Thread(target=website.serve_forever, args=(0.01,), daemon=True).start()
        yield website
        website.shutdown()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_download_is_kept_until_it_is_damaged(website: Website, cache: Path) -> None:
    path = fetch(website.source, "some")
    assert path.read_bytes() == CONTENT
    assert files(cache) == [path]
    path.write_bytes(CONTENT[:-1] + b"!")
    assert fetch(website.source, "some").read_bytes() == CONTENT
    website.file.unlink()
    assert fetch(website.source, "some") == path


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (CONTENT[:-1] + b"!", "200000 bytes"),
        (CONTENT + b"!!", "200001 bytes"),
        (CONTENT[:70_000], "70000 bytes"),
        (b"<html>Please log in</html>", "26 bytes"),
        (None, "404"),
    ],
)
def test_what_is_not_the_file_is_refused(
    website: Website, cache: Path, content: bytes | None, complaint: str
) -> None:
    if content is None:
        website.file.unlink()
    else:
        website.file.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        fetch(website.source, "some")
    assert files(cache) == []


def test_offline_says_what_to_do(cache: Path) -> None:
    gone = Published("http://127.0.0.1:9/questions.jsonl", SHA256, len(CONTENT))
    with pytest.raises(DataError) as raised:
        fetch(gone, "some")
    for part in ("refused", gone.url, "--data FILE"):
        assert part in str(raised.value)
    assert files(cache) == []


def test_a_cache_that_is_not_a_folder(website: Website, cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(DataError, match="cache"):
        fetch(website.source, "some")


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
    for task, data, named in (
        ("gsm8k", tmp_path, str(tmp_path)),
        ("gsm8k", tmp_path / "none", "none"),
        ("gsm8k", tmp_path / ("long" * 999), "longlong"),
        ("gpqa", None, "gpqa_main.csv"),
    ):
        with pytest.raises(DataError, match=re.escape(named)):
            locate(TASKS[task], data)
