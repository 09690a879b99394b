"""Clients, and the threads that work for each of them in turn."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

_THREADS = 4  # llama.cpp's own need the cores


class Client(NamedTuple):
    """Who sends a request.

    Attributes:
        name: The name of its key; "" without keys.
        address: The address that it comes from.
    """

    name: str
    address: str = ""

    @property
    def identity(self) -> str:
        """What all of one client's requests have in common."""
        return self.name or self.address


class FairThreads:
    """Threads that render, tokenize, compile and describe, for one client after another.

    Each client has one thread at most: a second megabyte of its text waits until its first is done, and
    nobody else waits for either. So no client has more than one place in the queue for threads.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "prepare")
        self._turns = WeakValueDictionary[str, asyncio.Lock]()

    async def run(self, client: Client, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns in a thread, when it is the client's turn."""
        turn = self._turns.setdefault(client.identity, asyncio.Lock())
        await turn.acquire()
        work = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

        def end(_: object) -> None:  # also if nobody waits for it any more
            _ = work.cancelled() or work.exception()  # asyncio would complain about an error that nobody saw
            turn.release()

        work.add_done_callback(end)
        return await asyncio.shield(work)

    async def close(self) -> None:
        """Wait for the work that has begun; the rest is given up."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
