"""The start of `mink-chat`: load the model, then answer one prompt or chat."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mink_local.chat.answer_stream import AnswerStream
from mink_local.chat.export import dumps
from mink_local.chat.options import COMMAND_LINE
from mink_local.chat.progress import note_end, show_answer
from mink_local.chat.screen import Screen
from mink_local.chat.session import Session
from mink_local.chat.settings import Settings
from mink_local.chat.store import ConversationStore, default_path
from mink_local.cli import INTERRUPTED
from mink_local.errors import MinkError, ModelNotFoundError
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.reasoning import TextPart
from mink_local.models.catalog import DEFAULT_MODEL, resolve

if TYPE_CHECKING:
    from mink_local.chat.background import LoadingModel

_BETTER_MODEL = "qwen3-0.6b"  # than the default


def start(
    ctx: click.Context, prompt: str | None, as_json: bool, continued: bool, resume: str | None, verbose: bool
) -> None:
    """Run the program with the options of the command; `prompt` is None for a chat."""
    settings = Settings(ctx)
    settings.check(tau_is_new=settings.given("tau"))
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
    load = partial(_load, verbose=verbose)
    announce = partial(_announce, screen, settings)
    loading = None
    if prompt is None and screen.has_line_input and not verbose:
        from mink_local.chat import background

        loading = background.LoadingModel(partial(load, settings), name, screen, announce)
        session = Session(loading, settings, store)
    else:
        session = Session(_load_now(partial(load, settings), name, screen), settings, store)
        announce(session.model)
    system = settings["system"] if settings.given("system") else None
    unanswered = session.load(conversation) if conversation else None
    if system is not None:
        session.set_system(system, COMMAND_LINE)
    if prompt is not None:
        _answer_once(session, screen, prompt, as_json)
    else:
        _chat(session, screen, load, loading, unanswered or "")


def _open_store(settings: Settings, screen: Screen, one_shot: bool) -> ConversationStore:
    """Return the conversations on disk, or a store in memory if nothing is to be kept or can be."""
    if one_shot or not settings["store"]:
        return ConversationStore()
    try:
        return ConversationStore(default_path())
    except MinkError as error:
        screen.note(f"({error}; this conversation is not kept)")
        return ConversationStore()


def _load_now(load: Callable[[], Model], name: str, screen: Screen) -> Model:
    """Load a model; Ctrl-C ends the program, as there is nothing to save."""
    heard = signal.signal(signal.SIGINT, signal.SIG_DFL)
    screen.progress(f"loading {name} …")
    try:
        return load()
    finally:
        screen.progress()
        signal.signal(signal.SIGINT, heard)


def _announce(screen: Screen, settings: Settings, model: Model) -> None:
    """Say where a model is, and what became of --ctx."""
    screen.note(f"{model.name} {model.placement}")
    if settings["ctx"] and settings["ctx"] < model.n_ctx:
        screen.note(f"(--ctx {settings['ctx']}: llama.cpp rounds that up to {model.n_ctx})")


def _load(settings: Settings, verbose: bool) -> Model:
    return load_model(
        settings["model"],
        n_ctx=settings["ctx"],
        n_gpu_layers=settings["gpu_layers"],
        n_threads=settings["threads"],
        kv_type=settings["kv_type"],
        backend_sampling=settings.backend_sampling,
        rpc=settings["rpc"],
        verbose=verbose,
    )


def _answer_once(session: Session, screen: Screen, prompt: str, as_json: bool) -> None:
    try:
        answer = session.ask(prompt)
        if as_json:
            screen.write(dumps(_as_json(answer, list(answer))) + "\n")
        else:
            show_answer(screen, answer)
    except ValueError as error:  # an option that does not suit this model: a grammar, a token id
        raise click.UsageError(f"{error}.") from None
    if not as_json:
        options = "--temp 2, --dry-multiplier 0.8 or --no-loop-guard"
        note_end(screen, answer, session.settings["max_tokens"], session.model.n_ctx, options)
    if answer.outcome and answer.outcome.finish_reason == "interrupted":
        sys.exit(INTERRUPTED)


def _as_json(answer: AnswerStream, parts: Sequence[TextPart]) -> dict[str, Any]:
    outcome, how = answer.outcome, answer.draft.how
    assert outcome
    return {
        "model": how.model,
        "sampler": how.sampler,
        "temperature": how.temperature,
        "seed": how.seed,
        "text": "".join(part.text for part in parts if not part.is_reasoning),
        "thinking": "".join(part.text for part in parts if part.is_reasoning),
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": outcome.prompt_tokens,
        "evaluated_tokens": outcome.evaluated_tokens,
        "n_tokens": len(outcome.tokens),
        "tokens": outcome.tokens,
        "k": outcome.k,
        "timings": {"first_token_s": round(outcome.first_token_s, 4), "total_s": round(outcome.seconds, 4)},
    }


def _chat(
    session: Session,
    screen: Screen,
    load: Callable[[Settings], Model],
    loading: "LoadingModel | None",
    unanswered: str,
) -> None:
    from mink_local.chat.chat import Chat
    from mink_local.chat.commands import recall
    from mink_local.chat.repl import complete, run
    from mink_local.chat.terminal import LineInput, read_plain
    from mink_local.chat.typeahead import unechoed

    settings = session.settings
    chat = Chat(session, screen, load)
    chat.prefill = unanswered
    if settings["model"] == DEFAULT_MODEL:
        screen.note(
            f"({DEFAULT_MODEL} is a very small model, for trying the program. For better answers: "
            f"mink-models pull {_BETTER_MODEL}, then mink-chat -m {_BETTER_MODEL})"
        )
    screen.note(
        f"{settings.sampler}, temperature {settings['temp']:g}. /help lists the commands, Ctrl-D leaves."
    )
    if session.conversation is not None:
        recall(chat)
    if not screen.has_line_input:

        def read_evaluated(default: str) -> str:
            chat.evaluate()
            return read_plain(default)

        with unechoed(read_evaluated, key_by_key=False) as read:
            run(chat, read)
        return
    from mink_local.chat.background import prepare

    chat.has_failed = lambda: loading is not None and loading.has_failed
    background = partial(prepare, chat, loading)
    line = LineInput(partial(complete, chat), settings["keys"], settings["store"], screen, background)
    chat.typed_ahead = line.typed_ahead
    with unechoed(line, key_by_key=True) as read:
        run(chat, read)
    if loading and not loading.is_done:  # a thread inside llama.cpp cannot be ended
        sys.stdout.flush()
        os._exit(0)
