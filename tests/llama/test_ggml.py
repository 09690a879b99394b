"""ggml's functions: where each system finds them, and which a chat needs."""

import json
from pathlib import Path

import pytest

from mink_local.errors import MinkError
from mink_local.llama import ggml
from tests.support.python import run_python

# Looks a symbol up as Windows does: in the library that was asked, not in those that it depends on.
AS_ON_WINDOWS = """
import ctypes, os

class Symbol(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]

dladdr = ctypes.CDLL(None).dladdr
dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Symbol)]
everywhere = ctypes.CDLL.__getitem__

def here(library, name):
    function, symbol = everywhere(library, name), Symbol()
    dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(symbol))
    folder, file = os.path.split(os.fsdecode(symbol.file))
    if library._name and os.path.basename(library._name).split(".")[0] != file.split(".")[0]:
        raise AttributeError(name)
    return function

ctypes.CDLL.__getitem__ = here
from llama_cpp import llama_cpp as C
try:
    C._lib["ggml_type_size"]
except AttributeError:
    print("not in libllama")
from mink_local.llama import devices, ggml
print(ggml.type_size(0))  # of a float32
print(isinstance(devices.gpus(), list), "CPU" in devices.backends())
"""


@pytest.mark.posix
def test_symbols_are_found_where_windows_looks_for_them() -> None:
    child = run_python("-c", AS_ON_WINDOWS, cwd=Path(__file__).parents[2])
    assert child.stdout.split("\n")[:3] == ["not in libllama", "4", "True True"], child.stderr


# Runs mink-chat with a llama.cpp that lacks some functions; prints which modules of this room it imported.
WITHOUT = """
import ctypes, json, runpy, sys

missing = json.loads(sys.argv.pop())
lookup = ctypes.CDLL.__getitem__

def without(library, name):
    if name in missing:
        raise AttributeError(name)
    return lookup(library, name)

ctypes.CDLL.__getitem__ = without
try:
    runpy.run_module("mink_local.chat", run_name="__main__")
except SystemExit as end:
    print(*(name for name in sys.modules if name.startswith("mink_local.llama.")), file=sys.stderr)
    sys.exit(end.code)
"""


@pytest.mark.usefixtures("own_files")
def test_a_chat_without_rpc_needs_none_of_its_functions(tiny_path: Path) -> None:
    devices = ("type_name", "blck_size", "type_size", "backend_dev_", "backend_reg_")
    missing = [f"ggml_{name}" for name in ggml._SIGNATURES if not name.startswith(devices)]
    assert "ggml_backend_register" in missing
    options = ["--model", str(tiny_path), "--gpu-layers", "0", "--max-tokens", "4", "Hi"]
    child = run_python("-c", WITHOUT, *options, json.dumps(missing)).succeeded()
    imported = child.stderr.splitlines()[-1].split()
    assert "mink_local.llama.context" in imported
    assert "mink_local.llama.rpc" not in imported


def test_a_function_that_ggml_lacks_names_the_versions_that_have_it() -> None:
    with pytest.raises(MinkError, match="ggml_nonsense"):
        ggml.function("ggml_nonsense", None)
