"""The start of `mink-chat`: load the model, then answer one prompt or chat.

Most modules are imported after the model has been loaded, which goes on beside the first imports.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mink_local.chat.attachments import Attachment, before_message
from mink_local.chat.conversation.store import (
    ConversationStore,
    StoredMessage,
    StoreError,
    default_path,
)
from mink_local.chat.settings import DEFAULT, Settings
from mink_local.chat.terminal.input import QuietTerminal
from mink_local.chat.terminal.screen import Screen, ask_window_for_size
from mink_local.errors import ModelNotFoundError
from mink_local.interrupts import endings, handled, interrupt_ends_program
from mink_local.models import catalog
from mink_local.models.catalog import EMBEDDED, resolve

_TOY = (
    f"{EMBEDDED} is a toy for trying the program: it makes things up; mink-models list shows others, "
    "mink-models default chooses one"
)

_ENDING = [*endings()]
if sys.platform != "win32":
    _ENDING.append(signal.SIGHUP)

if TYPE_CHECKING:
    from mink_local.chat.conversation.session import Session


def _end(number: int, _: object) -> None:
    """End the program as /exit does, with the answer so far and the terminal as it was."""
    raise SystemExit(128 + number)


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
        ask_window_for_size()
        self.screen = Screen(settings["plain"], settings["show_reasoning"], settings["theme"])
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
        from mink_local.chat.terminal.progress import about_model, print_answer

        if self.settings.context.params["verbose"]:
            self.screen.dim(about_model(session.model))
        self._note_model(session)
        if self._is_toy and sys.stderr.isatty():
            self.screen.note(_TOY)
        from mink_local.chat.chat import compile_in_background

        compile_in_background(self.settings.params.effective_sampler)
        answer = session.ask(prompt, before_message(file.text for file in self._attached(session)))
        status = print_answer(self.screen, answer, self.settings, as_json)
        session.end()
        return status

    def chat(self) -> None:
        """Chat until the user leaves."""
        self._offer_model()
        with handled(_ENDING, _end), QuietTerminal(marks_pastes=not self.screen.is_dumb) as terminal:
            session = self._session(terminal)
            from mink_local.chat import chat, loop

            chat.compile_in_background(self.settings.params.effective_sampler)
            self._begin(session)
            loop.chat(session, self.screen, terminal, self._attached(session), self._unanswered)
            self.screen.progress("storing the conversation …")  # a large KV cache takes seconds
            session.end()
            self.screen.progress()

    @property
    def _is_toy(self) -> bool:
        """Whether the embedded model answers, unless the user has asked for it by name."""
        return bool(self.settings["model"] == EMBEDDED) and not self.settings.given("model")

    def _begin(self, session: "Session") -> None:
        """Say what answers, and what is not as it should be."""
        from mink_local.chat.terminal.progress import about_model
        from mink_local.models.recommended import recommended_by

        self.screen.dim(f"{about_model(session.model)} · {self.settings.summary}")
        if (found := recommended_by(session.model.weights.path)) and not self.settings.follows_model:
            self.screen.note(f"this file recommends {found}: --sampler model, or /set sampler model")
        self._note_model(session)
        if self._is_toy:
            self.screen.note(_TOY)
        try:
            self._store.open()  # to say that it cannot be before there is a conversation to lose
        except StoreError as error:
            self.screen.note(f"this chat won't be saved: {error}")
        self.screen.dim("/help lists the commands, Ctrl-D leaves.")

    def _offer_model(self) -> None:
        """At the first start in a terminal, ask for a model."""
        is_asked = sys.stdin.isatty() and sys.stdout.isatty() and self.settings.sources["model"] == DEFAULT
        if not is_asked or catalog.chosen_model():
            return
        from mink_local.chat.first_start import first_model  # slow to import

        self.settings.put("model", first_model(self.screen), DEFAULT)

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
        try:
            with interrupt_ends_program(terminal.restore):
                model = self.settings.load_model()
        finally:
            self.screen.progress()
        from mink_local.chat.conversation.session import Session

        session = Session(model, self.settings, self._store)
        source = self.settings.sources["system"]
        system = self.settings["system"] if self.settings.given("system") else None
        if self._conversation:
            self._unanswered = session.load(self._conversation)
            self.settings.check(is_new=self.settings.given)
        if system is not None:
            session.set_system(system, source)
        return session

    def _note_model(self, session: "Session") -> None:
        """Say what became of settings that the model does not take as they are."""
        model, n_ctx = session.model, self.settings["ctx"]
        if n_ctx and n_ctx < model.n_ctx:
            self.screen.note(f"--ctx {n_ctx}: llama.cpp rounds that up to {model.n_ctx}")
        if self.settings["reasoning"] is not None and not model.has_thinking_switch:
            self.screen.note(f"{model.name} has no switch for reasoning: --reasoning changes nothing")
        if self.settings.params.has_phases and not model.can_reason:
            self.screen.note(
                f"{model.name} does not reason: --reasoning-sampler and --reasoning-temp change nothing"
            )
