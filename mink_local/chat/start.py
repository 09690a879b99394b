"""The start of `mink-chat`: load the model, then answer one prompt or chat.

What the model and the commands need is imported as late as can be: that takes longer than all else before
the first input line.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

import click

from mink_local.chat.options import COMMAND_LINE
from mink_local.chat.screen import Screen
from mink_local.chat.settings import Settings
from mink_local.chat.store import ConversationStore, default_path
from mink_local.errors import MinkError, ModelNotFoundError
from mink_local.interrupts import on_interrupt
from mink_local.models.catalog import DEFAULT_MODEL, resolve

if TYPE_CHECKING:
    from mink_local.chat.background import LoadingModel
    from mink_local.chat.chat import Chat
    from mink_local.chat.completion import Choice
    from mink_local.chat.session import Session
    from mink_local.generation.model import Model

_BETTER_MODEL = "qwen3-0.6b"  # than the default


def start(
    ctx: click.Context, prompt: str | None, as_json: bool, continued: bool, resume: str | None, verbose: bool
) -> None:
    """Run the program with the options of the command; `prompt` is None for a chat."""
    settings = Settings(ctx)
    settings.check(is_new=settings.given)
    screen = Screen(settings["plain"], settings["thoughts"])
    conversation = None
    if continued or resume:
        store = ConversationStore(default_path())
        conversation = store.find(resume) if resume else store.latest()
        if not settings.given("model"):
            settings.put("model", conversation.model, "the conversation")
    else:
        store = _open_store(settings, screen, one_shot=prompt is not None)
    try:
        name = resolve(settings["model"]).name
    except ModelNotFoundError as error:
        if conversation is None or settings.given("model"):
            raise
        raise ModelNotFoundError(f"{error} (the conversation's model; --model names another)") from None
    load = partial(_load, screen=screen, verbose=verbose)

    def session_with(model: "Model | Callable[[], Model]") -> tuple["Session", str]:
        """Return the session, and a last message that was never answered."""
        from mink_local.chat.session import Session

        session = Session(model, settings, store)
        system = settings["system"] if settings.given("system") else None
        unanswered = session.load(conversation) if conversation else None
        if system is not None:
            session.set_system(system, COMMAND_LINE)
        return session, unanswered or ""

    if prompt is None and screen.has_line_input:
        from mink_local.chat.background import LoadingModel

        load_first = cache(partial(load, settings))  # loads once
        if verbose:  # the log of llama.cpp would be written into the line
            _load_now(load_first, name, screen)
        loading = LoadingModel(load_first, name, screen, partial(_announce, screen, settings))
        _chat_while_loading(session_with, settings, screen, load, loading, continues=conversation is not None)
        return
    model = _load_now(partial(load, settings), name, screen)
    session, unanswered = session_with(model)
    if prompt is None:
        _introduce(settings, screen)
        _announce(screen, settings, model)
        _chat(session, screen, load, unanswered)
    else:
        from mink_local.chat.one_prompt import answer

        _say_where(model, screen, settings)
        answer(session, screen, prompt, as_json)


def _introduce(settings: Settings, screen: Screen) -> None:
    """Say what there is to know before the first line."""
    if settings["model"] == DEFAULT_MODEL:
        screen.note(
            f"({DEFAULT_MODEL} is a very small model, for trying the program. For better answers: "
            f"mink-models pull {_BETTER_MODEL}, then mink-chat -m {_BETTER_MODEL})"
        )
    screen.note("/help lists the commands, Ctrl-D leaves.")


def _chat_while_loading(
    session_with: "Callable[[Callable[[], Model]], tuple[Session, str]]",
    settings: Settings,
    screen: Screen,
    load: "Callable[[Settings], Model]",
    loading: "LoadingModel",
    continues: bool,
) -> None:
    """Chat with an input line, at which one types while the model loads."""
    from mink_local.chat.background import prepare
    from mink_local.chat.terminal import LineInput, read_line
    from mink_local.chat.typeahead import unechoed

    @cache
    def chat() -> "Chat":
        from mink_local.chat.chat import Chat

        session, unanswered = session_with(loading)
        created = Chat(session, screen, load)
        created.prefill = unanswered
        created.has_failed = lambda: loading.has_failed
        created.typed_ahead = line.typed_ahead
        return created

    def complete(text: str) -> "Iterator[Choice]":
        from mink_local.chat.repl import complete

        return complete(chat(), text)

    line = LineInput(complete, settings["keys"], settings["store"], screen, partial(prepare, chat, loading))
    _introduce(settings, screen)
    with unechoed(line, key_by_key=True) as read:
        first: str | None = ""
        if continues:
            from mink_local.chat.commands import recall

            recall(chat())
        else:
            while first is not None and not first.strip():
                first = read_line(read, screen)
        if first is not None:
            with on_interrupt(lambda: None):  # Ctrl-C stops answers, and there is none yet
                from mink_local.chat.repl import run

                chat()
            run(chat(), read, first)
    if not loading.is_done:  # a thread inside llama.cpp cannot be ended
        sys.stdout.flush()
        os._exit(0)


def _chat(session: "Session", screen: Screen, load: "Callable[[Settings], Model]", unanswered: str) -> None:
    """Chat, with a model that is loaded."""
    from mink_local.chat.chat import Chat
    from mink_local.chat.commands import recall
    from mink_local.chat.repl import run
    from mink_local.chat.terminal import read_plain
    from mink_local.chat.typeahead import unechoed

    chat = Chat(session, screen, load)
    chat.prefill = unanswered
    if session.conversation is not None:
        recall(chat)

    def read_evaluated(default: str) -> str:
        chat.evaluate()
        return read_plain(default)

    with unechoed(read_evaluated, key_by_key=False) as read:
        run(chat, read)


def _open_store(settings: Settings, screen: Screen, one_shot: bool) -> ConversationStore:
    """Return the conversations on disk, or a store in memory if nothing is to be kept or can be."""
    if one_shot or not settings["store"]:
        return ConversationStore()
    try:
        return ConversationStore(default_path())
    except MinkError as error:
        screen.note(f"({error}; this conversation is not kept)")
        return ConversationStore()


def _load_now(load: "Callable[[], Model]", name: str, screen: Screen) -> "Model":
    """Load a model; Ctrl-C ends the program, as there is nothing to save."""
    heard = signal.signal(signal.SIGINT, signal.SIG_DFL)
    screen.progress(f"loading {name} …")
    try:
        return load()
    finally:
        screen.progress()
        signal.signal(signal.SIGINT, heard)


def _announce(screen: Screen, settings: Settings, model: "Model") -> None:
    """Say where a model is, and how it will be sampled."""
    _say_where(model, screen, settings)
    screen.note(f"{settings.sampler}, temperature {settings['temp']:g}")


def _say_where(model: "Model", screen: Screen, settings: Settings) -> None:
    """Say where a model is, and what became of --ctx."""
    screen.note(f"{model.name} {model.placement}")
    if settings["ctx"] and settings["ctx"] < model.n_ctx:
        screen.note(f"(--ctx {settings['ctx']}: llama.cpp rounds that up to {model.n_ctx})")


def _load(settings: Settings, screen: Screen, verbose: bool) -> "Model":
    from mink_local.generation.loading import load_model
    from mink_local.generation.request import SamplingParams

    model = load_model(
        settings["model"],
        n_ctx=settings["ctx"],
        n_gpu_layers=settings["gpu_layers"],
        n_threads=settings["threads"],
        kv_type=settings["kv_type"],
        backend_sampling=settings.backend_sampling,
        rpc=settings["rpc"],
        verbose=verbose,
    )
    params = SamplingParams(sampler=settings.sampler, temperature=settings["temp"])
    sampling = model.sampling(params)  # tries backend sampling now and not before the first answer
    if verbose:
        screen.note(f"tokens are sampled {sampling}")
    return model
