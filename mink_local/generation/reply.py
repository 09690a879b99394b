"""A reply: an answer that is being generated, and its pieces for any number of readers."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from mink_local.errors import GenerationError, MinkError
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.engine_thread import EngineThread, Event
from mink_local.generation.events import Events

_END_SECONDS = 1.0  # that a cancelled reader waits for the end of its answer


class Pieces:
    """The pieces of an answer so far. They are kept, so that everybody who reads them gets all."""

    def __init__(self) -> None:
        self._arrived: list[Piece] = []
        self._waiting: list[Events[None]] = []  # each a reader's

    def hear(self, events: Sequence[Event]) -> None:
        """Take the pieces among an answer's events; called in the model's thread."""
        self._arrived += [piece for _, piece in events]
        for reader in self._waiting.copy():
            reader.put(None)

    def end_before(self, n: int) -> bool:
        """Return whether the last piece is before number `n`."""
        return 0 < n <= len(self._arrived) and self._arrived[n - 1].finish_reason is not None

    def get(self, n: int, waiting: Callable[[], object]) -> Piece:
        """Wait for piece number `n`, counted from 0; see `Events.get`."""
        with self._news() as news:
            while n >= len(self._arrived):
                news.get(waiting)
        return self._arrived[n]

    async def wait(self, n: int, waiting: Callable[[], object]) -> Piece:
        """Like `get`, without a thread that waits."""
        with self._news() as news:
            while n >= len(self._arrived):
                await news.wait(waiting)
        return self._arrived[n]

    @contextmanager
    def _news(self) -> Iterator[Events[None]]:
        news: Events[None] = Events()
        self._waiting.append(news)
        try:
            yield news
        finally:
            self._waiting.remove(news)


if TYPE_CHECKING:  # a reply has an answer's attributes, but is none
    _HasAnswer = Answer
else:
    _HasAnswer = object


class Reply(_HasAnswer):
    """An answer that is being generated: iterate over it to get its pieces of text.

    It has all attributes of its answer, such as `text`, `k` and `finish_reason`. Every `for piece in reply`
    and `async for piece in reply` reads it from the beginning, also several at a time in different threads or
    tasks; `next(reply)` goes on where the last one left off. `await reply` returns the text. If the only task
    that reads it is cancelled, so is the reply. `with reply:` closes it at the end of the block.

    Attributes:
        answer: The `Answer`, which can be pickled, and does not end when the reply is dropped.
    """

    def __init__(self, decoding: Decoding, thread: EngineThread, model: object) -> None:
        self._model = model  # which would be closed if nobody referred to it
        # The engine has the answer but not the reply, so that a reply that nobody refers to ends.
        self.answer = decoding.answer
        self._thread = thread
        self._pieces = Pieces()
        self._n_read = 0  # by `next`
        self._n_readers = 0  # in `async for`
        thread.generate([decoding], self._pieces.hear)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "answer":  # there is none yet
                raise AttributeError(name)
            return getattr(self.answer, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.answer)})

    __repr__ = Answer.__repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a reply cannot be copied or pickled: use its answer, reply.answer")

    def __del__(self) -> None:
        if "_n_readers" in vars(self):
            self.close()

    def __enter__(self) -> "Reply":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Piece]:
        return pieces_of(self, lambda: None)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        self._n_readers += 1
        try:
            n = 0
            while not self._pieces.end_before(n):
                yield await self._wait(n)
                n += 1
        finally:
            self._n_readers -= 1
        self._raise_error()

    def __next__(self) -> Piece:
        if self._pieces.end_before(self._n_read):
            self._raise_error()
            raise StopIteration
        piece = self._get(self._n_read, lambda: None)
        self._n_read += 1
        return piece

    async def __anext__(self) -> Piece:
        if self._pieces.end_before(self._n_read):
            self._raise_error()
            raise StopAsyncIteration
        piece = await self._wait(self._n_read)
        self._n_read += 1
        return piece

    def __await__(self) -> Generator[Any, None, str]:
        return self._read().__await__()

    async def _read(self) -> str:
        async for _ in self:
            pass
        return self.text

    def read(self) -> str:
        """Wait for the answer to finish and return its text."""
        for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """End the answer as soon as possible; may be called from another thread or a signal handler."""
        if self.answer.finish_reason is None:
            self._thread.cancel([self.answer])

    interrupt = close

    def _get(self, n: int, waiting: Callable[[], object]) -> Piece:
        def wait() -> None:
            self._thread.check()
            waiting()

        try:
            return self._pieces.get(n, wait)
        except BaseException:  # Ctrl-C in a program that does not handle it
            self.close()
            raise

    async def _wait(self, n: int) -> Piece:
        try:
            return await self._pieces.wait(n, self._thread.check)
        except BaseException:  # the task is cancelled
            if self._n_readers <= 1:
                self.close()
                await self._end()
            raise

    async def _end(self) -> None:
        """Wait for the end of the answer, for a second at most."""
        import asyncio  # see `Events.wait`

        with suppress(Exception):
            async with asyncio.timeout(_END_SECONDS):
                while self.answer.finish_reason is None:
                    await asyncio.sleep(_END_SECONDS / 100)

    def _raise_error(self) -> None:
        if isinstance(self.error, MinkError):
            raise self.error
        if self.error is not None:
            raise GenerationError(str(self.error)) from self.error


def pieces_of(reply: Reply, waiting: Callable[[], object]) -> Iterator[Piece]:
    """Yield a reply's pieces; `waiting` is called periodically while there is none."""
    n = 0
    while not reply._pieces.end_before(n):
        yield reply._get(n, waiting)
        n += 1
    reply._raise_error()
