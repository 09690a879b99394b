"""Compiles functions with Numba and caches the machine code in a private folder of the user's."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
from numba import cfunc, njit
from platformdirs import user_cache_path

from mink_local.files import private_folder
from mink_local.version import __version__


def _load_numba_without_scipy() -> None:
    """Load Numba's functions of arrays without SciPy's BLAS, whose import would take longer than all else.

    Only dot products inside Numba's own np.convolve and np.correlate would use it.
    """
    blas = "scipy.linalg.cython_blas"
    hidden = sys.modules.setdefault(blas, None) is None  # type: ignore[arg-type]  # None: an ImportError
    import_module("numba.np.arraymath")
    if hidden:
        del sys.modules[blas]


def _private_cache() -> Path | None:
    """Return the folder of the compiled code, or None if there is no private one.

    Numba's cache is pickle: in a folder that others can write to it is code execution. Each version has its
    own folder, since Numba does not notice a changed helper in another file.
    """
    try:
        folder = private_folder(user_cache_path("mink-local") / "numba" / __version__)
        status = folder.stat()
    except OSError:
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return folder if os.access(folder, os.W_OK) else None


_load_numba_without_scipy()

CACHE = None if "NUMBA_CACHE_DIR" in os.environ else _private_cache()
"""The folder of the compiled code; None if NUMBA_CACHE_DIR is set or there is no private folder."""


def _compile(decorator: Callable[..., Any], function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the function compiled by a Numba decorator, or loaded from the cache.

    A function without a file (typed into a Python prompt) is compiled each time.
    """
    has_file = Path(function.__code__.co_filename).is_file()
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(CACHE or before)  # global, so set only while decorating
    try:
        cache = has_file and bool(numba.config.CACHE_DIR)
        return decorator(*args, cache=cache, error_model="numpy", **options)(function)
    finally:
        numba.config.CACHE_DIR = before


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, for the types of its arguments; it runs without the GIL."""
    return _compile(njit, function, nogil=True)


def c_function(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function into a C function of this Numba signature; its `address` is the C function's."""
    return lambda function: _compile(cfunc, function, signature)


helper = njit(nogil=True, error_model="numpy")
"""Compile a function as a part of the compiled functions that call it."""
