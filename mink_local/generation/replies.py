"""What readers of generated text get: a reply, or the answers to many requests, in threads and in tasks.

Each reader iterates over a `Stream`, which the model's thread feeds.
"""

import queue
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, islice
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar
from weakref import WeakSet

from mink_local.errors import GenerationError, MinkError
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.engine import Engine
from mink_local.generation.engine_thread import EngineThread, Event
from mink_local.generation.request import Request
from mink_local.threads import WAIT_SECONDS

if TYPE_CHECKING:
    _HasAnswer = Answer  # a reply has an answer's attributes, but is none
else:
    _HasAnswer = object

T = TypeVar("T")

_AHEAD = 2  # times n_parallel: requests taken before their answers are read, so that no slot waits
_AHEAD_IN_ORDER = 16  # the same for answers that may have to wait for an earlier one


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
        """Return what `ready` returns, once that is not None; `waiting` is called now and then until then."""
        told: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._waking(partial(told.put, None)):
            while (found := ready()) is None:
                try:
                    told.get(timeout=WAIT_SECONDS)
                except queue.Empty:
                    waiting()
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
                    waiting()
        return found

    @contextmanager
    def _waking(self, wake: Callable[[], object]) -> Iterator[None]:
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)


class Unique:
    """Something that is used in one place: of two, the first to be dropped would end the other."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled, unlike answers: reply.answer")


class Stream(Unique, ABC, Generic[T]):
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


class Reply(Unique, _HasAnswer):
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
        self._numbers = count()  # of the pieces that `next` returns
        # The engine does not have the reply, so that one that nobody refers to ends.
        thread.generate([decoding], partial(_hear_pieces, self._arrived, self._news))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "answer":  # there is none yet
                raise AttributeError(name)
            return getattr(self.answer, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.answer)})

    __repr__ = Answer.__repr__

    def __del__(self) -> None:
        if "_numbers" in vars(self):
            self.close()

    def __enter__(self) -> "Reply":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "Pieces":
        return Pieces(self)

    __aiter__ = __iter__

    def __next__(self) -> Piece:
        return next(Pieces(self, next(self._numbers)))

    async def __anext__(self) -> Piece:
        return await anext(Pieces(self, next(self._numbers)))

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
        self._reply._readers.discard(self)
        if not self._reply._readers:
            self._reply.close()


def _hear_pieces(arrived: list[Piece], news: News, events: Sequence[Event]) -> None:
    """Take the pieces among an answer's events; called in the model's thread."""
    arrived += [piece for _, piece in events]
    news.tell()


class Answers(Stream[Answer]):
    """The answers to requests: an iterator, for `for` and for `async for`.

    Several threads may share it: each gets some of the answers, and together they get all.
    """

    def __init__(
        self,
        engine: Engine,
        thread: EngineThread,
        model: object,
        requests: Iterable[Request],
        *,
        ordered: bool,
        is_finite: bool,
    ) -> None:
        """Begin with the first answer that is asked for.

        Args:
            engine, thread: Generate them.
            model: Kept while this object is.
            requests: Taken as slots become free, by the thread that reads the answers.
            ordered: Yield the answers in the order of their requests.
            is_finite: Whether to tell those never begun after an interrupt.
        """
        super().__init__(thread, News())
        self._model, self._engine = model, engine
        self._n_interrupts = thread.n_interrupts
        self._upcoming = enumerate(requests)
        self._is_ordered, self._is_finite = ordered, is_finite
        self._ended: deque[Answer] = deque()  # those not in `_done` yet
        self._taken: list[Answer] = []  # of the given ones, those that are not being generated yet
        self._taker: int | None = None  # the thread that takes requests now
        self._given: set[Answer] = set()
        self._done: dict[int, Answer] = {}  # by index, until they are read
        self._n_read = 0
        self._lock = RLock()  # of those who read
        self._failure: BaseException | None = None  # of the iterable; raised after the answers
        self._listener = partial(_hear_ends, self._ended, self._news)  # which does not keep this object alive

    def close(self) -> None:
        """End the answers that are being generated; no further one is begun."""
        self._failure = self._failure or StopIteration()
        self._thread.cancel(self._given)
        self._taken, self._given, self._done = [], set(), {}

    def __del__(self) -> None:
        if "_failure" in vars(self):
            self.close()

    def _ready(self, end: type[Exception]) -> Answer | None:
        """Return the next answer, or begin more."""
        self._take()
        self._begin()
        with self._lock:
            while self._ended:
                self._thread.check()
                answer = self._ended.popleft()
                if answer in self._given:
                    self._given.remove(answer)
                    self._done[answer.index] = answer
            index = self._n_read if self._is_ordered else next(iter(self._done), -1)
            if (found := self._done.pop(index, None)) is not None:
                self._n_read += 1
            elif not self._given and self._taker == get_ident():
                raise GenerationError("the requests wait for an answer, but none is being generated")
            elif not self._given and self._taker is None:
                failure, self._failure = self._failure, StopIteration()
                raise end if failure is None or isinstance(failure, StopIteration) else failure
        return found

    def _take(self) -> None:
        """Take requests, as many as there is room for.

        Others may read meanwhile: another thread, or the iterable itself, which may wait for an answer.
        """
        with self._lock:
            if self._taker is not None or self._failure is not None:
                return
            self._taker = get_ident()
            ahead = _AHEAD_IN_ORDER if self._is_ordered else _AHEAD
            room = 1 + ahead * self._engine.context.n_seq - len(self._given) - len(self._done)
        was_interrupted = self._thread.n_interrupts != self._n_interrupts
        most = room if self._is_finite or not was_interrupted else 0
        try:
            for index, request in islice(self._upcoming, max(0, most)):
                if not isinstance(request, Request):
                    raise TypeError("answer_all takes Requests: generate takes prompts")
                answer = Answer(request, index)
                if was_interrupted:
                    answer.finish_reason = "interrupted"
                with self._lock:
                    self._given.add(answer)
                    self._taken.append(answer)
        except Exception as error:
            self._failure = error
        finally:
            self._taker = None

    def _begin(self) -> None:
        """Have the answers to what was taken generated, except those whose request is refused."""
        with self._lock:
            taken, self._taken = self._taken, []
        decodings = []
        for answer in taken:
            if answer.finish_reason is None:
                try:
                    decodings.append(self._engine.prepare(answer.request, answer))
                except (MinkError, ValueError, TypeError) as error:
                    answer.finish_reason, answer.error = "error", error
        self._ended += [answer for answer in taken if answer.finish_reason is not None]
        ready = [decoding for decoding in decodings if decoding.answer.finish_reason is None]
        self._thread.generate(ready, self._listener)
        if ready and self._thread.n_interrupts != self._n_interrupts:  # since they were taken
            self._thread.cancel([decoding.answer for decoding in ready])


def _hear_ends(ended: deque[Answer], news: News, events: Sequence[Event]) -> None:
    """Note the answers that have ended; called in the model's thread."""
    ended += [answer for answer, piece in events if piece.finish_reason is not None]
    if ended:
        news.tell()
