"""A reply: an answer that is being generated, and its pieces for any number of readers."""

from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from mink_local.errors import GenerationError, MinkError
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.engine_thread import EngineThread, Event
from mink_local.generation.streams import News, Stream

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
        self.answer = decoding.answer
        self._thread = thread
        self._news = News()
        self._arrived: list[Piece] = []  # kept, so that every reader gets all
        self._readers: WeakSet[Pieces] = WeakSet()
        self._n_read = 0  # by `next`
        # The engine does not have the reply, so that one that nobody refers to ends.
        thread.generate([decoding], partial(_hear, self._arrived, self._news))

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
        if "_n_read" in vars(self):
            self.close()

    def __enter__(self) -> "Reply":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "Pieces":
        return Pieces(self)

    __aiter__ = __iter__

    def __next__(self) -> Piece:
        piece = next(Pieces(self, self._n_read))
        self._n_read += 1
        return piece

    async def __anext__(self) -> Piece:
        piece = await anext(Pieces(self, self._n_read))
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


class Pieces(Stream[Piece]):
    """The pieces of a reply, from number `n_read` on, for one reader."""

    def __init__(self, reply: Reply, n_read: int = 0) -> None:
        super().__init__(reply._thread, reply._news)
        self._reply, self._n_read = reply, n_read
        reply._readers.add(self)

    def _ready(self, end: type[Exception]) -> Piece | None:
        arrived, error = self._reply._arrived, self._reply.error
        if self._n_read < len(arrived):
            self._n_read += 1
            return arrived[self._n_read - 1]
        if not arrived or arrived[-1].finish_reason is None:
            return None
        if error is None or isinstance(error, MinkError):
            raise error or end
        raise GenerationError(str(error)) from error

    def close(self) -> None:
        """End the reply, unless others read it."""
        if len(self._reply._readers) <= 1:
            self._reply.close()


def _hear(arrived: list[Piece], news: News, events: Sequence[Event]) -> None:
    """Take the pieces among an answer's events; called in the model's thread."""
    arrived += [piece for _, piece in events]
    news.tell()
