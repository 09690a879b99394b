"""The state of a running chat: what commands and the loop work on."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from mink_local.chat.answer_stream import AnswerStream
from mink_local.chat.comparison import MethodComparison
from mink_local.chat.options import Setting
from mink_local.chat.progress import note_end, show_answer, show_prefill, status
from mink_local.chat.screen import Screen, counted
from mink_local.chat.session import ConversationChangedError, Session
from mink_local.chat.settings import Settings
from mink_local.errors import MinkError
from mink_local.generation.model import Model
from mink_local.interrupts import on_interrupt
from mink_local.models import trust
from mink_local.models.catalog import resolve


@dataclass(frozen=True)
class Attachment:
    """A file that is sent with the next message."""

    name: str
    tokens: int
    text: str


class Chat:
    """A session, and the screen that shows it."""

    def __init__(self, session: Session, screen: Screen, load: Callable[[Settings], Model]) -> None:
        self.session = session
        self.screen = screen
        self.attached: list[Attachment] = []
        self.prefill = ""  # what the next input line begins with
        self.comparison: MethodComparison | None = None  # the last one of /compare
        self.replaces = False  # the next message replaces the last one
        self.typed_ahead: Callable[[], str] = lambda: ""  # of the input line
        self.stopped = False  # Ctrl-C was pressed since the last line was typed
        self.is_unevaluated = True  # the model has not evaluated the conversation since it was loaded
        self.has_failed: Callable[[], bool] = lambda: False  # there is no model, and none will come
        self.leaving = False  # the chat ends after this command
        self.read: Callable[[str], str] = lambda _: ""  # the input line, while the chat runs
        self._load = load

    def note(self, text: str) -> None:
        """Print something that is not part of an answer."""
        self.screen.note(text)

    def confirmed(self, question: str) -> bool:
        """Return if a question is answered with yes; Ctrl-C and the end of the input are a no."""
        self.note(f"({question} y or n)")
        try:
            return self.read("").strip().casefold() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            return False

    def ask(self, text: str, replaces: bool = False) -> None:
        """Send a message with the attached files, or have it replace the last one; show the answer."""
        send = self.session.edit if replaces else self.session.ask
        try:
            answer = send("\n\n".join([*(file.text for file in self.attached), text]))
        except ConversationChangedError:
            self.prefill, self.replaces = text, replaces  # so that Enter sends it again
            raise
        self.show(answer)
        if answer.is_kept:
            self.attached.clear()

    def show(self, answer: AnswerStream) -> None:
        """Show an answer while it is generated, then its figures."""
        self.is_unevaluated = False
        if dropped := answer.draft.dropped:
            turns = counted(dropped, "oldest turn")
            self.note(f"(the conversation outgrew the context: {turns} left out)")
        try:
            with on_interrupt(answer.reply.interrupt):
                if self.stopped:
                    answer.reply.interrupt()
                scale = self.session.settings["heat"]
                show_answer(self.screen, answer, self.typed_ahead, None if scale == "off" else scale)
        finally:
            settings, n_ctx = self.session.settings, self.session.model.n_ctx
            note_end(self.screen, answer, settings["max_tokens"], n_ctx, self._against_loops(answer))
            if answer.outcome and answer.reply.n_tokens and settings["status"]:
                self.note(status(answer.outcome, n_ctx, answer.reply.n_tokens, self.screen.width))
            self.screen.show("")

    def _against_loops(self, answer: AnswerStream) -> str:
        """Return what to type after an answer that repeats itself."""
        hotter = max(2.0, 2 * answer.draft.how.temperature)
        return f"/regen {hotter:g}, /set dry-multiplier 0.8 or /set loop-guard off"

    def note_alternatives(self) -> None:
        """Say that there are several answers to the last message, if there are."""
        answers = self.session.alternatives()
        if len(answers) > 1:
            self.note(f"(answer {len(answers)} to this message: /pick goes back to another)")

    def evaluate(self) -> None:
        """Have the model evaluate the conversation, so that the next answer begins at once."""
        self.is_unevaluated = False
        if self.session.branch:
            with contextlib.suppress(MinkError):  # the next message meets the same error, and shows it
                show_prefill(self.screen, self.session.prefill())

    def change(self, setting: Setting, text: str) -> None:
        """Set a setting from text, and apply it; after an error, settings and model are as before."""
        session, before = self.session, self.session.settings
        if setting.fixed:
            raise ValueError(f"{setting.key} can only be set at the start: --{setting.key}, {setting.envvar}")
        settings = before.changed(setting, text)
        if setting.reloads:
            trust.check(resolve(settings["model"]))
            session.model.close()  # there may not be enough memory for both
            try:
                session.model = self._load(settings)
            except BaseException:
                session.model = self._load(before)
                raise
        session.settings = settings
        if setting.reloads:
            session.changed_model()
            self.is_unevaluated = True
            self.note(f"{session.model.name} {session.model.placement}")
        if setting.key == "system":
            session.set_system(settings["system"], settings.sources["system"])
        self.screen = Screen(settings["plain"], settings["thoughts"])
