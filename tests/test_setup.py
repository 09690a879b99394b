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
TOOLS = "bash cat cksum cp cut dirname env flock fold grep head mktemp mv rm sed sleep tail touch tr uname"


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
    folder.mkdir(parents=True, exist_ok=True)
    installed = distribution("llama-cpp-python")
    name = f"llama_cpp_python-{version or installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for file in installed.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                wheel.write(str(file.locate()), str(file))


def setup(tmp_path: Path, wheels: str, cuda: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the script with an empty home, into an environment of its own, with `TOOLS` alone.

    With the version of a driver's CUDA there is an NVIDIA GPU.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS.split():
        (tools / name).symlink_to(shutil.which(name) or name)
    if cuda:
        (tools / "nvidia-smi").write_text(
            f"#!{shutil.which('bash')}\necho 'GPU 0 | CUDA Version: {cuda} |'\n"
        )
        (tools / "nvidia-smi").chmod(0o755)
    ours = {"PYTHONPATH", "BUILD", "CMAKE_ARGS", "BACKEND", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    own = {"PATH": tools, "HOME": tmp_path, "VENV": tmp_path / "venv", "PYTHON": _PYTHON}
    variables = kept | {name: str(value) for name, value in own.items()}
    variables |= {"LLAMA_CPP_WHEELS": wheels} | ({} if cuda else {"BACKEND": "cpu"})
    return subprocess.run(
        [ROOT / "scripts/setup"], env=variables, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_wheel_needs_no_compiler(index: tuple[str, Path], tmp_path: Path) -> None:
    """Not a newer one than the driver's CUDA, nor an older one than need be; Min-k's kernel is compiled."""
    address, folder = index
    kinds = folder.parent
    for kind, version in (("cu129", ""), ("cu127", "0.3.1"), ("cu126", ""), ("cu124", "")):
        pack_llama_cpp(kinds / kind / "llama-cpp-python", version)
    result = setup(tmp_path, address, cuda="12.8")
    assert result.returncode == 0, result.stderr
    assert f"{address}/cu126" in result.stderr
    assert (tmp_path / "venv/wheel").exists()
    assert list(tmp_path.rglob("*.nbi"))
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
    assert (f"{wheels} does not answer" in result.stderr) == (case == "no answer")
    assert "no prebuilt llama.cpp" in result.stderr
    assert "C++ compiler" in result.stderr.splitlines()[-1]
