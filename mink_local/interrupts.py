"""Iterate in another thread, so that Ctrl-C is heard at any moment.

Python runs a signal's handler in the main thread only, which must not be inside llama.cpp then.
"""

import queue
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_heard = False

_AGAIN = 0.05  # seconds until a lost Ctrl-C is repeated
_PATIENCE = 0.25  # seconds between two calls of `waiting`; on Windows a wait without an end hears no Ctrl-C


def until_interrupted(
    items: Iterable[T], interrupt: Callable[[], None], waiting: Callable[[], None] = lambda: None
) -> Generator[T, None, None]:
    """Yield `items`, over which another thread iterates, until Ctrl-C.

    `interrupt` must make the iteration end soon: it is called by Ctrl-C, and if this generator is closed
    before the end of `items`. `waiting` is called now and then while no item comes.
    """
    arrived: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()

    def collect() -> None:
        try:
            for item in items:
                arrived.put((item,))
        except BaseException as error:
            arrived.put(error)
        else:
            arrived.put(None)

    def next_item() -> tuple[T] | BaseException | None:
        while True:
            try:
                return arrived.get(timeout=_PATIENCE)
            except queue.Empty:
                waiting()

    thread = threading.Thread(target=collect, name="generation")
    ended = False
    with on_interrupt(interrupt):
        thread.start()
        try:
            while isinstance(item := next_item(), tuple):
                yield item[0]
            ended = True
        finally:
            if not ended:
                interrupt()
            thread.join()
    if item is not None:
        raise item


def was_interrupted() -> bool:
    """Return whether `on_interrupt` has heard a signal."""
    return _heard


@contextmanager
def lost_interrupts_repeated() -> Iterator[None]:
    """Repeat a Ctrl-C that is heard where an error has no effect: in callbacks of C code and in finalizers.

    Python would print the KeyboardInterrupt with its traceback and go on: while Numba compiles, for example.
    Later errors without effect are not printed: they come from objects that Ctrl-C left half made.
    """
    repeats: list[threading.Timer] = []
    before = sys.unraisablehook

    def hear(error: "sys.UnraisableHookArgs") -> None:
        if issubclass(error.exc_type, KeyboardInterrupt):
            repeats.append(threading.Timer(_AGAIN, _press_ctrl_c))
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
    """Interrupt the main thread, also while it waits, from any thread."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:
        main = threading.main_thread().ident
        assert main
        signal.pthread_kill(main, signal.SIGINT)


@contextmanager
def on_interrupt(stop: Callable[[], None], *, terminate: bool = False) -> Iterator[None]:
    """Have Ctrl-C, and SIGTERM if `terminate`, call `stop` in the main thread instead of raising an error.

    Outside the main thread, which is the one that handles signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(*_: object) -> None:
        global _heard
        _heard = True
        stop()

    signals = (signal.SIGINT, signal.SIGTERM) if terminate else (signal.SIGINT,)
    before = {number: signal.signal(number, hear) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not a handler of Python's
