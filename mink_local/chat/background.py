"""Load the model and evaluate the conversation in other threads, while a line is typed."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, Self

from prompt_toolkit.application import run_in_terminal

from mink_local.chat.screen import Screen
from mink_local.errors import MinkError
from mink_local.interrupts import on_interrupt

if TYPE_CHECKING:  # to import them takes longer than the first input line may
    from mink_local.chat.chat import Chat
    from mink_local.chat.session import Session
    from mink_local.generation.model import Model

log = logging.getLogger("mink_local")

_INTERVAL = 0.1  # seconds between two looks at a thread


class LoadingModel:
    """A model that another thread loads; call it to have it.

    `name` is shown while it is waited for. `announce` is called by the main thread when it is there.
    """

    def __init__(
        self, load: "Callable[[], Model]", name: str, screen: Screen, announce: "Callable[[Model], None]"
    ) -> None:
        self.name = name
        self._load = load
        self._screen = screen
        self._announce = announce
        self._model: Future[Model] = Future()
        self._warnings = BufferingHandler(capacity=1000)
        self._is_started = False

    def start(self) -> None:
        """Have the thread begin, unless it has started."""
        if not self._is_started:
            self._is_started = True
            log.propagate = False  # a warning would be written into the line that is typed
            log.addHandler(self._warnings)
            # A daemon, so that leaving the chat does not wait for it.
            threading.Thread(target=self._run, name="loading", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """If the thread has ended."""
        return self._model.done()

    @property
    def has_failed(self) -> bool:
        """If the model cannot be loaded: the chat cannot go on."""
        return self.is_done and self._model.exception() is not None

    def __call__(self) -> "Model":
        """Wait for the model. Raises what `load_model` raises, and MinkError after Ctrl-C."""
        self.start()
        stopped = threading.Event()
        try:
            with on_interrupt(stopped.set):
                while not self.is_done:
                    self._screen.progress(f"loading {self.name} …")
                    with contextlib.suppress(TimeoutError):
                        self._model.exception(timeout=_INTERVAL)
                    if stopped.is_set():
                        raise MinkError(f"interrupted; {self.name} goes on loading")
        finally:
            self._screen.progress()
        log.removeHandler(self._warnings)
        log.propagate = True
        for record in self._warnings.buffer:
            log.handle(record)
        model = self._model.result()
        self._announce(model)
        return model

    def _run(self) -> None:
        try:
            import_module("mink_local.chat.repl")  # for what will have been typed
            model = self._load()
            with contextlib.suppress(MinkError):  # the first message meets the same error
                model.count_tokens([{"role": "user", "content": ""}])  # starts the child that renders prompts
            self._model.set_result(model)
        except BaseException as error:
            self._model.set_exception(error)


class ConversationEvaluation(threading.Thread):
    """Evaluates the conversation, so that the next answer begins at once, until the `with` block ends."""

    def __init__(self, session: "Session") -> None:
        super().__init__(name="evaluation", daemon=True)
        self._session = session
        self._lock = threading.Lock()
        self._stopped = False
        self._progress: Callable[[], str] = lambda: ""
        self._interrupt: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopped = True
            self._interrupt()
        self.join()

    @property
    def progress(self) -> str:
        """Say how much of the conversation is evaluated, in words; "" if there is none yet."""
        return self._progress() if self._session.branch else ""

    def run(self) -> None:
        from mink_local.chat.progress import prompt_progress

        with contextlib.suppress(MinkError, ValueError):  # the next message meets the same error
            with self._lock:
                if self._stopped:
                    return
                reply = self._session.prefill()
                self._progress, self._interrupt = prompt_progress(reply), reply.interrupt
            reply.read()


async def prepare(
    begin: "Callable[[], Chat]", loading: LoadingModel | None, show: Callable[[str], None]
) -> None:
    """Have other threads load the model and evaluate the conversation, until this is cancelled.

    `begin` returns the chat, for which the modules are to be imported that `loading` imports. `show` takes a
    line about what the threads do, "" at the end. Raises what `load_model` raises.
    """
    if loading:
        loading.start()
        while not loading.is_done:
            show(f"loading {loading.name} …")
            await asyncio.sleep(_INTERVAL)
        show("")
    chat = begin()
    if not chat.session.has_model:
        await run_in_terminal(lambda: chat.session.model)  # which is announced above the line
    # What a seed gives depends on what is in the KV cache, which must not depend on the speed of typing.
    if chat.is_unevaluated and chat.session.settings["seed"] is None:
        with ConversationEvaluation(chat.session) as evaluation:
            while evaluation.is_alive():
                show(evaluation.progress)
                await asyncio.sleep(_INTERVAL)
        chat.is_unevaluated = False
        show("")
