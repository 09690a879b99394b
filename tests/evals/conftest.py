"""Fixtures of the tests that run `mink-eval`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from mink_local.evals import addresses
from tests.support.browser import open_page
from tests.support.judge_server import JudgeServer, judge_server, says
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished

Write = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep in a cache of the tests which model files llama.cpp can load, so that each is tried once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    """A browser for the pages that mink-eval writes."""
    with open_page() as page:
        yield page


@pytest.fixture
def mink_eval(run_main: Callable[..., Finished]) -> MinkEval:
    """Run mink-eval in this process."""
    return MinkEval(run_main)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """A server whose answers a test sets; a request that fails is tried once more."""
    monkeypatch.setattr(addresses, "PAUSES", (0.01,))
    with judge_server(lambda _: says(None)) as running:
        yield running


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file: its content, or the rows of a .jsonl file."""

    def write(*rows: str | bytes | dict[str, Any], name: str = "mine.jsonl") -> Path:
        path = tmp_path / name
        lines = [json.dumps(row) + "\n" if isinstance(row, dict) else row for row in rows]
        path.write_bytes(b"".join(line.encode() if isinstance(line, str) else line for line in lines))
        return path

    return write


@pytest.fixture
def questions(write: Write) -> list[object]:
    """Options for 12 questions, and one response at a time."""
    rows = ({"question": f"What is {i} + {i}?", "answer": f"It is\n#### {2 * i}"} for i in range(12))
    return ["--data", write(*rows, name="gsm8k.jsonl"), "--parallel", 1]


@pytest.fixture
def here(questions: list[object], tiny_path: Path) -> list[object]:
    """The same options, and a small model."""
    return [*questions, "--model", tiny_path, "--threads", 1]
