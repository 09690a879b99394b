"""Compiles functions with Numba and caches the machine code in a private folder of the user's.

That happens on the first call, and Numba is imported only then: it takes longer than loading a small model.
"""

import os
import sys
from collections.abc import Callable, Collection
from functools import cache, cached_property, update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from mink_local.files import private_folder
from mink_local.version import __version__

# What Numba would import, slowly, and no kernel needs: a parser for .numba_config.yaml, and SciPy's BLAS for
# the dot products inside np.convolve and np.correlate.
_NOT_NEEDED = ("yaml", "scipy.linalg.cython_blas")


@cache
def _numba() -> Any:
    """Import Numba, and teach it to call a `_CompiledFunction` from another one."""
    absent: Any = None  # in sys.modules: an ImportError
    hidden = [name for name in _NOT_NEEDED if sys.modules.setdefault(name, absent) is None]
    numba = import_module("numba")
    import_module("numba.np.arraymath")
    for name in hidden:
        del sys.modules[name]
    typeof = import_module("numba.extending").typeof_impl
    typeof.register(_CompiledFunction)(lambda function, _: numba.types.Dispatcher(function.dispatcher))
    return numba


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


CACHE = None if "NUMBA_CACHE_DIR" in os.environ else _private_cache()
"""The folder of the compiled code; None if NUMBA_CACHE_DIR is set or there is no private folder."""


class _CompiledFunction:
    """A function that Numba compiles, or loads from the cache, when it is first called or used by another.

    A function without a file (typed into a Python prompt) is compiled each time.
    """

    def __init__(self, function: Callable[..., Any], is_cached: bool, fastmath: Collection[str] = ()) -> None:
        update_wrapper(self, function)
        self._function, self._fastmath = function, set(fastmath)
        self._is_cached = is_cached and Path(function.__code__.co_filename).is_file()

    @cached_property
    def dispatcher(self) -> Any:
        """The function in Numba."""
        numba = _numba()
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(CACHE or before)  # global, so set only while decorating
        try:
            cache = self._is_cached and bool(numba.config.CACHE_DIR)
            options = {"nogil": True, "error_model": "numpy", "fastmath": self._fastmath}
            return numba.njit(self._function, cache=cache, **options)
        finally:
            numba.config.CACHE_DIR = before

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, for the types of its arguments; it runs without the GIL."""
    return _CompiledFunction(function, is_cached=True)


def helper(function: Callable[..., Any], fastmath: Collection[str] = ()) -> Any:
    """Compile a function as a part of the compiled functions that call it.

    Args:
        fastmath: LLVM's names of what floating-point arithmetic may do.
    """
    return _CompiledFunction(function, is_cached=False, fastmath=fastmath)
