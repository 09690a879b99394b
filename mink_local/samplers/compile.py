"""Compile functions with Numba and keep the machine code in a private folder of the user's."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import cfunc, njit
from platformdirs import user_cache_path

from mink_local.files import private_folder
from mink_local.version import __version__


def _private_cache() -> Path | None:
    """Return the folder of the compiled code, or None if no private one can be had.

    Numba's cache is pickle: a folder that others can write to is code execution. Each version has its own
    folder: Numba does not see that a helper in another file has changed.
    """
    try:
        folder = private_folder(user_cache_path("mink-local") / "numba" / __version__)
        status = folder.stat()
    except OSError:
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return folder if os.access(folder, os.W_OK) else None


CACHE = None if "NUMBA_CACHE_DIR" in os.environ else _private_cache()
"""The folder of the compiled code; None if NUMBA_CACHE_DIR names one or there is no private folder."""


def _compile(decorator: Callable[..., Any], function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the function compiled by a Numba decorator, from the cache if it is there.

    A function that is in no file (typed into a Python prompt) is compiled each time.
    """
    has_file = Path(function.__code__.co_filename).is_file()
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(CACHE or before)  # while the function is decorated only: it is global
    try:
        cache = has_file and bool(numba.config.CACHE_DIR)
        return decorator(*args, cache=cache, error_model="numpy", **options)(function)
    finally:
        numba.config.CACHE_DIR = before


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, for the types of its arguments, without the GIL."""
    return _compile(njit, function, nogil=True)


def c_function(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function into a C function of this Numba signature; its `address` is the C function's."""
    return lambda function: _compile(cfunc, function, signature)


helper = njit(nogil=True, error_model="numpy")
"""Compile a function into the functions that call it."""
