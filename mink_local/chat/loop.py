"""The loop of the chat: reads a line, and has a command or the model answer it."""

import tempfile
import traceback

import click

from mink_local.chat.chat import Chat
from mink_local.chat.commands.table import LEAVING, find, is_command
from mink_local.chat.terminal.input import read_message
from mink_local.errors import MinkError
from mink_local.interrupts import on_interrupt


def run(chat: Chat) -> None:
    """Answer messages until the end of the input or /exit."""
    with on_interrupt(chat.stop):
        while not chat.leaving:
            default, replaces = chat.prefill, chat.replaces
            chat.prefill, chat.replaces = "", False
            text = read_message(chat.line, chat.screen, default)
            if text is None:
                return
            chat.begin_turn()
            if text.strip():
                _handle(chat, text, replaces)


def _handle(chat: Chat, text: str, replaces: bool) -> None:
    try:
        word = text.split(maxsplit=1)[0]
        if text.rstrip() in LEAVING:
            chat.leaving = True
        elif text.startswith("/") and is_command(word):
            find(word).call(chat, text[len(word) :].strip())
        else:
            chat.ask(text.strip(), replaces)
    except (MinkError, ValueError, OSError, click.ClickException) as error:
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
