"""Generating in another thread, so that Ctrl-C is heard at any moment.

Python runs a signal's handler in the main thread only, which must not be inside llama.cpp then.
"""

import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T", covariant=True)

_PATIENCE = 0.25  # seconds between two calls of `waiting`


class Interruptible(Protocol[T]):
    """What generates: an iterator that another thread can end."""

    def __iter__(self) -> Iterator[T]: ...

    def interrupt(self) -> None: ...


class Background(Generic[T]):
    """Iterates over `source` in another thread, and calls `waiting` now and then while nothing comes."""

    def __init__(self, source: Interruptible[T], waiting: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._waiting = waiting
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __iter__(self) -> Generator[T, None, None]:
        worker = threading.Thread(target=self._generate)
        with interrupting(self._source.interrupt):
            worker.start()
            try:
                while (item := self._next()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    yield item
            finally:
                self._source.interrupt()
                worker.join()

    def _next(self) -> Any:
        while True:
            try:
                return self._items.get(timeout=_PATIENCE)
            except queue.Empty:
                self._waiting()

    def _generate(self) -> None:
        try:
            for item in self._source:
                self._items.put(item)
        except BaseException as error:
            self._items.put(error)
        else:
            self._items.put(None)


@contextmanager
def interrupting(interrupt: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C call `interrupt` instead of raising KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
