"""Fixtures of the chat's tests: the program in this process, a chat that is typed into, a real terminal."""

import contextlib
import io
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from mink_local.chat.chat import Chat
from mink_local.chat.cli import cli, main
from mink_local.chat.conversation.session import Session
from mink_local.chat.conversation.store import ConversationStore, Role, StoredMessage
from mink_local.chat.loop import run
from mink_local.chat.settings import Settings
from mink_local.chat.terminal.editor import InputLine
from mink_local.chat.terminal.input import block
from mink_local.chat.terminal.screen import Screen
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from tests.conftest import forget, shared
from tests.support.python import Finished

_models: dict[str, Model] = {}


def load_once(model: Any, **options: Any) -> Model:
    """Load a model as `load_model` does, or return the one that was loaded with the same options."""
    options["n_threads"] = options.get("n_threads") or 1  # two wait for each other on busy cores
    key = f"{model} {options}"
    if key not in _models:
        _models[key] = load_model(model, **options)
    return forget(_models[key])


class Keyboard(io.StringIO):
    """Standard input that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


MinkChat = Callable[..., Finished]


@pytest.fixture
def mink_chat(
    run_main: Callable[..., Finished], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> MinkChat:
    """`mink_chat(*arguments, stdin="")` runs the program in this process; a model is loaded only once.

    `typed` are lines for a chat, which Ctrl-D ends, as it does a question that comes before.
    """
    monkeypatch.setattr("mink_local.generation.loading.load_model", load_once)

    def run_program(*arguments: str, stdin: str = "", typed: Sequence[str] = ()) -> Finished:
        piped = io.TextIOWrapper(io.BytesIO(stdin.encode(errors="surrogateescape")))
        monkeypatch.setattr(sys, "stdin", Keyboard() if typed else piped)
        capsys.readouterr()
        with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
            keys.send_text("".join(f"{line}\r" for line in typed) + "\x04")
            keys.close()
            return run_main(main, *arguments)

    return run_program


def context(*arguments: str) -> click.Context:
    """Return the command's context with these arguments."""
    return cli.make_context("mink-chat", list(arguments))


def new_session(model: Model, *arguments: str, store: ConversationStore | None = None) -> Session:
    """Return a session with short greedy answers, unless the arguments say otherwise."""
    settings = Settings(context("--temp", "0", "-n", "8", *arguments))
    return Session(model, settings, store or ConversationStore())


def converse(
    store: ConversationStore, *texts: str, model: str = "smollm2-135m", system: str | None = None
) -> list[StoredMessage]:
    """Store a conversation: messages with their answers, in turn. Return them."""
    roles: tuple[Role, Role] = "user", "assistant"
    messages = [
        StoredMessage(roles[number % 2], text, finish_reason="length" if number % 2 else None)
        for number, text in enumerate(texts)
    ]
    store.save(None, messages, model, system)
    if store.is_on_disk:
        store.close()
    return messages


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program writes to the file, for as long as the block lasts."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def add(store: ConversationStore, message: StoredMessage, parent: int | None, conversation: int = 1) -> None:
    """Store one more message after the one with the id `parent`, as another window does."""
    found = store.get(conversation)
    store.save(conversation, [*store.branch(parent), message], found.model, found.system)
    if store.is_on_disk:
        store.close()  # as if that window had ended


class Typist(InputLine):
    """Types lines into a chat and returns what is shown, both streams together."""

    def __init__(self, session: Session, capsys: pytest.CaptureFixture[str]) -> None:
        self.chat = Chat(session, Screen(), self)
        self._capsys = capsys
        self.screen = self.chat.screen
        self._lines: list[str] = []
        self.offered = ""  # what the last input line began with

    def read(self, default: str = "") -> str:
        """Return the next line."""
        if not self._lines:
            raise EOFError
        self.offered = default
        return self._lines.pop(0) or default

    def block(self, text: str) -> str | None:
        """Return what a block holds; nothing is pasted."""
        return block(text)

    def answer(self) -> str:
        """Return the next line."""
        return self.read()

    def keys_wait(self) -> bool:
        """Each line is typed when it is read."""
        return False

    @property
    def can_edit(self) -> bool:
        """Lines are read as they were typed."""
        return True

    def forget(self, messages: Collection[str]) -> None:
        """There is no history."""

    def say(self, *lines: str) -> str:
        """Type lines; return what was shown until the next prompt."""
        self._capsys.readouterr()
        self._lines = list(lines)
        self.chat.leaving = False
        run(self.chat)
        out, err = self._capsys.readouterr()
        return out + err


@pytest.fixture
def typist(
    smollm2: Model,
    own_files: object,  # noqa: ARG001
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Typist]:
    """`typist(*arguments)` begins a chat without a terminal; `model` is the shared SmolLM2 or another."""

    def begin(*arguments: str, model: Model | None = None) -> Typist:
        session = new_session(model or forget(smollm2), *arguments)
        return Typist(session, capsys)

    return begin


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """`opened(*arguments)` opens a chat in a terminal and waits for its prompt."""
    from tests.support.terminal import Terminal

    with contextlib.ExitStack() as stack:

        def open_(*arguments: str, **options: Any) -> Terminal:
            terminal = Terminal(*arguments, **options)
            stack.callback(terminal.close)
            return terminal

        yield open_


@pytest.fixture
def thinker(tiny: Callable[..., Path]) -> tuple[str, ...]:
    """Options that have a model with Qwen3's template reason, by a grammar."""
    path = tiny(template=shared("vocab/Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8"))
    grammar = path.with_suffix(".gbnf")
    grammar.write_text('root ::= "<think>\\nTwo and two.\\n\\nFour?\\n</think>\\n\\nIt is **four**."')
    return ("--model", str(path), "--grammar", str(grammar), "--temp", "0")
