"""The compiled kernels: kept in a private folder of the user's, shared by processes that start at once."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mink_local
from tests.support.python import output_of

pytestmark = pytest.mark.posix  # cache folders with modes

PROGRAM = """
import numpy as np
from mink_local import Greedy
print(*Greedy().candidates(np.random.default_rng(0).normal(0, 3, 5000))[0])
"""

# Another thread imports what is hidden from Numba while Numba is being imported.
MEANWHILE = """
import sys, threading
from importlib import import_module

def hook(event, arguments):
    if event == "import" and arguments[0] == "numba.core":
        other = threading.Thread(target=lambda: print(import_module("yaml").__name__))
        other.start()
        other.join()

sys.addaudithook(hook)
from mink_local import Greedy
print(Greedy().cutoff([1.0, 2.0]), "numba" in sys.modules, "colorama" in sys.modules)
"""


def run(cache: Path, package_parent: Path | None = None) -> "subprocess.Popen[str]":
    """Start a process that compiles or loads a kernel, with a cache folder of its own."""
    root = package_parent or Path(mink_local.__file__).parent.parent
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(root)}
    env.pop("NUMBA_CACHE_DIR", None)  # that of all other tests
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=env,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def candidates(process: "subprocess.Popen[str]") -> list[int]:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return [int(token) for token in output.split()]


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return [int(np.argmax(np.random.default_rng(0).normal(0, 3, 5000)))]


def compiled(cache: Path) -> dict[str, int]:
    """The files of compiled code, with their modification times."""
    return {str(path): path.stat().st_mtime_ns for path in (cache / "mink-local").rglob("*.nb[ci]")}


@pytest.mark.slow
def test_processes_that_start_at_once_and_later_ones(tmp_path: Path, expected: list[int]) -> None:
    for process in [run(tmp_path) for _ in range(3)]:
        assert candidates(process) == expected
    before = compiled(tmp_path)
    assert len(before) >= 2  # the index and the code of one kernel
    assert stat.S_IMODE((tmp_path / "mink-local" / "numba" / mink_local.__version__).stat().st_mode) == 0o700
    assert candidates(run(tmp_path)) == expected
    assert compiled(tmp_path) == before  # nothing was compiled again


@pytest.mark.slow
def test_read_only_package(tmp_path: Path, expected: list[int]) -> None:
    package = tmp_path / "site" / "mink_local"
    shutil.copytree(Path(mink_local.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [package, *package.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    assert candidates(run(tmp_path / "cache", tmp_path / "site")) == expected
    assert compiled(tmp_path / "cache")
    assert not list(package.rglob("*.nb[ci]"))


@pytest.mark.slow
def test_no_folder_for_a_cache(tmp_path: Path, expected: list[int]) -> None:
    (tmp_path / "file").touch()
    assert candidates(run(tmp_path / "file")) == expected


@pytest.mark.slow
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, expected: list[int]) -> None:
    """Numba's cache is pickle: what another user puts there would be run."""
    folder = tmp_path / "mink-local" / "numba" / mink_local.__version__
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert candidates(run(tmp_path)) == expected
    assert not compiled(tmp_path)


def test_only_numba_lacks_what_it_does_not_need() -> None:
    pytest.importorskip("yaml")
    assert output_of("-c", MEANWHILE).split() == ["yaml", "1", "True", "False"]
