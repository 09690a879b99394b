"""The table of commands: names, help texts, completers and functions.

Help, documentation and completion come from it. The docstring of a command's function is what /help COMMAND
prints.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc

from mink_local.chat.chat import Chat
from mink_local.chat.commands.completion import ArgumentCompleter
from mink_local.models.options import with_sampler_names

CommandFunction = Callable[[Chat, str], None]


@dataclass(frozen=True)
class Command:
    """A command of the chat.

    Attributes:
        usage: Its name and arguments, in brackets if they are optional.
        about: For the list of commands, at most 27 characters.
        group: Its title in the list.
        run: Called with the chat and the argument.
        complete: Yields completions of the argument.
    """

    usage: str
    about: str
    group: str
    run: CommandFunction
    complete: ArgumentCompleter | None = None

    @property
    def details(self) -> str:
        """What /help COMMAND prints, a line for each paragraph."""
        doc = re.sub(r"(?<!\n)\n(?!\n)", " ", getdoc(self.run) or self.about)
        return with_sampler_names(doc)

    def call(self, chat: Chat, argument: str) -> None:
        """Run the command. Raises ValueError if an argument is missing."""
        if not argument and " " in self.usage and "[" not in self.usage:
            raise ValueError(f"usage: /{self.usage}")
        self.run(chat, argument)


COMMANDS: dict[str, Command] = {}
ALIASES = {"quit": "exit", "bye": "exit", "q": "exit", "?": "help", "new": "clear", "retry": "regen"}


def command(
    usage: str, about: str, complete: ArgumentCompleter | None = None, group: str = "More"
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function as the command that its usage begins with."""

    def register(run: CommandFunction) -> CommandFunction:
        COMMANDS[usage.split()[0]] = Command(usage, about, group, run, complete)
        return run

    return register


def is_command(word: str) -> bool:
    """Return whether a word that begins with a slash is meant as a command: /usr/bin is not."""
    return word[1:].isalpha() or word[1:] in ALIASES


def find(word: str) -> Command:
    """Return the command of a name or an alias, with or without its slash. Raises ValueError."""
    name = word.removeprefix("/")
    name = ALIASES.get(name, name)
    if name in COMMANDS:
        return COMMANDS[name]
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean /{near[0]}?" if near else "/help lists them."
    raise ValueError(f"there is no command /{name}; {hint} To send it as a message, begin with a space")
