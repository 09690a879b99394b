"""Iterate in another thread, so that Ctrl-C is heard at any moment.

Python runs a signal's handler in the main thread only, which must not be inside llama.cpp then.
"""

import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_PATIENCE = 0.25  # seconds between two calls of `waiting`; on Windows a wait without an end hears no Ctrl-C


class Interruptible(Protocol[T_co]):
    """An iterable whose iteration another thread can end."""

    def __iter__(self) -> Iterator[T_co]: ...

    def interrupt(self) -> None: ...


def until_interrupted(
    source: Interruptible[T], waiting: Callable[[], None] = lambda: None
) -> Generator[T, None, None]:
    """Yield the items of `source`, which Ctrl-C ends; `waiting` is called now and then while none comes."""
    with on_interrupt(source.interrupt):
        yield from in_background(source, source.interrupt, waiting)


def in_background(
    items: Iterable[T], interrupt: Callable[[], None], waiting: Callable[[], None] = lambda: None
) -> Generator[T, None, None]:
    """Yield `items`, over which another thread iterates.

    Args:
        items: What is iterated over.
        interrupt: Called if this generator is closed, or left by Ctrl-C, before the end of `items`; it must
            make the iteration end soon, which is waited for.
        waiting: Called now and then while no item comes.
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
    thread.start()
    ended = False
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


@contextmanager
def on_interrupt(stop: Callable[[], None], *, terminate: bool = False) -> Iterator[None]:
    """Have Ctrl-C call `stop` instead of raising KeyboardInterrupt.

    Args:
        stop: Called in the main thread.
        terminate: Also have SIGTERM call it.

    Outside the main thread, where Python handles no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM) if terminate else (signal.SIGINT,)
    before = {number: signal.signal(number, lambda *_: stop()) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not a handler of Python's
