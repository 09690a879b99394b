"""What Ctrl-C does, everywhere in the package.

Python runs signal handlers only in the main thread, between two bytecodes: never while that thread is inside
llama.cpp. An exception that a handler raises inside a C callback is lost.

    where                         what Ctrl-C does                             by
    any program                   exits with status 130, no traceback          `cli.run`
    loading a model               KeyboardInterrupt; it loads in a thread      `load_model`
    loading in chat and server    exits at once, with the terminal restored    `interrupt_ends_program`
    a yes-or-no question          KeyboardInterrupt, which means no            `interrupt_raises`
    an answer, an evaluation      stops it; what is already there is kept      `on_interrupt`
    a program's own loop          KeyboardInterrupt; the answer is stopped     `Reply`, `Events.get`
    llama_decode on a CPU         returns in the middle of a batch             `Context.interrupted`
    the chat between answers      clears the line, or quits                    prompt_toolkit, `on_interrupt`
    Windows' window is closed     the same as Ctrl-Break                       `close_as_ctrl_break`
    the chat; `endings`, SIGHUP   ends as /exit does, the answer is kept       `handled`
    the server; also `endings`    stops accepting requests, drains, exits      `on_interrupt`
    callbacks and finalizers      is raised again a moment later               `lost_interrupts_repeated`
    child processes               nothing: they run in their own session       `sandbox`
    mink-models rpc-server        exits at once; llama.cpp never returns       SIG_DFL
"""

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_heard = False

_REPEAT_SECONDS = 0.05  # before a lost Ctrl-C is repeated
_WINDOWS_ENDINGS = 2, 5, 6  # CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT
_WINDOWS_SECONDS = 10.0  # more than it leaves a program


def was_interrupted() -> bool:
    """Return whether `on_interrupt` has handled a signal."""
    return _heard


@contextmanager
def lost_interrupts_repeated() -> Iterator[None]:
    """Repeat a Ctrl-C raised where Python ignores errors: in C callbacks and finalizers.

    Python would print the KeyboardInterrupt with a traceback and carry on, for example while Numba compiles.
    Later ignored errors are not printed: they come from objects that Ctrl-C left half constructed.
    """
    repeats: list[threading.Timer] = []
    before = sys.unraisablehook

    def hear(error: "sys.UnraisableHookArgs") -> None:
        if issubclass(error.exc_type, KeyboardInterrupt):
            repeats.append(threading.Timer(_REPEAT_SECONDS, _press_ctrl_c))
            repeats[-1].start()
        elif not repeats:
            before(error)

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = before
        for repeat in repeats:
            repeat.cancel()


def _press_ctrl_c() -> None:
    """Interrupt the main thread from any thread, even while it waits."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:
        main = threading.main_thread().ident
        assert main
        signal.pthread_kill(main, signal.SIGINT)


def endings() -> list[int]:
    """Return the signals that end a program: SIGTERM; Ctrl-Break on Windows, where that is sent instead."""
    return [getattr(signal, name) for name in ("SIGTERM", "SIGBREAK") if hasattr(signal, name)]


if sys.platform == "win32":

    @cache
    def close_as_ctrl_break() -> Any:
        """Make the closing of the console window, the user's leaving and a shutdown the same as Ctrl-Break.

        Windows ends the program when the function that it calls returns, or after 5 seconds.
        """

        def hear(event: int) -> bool:
            if is_ending := event in _WINDOWS_ENDINGS:
                signal.raise_signal(signal.SIGBREAK)
                time.sleep(_WINDOWS_SECONDS)
            return is_ending

        callback = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint)(hear)
        ctypes.windll.kernel32.SetConsoleCtrlHandler(callback, True)
        return callback


@contextmanager
def on_interrupt(stop: Callable[[], None], *, terminate: bool = False) -> Iterator[None]:
    """Make Ctrl-C, and `endings` if `terminate`, call `stop` in the main thread instead of raising.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(*_: object) -> None:
        global _heard
        _heard = True  # not an Event: a second signal during its set() would wait forever for its lock
        stop()

    with handled([signal.SIGINT, *(endings() if terminate else [])], hear):
        yield


@contextmanager
def handled(signals: Iterable[int], hear: Callable[..., object]) -> Iterator[None]:
    """Have a function called for signals in this block, which the main thread must enter."""
    before = {number: signal.signal(number, hear) for number in signals}
    if sys.platform == "win32" and signal.SIGBREAK in before:
        close_as_ctrl_break()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: the handler was not set by Python


@contextmanager
def interrupt_raises() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt in this block, even where `on_interrupt` has changed that."""
    with on_interrupt(lambda: signal.default_int_handler(signal.SIGINT, None)):
        yield


@contextmanager
def interrupt_ends_program(clean_up: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let Ctrl-C call `clean_up` and exit at once, even if another thread is inside llama.cpp."""

    def end() -> None:
        clean_up()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)

    with on_interrupt(end):
        yield
