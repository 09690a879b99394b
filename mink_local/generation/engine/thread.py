"""The thread that owns llama.cpp: it steps an engine while there is something to generate, else it sleeps.

Any thread may have answers generated, cancel them, and have functions called in the thread. The events of an
answer go to its listener, a function that is called in the thread; `Events` is one to wait on.
"""

import atexit
import queue
import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from mink_local.errors import GenerationError, MinkError, ModelError
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.engine.decoding import Decoding
from mink_local.generation.engine.engine import Engine
from mink_local.llama.context import end_workers
from mink_local.threads import result_of, run

T = TypeVar("T")

Event = tuple[Answer, Piece]
Listener = Callable[[Sequence[Event]], object]
"""Called after a step with the events of the listener's answers. It must not wait."""

_REST_SECONDS = 0.1  # without work, after which the cores are left to others
_EXIT_SECONDS = 10.0  # for the running batch to end when the program does


class EngineThread:
    """Runs an engine; nothing else may step it.

    Commands come through a queue that is safe in signal handlers and finalizers.

    Attributes:
        n_interrupts: How often all answers were cancelled.
        failure: The error that has ended the thread, or None.
        last_step: When the last step ended, or the first request after it arrived, as `time.monotonic`.
    """

    def __init__(self, engine: Engine) -> None:
        self.failure: BaseException | None = None
        self.last_step = time.monotonic()
        self.n_interrupts = 0
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._listeners: dict[Answer, Listener] = {}  # of the answers that have not ended
        self._why_ending = ""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        # A thread inside llama.cpp would not survive the end of the process. After weakref's finalizers were
        # registered, so before they free what it uses.
        atexit.register(self.end, "the program has ended", _EXIT_SECONDS)

    @property
    def is_current(self) -> bool:
        """Whether this is the calling thread."""
        return threading.current_thread() is self._thread

    def generate(self, decodings: Iterable[Decoding], listener: Listener) -> None:
        """Generate prepared answers, each after those that were given before.

        Args:
            listener: Receives their events.

        Raises:
            GenerationError: The thread has failed, or is the calling one.
            ModelError: It was ended.
        """
        self.check()
        if not self._listeners:
            self.last_step = time.monotonic()
        self._commands.put(partial(self._take, list(decodings), listener))

    def cancel(self, answers: Iterable[Answer] | None = None) -> None:
        """End answers, by default all, with finish_reason "interrupted"; one that has ended stays as it is.

        If nothing else is being generated, a batch on a CPU is given up in the middle, and a running
        `call_when_idle` stopped.
        """
        self.n_interrupts += answers is None
        ended = None if answers is None else set(answers)
        if ended is None or (ended and set(self._listeners) <= ended):
            self._engine.interrupt()
        self._commands.put(partial(self._cancel, ended))  # after the interrupt, which it takes back

    def call_when_idle(self, function: Callable[[], T]) -> T:
        """Call a function in the thread when the answers that were given before have ended.

        Those that are given later wait for it. Returns what it returns, or raises what it raises; other
        errors as for `generate`.
        """
        self.check()
        result: Future[T] = Future()
        self._commands.put(partial(self._engine.when_idle, partial(run, result, function)))

        def waiting() -> None:
            if not self._thread.is_alive() and not result.done():
                raise self._over()

        return result_of(result, waiting)

    def end(self, why: str, seconds: float | None = None) -> bool:
        """End all answers with an error, and the thread; return False if it does not end in time."""
        if seconds != 0:  # else the end of the program waits
            atexit.unregister(self.end)
        self._engine.interrupt()
        self._commands.put(partial(setattr, self, "_why_ending", why))
        if not self.is_current:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise an error if nothing is generated any more, or if the calling thread is this one."""
        if self.is_current:
            raise GenerationError(
                "cannot call the model from its own thread (a listener or `watch`): use another thread"
            )
        if not self._thread.is_alive() or self._why_ending:
            raise self._over()

    def _over(self) -> MinkError:
        """Return why nothing is generated any more."""
        if self.failure is not None:
            name = type(self.failure).__name__
            error = GenerationError(f"the model's thread has ended: {name}: {self.failure}: load it again")
            error.__cause__ = self.failure
            return error
        if self._why_ending:
            return ModelError(self._why_ending)
        return GenerationError("the model belongs to another process: load it after the fork")

    # The rest runs in the thread.

    def _run(self) -> None:
        try:
            while not self._why_ending:
                self._obey()
                self._engine.launch()
                self._tell(self._engine.tell())
                self._tell(self._engine.collect())
                self.last_step = time.monotonic()
        except BaseException as error:
            self.failure = error
        self._end_everything()

    def _obey(self) -> None:
        """Carry out the commands; wait for them while there is nothing to do."""
        while not self._commands.empty() or self._engine.idle:
            self._next_command()()
            if self._why_ending:
                return

    def _next_command(self) -> Callable[[], object]:
        with suppress(queue.Empty):
            return self._commands.get(timeout=_REST_SECONDS)
        end_workers()
        return self._commands.get()

    def _take(self, decodings: Sequence[Decoding], listener: Listener) -> None:
        self._listeners |= {decoding.answer: listener for decoding in decodings}
        self._engine.enqueue(*decodings)

    def _tell(self, events: Sequence[Event]) -> None:
        """Pass events on to the listeners of their answers."""
        told: dict[Listener, list[Event]] = {}
        for answer, piece in events:
            listener = self._listeners.get(answer)
            if listener is None:  # it has failed
                continue
            if piece.finish_reason is not None:
                del self._listeners[answer]
            told.setdefault(listener, []).append((answer, piece))
        for listener, own in told.items():
            self._notify(listener, own)

    def _notify(self, listener: Listener, events: Sequence[Event]) -> None:
        """Call a listener; if it fails, that ends its answers, of which it hears nothing more."""
        try:
            listener(events)
        except BaseException as error:
            for answer in [answer for answer, its in self._listeners.items() if its is listener]:
                del self._listeners[answer]
                self._tell(self._engine.cancel([answer], error))  # with what others were to be told

    def _cancel(self, answers: Container[Answer] | None) -> None:
        self._engine.context.interrupted = False
        self._tell(self._engine.cancel(answers))

    def _end_everything(self) -> None:
        """Fail everything still pending."""
        while not self._commands.empty():
            with suppress(BaseException):
                self._commands.get()()
        with suppress(BaseException):
            self._tell(self._engine.cancel(error=self._over()))
        self._engine.context.interrupted = False
        atexit.unregister(self.end)
