"""The chat in the terminal: reads a line, and has a command or the model answer it."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mink_local.chat.answer_stream import Answer
from mink_local.chat.commands import COMMANDS, Command
from mink_local.chat.screen import Screen, note, status
from mink_local.chat.session import Session
from mink_local.errors import MinkError
from mink_local.interrupts import on_interrupt

if TYPE_CHECKING:
    from mink_local.chat.options import Setting
    from mink_local.chat.terminal import Input
    from mink_local.generation.model import Model


class Chat:
    """A session, and where it is typed and shown.

    load: loads the model that the settings name. attached: texts of files that go with the next message.
    """

    def __init__(self, session: Session, screen: Screen, load: Callable[[], "Model"]) -> None:
        self.session = session
        self.screen = screen
        self.load = load
        self.attached: list[str] = []
        self.leaving = False
        self.prefill = ""  # what the next input line begins with
        self._stopped = False

    def run(self, typed: "Input") -> None:
        """Read and answer messages until the end of the input or /exit."""
        with on_interrupt(self._stop):
            while not self.leaving:
                try:
                    text, self.prefill = typed.read(self.prefill), ""
                except EOFError:
                    print()
                    return
                except KeyboardInterrupt:
                    note("\n(Ctrl-D or /exit leaves)")
                    continue
                self._stopped = False
                if text.strip():
                    self._handle(text)

    def _stop(self) -> None:
        self._stopped = True

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C was pressed since the line was read."""
        return self._stopped

    def _handle(self, text: str) -> None:
        try:
            if (found := self._command(text)) is None:
                self.ask(text.strip())
            else:
                command, argument = found
                command.run(self, argument)
        except (MinkError, ValueError, OSError) as error:
            note(f"({str(error).removesuffix('.')})")

    def _command(self, text: str) -> tuple[Command, str] | None:
        """The command that a text is, and what stands behind it; None for a message."""
        word, _, argument = text.partition(" ")
        word, newline, rest = word.partition("\n")
        if not word.startswith("/") or not word[1:].isalpha():
            return None
        if word[1:] in COMMANDS:
            return COMMANDS[word[1:]], (rest + " " + argument if newline else argument).strip()
        import difflib

        near = difflib.get_close_matches(word[1:], COMMANDS, n=1)
        meant = f"; did you mean /{near[0]}?" if near else "; /help lists them"
        raise ValueError(f"there is no command {word}{meant}, a blank before it sends it as it is")

    def ask(self, text: str) -> None:
        """Send a message, with the files that were added to it."""
        whole = "\n\n".join([*self.attached, text])
        answer = self.session.ask(whole)
        self.show(answer)
        if answer.kept:
            self.attached.clear()

    def show(self, answer: Answer) -> None:
        """Show an answer as it comes, and what there is to say of it."""
        if answer.dropped:
            note(f"(the conversation outgrew the context: {answer.dropped} oldest turns were dropped)")
        try:
            with on_interrupt(answer.reply.interrupt):
                if self._stopped:
                    answer.reply.interrupt()
                self.screen.stream(answer)
        finally:
            self._tell(answer)
            print()

    def _tell(self, answer: Answer) -> None:
        settings, model = self.session.settings, self.session.model
        tell_end(answer, settings["max_tokens"], model.n_ctx)
        if answer.outcome and answer.reply.n_tokens and settings["status"]:
            note(status(answer.outcome, model.n_ctx, answer.reply.n_tokens))

    def read_again(self) -> None:
        """Have the model read the conversation, so that the next answer begins at once."""
        with contextlib.suppress(MinkError):  # what stands in the way is said when there is a message
            if reply := self.session.reread():
                self.screen.read(reply)

    def change(self, setting: "Setting", text: str) -> None:
        """Set a setting from text, and what hangs on it."""
        session, settings = self.session, self.session.settings
        if setting.fixed:
            raise ValueError(f"{setting.key} can only be set at the start: --{setting.key}, {setting.envvar}")
        before, sources = dict(settings), dict(settings.sources)
        settings.change(setting, text)
        try:
            if setting.reloads:
                self._reload(before)
        except BaseException:
            settings.update(before)
            settings.sources = sources
            raise
        if setting.key == "system":
            session.set_system(settings["system"])
        self.screen = Screen(settings["plain"], settings["thoughts"])

    def _reload(self, before: dict[str, Any]) -> None:
        """Load the model that the settings name. The one before makes room for it, and comes back where that
        fails."""
        from mink_local.models import trust
        from mink_local.models.catalog import resolve

        session = self.session
        trust.check(resolve(session.settings["model"]))
        now = dict(session.settings)
        del session.model
        try:
            session.model = self.load()
        except BaseException:
            session.settings.update(before)
            session.model = self.load()
            session.settings.update(now)
            raise
        session.changed_model()
        note(f"{session.model.name} {session.model.placement}")

    def complete(self, line: str) -> Iterator[tuple[str, int]]:
        """What a line may go on with; see `terminal.Completer`."""
        if not line.startswith("/"):
            return
        word, blank, argument = line.partition(" ")
        if not blank:
            yield from ((f"/{name} ", len(word)) for name in COMMANDS if name.startswith(word[1:]))
        elif (command := COMMANDS.get(word[1:])) and command.complete:
            yield from command.complete(self, argument)


def tell_end(answer: Answer, max_tokens: int | None, n_ctx: int) -> None:
    """Say why an answer ended where it did, if it was cut short."""
    reply = answer.reply
    if reply.finish_reason == "interrupted":
        note("(interrupted)")
    elif reply.finish_reason == "length" and reply.n_tokens == max_tokens:
        note(f"(cut after {max_tokens} tokens: --max-tokens)")
    elif reply.finish_reason == "length":
        note(f"(cut: the context of {n_ctx} tokens is full)")


def words(argument: str) -> list[str]:
    """The words of an argument, quoted as in a shell. Raises ValueError."""
    try:
        return shlex.split(argument)
    except ValueError as error:
        raise ValueError(f"{argument!r} cannot be read: {error}") from None
