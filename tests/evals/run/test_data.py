"""Where questions come from: given, bundled and downloaded files."""

import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mink_local.errors import DataError
from mink_local.evals.run.questions import fetch, locate
from mink_local.evals.tasks import TASKS
from mink_local.evals.tasks.base import Published
from tests.conftest import shared
from tests.support.hub import REPOSITORY, Hub, serve

NAME = "questions.jsonl"
CONTENT = random.Random(0).randbytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr("mink_local.evals.run.questions.user_cache_path", lambda _: folder)
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A server on which CONTENT is published."""
    with serve(Hub({NAME: CONTENT})) as hub:
        yield hub


def published(hub: Hub) -> Published:
    return Published(f"{hub.url}/{REPOSITORY}/resolve/main/{NAME}", SHA256, len(CONTENT))


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_download_is_kept_until_it_is_damaged(hub: Hub, cache: Path) -> None:
    path = fetch(published(hub), "some")
    assert path.read_bytes() == CONTENT
    assert kept(cache) == [path]
    path.write_bytes(CONTENT[:-1] + b"!")
    assert fetch(published(hub), "some").read_bytes() == CONTENT
    hub.files.clear()
    assert fetch(published(hub), "some") == path


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({NAME: CONTENT[:-1] + b"!"}, "200000 bytes"),
        ({NAME: CONTENT + b"!!"}, "200001 bytes"),
        ({NAME: CONTENT[:70_000]}, "70000 bytes"),
        ({NAME: b"<html>Please log in</html>"}, "26 bytes"),
        ({}, "404"),
    ],
)
def test_what_is_not_the_file_is_refused(
    hub: Hub, cache: Path, files: dict[str, bytes], complaint: str
) -> None:
    hub.files = files
    with pytest.raises(DataError, match=complaint):
        fetch(published(hub), "some")
    assert kept(cache) == []


def test_offline_says_what_to_do(cache: Path) -> None:
    gone = Published("http://127.0.0.1:9/questions.jsonl", SHA256, len(CONTENT))
    with pytest.raises(DataError) as raised:
        fetch(gone, "some")
    for part in ("refused", gone.url, "--data FILE"):
        assert part in str(raised.value)
    assert kept(cache) == []


def test_a_cache_that_is_not_a_folder(hub: Hub, cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(DataError, match="cache"):
        fetch(published(hub), "some")


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
