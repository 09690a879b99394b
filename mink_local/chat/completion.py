"""Tab completion of command arguments.

A completer yields pairs: a text, and the number of characters before the cursor that the text replaces.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mink_local.chat.chat import Chat
from mink_local.chat.options import BY_KEY

Completions = Iterator[tuple[str, int]]
ArgumentCompleter = Callable[[Chat, str], Completions]


def starting_with(text: str, names: Iterable[str]) -> Completions:
    """Yield the names that begin with a text."""
    yield from ((name, len(text)) for name in names if name.startswith(text))


def files(_: Chat, text: str) -> Completions:
    """Complete a path."""
    folder, slash, start = text.rpartition("/")
    with contextlib.suppress(OSError):
        for path in sorted(Path(folder + slash).expanduser().iterdir()):
            if path.name.startswith(start) and (start or not path.name.startswith(".")):
                yield path.name + ("/" if path.is_dir() else ""), len(start)


def conversations(chat: Chat, text: str) -> Completions:
    """Complete the name of a conversation."""
    names = (conversation.name for conversation in chat.session.store.conversations())
    return starting_with(text, (name for name in names if name))


def settings(chat: Chat, text: str) -> Completions:
    """Complete a setting, then its value."""
    key, blank, value = text.partition(" ")
    if not blank:
        yield from starting_with(text, (f"{key} " for key in BY_KEY))
    elif key in BY_KEY:
        yield from values(chat, key, value)


def values(chat: Chat, key: str, text: str) -> Completions:
    """Complete a value of a setting as a shell does."""
    names = ["on", "off"] if BY_KEY[key].is_flag else []
    for item in BY_KEY[key].shell_complete(chat.session.settings.context, text):
        if item.type == "file":
            return files(chat, text)
        names.append(item.value)
    return starting_with(text, [*names, "default"])
