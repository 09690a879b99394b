"""What the model's thread hands to readers: threads that wait, and tasks of event loops."""

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Generic, Self, TypeVar

from mink_local.generation.engine_thread import EngineThread
from mink_local.threads import WAIT_SECONDS

T = TypeVar("T")


def _nothing() -> None:
    pass


class News:
    """Wakes the threads and tasks that wait. `tell` may be called anywhere, also in a signal handler."""

    def __init__(self) -> None:
        self._wakes: list[Callable[[], object]] = []

    def tell(self) -> None:
        """Have all look again at what they wait for."""
        for wake in self._wakes.copy():
            with suppress(RuntimeError):  # its event loop has ended
                wake()

    def get(self, ready: Callable[[], T | None], waiting: Callable[[], object] = _nothing) -> T:
        """Return what `ready` returns, once that is not None; `waiting` is called now and then until then.

        What `waiting` raises counts only if there is still nothing.
        """
        told: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._waking(partial(told.put, None)):
            while (found := ready()) is None:
                try:
                    told.get(timeout=WAIT_SECONDS)
                except queue.Empty:
                    if (found := _looked(ready, waiting)) is not None:
                        break
        return found

    async def wait(self, ready: Callable[[], T | None], waiting: Callable[[], object] = _nothing) -> T:
        """Like `get`, without a thread that waits."""
        import asyncio  # 12 ms, with ssl, which nothing else in a chat needs

        loop, told = asyncio.get_running_loop(), asyncio.Event()
        with self._waking(partial(loop.call_soon_threadsafe, told.set)):
            while (found := ready()) is None:
                try:
                    async with asyncio.timeout(WAIT_SECONDS):
                        await told.wait()
                    told.clear()
                except TimeoutError:
                    if (found := _looked(ready, waiting)) is not None:
                        break
        return found

    @contextmanager
    def _waking(self, wake: Callable[[], object]) -> Iterator[None]:
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)


def _looked(ready: Callable[[], T | None], waiting: Callable[[], object]) -> T | None:
    try:
        waiting()
    except Exception:
        if (found := ready()) is None:
            raise
        return found
    return ready()


class Stream(ABC, Generic[T]):
    """An iterator, for `for` and for `async for`, over what a model's thread generates.

    Whatever interrupts a reader who waits ends what is generated for it.
    """

    def __init__(self, thread: EngineThread, news: News) -> None:
        self._thread, self._news = thread, news

    @abstractmethod
    def _ready(self, end: type[Exception]) -> T | None:
        """Return the next item, or None while it is being generated. Raises `end` after the last one."""

    @abstractmethod
    def close(self) -> None:
        """End what is being generated."""

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._next(_nothing)

    def _next(self, waiting: Callable[[], object]) -> T:
        def wait() -> None:
            self._thread.check()
            waiting()

        try:
            return self._news.get(partial(self._ready, StopIteration), wait)
        except BaseException:
            self.close()
            raise

    async def __anext__(self) -> T:
        try:
            return await self._news.wait(partial(self._ready, StopAsyncIteration), self._thread.check)
        except BaseException:
            self.close()
            raise

    def reading(self, waiting: Callable[[], object]) -> Iterator[T]:
        """Yield the items; `waiting` is called now and then while there is none, and may raise."""
        with suppress(StopIteration):
            while True:
                yield self._next(waiting)
