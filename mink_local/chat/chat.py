"""The state of a running chat: what commands and the loop work on."""

from concurrent.futures import Future
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mink_local.chat.attachments import Attachment, before_message
from mink_local.chat.comparing import compared_with
from mink_local.chat.conversation.session import AnswerStream, Session
from mink_local.chat.conversation.store import StoredMessage
from mink_local.chat.terminal.progress import note_end, show_answer, status
from mink_local.chat.terminal.screen import Screen
from mink_local.cli import counted
from mink_local.errors import MinkError
from mink_local.interrupts import on_interrupt
from mink_local.llama.token_data import sample_rows
from mink_local.llama.token_sampler import RowSampler, TokenSampler
from mink_local.samplers import Sampler
from mink_local.samplers.compile import announce, cached_names
from mink_local.threads import in_background

if TYPE_CHECKING:
    from mink_local.chat.terminal.editor import InputLine


@cache
def compile_in_background(*samplers: Sampler) -> "Future[None]":
    """Compile the samplers' kernels in the background, once after an installation."""
    announce(sample_rows.__name__)
    cached = cached_names()
    kernels = {one: {member.kernel.__name__ for member in one.members} for one in samplers}
    missing = [one for one, names in kernels.items() if not names | {sample_rows.__name__} <= cached]

    def compile_missing() -> None:
        for sampler in missing:
            token_sampler = TokenSampler(sampler, 1.0, 0, n_vocab=2)
            if token_sampler.program:
                RowSampler(2, 1)(np.zeros((1, 2), np.float32), [0], [token_sampler])

    return in_background(compile_missing, "kernels", daemon=True)


class Draft(NamedTuple):
    """A message that waits to be sent: the input line begins with it until it is sent, or given up by Ctrl-C.

    Attributes:
        message: Its files are sent with it.
        note: What Enter does, for the user.
        replaces: The message that it replaces, as long as that is the last one, or the last answer.
    """

    message: StoredMessage
    note: str = ""
    replaces: StoredMessage | None = None


class Chat:
    """A session, the screen that shows it, and the line that messages are typed into.

    Attributes:
        attached: Files for the next message.
        draft: The message that waits to be sent.
        leaving: The chat ends after this command.
        is_stopped: The answer that comes next is interrupted before its first token.
    """

    def __init__(self, session: Session, screen: Screen, line: "InputLine") -> None:
        self.session = session
        self.screen = screen
        self.line = line
        self.attached: list[Attachment] = []
        self.draft: Draft | None = None
        self.leaving = False
        self.is_stopped = False

    def stop(self) -> None:
        """Stop the answer that comes next, as Ctrl-C does before its first token."""
        self.is_stopped = True

    def confirm(self, question: str) -> None:
        """Raise MinkError unless a question is answered with yes."""
        self.screen.note(f"{question} [y/n]")
        if self.line.answer().strip().casefold() not in ("y", "yes"):
            raise MinkError("nothing was changed")

    def send(self, text: str, draft: Draft | None) -> None:
        """Send a message, perhaps in place of a draft and with its files; show the answer.

        What is not answered becomes the draft.
        """
        files = draft.message.files if draft else ""
        replaces = draft.replaces if draft else None
        attached = before_message(file.text for file in self.attached)
        answer = None
        if draft:
            self.draft = None
        try:
            if replaces and replaces.role == "assistant":
                answer = self.session.rewrite(text)
            else:
                answer = self.session.ask(text, files + attached, replaces is not None)
                self.attached.clear()  # whatever becomes of the answer, they are not for the next message
                files += attached
            self.show(answer)
        finally:
            if answer is None or self.session.branch[-1:] != [answer.message]:
                message = StoredMessage("user", files + text, attached=len(files))
                self.draft = Draft(message, "no answer: Enter sends your message again", replaces)

    def show(self, answer: AnswerStream) -> None:
        """Show an answer while it is generated, then its figures."""
        if answer.dropped:
            turns = counted(answer.dropped, "oldest turn")
            self.screen.note(
                f"the context is full: the model no longer sees your {turns}; /set ctx N enlarges it"
            )
        self.screen.show("")
        settings = self.session.settings
        try:
            with on_interrupt(answer.reply.interrupt):
                if self.is_stopped:
                    answer.reply.interrupt()
                show_answer(self.screen, answer, "; /reasoning shows it")
                compile_in_background(*compared_with(settings.sampler))  # for /explain and /compare
        finally:
            hotter = max(2.0, 2 * answer.message.parts[-1].temperature)
            against_loops = f"/regen {hotter:g}, /set dry-multiplier 0.8 or /set loop-guard off"
            note_end(
                self.screen,
                answer.message,
                settings["max_tokens"],
                against_loops,
                "/continue goes on, /set max-tokens N changes the limit",
                "; /regen 2 tries again",
            )
            if answer.message.n_new and settings["status"]:
                self._show_status(answer.message)
            self.screen.show("")

    def _show_status(self, answer: StoredMessage) -> None:
        """Show the figures of an answer, and what tells it from other versions of it."""
        self.screen.dim(status(answer, self.session.model.n_ctx))
        ids = [turn[-1].id for turn in self.session.versions()] if answer.id else []
        if answer.id in ids and len(ids) > 1:
            number = ids.index(answer.id) + 1
            self.screen.dim(f"version {number} · {answer.settings} · /pick lists them")
