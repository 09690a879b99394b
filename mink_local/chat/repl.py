"""The loop of the chat: reads a line, and has a command or the model answer it."""

import difflib
import tempfile
import traceback
from collections.abc import Callable, Iterator

import click

from mink_local.chat.chat import Chat
from mink_local.chat.commands import ALIASES, COMMANDS, LEAVING, Command
from mink_local.chat.completion import Choice, starting_with
from mink_local.chat.terminal import read_line
from mink_local.errors import MinkError
from mink_local.interrupts import on_interrupt


def run(chat: Chat, read: Callable[[str], str], first: str = "") -> None:
    """Answer messages until the end of the input or /exit.

    Args:
        read: An input line of `mink_local.chat.terminal`.
        first: A line that was read already.
    """

    def stop() -> None:
        chat.stopped = True

    chat.read = read
    text: str | None = first
    replaces = False
    with on_interrupt(stop):
        while text is not None:
            chat.stopped = False
            if text.strip():
                _handle(chat, text, replaces)
            if chat.leaving:
                return
            default, replaces = chat.prefill, chat.replaces
            chat.prefill, chat.replaces = "", False
            text = read_line(read, chat.screen, default)


def _handle(chat: Chat, text: str, replaces: bool) -> None:
    try:
        word = text.split(maxsplit=1)[0]
        if text.rstrip() in LEAVING:
            chat.leaving = True
        elif text.startswith("/") and (word[1:].isalpha() or word[1:] in ALIASES):
            _command(word).call(chat, text[len(word) :].strip())
        else:
            chat.ask(text.strip(), replaces)
    except (MinkError, ValueError, OSError, click.ClickException) as error:
        if chat.has_failed():
            raise
        chat.note(f"({str(error).removesuffix('.')})")
    except (click.Abort, KeyboardInterrupt, EOFError):  # of a question that a command asks
        chat.note("(interrupted)")
    except Exception as error:
        chat.note(f"(this is a bug: {type(error).__name__}: {error}. {_kept(error)}; the chat goes on)")


def _kept(error: Exception) -> str:
    """Write the traceback of an error to a new file; return where it is, in words."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="mink-chat-", suffix=".txt", delete=False
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError as reason:
        return f"Its traceback cannot be written: {reason.strerror}"
    return f"Its traceback is in {file.name}"


def _command(word: str) -> Command:
    name = ALIASES.get(word[1:], word[1:])
    if name in COMMANDS:
        return COMMANDS[name]
    near = difflib.get_close_matches(word[1:], COMMANDS, n=1)
    hint = f"did you mean /{near[0]}?" if near else "/help lists them."
    raise ValueError(f"there is no command {word}; {hint} To send it as a message, begin with a blank")


def complete(chat: Chat, line: str) -> Iterator[Choice]:
    """Yield the completions of a line."""
    if not line.startswith("/"):
        return
    word, blank, argument = line.partition(" ")
    if not blank:
        yield from starting_with(word, {f"/{name} ": one.about for name, one in COMMANDS.items()})
    elif (command := COMMANDS.get(word[1:])) and command.complete:
        yield from command.complete(chat, argument)
