"""llama.cpp's log: quiet, unless the model in use was loaded with `verbose`."""

import contextlib
import ctypes
import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import cache

from llama_cpp import llama_cpp as C
from llama_cpp._logger import llama_log_callback as _binding_callback

_ERROR, _CONTINUED = 4, 5  # of enum ggml_log_level


class _Calls(threading.local):
    """Messages of this thread's calls of llama.cpp."""

    def __init__(self) -> None:
        self.active = False
        self.verbose = False
        self.level = 0
        self.errors: deque[str] = deque(maxlen=20)


_calls = _Calls()


@contextlib.contextmanager
def logged(verbose: bool) -> Iterator[None]:
    """Keep what llama.cpp logs in this block, in this thread, from everybody else.

    `reason()` tells its first error afterwards.

    Args:
        verbose: Also write it to standard error.
    """
    _install()
    _calls.errors.clear()
    _calls.active, _calls.verbose = True, verbose
    try:
        yield
    finally:
        _calls.active = False


def reason() -> str:
    """Return the first error of the last `logged` block, without the name of the C function."""
    if not _calls.errors:
        return "llama.cpp gave no reason"
    first = _calls.errors[0].splitlines()[0]
    return (first.partition(": ")[2] or first).removeprefix("error loading model: ")


@cache
def _install() -> object:
    """Take llama.cpp's log, once, and pass on what no `logged` block is responsible for."""
    before, data = C.llama_log_callback(), ctypes.c_void_p()
    C.llama_log_get(ctypes.byref(before), ctypes.byref(data))

    @C.llama_log_callback  # type: ignore[untyped-decorator]
    def take(level: int, text: bytes, _: object) -> None:
        if not _calls.active:
            if before and not _is_unconfigured(before):
                before(level, text, data)
            return
        _calls.level = _calls.level if level == _CONTINUED else level
        line = text.decode("utf-8", "replace")
        if _calls.level == _ERROR:
            _calls.errors.append(line.strip() or "an error without words")
        if _calls.verbose:
            print(line, end="", file=sys.stderr, flush=True)

    C.llama_log_set(take, None)
    return take


def _is_unconfigured(callback: object) -> bool:
    """Return whether this is llama-cpp-python's callback, before a `Llama(verbose=…)` has set its level.

    It prints everything then, which nobody has asked for.
    """
    is_binding = _address(callback) == _address(_binding_callback)
    return is_binding and logging.getLogger("llama-cpp-python").level == logging.NOTSET


def _address(callback: object) -> int | None:
    return ctypes.cast(callback, ctypes.c_void_p).value  # type: ignore[arg-type]
