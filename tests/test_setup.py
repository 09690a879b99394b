"""`scripts/setup` without a compiler, with an index that has a wheel of llama.cpp and with others."""

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.linux]

ROOT = Path(__file__).parents[1]
_PYTHON = Path(sys.base_exec_prefix) / "bin/python3"
# What the script needs besides Python. Not among it: c++, cmake, ninja, make.
TOOLS = "bash cat cksum cp dirname env flock grep head mktemp mv rm sed sleep tail touch tr uname"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An index of wheels on this machine: its address, and the folder with its wheels of llama-cpp-python."""
    folder = tmp_path / "index" / "llama-cpp-python"
    folder.mkdir(parents=True)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


def pack_llama_cpp(folder: Path, version: str = "") -> None:
    """Pack the llama-cpp-python that is installed here as a wheel again, under another version if given."""
    installed = distribution("llama-cpp-python")
    name = f"llama_cpp_python-{version or installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for file in installed.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                wheel.write(str(file.locate()), str(file))


def setup(tmp_path: Path, wheels: str) -> "subprocess.CompletedProcess[str]":
    """Run the script with an empty home, into an environment of its own, with `TOOLS` alone."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS.split():
        (tools / name).symlink_to(shutil.which(name) or name)
    ours = {"PYTHONPATH", "BUILD", "CMAKE_ARGS"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    own = {"PATH": tools, "HOME": tmp_path, "VENV": tmp_path / "venv", "PYTHON": _PYTHON}
    variables = kept | {name: str(value) for name, value in own.items()}
    variables |= {"BACKEND": "cpu", "LLAMA_CPP_WHEELS": wheels}
    return subprocess.run(
        [ROOT / "scripts/setup"], env=variables, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_wheel_needs_no_compiler(index: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = index
    pack_llama_cpp(folder)
    result = setup(tmp_path, address)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "venv/wheel").exists()
    answer = [str(tmp_path / "venv/bin/mink-chat"), "What is rain?", "--max-tokens", "8"]
    assert len(subprocess.check_output(answer, text=True, stderr=subprocess.DEVNULL).split()) > 2


@pytest.mark.parametrize("case", ["too old", "none", "no answer", "folder"])
def test_without_a_wheel_a_compiler_is_asked_for(case: str, index: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = index
    if case == "too old":
        pack_llama_cpp(folder, "0.3.1")
    wheels = {"no answer": "http://127.0.0.1:1", "folder": str(folder)}.get(case, address)
    result = setup(tmp_path, wheels)
    assert result.returncode == 1
    assert "no prebuilt llama.cpp" in result.stderr
    assert "C++ compiler" in result.stderr.splitlines()[-1]
