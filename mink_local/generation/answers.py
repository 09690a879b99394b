"""The answers to many requests, generated side by side."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from mink_local.errors import MinkError
from mink_local.generation.answer import Answer
from mink_local.generation.engine_thread import Event
from mink_local.generation.request import Request
from mink_local.generation.streams import News, Stream

if TYPE_CHECKING:
    from mink_local.generation.model import Model

_AHEAD = 2  # times n_parallel: requests taken before their answers are read, so that no slot waits
_AHEAD_IN_ORDER = 16  # the same for answers that may have to wait for an earlier one


class Answers(Stream[Answer]):
    """The answers to requests: an iterator, for `for` and for `async for`.

    Args:
        model: Generates them.
        requests: Taken as slots become free, by the thread that reads the answers.
        ordered: Yield the answers in the order of their requests.
        is_finite: Whether to tell those never begun after an interrupt.
    """

    def __init__(
        self, model: "Model", requests: Iterable[Request], *, ordered: bool, is_finite: bool
    ) -> None:
        super().__init__(model.thread, News())
        self._model, self._n_interrupts = model, model.n_interrupts
        self._upcoming = enumerate(requests)
        self._is_ordered, self._is_finite = ordered, is_finite
        self._ended: deque[Answer] = deque()  # those not in `_done` yet
        self._given: set[Answer] = set()
        self._done: dict[int, Answer] = {}  # by index, until they are read
        self._n_read = 0
        self._failure: BaseException | None = None  # of the iterable; raised after the answers
        self._listener = partial(_hear, self._ended, self._news)  # which does not keep this object alive

    def close(self) -> None:
        """End the answers that are being generated; no further one is begun."""
        self._failure = self._failure or StopIteration()
        self._thread.cancel(self._given)
        self._given, self._done = set(), {}

    def __del__(self) -> None:
        if "_failure" in vars(self):
            self.close()

    def _ready(self, end: type[Exception]) -> Answer | None:
        """Return the next answer, or begin more."""
        while self._ended:
            self._thread.check()
            answer = self._ended.popleft()
            if answer in self._given:
                self._given.remove(answer)
                self._done[answer.index] = answer
        if self._failure is None:
            self._take()
        index = self._n_read if self._is_ordered else next(iter(self._done), -1)
        if (found := self._done.pop(index, None)) is not None:
            self._n_read += 1
        elif not self._given:
            failure, self._failure = self._failure, StopIteration()
            raise end if failure is None or isinstance(failure, StopIteration) else failure
        return found

    def _take(self) -> None:
        ahead = _AHEAD_IN_ORDER if self._is_ordered else _AHEAD
        room = 1 + ahead * self._model.n_parallel - len(self._given) - len(self._done)
        was_interrupted = self._model.n_interrupts != self._n_interrupts
        if was_interrupted and not self._is_finite:
            return
        begun = []
        try:
            for index, request in islice(self._upcoming, max(0, room)):
                if not isinstance(request, Request):
                    raise TypeError("answer_all takes Requests: generate takes prompts")
                answer = Answer(request, index)
                if was_interrupted:
                    answer.finish_reason = "interrupted"
                    self._done[index] = answer
                else:
                    begun.append(answer)
        except Exception as error:
            self._failure = error
        self._begin(begun)

    def _begin(self, answers: Sequence[Answer]) -> None:
        """Have answers generated, except those whose request is refused."""
        decodings = []
        for answer in answers:
            try:
                decoding = self._model.prepare(answer.request, answer)
            except (MinkError, ValueError, TypeError) as error:
                answer.finish_reason, answer.error = "error", error
            if answer.finish_reason is None:
                self._given.add(answer)
                decodings.append(decoding)
            else:
                self._done[answer.index] = answer
        self._thread.generate(decodings, self._listener)


def _hear(ended: deque[Answer], news: News, events: Sequence[Event]) -> None:
    """Note the answers that have ended; called in the model's thread."""
    ended += [answer for answer, piece in events if piece.finish_reason is not None]
    if ended:
        news.tell()
