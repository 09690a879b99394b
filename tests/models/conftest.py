"""`mink-models` in this process, with nothing of this machine's but its memory and its packages."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import constants

from mink_local.models.cli import main
from tests.support.python import Finished

Mink = Callable[..., Finished]


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
def mink(home: Path, run_main: Callable[..., Finished]) -> Mink:  # noqa: ARG001
    """`mink(*arguments)` runs `mink-models`."""
    return partial(run_main, main)
