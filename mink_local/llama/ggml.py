"""ggml functions that llama-cpp-python does not declare, by name without the `ggml_` prefix.

`ggml.backend_dev_count()` looks the function up on first use, so a llama.cpp that lacks a function fails only
where it is needed.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mink_local.errors import MinkError
from mink_local.llama.library import C, binding

_PTR, _TEXT = ctypes.c_void_p, ctypes.c_char_p
_INT, _I64, _SIZE = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
_SIZE_PTR = ctypes.POINTER(ctypes.c_size_t)
ABORT_CALLBACK = ctypes.CFUNCTYPE(None, _TEXT)


_SIGNATURES: dict[str, tuple[Any, ...]] = {  # result type, then argument types
    # Tensor types
    "type_name": (_TEXT, _INT),
    "blck_size": (_I64, _INT),
    "type_size": (_SIZE, _INT),
    # Devices and backends
    "backend_dev_count": (_SIZE,),
    "backend_dev_get": (_PTR, _SIZE),
    "backend_dev_type": (_INT, _PTR),
    "backend_dev_description": (_TEXT, _PTR),
    "backend_dev_memory": (None, _PTR, _SIZE_PTR, _SIZE_PTR),
    "backend_dev_backend_reg": (_PTR, _PTR),
    "backend_dev_init": (_PTR, _PTR, _TEXT),
    "backend_cpu_buffer_type": (_PTR,),
    "backend_reg_count": (_SIZE,),
    "backend_reg_get": (_PTR, _SIZE),
    "backend_reg_name": (_TEXT, _PTR),
    "backend_reg_dev_count": (_SIZE, _PTR),
    "backend_reg_dev_get": (_PTR, _PTR, _SIZE),
    "backend_reg_by_name": (_PTR, _TEXT),
    "backend_reg_get_proc_address": (_PTR, _PTR, _TEXT),
    "backend_load": (_PTR, _TEXT),
    "backend_register": (None, _PTR),
    "set_abort_callback": (_PTR, ABORT_CALLBACK),
}


def __getattr__(name: str) -> Any:
    if name not in _SIGNATURES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    result, *arguments = _SIGNATURES[name]
    globals()[name] = found = function(f"ggml_{name}", result, *arguments)
    return found


def function(name: str, result: Any, *arguments: Any) -> Any:
    """Return an exported C function, given the ctypes types of its result and arguments.

    Raises:
        MinkError: The installed llama.cpp does not export it.
    """
    for library in _libraries():
        with contextlib.suppress(AttributeError):
            symbol = library[name]  # unlike an attribute, not shared with other users of the library
            symbol.restype, symbol.argtypes = result, arguments
            return symbol
    raise MinkError(f"llama-cpp-python {binding.__version__} lacks {name}: install 0.3.36 or a later 0.3")


def _libraries() -> Iterator[ctypes.CDLL]:
    """Yield libllama, then the libraries it depends on.

    Linux and macOS find ggml's symbols through libllama, Windows only in ggml's own libraries. Those are
    loaded only if needed: a wheel contains them under several names, and one could be loaded twice.
    """
    for name in ("llama", "ggml-base", "ggml"):
        with contextlib.suppress(FileNotFoundError, RuntimeError):
            yield _library(name)


@functools.cache
def _library(name: str) -> ctypes.CDLL:
    own = Path(binding.__file__).absolute().parent / "lib"
    library: ctypes.CDLL = C.load_shared_library(name, Path(os.environ.get("LLAMA_CPP_LIB_PATH") or own))
    return library
