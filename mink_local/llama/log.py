"""llama.cpp's log: silenced unless the model in use was loaded with `verbose`."""

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from mink_local.llama.constants import LIBC
from mink_local.llama.library import C, binding

_ERROR, _CONTINUED = 4, 5  # from enum ggml_log_level
# A C function that ignores a message, as void (*)(int, char *, void *): it computes with the level alone.
_IGNORE = ctypes.cast(LIBC.abs, C.llama_log_callback)

Pointer = TypeVar("Pointer")


class _Calls(threading.local):
    """The state of this thread's calls into llama.cpp."""

    active = verbose = False
    level = 0
    error = ""  # the first one


_calls = _Calls()


class logged:  # noqa: N801  (a function's name, but faster: it is entered for each token)
    """Swallow llama.cpp's log in this block and thread; with `verbose`, write it to standard error."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose

    def __enter__(self) -> None:
        _install()
        _calls.active, _calls.verbose, _calls.error = True, self._verbose, ""

    def __exit__(self, *_: object) -> None:
        _calls.active = False


def allocated(allocate: Callable[[], Pointer], verbose: bool) -> Pointer:
    """Return what a function of llama.cpp's allocates; if it is NULL, `reason` says why.

    The log of a success, a thousand lines, is dropped in C: in Python, each line would wait for the GIL, and
    so for what other threads import meanwhile. After a failure, the function is called again for the reason.
    """
    with logged(verbose):
        return (None if verbose else _unheard(allocate)) or allocate()


def reason() -> str:
    """Return the first error of the last `logged` block, without the C function's name."""
    first, *_ = _calls.error.splitlines() or ["llama.cpp gave no reason"]
    return (first.partition(": ")[2] or first).removeprefix("error loading model: ")


def _unheard(call: Callable[[], Pointer]) -> Pointer:
    """Drop llama.cpp's log during a call, in all threads."""
    take = _install()
    C.llama_log_set(_IGNORE, None)
    try:
        return call()
    finally:
        C.llama_log_set(take, None)


@cache
def _install() -> object:
    """Take over llama.cpp's log, once, and pass on anything logged outside `logged` blocks."""
    before, data = C.llama_log_callback(), ctypes.c_void_p()
    C.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    is_binding = _address(before) == _address(binding._logger.llama_log_callback)

    @C.llama_log_callback  # type: ignore[untyped-decorator]
    def take(level: int, text: bytes, _: object) -> None:
        if not _calls.active:
            # llama-cpp-python's callback prints everything until a `Llama(verbose=…)` has set its level.
            is_default = is_binding and logging.getLogger("llama-cpp-python").level == logging.NOTSET
            if before and not is_default:
                before(level, text, data)
            return
        _calls.level = _calls.level if level == _CONTINUED else level
        line = text.decode("utf-8", "replace")
        if _calls.level == _ERROR:
            _calls.error = _calls.error or line.strip()
        if _calls.verbose:
            print(line, end="", file=sys.stderr, flush=True)

    C.llama_log_set(take, None)
    return take


def _address(callback: object) -> int | None:
    return ctypes.cast(callback, ctypes.c_void_p).value  # type: ignore[arg-type]
