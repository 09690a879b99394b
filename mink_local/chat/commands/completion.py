"""Tab completion of command arguments."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from prompt_toolkit.completion import Completion

from mink_local.chat.chat import Chat
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.screen import beginnings, one_line
from mink_local.files import user_path

Completions = Iterator[Completion]


def starting_with(text: str, names: Iterable[str] | Mapping[str, str]) -> Completions:
    """Yield the names that begin with a text; a mapping says what each means."""
    about = names if isinstance(names, Mapping) else {}
    for name in names:
        if name.startswith(text):
            yield Completion(name, -len(text), display_meta=about.get(name) or None)


def files(_: Chat, text: str) -> Completions:
    """Complete a path."""
    folder, slash, start = text.rpartition("/")
    with contextlib.suppress(OSError):
        for path in sorted(user_path(folder + slash).iterdir()):
            if path.name.startswith(start) and (start or not path.name.startswith(".")):
                yield Completion(path.name + ("/" if path.is_dir() else ""), -len(start))


def conversations(chat: Chat, text: str) -> Completions:
    """Complete the name of a conversation, or its number if it has none."""
    found = chat.session.store.conversations()
    return starting_with(
        text, {one.name or str(one.id): one_line(one.title, 50) for one in found if one.name or one.turns}
    )


def settings(chat: Chat, text: str) -> Completions:
    """Complete a setting, then its value."""
    key, blank, value = text.partition(" ")
    if not blank:
        yield from starting_with(text, {f"{key} ": setting.about for key, setting in BY_KEY.items()})
    elif key in BY_KEY:
        yield from values(key, chat, value)


def values(key: str, chat: Chat, text: str) -> Completions:
    """Complete a value of a setting as a shell does."""
    names = {"on": "", "off": ""} if BY_KEY[key].is_flag else {}
    for item in BY_KEY[key].shell_complete(chat.session.settings.context, text):
        if item.type == "file":
            return files(chat, text)
        names[item.value] = item.help or ""
    return starting_with(text, {**names, "default": "reset it"})


def reasoning(_: Chat, text: str) -> Completions:
    """Complete what /reasoning takes."""
    return starting_with(text, ("on", "off", "default", "show", "line"))


def answers(chat: Chat, text: str) -> Completions:
    """Complete the number of a version of the last turn."""
    texts = beginnings([turn[-1].content for turn in chat.session.versions()], 50)
    return starting_with(text, {str(number): one_line(each, 50) for number, each in enumerate(texts, 1)})
