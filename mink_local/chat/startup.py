"""The start of `mink-chat`: load the model, then answer one prompt or chat.

Most modules are imported after the model has been loaded, which goes on beside the first imports.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from platformdirs import user_cache_path

from mink_local.chat.attachments import Attachment, before_message
from mink_local.chat.conversation.store import (
    ConversationStore,
    StoredMessage,
    StoreError,
    default_path,
)
from mink_local.chat.settings import DEFAULT, Settings
from mink_local.chat.terminal.input import PlainLine, QuietTerminal
from mink_local.chat.terminal.screen import Screen
from mink_local.errors import MinkError, ModelNotFoundError
from mink_local.files import size_in_words
from mink_local.interrupts import interrupt_ends_program
from mink_local.models import catalog
from mink_local.models.catalog import EMBEDDED, resolve

_TOY = f"{EMBEDDED} is a toy: it makes things up, and high temperatures need a better model"

if TYPE_CHECKING:
    from mink_local.chat.chat import Chat
    from mink_local.chat.conversation.session import Session


def _better_model() -> str:
    """Say which model would suit this machine, and how to get it."""
    from mink_local.models.offer import find_offer

    offer = find_offer()
    if not offer:
        return "mink-models list shows some"
    name = offer["name"]
    pull = "" if offer["path"] else f"mink-models pull {name} && "
    return f"{name} suits this machine: type  {pull}mink-models default {name}"


class Startup:
    """The program from its options to the first answer.

    Args:
        ctx: The context of the command.
        resumed: The name of the conversation to continue, "" for the last one, None for a new one.
        is_chat: A new conversation is kept.
        files: Text files for the first message.

    Raises:
        click.UsageError: Settings do not fit together.
        MinkError: There is no such conversation, or the store cannot be read.
    """

    def __init__(
        self, ctx: click.Context, resumed: str | None, is_chat: bool, files: Sequence[Path] = ()
    ) -> None:
        self._files = files
        self.settings = settings = Settings(ctx)
        settings.check(is_new=settings.given)
        self.screen = Screen(settings["plain"], settings["show_reasoning"])
        is_kept = resumed is not None or (is_chat and settings["store"])
        self._store = ConversationStore(default_path() if is_kept else None)
        self._conversation = None if resumed is None else self._store.find(resumed)
        self._unanswered: StoredMessage | None = None  # the last message of the conversation
        if self._conversation and not settings.given("model"):
            settings.put("model", self._conversation.model, "the conversation")

    def answer(self, prompt: str, as_json: bool) -> int:
        """Print the answer to a prompt, or a JSON object of all that is known of it; return the exit status.

        Ctrl-C ends the program. The conversation is kept only if it is continued.
        """
        session = self._session(QuietTerminal())
        self._note_model(session, is_named=self.settings.context.params["verbose"])
        if self.settings["model"] == EMBEDDED and not catalog.chosen_model() and sys.stderr.isatty():
            self.screen.note(f"({_TOY}: mink-models list shows some, mink-models default chooses one)")
        from mink_local.chat.kernels import compiling
        from mink_local.chat.terminal.progress import print_answer

        answer = session.ask(prompt, before_message(file.text for file in self._attached(session)))
        is_compiling = compiling(self.settings.params.effective_sampler)
        status = print_answer(
            self.screen, answer.message, answer.pieces, self.settings, as_json, is_compiling
        )
        session.end()
        return status

    def chat(self) -> None:
        """Chat until the user leaves."""
        self._offer_model()
        with QuietTerminal(marks_pastes=self.screen.has_line_input) as terminal:
            session = self._session(terminal)
            from mink_local.chat.kernels import compiling
            from mink_local.chat.loop import run

            compiling(self.settings.params.effective_sampler)
            self._begin(session)
            run(self._chat(session, terminal))
            session.end()

    def _begin(self, session: "Session") -> None:
        """Say what answers, and what is not as it should be."""
        from mink_local.samplers.compile import CACHE

        self._note_model(session, is_named=True)
        self.screen.note(f"{self.settings.sampler}, temperature {self.settings['temp']:g}")
        if self.settings["model"] == EMBEDDED:
            self.screen.note(f"({_TOY}. {_better_model()})")
        try:
            self._store.open()  # to say that it cannot be before there is a conversation to lose
        except StoreError as error:
            self.screen.note(f"(this chat won't be saved: {error})")
        if CACHE is None and "NUMBA_CACHE_DIR" not in os.environ:
            folder = user_cache_path("mink-local")
            self.screen.note(f"(every start compiles the sampler again: {folder} is not writable)")
        self.screen.note("/help lists the commands, Ctrl-D leaves.")

    def _chat(self, session: "Session", terminal: QuietTerminal) -> "Chat":
        """Return the chat, with the files for the first message, or the end of the conversation on screen."""
        from mink_local.chat.chat import Chat, Offer
        from mink_local.chat.commands import conversations

        chat = Chat(session, self.screen, PlainLine(terminal))
        chat.attached += self._attached(session)
        if self.screen.has_line_input:
            from mink_local.chat.loop import CommandCompleter
            from mink_local.chat.terminal.editor import EditedLine

            chat.line = EditedLine(terminal, self.screen, self.settings["store"], CommandCompleter(chat))
        if session.conversation is not None:
            conversations.recall(chat)
        if self._unanswered:
            chat.offered = Offer(self._unanswered, "Enter sends it")
        return chat

    def _offer_model(self) -> None:
        """At the first start in a terminal, ask whether to use a better model than the embedded one."""
        is_asked = sys.stdin.isatty() and sys.stdout.isatty() and self.settings.sources["model"] == DEFAULT
        if not is_asked or catalog.chosen_model():
            return
        from mink_local.models.offer import find_offer, take

        offer = find_offer()
        if not offer:
            return
        size, name = size_in_words(offer["size"]), offer["name"]
        place = " and is already on it" if offer["path"] else ""
        self.screen.note(
            f"{name} ({size}) fits this machine{place}. Answer n for the embedded toy model; "
            "mink-models default changes your choice later."
        )
        try:
            wanted = click.confirm("Use it?" if place else "Download it now?", default=True)
        except click.Abort:
            self.screen.note("")  # the cursor is behind the question
            raise
        try:
            if wanted:
                take(offer, self.screen.note)
            catalog.choose_model(name if wanted else EMBEDDED)
        except MinkError as error:
            self.screen.note(f"({error})")
            return
        self.settings.put("model", catalog.default_model(), DEFAULT)

    def _attached(self, session: "Session") -> list[Attachment]:
        """Return the files for the first message."""
        return [Attachment.read(session.model, path) for path in self._files]

    def _session(self, terminal: QuietTerminal) -> "Session":
        """Load the model; return its session. Ctrl-C ends the program, as there is nothing to save."""
        try:
            name = resolve(self.settings["model"]).name
        except ModelNotFoundError as error:
            if self._conversation is None or self.settings.given("model"):
                raise
            message = f"{error} (the conversation's model; --model names another)"
            raise ModelNotFoundError(message) from None
        self.screen.progress(f"loading {name} …")
        from mink_local.generation.rendering import start_child

        start_child()  # before the imports that loading takes
        try:
            with interrupt_ends_program(terminal.restore):
                model = self.settings.load_model()
        finally:
            self.screen.progress()
        from mink_local.chat.conversation.session import Session

        session = Session(model, self.settings, self._store)
        source = self.settings.sources["system"]
        is_given = self.settings.given("system") or self.settings.given("prompt_name")
        system = self.settings["system"] if is_given else None
        if self._conversation:
            self._unanswered = session.load(self._conversation)
            self.settings.check(is_new=self.settings.given)
        if system is not None:
            session.set_system(system, source)
        return session

    def _note_model(self, session: "Session", is_named: bool) -> None:
        """Say where the model is, if that is wanted, and what became of --ctx."""
        model, n_ctx = session.model, self.settings["ctx"]
        if is_named:
            self.screen.note(f"{model.name} {model.placement}")
        if n_ctx and n_ctx < model.n_ctx:
            self.screen.note(f"(--ctx {n_ctx}: llama.cpp rounds that up to {model.n_ctx})")
