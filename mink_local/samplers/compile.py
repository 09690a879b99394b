"""Compiles functions with Numba and caches the machine code in a private per-user folder.

Functions compile on the first call, and Numba is imported only then: that takes longer than loading a small
model.
"""

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection
from functools import cache, cached_property, update_wrapper
from importlib import import_module
from pathlib import Path
from typing import Any

from mink_local.files import private_folder, user_folder
from mink_local.version import __version__

log = logging.getLogger("mink_local")

# Imports of Numba's that no kernel needs. Slow ones: a parser for .numba_config.yaml, and SciPy for a check
# of its version and for the dot products inside np.convolve and np.correlate. And colorama, which replaces
# sys.stdout while a thread compiles, and writes to the terminal at the end of the program.
_NOT_NEEDED = ("yaml", "scipy", "scipy.linalg", "colorama")


_CREATING = threading.RLock()  # a dispatcher; one function may be called first in two threads


class _Hidden:
    """Hides `_NOT_NEEDED` from the imports of the thread that creates it: others may need them meanwhile."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse a module, or leave it to the other finders of `sys.meta_path`."""
        if name in _NOT_NEEDED and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(name)


@cache
def _numba() -> Any:
    """Import Numba, and teach it to let one `_CompiledFunction` call another."""
    hidden: Any = _Hidden()
    # New lists: an import in another thread may be iterating over the old one, and would skip a finder.
    sys.meta_path = [hidden, *sys.meta_path]
    try:
        numba = import_module("numba")
        import_module("numba.np.arraymath")
    finally:
        sys.meta_path = [finder for finder in sys.meta_path if finder is not hidden]
    typeof = import_module("numba.extending").typeof_impl
    typeof.register(_CompiledFunction)(lambda function, _: numba.types.Dispatcher(function.dispatcher))
    typeof.register(_CallByAddress)(lambda call, _: call.type)
    return numba


def _private_cache() -> Path | None:
    """Return the folder for compiled code, or None if no private one is available.

    Numba's cache is pickled, so a folder that others can write to means code execution. Each version has its
    own folder, since Numba does not notice when a helper in another file changes.
    """
    try:
        folder = private_folder(user_folder("cache") / "numba" / __version__)
        status = folder.stat()
    except OSError:
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return folder if os.access(folder, os.W_OK) else None


CACHE = None if "NUMBA_CACHE_DIR" in os.environ else _private_cache()
"""Folder for compiled code; None if NUMBA_CACHE_DIR is set or no private folder is available."""


def cached_names() -> set[str]:
    """Return the names of the functions whose code is in the cache."""
    folder = CACHE or os.environ.get("NUMBA_CACHE_DIR")
    indices = Path(folder).rglob("*.nbi") if folder else ()
    return {index.name.partition(".")[2].partition("-")[0] for index in indices}


@cache
def announce(*names: str) -> None:
    """Log, once, that functions are about to be compiled, unless the cache has their code."""
    if not cached_names().issuperset(names):
        log.warning("compiling the sampler, once: about 10 seconds")


class _CompiledFunction:
    """A function that Numba compiles, or loads from the cache, on its first call or use by another one.

    A function without a file or a module, typed into a Python prompt or run by `exec`, is compiled every
    time. Functions of others raise IndexError where they read or write outside an array.
    """

    def __init__(self, function: Callable[..., Any], is_cached: bool, fastmath: Collection[str] = ()) -> None:
        update_wrapper(self, function)
        self._function, self._fastmath = function, set(fastmath)
        has_source = Path(function.__code__.co_filename).is_file() and function.__module__ is not None
        self._is_cached = is_cached and has_source

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the function."""
        with _CREATING:
            return vars(self).get("dispatcher") or self._created()

    def _created(self) -> Any:
        numba = _numba()
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(CACHE or before)  # global, so set only while decorating
        try:
            is_own = (self._function.__module__ or "").startswith("mink_local.")
            options = {"nogil": True, "error_model": "numpy", "fastmath": self._fastmath}
            options["boundscheck"] = None if is_own else True  # None: as NUMBA_BOUNDSCHECK says
            dispatcher = numba.njit(self._function, **options)
            if self._is_cached and numba.config.CACHE_DIR and not numba.config.DISABLE_JIT:
                import_module("mink_local.samplers.code_cache").use_cache(dispatcher)
            return dispatcher
        finally:
            numba.config.CACHE_DIR = before

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)

    def address(self, *examples: Any) -> int:
        """Return the address of the code for arguments of these types; see `call_by_address`."""
        types = tuple(map(_numba().typeof, examples))
        self.dispatcher.compile(types)
        code = self.dispatcher.overloads[types]
        return int(code.library.get_pointer_to_function(code.fndesc.llvm_cfunc_wrapper_name))


class _CallByAddress:
    """A call, in compiled functions, of the function at an address: Numba has no type for one."""

    def __init__(self, result: str) -> None:
        self._result = result

    def __call__(self, address: int, arguments: tuple[int, ...]) -> None:
        """Call a function of pointers as compiled code does, where the JIT is off."""
        pointers = [ctypes.c_void_p] * len(arguments)
        ctypes.CFUNCTYPE(None, *pointers)(int(address))(*arguments)

    @cached_property
    def type(self) -> Any:
        """Numba's type of the call."""
        numba, ir = _numba(), import_module("llvmlite.ir")
        result = getattr(numba.types, self._result)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            is_void = result == numba.types.none
            returned = ir.VoidType() if is_void else context.get_value_type(result)
            kind = ir.FunctionType(returned, [context.get_value_type(each) for each in signature.args[1]])
            arguments = [builder.extract_value(values[1], i) for i in range(len(signature.args[1]))]
            value = builder.call(builder.inttoptr(values[0], kind.as_pointer()), arguments)
            return context.get_dummy_value() if is_void else value

        def definition(_: Any, address: Any, arguments: Any) -> Any:
            return result(address, arguments), generate

        made = import_module("numba.extending").intrinsic(definition)
        context = import_module("numba.core.registry").cpu_target.typing_context
        context.refresh()  # to know what was just made
        return context.resolve_value_type(made)


def call_by_address(result: str) -> Any:
    """Return a function that compiled functions can call with an address and a tuple of arguments for it.

    Args:
        result: Numba's name of the result's type.
    """
    return _CallByAddress(result)


def is_compiling() -> bool:
    """Return whether Numba compiles: it can be switched off, for debugging."""
    return not _numba().config.DISABLE_JIT


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, for the types of its arguments; it releases the GIL."""
    return _CompiledFunction(function, is_cached=True)


def helper(function: Callable[..., Any], fastmath: Collection[str] = ()) -> Any:
    """Compile a function into the compiled functions that call it.

    Args:
        fastmath: LLVM's fast-math flags to allow.
    """
    return _CompiledFunction(function, is_cached=False, fastmath=fastmath)
