"""`mink-models` in this process, with nothing of this machine's but its memory and its packages."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from huggingface_hub import constants

from mink_local import cli
from mink_local.models.cli import PROGRAM
from mink_local.models.cli import cli as command


@dataclass
class Result:
    status: int
    stdout: str
    stderr: str


Mink = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home with empty stores, cache and configuration; the Hub's cache is its folder `hub`."""
    path = tmp_path / "home"
    path.mkdir()
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(path / "cache"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(path / "hub"))
    return path


@pytest.fixture
def mink(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mink:  # noqa: ARG001
    """`mink(*arguments)` runs `mink-models`."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", [PROGRAM, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.run(command, PROGRAM)
        return Result(int(end.value.code or 0), *capsys.readouterr())

    return run
