"""Clients, and the threads that work for each of them in turn."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

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
    nobody else waits for either. All functions are called in the event loop.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "prepare")
        self._working: set[str] = set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their clients' turns

    async def run(self, client: Client, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns in a thread, when it is the client's turn."""
        await self._turn(client.identity)
        work = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

        def end(_: object) -> None:  # also if nobody waits for it any more
            _ = work.cancelled() or work.exception()  # asyncio would complain about an error that nobody saw
            self._end(client.identity)

        work.add_done_callback(end)
        return await asyncio.shield(work)

    async def _turn(self, who: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(turn)
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was this one's turn already
                self._end(who)
            raise

    def _end(self, who: str) -> None:
        self._working.discard(who)
        if who in self._waiting:  # the client's next turn comes after the others'
            self._waiting[who] = self._waiting.pop(who)
        self._go_on()

    def _go_on(self) -> None:
        """Give free threads to the clients whose turn it is."""
        for who, turns in [*self._waiting.items()]:
            while turns and turns[0].cancelled():
                turns.popleft()
            if not turns:
                del self._waiting[who]
            elif who not in self._working and len(self._working) < _THREADS:
                self._working.add(who)
                turns.popleft().set_result(None)

    async def close(self) -> None:
        """Wait for the work that has begun; the rest is given up."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
