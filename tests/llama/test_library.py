"""llama-cpp-python over a llama.cpp that it is not made for: refused in one sentence, whoever loads it."""

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mink_local.errors import MinkError
from mink_local.llama import library
from mink_local.llama.library import C, binding, require_fit
from tests.support.python import run_python

AFTER_OURS = {"llama_context_default_params": "embeddings", "llama_model_default_params": "check_tensors"}
LIBRARIES = Path(__file__).parents[2] / "scripts/library.txt"
UNKNOWN = "99.0"  # a version of the binding
# Has llama-cpp-python lack a field that llama.cpp's struct has, as 0.3.36 does over llama.cpp 0.6.
SHIFTED = """
import ctypes, importlib, runpy, sys
from llama_cpp import llama_cpp as C

fields = [field for field in C.llama_context_params._fields_ if field[0] != "cb_eval_user_data"]
C.llama_context_default_params.restype = type("Shifted", (ctypes.Structure,), {"_fields_": fields})
module, main = sys.argv.pop(1).split(":")
if main:
    getattr(importlib.import_module(module), main)()
runpy.run_module(module, run_name="__main__")
"""
MODEL = ["--model", "smollm2-135m"]
PROGRAMS = {
    "mink_local.chat:main": [*MODEL, "Hi"],
    "mink_local.serve.cli:main": [*MODEL, "--port", "0"],
    "mink_local.bench.cli:main": ["sampler"],
    "mink_local.manage.cli:main": ["info", "smollm2-135m"],
    "mink_local.evals.cli:main": ["quants", "smollm2-135m", "--kv-type", "f16", "--kv-type", "q8_0"],
    "mink_local.models.trust:": [],
    "mink_local.native:": [],
}


def redeclared(name: str, fields: list[Any]) -> Any:
    """Return the functions of the installed llama.cpp, of which one is declared to return other fields."""
    struct = type(name, (ctypes.Structure,), {"_fields_": fields})
    return SimpleNamespace(**{**vars(C), name: ctypes.CFUNCTYPE(struct)((name, C._lib))})


def shifts() -> Iterator[tuple[str, list[Any]]]:
    """Yield the structs' fields with one too few, or one too many, before one that this package sets."""
    for name, after in AFTER_OURS.items():
        fields = getattr(C, name).restype._fields_
        for place in range([field for field, _ in fields].index(after)):
            yield name, [*fields[:place], *fields[place + 1 :]]
            for kind in (ctypes.c_int32, ctypes.c_size_t):
                yield name, [*fields[:place], ("new", kind), *fields[place:]]


def moved(name: str, fields: list[Any]) -> set[str]:
    """Return which fields are not where llama.cpp has them, up to the last that this package sets."""
    struct, true = getattr(redeclared(name, fields), name).restype, getattr(C, name).restype
    names = [field for field, _ in fields]
    ours = {*names[: names.index(AFTER_OURS[name])]} - {"new"}
    return {field for field in ours if getattr(struct, field).offset != getattr(true, field).offset}


@pytest.mark.parametrize(("name", "fields"), list(shifts()))
def test_fields_that_are_elsewhere_are_noticed(name: str, fields: list[Any]) -> None:
    # A number may take the place of padding; two neighbours may have the same value.
    if moved(name, fields) <= {"type_v", "main_gpu", "vocab_only"}:
        return
    with pytest.raises(MinkError, match=UNKNOWN):
        require_fit(redeclared(name, fields), UNKNOWN)


def test_a_binding_that_is_not_known_yet_is_used_if_its_structs_fit() -> None:
    require_fit(C, UNKNOWN)


@pytest.mark.parametrize("version", [b"0.4.2", b"0.6.0-dev", b"1.5.0", b"b11548"])
def test_another_llama_cpp_than_the_binding_was_made_for_is_refused(version: bytes) -> None:
    require_fit(C, binding.__version__)
    other = SimpleNamespace(**{**vars(C), "llama_version": lambda: version})
    for known in library._MADE_FOR:  # among which the newest may not be yet
        with pytest.raises(MinkError, match=version.decode()):
            require_fit(other, known)


@pytest.mark.parametrize(("program", "options"), PROGRAMS.items())
@pytest.mark.usefixtures("own_files")
def test_every_program_and_child_refuses_a_binding_that_does_not_fit(
    program: str, options: list[str]
) -> None:
    child = run_python("-c", SHIFTED, program, *options)
    assert child.status == 1
    assert binding.__version__ in child.stderr.splitlines()[-1]
    assert ("Traceback" in child.stderr) == program.endswith(":")  # an import has nowhere else to say it


@pytest.mark.parametrize("content", [None, b"", b"\x7fELF no library"])
def test_a_library_that_cannot_be_loaded_is_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("libllama.so", "libllama.dylib", "llama.dll"):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    child = run_python("-m", "mink_local.chat", *MODEL, "Hi")
    child.refused(1, "LLAMA_CPP_LIB_PATH", binding.__version__)


@pytest.mark.parametrize("arguments", [["mink_local.chat", "--list"], ["mink_local.manage.cli", "list"]])
@pytest.mark.usefixtures("own_files")
def test_conversations_and_models_are_listed_without_a_library(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    module, option = arguments
    child = run_python("-c", f"import sys\nfrom {module} import main\nsys.argv[1:] = [{option!r}]\nmain()")
    assert "Traceback" not in child.succeeded().stderr


def test_a_separate_package_brings_the_library_that_the_binding_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    for package, content in (
        ("llama_cpp", "import os\nraise OSError(os.environ.get('LLAMA_CPP_LIB_PATH', 'none'))"),
        ("llama_cpp_py_sync", "raise AssertionError"),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(content)
    program = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport mink_local.llama.library"
    failed = run_python("-c", program).stderr.splitlines()[-1]
    assert f"({tmp_path / 'llama_cpp_py_sync'})" in failed
    (pinned,) = re.findall("^llama-cpp-py-sync==[^ ]+", LIBRARIES.read_text(), re.MULTILINE)
    assert pinned in failed
    own = tmp_path / "llama_cpp/lib"
    own.mkdir()
    (own / "libllama.so").touch()
    assert "(none)" in run_python("-c", program).stderr.splitlines()[-1]


@pytest.mark.parametrize("folder", ["llama_cpp_py_sync", "mine"])
def test_a_library_for_a_newer_linux(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same again would be no better: it is compiled, or one's own is exchanged."""
    reason = f"{folder}/libllama.so: libc.so.6: version `GLIBC_2.38' not found"
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path / folder))
    advice = library._advice(reason)
    assert ("--no-binary" in advice) == (folder != "mine")
    assert ("unset" in advice) == (folder == "mine")


@pytest.mark.posix
def test_a_separate_package_has_no_rpc_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llama_cpp_py_sync"
    folder.symlink_to(Path(C._lib._name).parent)
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(folder))
    run_python("-m", "mink_local.manage.cli", "rpc-server").refused(1, folder.name)
