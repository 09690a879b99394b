"""Fixtures of all tests: the embedded model, small random models, the user's folders, the test data."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from hypothesis import settings
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.files import user_folder
from mink_local.generation.model import Model
from mink_local.llama.devices import gpu_missing
from mink_local.llama.rpc import use_servers
from mink_local.manage.cli import main as mink_models
from mink_local.models.catalog import EMBEDDED, choose_model, resolve
from mink_local.samplers.compile import CACHE
from tests.support.logits import NAMES as LOGITS
from tests.support.logits import real_logits
from tests.support.methods import JIT
from tests.support.python import Finished, Mink
from tests.support.rpc import RpcServer
from tests.support.tiny import write_model

# A busy machine is not a failure. Only the nightly tests look for new examples.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SHARED = Path(__file__).parents[2] / "shared"

_SKIPPED: dict[str, tuple[Callable[[], object], str]] = {  # a marker's tests: when, and why
    "posix": (lambda: os.name != "posix", "needs a POSIX system"),
    "linux": (lambda: sys.platform != "linux", "needs Linux"),
    "terminal": (lambda: os.name != "posix", "needs a POSIX terminal"),
    "gpu": (gpu_missing, "llama.cpp finds no GPU"),
    "cpu": (lambda: os.environ.get("BACKEND", "cpu") != "cpu", "is about llama.cpp's CPU"),
}


def pytest_configure(config: pytest.Config) -> None:
    """Share the compiled kernels with child processes; give each pytest-xdist worker its own cores.

    A test may give its child processes another cache folder, which would have no kernels. And llama.cpp
    starts one thread for each core that the process may use. A shell that starts the tests in the background
    has them ignore Ctrl-C, and their child processes too.

    With BACKEND=rpc every model in this process goes to a server of its own, as to a GPU.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if CACHE is not None:
        os.environ.setdefault("NUMBA_CACHE_DIR", str(CACHE))
    worker, n_workers = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    if worker and n_workers and hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))[int(worker.removeprefix("gw")) :: int(n_workers)]
        if own:
            os.sched_setaffinity(0, own)
    if os.environ.get("BACKEND") == "rpc" and (worker or not config.getoption("numprocesses", None)):
        server = RpcServer()
        config.add_cleanup(server.kill)
        use_servers([server.address])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this system cannot run."""
    for item in items:
        for name, (is_skipped, reason) in _SKIPPED.items():
            if item.get_closest_marker(name) and is_skipped():
                item.add_marker(pytest.mark.skip(reason=reason))


def forget(model: Model) -> Model:
    """Empty the model's KV cache, as after loading; return the model."""
    model.forget()
    return model


def shared(name: str) -> Path:
    """Return a file of the test data beside the checkout; skip the test if it is not there."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the test data {path} is not here")
    return path


@pytest.fixture(params=LOGITS)
def logits(request: pytest.FixtureRequest) -> NDArray[np.float32]:
    """Eight rows of a real model's logits, (8, V)."""
    if not JIT:
        pytest.skip("without the JIT a whole vocabulary takes minutes")
    rows = real_logits(request.param, SHARED / "logits")
    if rows is None:
        pytest.skip(f"the test data {SHARED / 'logits'} is not here")
    return rows


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of the embedded model, SmolLM2-135M-Instruct."""
    return resolve("smollm2-135m").path


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """The embedded model, loaded once; `forget(smollm2)` empties its KV cache."""
    return load_model("smollm2-135m", n_ctx=1024)


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """`run_main(main, *arguments)` runs a program's main function in this process."""

    def run(main: Callable[[], object], *arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return Finished(int(end.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def user_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data, settings and caches of the test's own, also in child processes; returns the parent folder."""
    for kind in ("data", "config", "cache"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("WIN_PD_OVERRIDE_LOCAL_APPDATA", str(tmp_path / "data"))
    return tmp_path


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
    return partial(run_main, mink_models)


@pytest.fixture
def own_files(user_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: ARG001
    """Conversations, settings and history of the test's own; returns the folder of the first.

    The embedded model is the chosen one: a chat in a terminal does not offer another.
    """
    for name in [name for name in os.environ if name.startswith("MINK_") or name in ("NO_COLOR", "INPUTRC")]:
        monkeypatch.delenv(name)
    choose_model(EMBEDDED)
    return user_folder("data")


@pytest.fixture
def tiny(user_folders: Path, smollm2_path: Path) -> Callable[..., Path]:
    """`tiny(**options)` writes a one-layer model with SmolLM2's vocabulary; see `write_model`.

    Which files passed the child process is remembered in a cache of the test's own.
    """

    def write(name: str = "tiny.gguf", **options: Any) -> Path:
        return write_model(user_folders / name, options.pop("vocabulary", smollm2_path), **options)

    return write


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Path:
    """A one-layer model with random weights and SmolLM2's vocabulary, written once; it loads instantly."""
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", smollm2_path)


@contextlib.contextmanager
def held(model: Model) -> Iterator[None]:
    """Let a model generate nothing in this block."""
    release = Event()
    with ThreadPoolExecutor(1) as waiting:
        waiting.submit(model.core.thread.call_when_idle, release.wait)
        try:
            yield
        finally:
            release.set()
