"""What one thread hands to others: to one that waits, or to a task of an event loop."""

import queue
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from mink_local.threads import WAIT_SECONDS

T = TypeVar("T")


def _nothing() -> None:
    pass


class Events(Generic[T]):
    """What arrives, in order. `put` may be called anywhere, also in a signal handler or a finalizer."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._wake: Callable[[], object] | None = None  # the task that waits

    def put(self, item: T) -> None:
        """Add an item."""
        self._arrived.put(item)
        if (wake := self._wake) is not None:
            with suppress(RuntimeError):  # its event loop has ended
                wake()

    def get(self, waiting: Callable[[], object] = _nothing) -> T:
        """Return the next item; `waiting` is called periodically while there is none, and may raise."""
        while True:
            with suppress(queue.Empty):
                return self._arrived.get(timeout=WAIT_SECONDS)
            self._call(waiting)

    async def wait(self, waiting: Callable[[], object] = _nothing) -> T:
        """Return the next item, without a thread that waits; see `get`."""
        import asyncio  # 12 ms, with ssl, which nothing else in a chat needs

        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        self._wake = partial(loop.call_soon_threadsafe, arrived.set)
        try:
            while True:
                with suppress(queue.Empty):
                    return self._arrived.get_nowait()
                try:
                    async with asyncio.timeout(None if waiting is _nothing else WAIT_SECONDS):
                        await arrived.wait()
                    arrived.clear()
                except TimeoutError:
                    self._call(waiting)
        finally:
            self._wake = None

    def _call(self, waiting: Callable[[], object]) -> None:
        """Call `waiting`; ignore what it raises if something has arrived meanwhile."""
        try:
            waiting()
        except Exception:
            if self._arrived.empty():
                raise
