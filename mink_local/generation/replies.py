"""What readers of generated text get: a reply, or the answers to many requests, in a thread or in a task.

Each is a `Stream`, which the model's thread feeds.
"""

import queue
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from threading import Event as Flag
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Self, TypeVar

from mink_local.errors import ContextOverflowError, GenerationError, MinkError
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.engine.engine import Engine
from mink_local.generation.engine.thread import EngineThread, Event, Listener
from mink_local.generation.request import Request
from mink_local.threads import WAIT_SECONDS, in_background

if TYPE_CHECKING:
    _HasAnswer = Answer  # a reply has an answer's attributes, but is none
else:
    _HasAnswer = object

T = TypeVar("T")
U = TypeVar("U")

_AHEAD = 2  # times n_parallel: requests taken before their answers are read, so that no slot waits
_AHEAD_IN_ORDER = 16  # the same for answers that may have to wait for an earlier one


def _nothing() -> None:
    pass


async def _nothing_first() -> None:
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

    async def wait(
        self,
        ready: Callable[[], T | None],
        waiting: Callable[[], object] = _nothing,
        first: Callable[[], Awaitable[None]] = _nothing_first,
    ) -> T:
        """Like `get`, without a thread that waits; `first` is awaited before each call of `ready`."""
        import asyncio  # 12 ms, with ssl, which nothing else in a chat needs

        loop, told = asyncio.get_running_loop(), asyncio.Event()
        with self._waking(partial(loop.call_soon_threadsafe, told.set)):
            while True:
                await first()
                if (found := ready()) is not None:
                    return found
                try:
                    async with asyncio.timeout(WAIT_SECONDS):
                        await told.wait()
                    told.clear()
                except TimeoutError:
                    waiting()

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
        kind = type(self).__name__
        raise TypeError(f"{kind} objects cannot be copied or pickled; an Answer can, such as reply.answer")


class _Source(NamedTuple):
    """What generates a stream; the model would be closed if nobody referred to it."""

    engine: Engine
    thread: EngineThread
    model: object


class Stream(Unique, ABC, Generic[T]):
    """An iterator, for `for` and for `async for`, over what a model's thread generates.

    It has one reader at a time. Whatever interrupts a reader who waits ends what is generated for it.
    """

    def __init__(self, source: _Source) -> None:
        self._source: _Source | None = source  # None once nothing is left to generate
        self._news = News()
        self._lock, self._reader = Lock(), object()

    @abstractmethod
    def _ready(self, end: type[Exception]) -> T | None:
        """Return the next item, or None while it is being generated. Raises `end` after the last one."""

    @abstractmethod
    def close(self) -> None:
        """End what is being generated."""

    async def _prepare(self) -> None:
        """Do in another thread what would stop an event loop, before `_ready` is called."""

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._next(_nothing)

    def _next(self, waiting: Callable[[], object]) -> T:
        with self._alone():
            return self._get(partial(self._ready, StopIteration), waiting)

    async def __anext__(self) -> T:
        with self._alone():
            return await self._wait(partial(self._ready, StopAsyncIteration))

    def reading(self, waiting: Callable[[], object]) -> Iterator[T]:
        """Yield the items; `waiting` is called now and then while there is none, and may raise."""
        with suppress(StopIteration):
            while True:
                yield self._next(waiting)

    def _get(self, ready: Callable[[], U | None], waiting: Callable[[], object] = _nothing) -> U:
        def wait() -> None:
            self._check()
            waiting()

        try:
            return self._news.get(ready, wait)
        except BaseException:
            self.close()
            raise

    async def _wait(self, ready: Callable[[], U | None]) -> U:
        try:
            return await self._news.wait(ready, self._check, self._prepare)
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        """Raise an error if nothing is generated any more."""
        if self._source is not None:
            self._source.thread.check()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second reader: each would get some of the items. One may read while it is reading."""
        reader = _current_task() or get_ident()
        if self._reader == reader:
            yield
            return
        if not self._lock.acquire(blocking=False):
            raise GenerationError("another thread or task is reading this: give each its own, or read in one")
        self._reader = reader
        try:
            yield
        finally:
            self._reader = object()
            self._lock.release()


def _current_task() -> object | None:
    """Return the asyncio task that is running here, if any."""
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio.current_task() if asyncio else None
    except RuntimeError:  # no event loop is running
        return None


class Reply(Stream[Piece], _HasAnswer):
    """An answer that is being generated: an iterator over its pieces of text, each of which it yields once.

    `read()`, `await reply` and `str(reply)` wait for the end and return the whole text, whatever has been
    read. The reply has all attributes of its answer, such as `text`, `k` and `finish_reason`. `with reply:`,
    or `async with`, closes it at the end of the block.

    One thread or task reads it at a time; if that is interrupted or cancelled, the reply ends. In a task, the
    prompt is rendered in another thread, and what is wrong with it is raised where the reply is read.

    Attributes:
        answer: The `Answer`, which can be pickled, and does not end when the reply is dropped.
    """

    def __init__(self, request: Request, engine: Engine, thread: EngineThread, model: object) -> None:
        super().__init__(_Source(engine, thread, model))
        self.answer = Answer(request)
        self._arrived: deque[Piece] = deque()
        self._has_ended, self._is_closed = False, Flag()
        # The engine does not have the reply, so that one that nobody refers to ends.
        listener = partial(_hear_pieces, self._arrived, self._news)
        begin = partial(_begin, engine, thread, self.answer, self._is_closed, listener)
        if _current_task() is None:
            begin()
        else:
            in_background(partial(_begin_or_tell, begin, self.answer, listener), "prepare")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "answer":  # there is none yet
                raise AttributeError(name)
            return getattr(self.answer, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.answer)})

    __repr__ = Answer.__repr__

    def __str__(self) -> str:
        return self.read()

    def __del__(self) -> None:
        if "_is_closed" in vars(self):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _ready(self, end: type[Exception]) -> Piece | None:
        if self._arrived:
            piece = self._arrived.popleft()
            self._has_ended = piece.finish_reason is not None
            return piece
        if self._has_ended:
            self._finish()
            raise end
        return None

    def _is_whole(self) -> bool | None:
        return self._has_ended or bool(self._arrived and self._arrived[-1].finish_reason) or None

    def _finish(self) -> str:
        """Return the text, and let go of the model; raise the answer's error."""
        self._source, error = None, self.answer.error
        if error is None:
            return self.answer.text
        is_of_request = not self.answer.prompt  # which could not be prepared
        raise (
            error if is_of_request or isinstance(error, MinkError) else GenerationError(str(error))
        ) from error

    def __await__(self) -> Generator[Any, None, str]:
        return self._read().__await__()

    async def _read(self) -> str:
        await self._wait(self._is_whole)
        return self._finish()

    def read(self) -> str:
        """Wait for the answer to finish and return its text."""
        self._get(self._is_whole)
        return self._finish()

    @property
    def parsed(self) -> Any:
        """`Answer.parsed`, once the answer is finished."""
        self.read()
        return self.answer.parsed

    def close(self) -> None:
        """End the answer as soon as possible; may be called from another thread or a signal handler."""
        self._is_closed.set()
        if self.answer.finish_reason is None and self._source is not None:
            self._source.thread.cancel([self.answer])

    interrupt = close


def _begin(engine: Engine, thread: EngineThread, answer: Answer, is_closed: Flag, listener: Listener) -> None:
    """Have an answer generated. Raises what is wrong with its request."""
    n_interrupts = thread.n_interrupts
    decoding = engine.prepare(answer.request, answer)
    if answer.finish_reason == "overflow":
        raise ContextOverflowError(answer.prompt_tokens, engine.context.n_ctx)
    thread.generate([decoding], listener)
    if is_closed.is_set() or thread.n_interrupts != n_interrupts:
        thread.cancel([answer])


def _begin_or_tell(begin: Callable[[], None], answer: Answer, listener: Listener) -> None:
    """Call `_begin`; what it raises becomes the answer's error."""
    try:
        begin()
    except Exception as error:
        piece = Piece()
        answer.error, answer.finish_reason = error, answer.finish_reason or "error"
        piece.finish_reason = answer.finish_reason
        listener([(answer, piece)])


def _hear_pieces(arrived: deque[Piece], news: News, events: Sequence[Event]) -> None:
    """Take the pieces among an answer's events; called in the model's thread."""
    arrived += [piece for _, piece in events]
    news.tell()


class Answers(Stream[Answer]):
    """The answers to requests: an iterator, for `for` and for `async for`; one thread or task reads it.

    `len()` is the number of all answers, if there are so many prompts or requests from the beginning.
    """

    def __init__(
        self,
        engine: Engine,
        thread: EngineThread,
        model: object,
        requests: Iterable[Request | ValueError],
        *,
        ordered: bool,
        length: int | None,
        n: int = 1,
    ) -> None:
        """Begin with the first answer that is asked for.

        Args:
            engine, thread: Generate them.
            model: Kept until the last answer has been read.
            requests: Taken as slots become free, by the thread that reads the answers; what is wrong with a
                prompt in place of its request.
            ordered: Yield the answers in the order of their requests.
            length: The number of answers; None if it is not known. After an interrupt, those never begun are
                told only if it is.
            n: The number of answers to a prompt.
        """
        super().__init__(_Source(engine, thread, model))
        self._n_interrupts = thread.n_interrupts
        self._upcoming = enumerate(requests)
        self._is_ordered, self._length, self._n = ordered, length, n
        self._ended: deque[Answer] = deque()  # those not in `_done` yet
        self._taken: list[Answer] = []  # of the given ones, those that are not being generated yet
        self._is_taking = False
        self._given: set[Answer] = set()
        self._done: dict[int, Answer] = {}  # by index, until they are read
        self._n_read = 0
        self._failure: BaseException | None = None  # of the iterable; raised after the answers
        self._listener = partial(_hear_ends, self._ended, self._news)  # which does not keep this object alive

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the prompts have no len(): give a list, or count the answers")
        return self._length

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        """End the answers that are being generated; no further one is begun."""
        self._failure = self._failure or StopIteration()
        if self._source is not None:
            self._source.thread.cancel(self._given)
        self._taken, self._given, self._done = [], set(), {}

    def __del__(self) -> None:
        if "_failure" in vars(self):
            self.close()

    async def _prepare(self) -> None:
        import asyncio

        self._take()
        if self._taken:
            await asyncio.to_thread(self._begin)

    def _ready(self, end: type[Exception]) -> Answer | None:
        """Return the next answer, or begin more."""
        self._take()
        self._begin()
        while self._ended:
            self._check()
            answer = self._ended.popleft()
            if answer in self._given:
                self._given.remove(answer)
                self._done[answer.index] = answer
        index = self._n_read if self._is_ordered else next(iter(self._done), -1)
        if (found := self._done.pop(index, None)) is not None:
            self._n_read += 1
        elif not self._given and self._is_taking:
            raise GenerationError("the requests wait for an answer, but none is being generated")
        elif not self._given:
            self._source, failure, self._failure = None, self._failure, StopIteration()
            raise end if failure is None or isinstance(failure, StopIteration) else failure
        return found

    def _take(self) -> None:
        """Take requests, as many as there is room for; the iterable itself may read answers meanwhile."""
        if self._is_taking or self._failure is not None or self._source is None:
            return
        engine, thread, _ = self._source
        ahead = _AHEAD_IN_ORDER if self._is_ordered else _AHEAD
        room = 1 + ahead * engine.context.n_seq - len(self._given) - len(self._done)
        was_interrupted = thread.n_interrupts != self._n_interrupts
        if was_interrupted and self._length is None:
            room = 0
        self._is_taking = True
        try:
            for index, request in islice(self._upcoming, max(0, room)):
                answer = _answer_to(request, index, self._n)
                if was_interrupted:
                    answer.finish_reason = "interrupted"
                self._given.add(answer)
                self._taken.append(answer)
        except Exception as error:
            self._failure = error
        finally:
            self._is_taking = False

    def _begin(self) -> None:
        """Have the answers to what was taken generated, except those whose request is refused."""
        taken, self._taken = self._taken, []
        if not taken or self._source is None:
            return
        engine, thread, _ = self._source
        decodings = []
        for answer in taken:
            if answer.finish_reason is None:
                try:
                    decodings.append(engine.prepare(answer.request, answer))
                except (MinkError, ValueError, TypeError) as error:
                    answer.finish_reason, answer.error = "error", error
        self._ended += [answer for answer in taken if answer.finish_reason is not None]
        ready = [decoding for decoding in decodings if decoding.answer.finish_reason is None]
        thread.generate(ready, self._listener)
        is_closed = isinstance(self._failure, StopIteration)
        if ready and (is_closed or thread.n_interrupts != self._n_interrupts):  # since they were taken
            thread.cancel([decoding.answer for decoding in ready])


def _answer_to(request: Any, index: int, n: int) -> Answer:
    """Return the answer to a request, which has already failed if there is none."""
    if isinstance(request, ValueError):
        answer = Answer(Request(""), index, n)
        answer.finish_reason, answer.error = "error", request
        return answer
    if not isinstance(request, Request):
        raise TypeError("answer_all takes Requests: generate takes prompts")
    return Answer(request, index, n)


def _hear_ends(ended: deque[Answer], news: News, events: Sequence[Event]) -> None:
    """Note the answers that have ended; called in the model's thread."""
    ended += [answer for answer, piece in events if piece.finish_reason is not None]
    if ended:
        news.tell()
