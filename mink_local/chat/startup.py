"""The start of `mink-chat`: load the model, then answer one prompt or chat.

Most modules are imported after the model has been loaded, which goes on beside the first imports.
"""

import sys
from typing import TYPE_CHECKING, Any

import click

from mink_local.chat.conversation.store import ConversationStore, default_path
from mink_local.chat.settings import COMMAND_LINE, Settings
from mink_local.chat.terminal.input import PlainLine, QuietTerminal
from mink_local.chat.terminal.screen import Screen
from mink_local.cli import INTERRUPTED
from mink_local.errors import MinkError, ModelNotFoundError
from mink_local.interrupts import interrupt_ends_program
from mink_local.models.catalog import DEFAULT_MODEL, resolve

if TYPE_CHECKING:
    from mink_local.chat.conversation.session import Session
    from mink_local.chat.conversation.store import Conversation, StoredMessage
    from mink_local.generation.model import Model

_BETTER_MODEL = "qwen3-0.6b"  # than the default


class Startup:
    """The program from its options to the first answer.

    Args:
        ctx: Of the command.
        resumed: The name of the conversation to continue, "" for the last one, None for a new one.
        is_chat: A new conversation is kept.

    Raises:
        click.UsageError: Settings do not suit each other.
        MinkError: There is no such conversation.
    """

    def __init__(self, ctx: click.Context, resumed: str | None, is_chat: bool) -> None:
        self.settings = settings = Settings(ctx)
        settings.check(is_new=settings.given)
        self.screen = Screen(settings["plain"], settings["thoughts"])
        self._store = self._open_store(resumed is not None or (is_chat and settings["store"]))
        self._conversation: Conversation | None = None
        if resumed is not None:
            self._conversation = self._store.find(resumed) if resumed else self._store.latest()
            if not settings.given("model"):
                settings.put("model", self._conversation.model, "the conversation")

    def _open_store(self, is_kept: bool) -> ConversationStore:
        """Return the conversations on disk, or a store in memory if nothing is to be kept or can be."""
        try:
            return ConversationStore(default_path() if is_kept else None)
        except MinkError as error:
            self.screen.note(f"({error}; this conversation is not kept)")
            return ConversationStore()

    def answer(self, prompt: str, as_json: bool) -> None:
        """Print the answer to a prompt, or a JSON object of all that is known of it.

        Ctrl-C ends the program. The conversation is kept only if it is continued.
        """
        model = self._load(QuietTerminal())
        session, _ = self._session(model)
        if self.settings["status"]:
            self._note_model(session)
        from mink_local.chat.conversation.export import dumps
        from mink_local.chat.terminal.progress import note_end, show_answer

        try:
            answer = session.ask(prompt)
            if as_json:
                for _ in answer:
                    pass
                fields = _as_json(answer.message, model.sampling(session.settings.params))
                self.screen.write(dumps(fields) + "\n")
            else:
                show_answer(self.screen, answer)
                against_loops = "--temp 2, --dry-multiplier 0.8 or --no-loop-guard"
                note_end(self.screen, answer, self.settings["max_tokens"], model.n_ctx, against_loops)
        except ValueError as error:  # an option that does not suit this model: a grammar, a token id
            raise click.UsageError(f"{error}.") from None
        if answer.message.finish_reason == "interrupted":
            sys.exit(INTERRUPTED)

    def chat(self) -> None:
        """Chat until the user leaves."""
        with QuietTerminal() as terminal:
            model = self._load(terminal)
            from mink_local.chat.chat import Chat
            from mink_local.chat.commands.conversations import recall
            from mink_local.chat.loop import run

            session, unanswered = self._session(model)
            self._note_model(session)
            self.screen.note(f"{self.settings.sampler}, temperature {self.settings['temp']:g}")
            if self.settings["model"] == DEFAULT_MODEL:
                self.screen.note(
                    f"({DEFAULT_MODEL} is a very small model, for trying the program. For better answers: "
                    f"mink-models pull {_BETTER_MODEL}, then mink-chat -m {_BETTER_MODEL})"
                )
            self.screen.note("/help lists the commands, Ctrl-D leaves.")
            if self.screen.has_line_input:
                from mink_local.chat.loop import CommandCompleter
                from mink_local.chat.terminal.editor import EditedLine

                line = EditedLine(terminal, self.screen, self.settings["store"])
                chat = Chat(session, self.screen, line)
                line.complete_with(CommandCompleter(chat))
            else:
                chat = Chat(session, self.screen, PlainLine(terminal))
            if self._conversation:
                recall(chat)
                chat.prefill = unanswered
            run(chat)

    def _load(self, terminal: QuietTerminal) -> "Model":
        """Load the model; Ctrl-C ends the program, as there is nothing to save."""
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
                return self.settings.load_model()
        finally:
            self.screen.progress()

    def _session(self, model: "Model") -> "tuple[Session, str]":
        """Return the session, and a last message that was never answered."""
        from mink_local.chat.conversation.session import Session

        session = Session(model, self.settings, self._store)
        system = self.settings["system"] if self.settings.given("system") else None
        unanswered = session.load(self._conversation) if self._conversation else None
        if system is not None:
            session.set_system(system, COMMAND_LINE)
        return session, unanswered or ""

    def _note_model(self, session: "Session") -> None:
        """Say where the model is, what became of --ctx, and where tokens are sampled if that is wanted."""
        model, n_ctx = session.model, self.settings["ctx"]
        self.screen.note(f"{model.name} {model.placement}")
        if n_ctx and n_ctx < model.n_ctx:
            self.screen.note(f"(--ctx {n_ctx}: llama.cpp rounds that up to {model.n_ctx})")
        if self.settings.context.params["verbose"]:
            self.screen.note(f"tokens are sampled {model.sampling(session.settings.params)}")


def _as_json(answer: "StoredMessage", sampling: str) -> dict[str, Any]:
    how = answer.parts[-1]
    return {
        "model": how.model,
        "sampler": how.sampler,
        "temperature": how.temperature,
        "sampling": sampling,
        "seed": how.seed,
        "text": answer.content,
        "thinking": answer.thinking,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "evaluated_tokens": answer.evaluated_tokens,
        "n_tokens": len(answer.tokens),
        "tokens": answer.tokens,
        "k": answer.k,
        "timings": {"first_token_s": round(answer.first_token_s, 4), "total_s": round(answer.seconds, 4)},
    }
