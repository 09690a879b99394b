"""The loop of the chat: reads a line, and has a command or the model answer it."""

import difflib
from collections.abc import Callable, Iterator

import click

from mink_local.chat.chat import Chat
from mink_local.chat.commands import COMMANDS, Command
from mink_local.errors import MinkError
from mink_local.interrupts import on_interrupt


def run(chat: Chat, read: Callable[[str], str]) -> None:
    """Answer messages until the end of the input or /exit; `read` is of `mink_local.chat.terminal`."""

    def stop() -> None:
        chat.stopped = True

    with on_interrupt(stop):
        while not chat.leaving:
            try:
                text, chat.prefill = read(chat.prefill), ""
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                chat.note("\n(Ctrl-D or /exit leaves)")
                continue
            chat.stopped = False
            if text.strip():
                _handle(chat, text)


def _handle(chat: Chat, text: str) -> None:
    try:
        word = text.split(maxsplit=1)[0]
        if text.startswith("/") and word[1:].isalpha():
            _command(word).call(chat, text[len(word) :].strip())
        else:
            chat.ask(text.strip())
    except (MinkError, ValueError, OSError, click.ClickException) as error:
        chat.note(f"({str(error).removesuffix('.')})")


def _command(word: str) -> Command:
    if word[1:] in COMMANDS:
        return COMMANDS[word[1:]]
    near = difflib.get_close_matches(word[1:], COMMANDS, n=1)
    hint = f"did you mean /{near[0]}?" if near else "/help lists them."
    raise ValueError(f"there is no command {word}; {hint} To send it as a message, begin with a blank")


def complete(chat: Chat, line: str) -> Iterator[tuple[str, int]]:
    """Yield the completions of a line; see `mink_local.chat.completion`."""
    if not line.startswith("/"):
        return
    word, blank, argument = line.partition(" ")
    if not blank:
        yield from ((f"/{name} ", len(word)) for name in COMMANDS if name.startswith(word[1:]))
    elif (command := COMMANDS.get(word[1:])) and command.complete:
        yield from command.complete(chat, argument)
