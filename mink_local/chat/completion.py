"""What the arguments of commands may go on with: pairs of a text and how much of what stands it replaces."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mink_local.chat.options import BY_KEY, Setting, complete_model, complete_sampler

if TYPE_CHECKING:
    from mink_local.chat.repl import Chat

Completion = Callable[["Chat", str], Iterator[tuple[str, int]]]


def any_of(*names: str) -> Completion:
    def complete(_: "Chat", text: str) -> Iterator[tuple[str, int]]:
        yield from ((name, len(text)) for name in names if name.startswith(text))

    return complete


def files(__: "Chat", text: str) -> Iterator[tuple[str, int]]:
    folder, _, beginning = text.rpartition("/")
    where = Path(folder + "/").expanduser() if "/" in text else Path()
    with contextlib.suppress(OSError):
        for path in sorted(where.iterdir()):
            if path.name.startswith(beginning) and (beginning or not path.name.startswith(".")):
                yield path.name + ("/" if path.is_dir() else ""), len(beginning)


def models(chat: "Chat", text: str) -> Iterator[tuple[str, int]]:
    context = chat.session.settings.context
    names = [item.value for item in complete_model(context, BY_KEY["model"], text) if item.type == "plain"]
    yield from ((name, len(text)) for name in names) if names else files(chat, text)


def samplers(chat: "Chat", text: str) -> Iterator[tuple[str, int]]:
    names = complete_sampler(chat.session.settings.context, BY_KEY["sampler"], text)
    yield from ((name, len(text)) for name in names)


def conversations(chat: "Chat", text: str) -> Iterator[tuple[str, int]]:
    names = [conversation.name for conversation in chat.session.store.conversations()]
    yield from ((name, len(text)) for name in names if name and name.startswith(text))


def settings(chat: "Chat", text: str) -> Iterator[tuple[str, int]]:
    key, blank, value = text.partition(" ")
    if not blank:
        yield from ((f"{name} ", len(text)) for name in BY_KEY if name.startswith(text))
    elif key in BY_KEY:
        yield from values(chat, BY_KEY[key], value)


def values(chat: "Chat", setting: Setting, text: str) -> Iterator[tuple[str, int]]:
    if setting.key in ("model", "sampler"):
        yield from (models if setting.key == "model" else samplers)(chat, text)
    elif setting.key in ("grammar", "json-schema"):
        yield from files(chat, text)
    else:
        choices = ("on", "off") if setting.is_flag else getattr(setting.type, "choices", ())
        yield from any_of(*choices, "default")(chat, text)
