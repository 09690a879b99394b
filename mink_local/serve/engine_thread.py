"""The one thread that uses llama.cpp, and what passes between it and the event loop."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mink_local.generation.answer import Answer, FinishReason, Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.engine import Engine, Step


@dataclass(frozen=True)
class Event:
    """An addition to an answer by one step.

    Attributes:
        answer: The answer, which goes on growing in the engine's thread.
        piece: The text that is added, with its token.
        finish_reason: Set with the last piece.
        is_end_token: True if the token ends the answer and is not part of it.
    """

    answer: Answer
    piece: Piece
    finish_reason: FinishReason | None
    is_end_token: bool


class EngineDownError(Exception):
    """The engine's thread has ended, or is stuck; the text says why."""


class EventStream:
    """The events of the answers that are generated for one client: iterate over it in the event loop.

    The iteration ends with the last answer. Raises EngineDownError if the engine fails.
    """

    def __init__(self, decodings: Sequence[Decoding]) -> None:
        self.decodings = decodings
        self._open = len(decodings)
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._failure: str | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._failure is not None:
                raise EngineDownError(self._failure)
            if not self._open:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()

    def put(self, event: Event) -> None:
        """Add an event. A reader that is slow finds all of them later."""
        self._events.append(event)
        if event.finish_reason is not None:
            self._open -= 1
        self._arrived.set()

    def fail(self, reason: str) -> None:
        """End the iteration with an EngineDownError after the events that are there."""
        self._failure = reason
        self._arrived.set()


class EngineThread:
    """Steps an engine in a thread of its own; requests come and go between two steps.

    Its methods are for the event loop in which it is made.

    Args:
        engine: An engine that nobody else uses from now on.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._failure: str | None = None
        self._streams: dict[Answer, EventStream] = {}
        self._last_step = time.monotonic()
        self.n_steps = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """The reason why nothing is generated any more, or None."""
        return self._failure

    @property
    def n_answers(self) -> int:
        """Number of answers that are not finished."""
        return len(self._streams)

    @property
    def seconds_without_step(self) -> float:
        """Time since the last step, in seconds; 0 if there is nothing to generate."""
        return time.monotonic() - self._last_step if self._streams else 0.0

    def generate(self, decodings: Sequence[Decoding]) -> EventStream:
        """Generate prepared answers; `cancel` the stream if nobody reads it any more.

        Raises EngineDownError if the engine has failed.
        """
        if self._failure is not None:
            raise EngineDownError(self._failure)
        stream = EventStream(decodings)
        if not self._streams:
            self._last_step = time.monotonic()
        for decoding in decodings:
            self._streams[decoding.answer] = stream
            self._command(partial(self._engine.enqueue, decoding))
        return stream

    def cancel(self, stream: EventStream) -> bool:
        """End what a stream waits for at the next step; its slots are free then.

        Returns False if there is nothing to end.
        """
        unfinished = [
            decoding.answer for decoding in stream.decodings if self._streams.pop(decoding.answer, None)
        ]
        for answer in unfinished:
            self._command(partial(self._engine.cancel, answer))
        return bool(unfinished)

    def fail(self, reason: str) -> None:
        """End all streams with an EngineDownError, and take no requests from now on."""
        self._failure = reason
        for stream in self._streams.values():
            stream.fail(reason)
        self._streams.clear()

    async def stop(self, seconds: float = 10) -> bool:
        """End what is being generated, and the thread; return False if it does not end in time."""
        self._stopping = True
        self._engine.interrupt()
        self._command(lambda: None)
        await asyncio.to_thread(self._thread.join, seconds)
        return not self._thread.is_alive()

    def _command(self, command: Callable[[], object]) -> None:
        """Have the thread call `command` before its next step."""
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                self._deliver(self._engine.step())
                self._last_step = time.monotonic()
                self.n_steps += 1
        except BaseException as error:
            reason = f"the engine has ended: {type(error).__name__}: {error}"
            self._call_soon(lambda: self.fail(reason))

    def _obey(self) -> None:
        """Carry out commands; wait for some if there is nothing to generate."""
        with self._wake:
            while self._engine.idle and not self._commands:
                self._wake.wait()
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()

    def _deliver(self, step: Step) -> None:
        events = [
            Event(answer, piece, answer.finish_reason, len(answer.k) > answer.n_tokens)
            for answer, piece in step
        ]
        if events:
            self._call_soon(lambda: self._receive(events))

    def _receive(self, events: Sequence[Event]) -> None:
        for event in events:
            stream = self._streams.get(event.answer)
            if stream is None:  # it was cancelled
                continue
            if event.finish_reason is not None:
                del self._streams[event.answer]
            stream.put(event)

    def _call_soon(self, callback: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)
