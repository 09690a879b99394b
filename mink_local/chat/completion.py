"""Tab completion of command arguments.

A completer yields pairs: a text, and the number of characters before the cursor that the text replaces.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mink_local.chat.chat import Chat
from mink_local.chat.options import BY_KEY
from mink_local.models.catalog import read_catalog
from mink_local.samplers import SAMPLERS

Completions = Iterator[tuple[str, int]]
ArgumentCompleter = Callable[[Chat, str], Completions]


def starting_with(text: str, names: Iterable[str]) -> Completions:
    """Yield the names that begin with a text."""
    yield from ((name, len(text)) for name in names if name.startswith(text))


def any_of(*names: str) -> ArgumentCompleter:
    """Return a completer of a few words."""
    return lambda _, text: starting_with(text, names)


def files(_: Chat, text: str) -> Completions:
    """Complete a path."""
    folder, slash, start = text.rpartition("/")
    with contextlib.suppress(OSError):
        for path in sorted(Path(folder + slash).expanduser().iterdir()):
            if path.name.startswith(start) and (start or not path.name.startswith(".")):
                yield path.name + ("/" if path.is_dir() else ""), len(start)


def models(chat: Chat, text: str) -> Completions:
    """Complete the name of a model, or a path."""
    names = list(starting_with(text, read_catalog()))
    yield from names or files(chat, text)


def samplers(_: Chat, text: str) -> Completions:
    """Complete the name of a sampler."""
    return starting_with(text, SAMPLERS)


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
        yield from _values(chat, key, value)


def _values(chat: Chat, key: str, text: str) -> Completions:
    setting = BY_KEY[key]
    special = {"model": models, "sampler": samplers, "grammar": files, "json-schema": files}
    if key in special:
        return special[key](chat, text)
    choices = ("on", "off") if setting.is_flag else getattr(setting.type, "choices", ())
    return starting_with(text, (*choices, "default"))
