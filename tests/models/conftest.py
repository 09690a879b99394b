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
def home(user_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home with empty stores, cache and configuration; the Hub's cache is its folder `hub`."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(user_folders))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(user_folders / "hub"))
    return user_folders


@pytest.fixture
def mink(home: Path, run_main: Callable[..., Finished]) -> Mink:  # noqa: ARG001
    """`mink(*arguments)` runs `mink-models`."""
    return partial(run_main, main)
