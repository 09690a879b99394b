"""What the tests share: the real model, small models with random weights, the test data."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.generation.model import Model
from mink_local.models.catalog import resolve
from tests.support.tiny import write_model

SHARED = Path(__file__).parents[2] / "shared"
LOGITS = ("smollm2-135m-49152", "qwen2.5-0.5b-151936", "gemma3-270m-262144")


def forget(model: Model) -> Model:
    """The model as it is when just loaded: nothing in the KV cache."""
    model.forget()
    return model


def shared(name: str) -> Path:
    """A file of the test data beside the checkout; the test is skipped where it is not there."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the test data {path} is not here")
    return path


@pytest.fixture(params=LOGITS)
def logits(request: pytest.FixtureRequest) -> NDArray[np.float32]:
    """Eight rows of a real model's logits, (8, V)."""
    if numba.config.DISABLE_JIT:
        pytest.skip("without the JIT a whole vocabulary takes minutes")
    with np.load(shared(f"logits/{request.param}.npz")) as file:
        rows: NDArray[np.float32] = file["logits"]
    return rows


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return resolve("smollm2-135m").path


@pytest.fixture(scope="session")
def smollm2() -> Model:
    return load_model("smollm2-135m", n_ctx=1024)


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Conversations, settings and history of the test's own; returns the folder of the first."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in [name for name in os.environ if name.startswith("MINK_") or name in ("NO_COLOR", "INPUTRC")]:
        monkeypatch.delenv(name)
    return tmp_path / "data" / "mink-local"


@pytest.fixture
def tiny(tmp_path: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`tiny(**options)` writes a one-layer model with SmolLM2's vocabulary; see `write_model`.

    What passes the child process is remembered in a cache of the test's own.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(name: str = "tiny.gguf", **options: Any) -> Path:
        return write_model(tmp_path / name, options.pop("vocabulary", smollm2_path), **options)

    return write
