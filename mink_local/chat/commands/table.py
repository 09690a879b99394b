"""All commands, with /help and its advice on settings, and Tab completion of lines."""

import contextlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from mink_local.chat.chat import Chat
from mink_local.chat.commands import answers, compare, completion, conversations, explain, heat
from mink_local.chat.commands.completion import Completions
from mink_local.chat.commands.registry import COMMANDS, command, find, is_command
from mink_local.chat.commands.settings import show_groups
from mink_local.chat.terminal.screen import Screen

__all__ = ["COMMANDS", "LEAVING", "CommandCompleter", "answers", "conversations", "find", "is_command"]

LEAVING = ("exit", "quit")  # without a slash, as in other programs

command(compare.USAGE, "Compare samplers", compare.complete)(compare.compare)
command("explain [N|WORD]", "Show a token's candidates", completion.tokens)(explain.explain)
command("heat", "Colour the last answer")(heat.heat)
command("stats", "Show figures")(heat.stats)


def _complete_help(_: Chat, text: str) -> Completions:
    return completion.starting_with(text, [*COMMANDS, "advice"])


@command("help [COMMAND]", "Explain a command", _complete_help)
def help_(chat: Chat, argument: str) -> None:
    """List the commands. With COMMAND: say what it does.

    /help advice: which settings suit prose, code and mathematics, and the figures behind them.
    """
    if argument == "advice":
        _show_advice(chat.screen)
        return
    if argument:
        chat.screen.show(f"/{find(argument).usage}\n{find(argument).details}")
        return
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, one in COMMANDS.items():
        groups.setdefault(one.group, []).append((f"/{name}", one.about))
    show_groups(chat.screen, groups)
    chat.note(
        'Enter sends, Alt-Enter begins a line, """ begins and ends a block, Tab completes, Ctrl-R searches, '
        "Ctrl-C stops an answer, Ctrl-D leaves."
    )


@command("exit", "Leave")
def exit_(chat: Chat, _: str) -> None:
    """Leave, as do /quit, /bye and exit. The conversation is kept; mink-chat --continue goes on with it."""
    chat.leaving = True


class Advice(NamedTuple):
    """Options for a kind of text.

    Attributes:
        noise: The probability, in percent, of tokens to which a larger model gives less than 1%.
        usual: The noise of llama.cpp's default cuts at this temperature; at 1 if it is 0.
    """

    kind: str
    options: str
    noise: float
    usual: float


ADVICE = (
    Advice("prose", "--floor 1.8 --temp 1", 5.5, 8.0),
    Advice("prose, hot", "--floor 1.4 --temp 5", 5.5, 14.0),
    Advice("code", "--floor 0 --temp 1", 0.7, 1.7),
    Advice("mathematics", "--floor 0 --temp 1", 1.2, 2.0),
    Advice("mathematics, one answer", "--temp 0", 0.9, 2.0),
)


def _show_advice(screen: Screen) -> None:
    """Print which settings suit prose, code and mathematics, and the figures behind them."""
    rows = []
    for one in ADVICE:
        commands = re.sub(" ?--", ", /set ", one.options).removeprefix(", ")
        rows.append((one.kind, commands, f"{one.noise:.1f}%", f"{one.usual:.1f}%"))
    screen.table(rows, "for", "type", "noise", "usual")
    screen.note(
        "(noise: the probability of tokens that a larger model all but excludes, in texts of "
        "Qwen2.5-Coder-0.5B; usual: that of llama.cpp's default cuts at the same temperature, at 1 beside "
        "/set temp 0. docs/results.md has the measurements)"
    )


class CommandCompleter(Completer):
    """Completes commands and their arguments."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterator[Completion]:
        """Yield the completions of the line before the cursor."""
        with contextlib.suppress(Exception):  # it would end the chat; the command says what is wrong
            yield from self.complete(document.text_before_cursor)

    def complete(self, line: str) -> Completions:
        """Yield the completions of a line."""
        word, space, argument = line.partition(" ")
        if not line.startswith("/"):
            return
        if not space:
            yield from completion.starting_with(
                word, {f"/{name} ": one.about for name, one in COMMANDS.items()}
            )
        elif (found := COMMANDS.get(word[1:])) and found.complete:
            yield from found.complete(self._chat, argument)
