"""The compiled kernels: kept in a private folder of the user's, shared by processes that start at once."""

import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
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


def run(
    cache: Path, package_parent: Path | None = None, program: str | list[str] = PROGRAM
) -> "subprocess.Popen[str]":
    """Start a process that compiles or loads a kernel, with a cache folder of its own."""
    root = package_parent or Path(mink_local.__file__).parent.parent
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(root)}
    env.pop("NUMBA_CACHE_DIR", None)  # that of all other tests
    return subprocess.Popen(
        [sys.executable, *(["-c", program] if isinstance(program, str) else program)],
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


# What a crash, a full disk or another program leaves in the cache


def _zero(path: Path, start: int = 0) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:start] + bytes(len(content[start:])))


def _become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _become_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


DOUBLED = """
import sys
import numpy as np
from mink_local.samplers.compile import compiled

@compiled
def doubled(row):
    return row * 2

print(doubled(np.ones(3, sys.argv[1])).dtype)
"""


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut to nothing": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "zeros": _zero,
    "zeros at the end, after what makes it a pickle": lambda path: _zero(path, path.stat().st_size // 2),
    "one byte": lambda path: path.write_bytes(path.read_bytes()[:-100] + b"x" + path.read_bytes()[-99:]),
    "a folder": _become_folder,
    "unreadable": _become_loop,  # also for root
    "of another version": lambda path: path.write_bytes(pickle.dumps("0.1") + path.read_bytes()),
    "another class": lambda path: path.write_bytes(b"cnowhere\nNothing\n."),
}


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a small compiled function, which has been run once: its cache is beside it."""
    program = tmp_path_factory.mktemp("doubled") / "program.py"
    program.write_text(DOUBLED)
    assert run(program.parent, program=[str(program), "float32"]).communicate() == ("float32\n", "")
    return program


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [pytest.param(each, marks=pytest.mark.slow) for each in DAMAGES])
def test_a_damaged_cache_is_compiled_again(doubled: Path, tmp_path: Path, kind: str, damage: str) -> None:
    shutil.copytree(doubled.parent, tmp_path, dirs_exist_ok=True)
    [path] = tmp_path.rglob(f"*.{kind}")
    DAMAGES[damage](path)
    output, errors = run(tmp_path, program=[str(doubled), "float32"]).communicate()
    assert output == "float32\n"
    assert errors.count("\n") <= 1
    assert "Traceback" not in errors
    if damage not in ("a folder", "unreadable"):
        assert run(tmp_path, program=[str(doubled), "float32"]).communicate() == ("float32\n", "")


@pytest.mark.slow
def test_a_full_disk_leaves_the_code_uncached(tmp_path: Path, expected: list[int]) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    for _ in range(2):
        process = run(tmp_path, program=limit + PROGRAM)
        output, errors = process.communicate()
        assert [int(token) for token in output.split()] == expected, errors
        assert errors.count("\n") == 1
        assert not [*tmp_path.rglob("*.tmp.*")]


@pytest.mark.slow
def test_a_folder_that_is_a_file(tmp_path: Path, expected: list[int]) -> None:
    """Of the package's kernels; nothing is written elsewhere."""
    candidates(run(tmp_path / "first"))
    [folder] = (tmp_path / "first" / "mink-local" / "numba" / mink_local.__version__).iterdir()
    there = tmp_path / "mink-local" / "numba" / mink_local.__version__
    there.mkdir(parents=True, mode=0o700)
    (there / folder.name).touch()
    process = run(tmp_path)
    output, errors = process.communicate()
    assert [int(token) for token in output.split()] == expected, errors
    assert errors.count("\n") == 1
    assert not [*tmp_path.parent.rglob("numba/*.nbi")]


@pytest.mark.slow
def test_code_for_other_types_is_never_taken(doubled: Path, tmp_path: Path) -> None:
    """Two processes that compile a function for different types at once may mix up index and code."""

    def dtypes(*kinds: str) -> list[str]:
        processes = [run(tmp_path, program=[str(doubled), kind]) for kind in kinds]
        return [process.communicate()[0].strip() for process in processes]

    kinds = ["float32", "float64", "complex64"]
    assert dtypes(*kinds) == kinds
    codes = sorted(tmp_path.rglob("*.nbc"))
    for name in codes[1:]:
        shutil.copy(codes[0], name)
    assert [dtypes(kind)[0] for kind in kinds] == kinds


@pytest.mark.slow
def test_a_function_run_by_exec_works_at_each_start(tmp_path: Path) -> None:
    source = tmp_path / "kernel.py"
    source.write_text("from mink_local.samplers.compile import compiled\n@compiled\ndef two(): return 2\n")
    program = f"""
from pathlib import Path
env = {{}}
exec(compile(Path({str(source)!r}).read_text(), {str(source)!r}, "exec"), env)
print(env["two"]())
"""
    assert [candidates(run(tmp_path, program=program)) for _ in range(2)] == [[2], [2]]


ANNOUNCED = """
from mink_local.samplers.compile import announce, compiled

@compiled
def doubled(x):
    return 2 * x

announce("doubled")
announce("doubled")
doubled(1)
"""


def test_what_is_compiled_is_announced_once(tmp_path: Path) -> None:
    """Not at later starts."""
    program = tmp_path / "program.py"
    program.write_text(ANNOUNCED)
    cache = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    said = [
        subprocess.run([sys.executable, program], env=cache, capture_output=True, check=True).stderr
        for _ in range(2)
    ]
    assert (said[0].count(b"\n"), said[1]) == (1, b"")
