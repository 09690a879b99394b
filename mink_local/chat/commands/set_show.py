"""The commands that show and change settings."""

import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain, count

from rich.table import Table
from rich.text import Text

from mink_local.chat.attachments import path_of
from mink_local.chat.chat import Chat
from mink_local.chat.settings import (
    BY_KEY,
    CONSTRAINTS,
    DEFAULT,
    FORMER_KEYS,
    MIN_K,
    RARE,
    SET_HERE,
    SETTINGS,
    Setting,
    Settings,
)
from mink_local.chat.terminal.progress import about_model
from mink_local.chat.terminal.screen import Screen, one_line
from mink_local.cli import did_you_mean, printable
from mink_local.errors import MinkError
from mink_local.files import add_to_record, read_record, user_folder
from mink_local.generation.model import Model
from mink_local.interrupts import on_interrupt
from mink_local.llama.devices import n_cores
from mink_local.models import catalog, trust
from mink_local.models.catalog import EMBEDDED, resolve
from mink_local.models.options import with_sampler_names

_TWO_COLUMNS = 78  # columns of a window in which two names with their texts are beside each other


def change_setting(key: str, chat: Chat, text: str) -> None:
    """Change a setting, unless the text is empty, and show it."""
    setting = _setting(key)
    if text:
        _change(chat, setting, text)
    settings, model = chat.session.settings, chat.session.model
    value, why = _value(setting, settings, model), settings.sources[setting.name]
    if setting.key == "system" and settings["system"]:
        value = f'"{value}"'
    if setting.key == "ctx" and (settings["ctx"] or model.n_ctx) < model.n_ctx:
        why = f"to which llama.cpp rounds {settings['ctx']} up"
    chat.screen.note(f"{setting.key} is {value}, {why}")


def _change(chat: Chat, setting: Setting, text: str) -> None:
    """Set a setting from text, and apply it; after an error, settings and model are as before."""
    session, before = chat.session, chat.session.settings
    if setting.fixed:
        raise MinkError(f"{setting.key} can only be set at the start: --{setting.key}, {setting.envvar}")
    if setting.key == "reasoning" and text != "default" and not session.model.has_thinking_switch:
        raise MinkError(f"{session.model.name} has no switch for reasoning: nothing was changed")
    if setting.key in ("reasoning-sampler", "reasoning-temp") and not session.model.can_reason:
        raise MinkError(f"{session.model.name} does not reason: nothing was changed")
    settings = before.changed(setting, str(path) if os.path.isfile(path := path_of(text)) else text)
    _take(chat, settings, setting.reloads)


def _take(chat: Chat, settings: Settings, reloads: bool) -> None:
    """Go on with other settings, and with their model if it `reloads`."""
    session = chat.session
    if reloads:
        _load(chat, settings)
        session.changed_model()
        chat.screen.note(about_model(session.model))
    session.settings = settings
    offer_default(chat)
    session.go_to(session.branch)  # which keeps the settings with the conversation
    screen = Screen(settings["plain"], settings["show_reasoning"], settings["theme"])
    chat.screen = chat.line.screen = screen


def _load(chat: Chat, settings: Settings) -> None:
    """Load the model of settings in place of the one before, which comes back if that fails."""
    session, screen = chat.session, chat.screen
    trust.check(resolve(settings["model"]))
    presses = count()

    def stop() -> None:
        if next(presses) == 0:  # the next ones must not leave the chat without a model
            raise KeyboardInterrupt

    with on_interrupt(stop):
        session.model.close()  # there may not be enough memory for both
        try:
            screen.progress("loading the model …")
            session.model = settings.load_model()
        except BaseException as error:
            screen.progress("loading the model before again …")
            try:
                session.model = session.settings.load_model()
            except MinkError as other:
                raise MinkError(f"{error or 'interrupted'}; {other}: /model NAME loads one") from None
            raise


def default(chat: Chat, _: str) -> None:
    """Make this model the one that all programs use without --model, from their next start on."""
    name = chat.session.settings["model"]
    catalog.choose_model(name)
    chat.screen.note(f"{name} is the default from the next start on")


def offer_default(chat: Chat) -> None:
    """Say once of a model how it becomes the default, while that is the toy."""
    name, offered = chat.session.settings["model"], user_folder("cache") / "offered.json"
    if name == EMBEDDED or catalog.default_model() != EMBEDDED or name in read_record(offered):
        return
    chat.screen.note(f"make {chat.session.model.name} the default? /default does")
    add_to_record(offered, name, True)


def key_of(text: str) -> str:
    """Return what somebody types for the key of a setting as it is written: MAX_TOKENS is max-tokens."""
    key = text.casefold().replace("_", "-").removeprefix("--")
    return FORMER_KEYS.get(key, key)


def _setting(key: str) -> Setting:
    """Return the setting of a key. Raises MinkError, with the nearest key, if there is none."""
    if (known := key_of(key)) in BY_KEY:
        return BY_KEY[known]
    hint = did_you_mean(key, BY_KEY) or ": /show all lists them"
    raise MinkError(f"there is no setting {key!r}{hint}")


def preset(chat: Chat, argument: str) -> None:
    """Go on with the settings of a preset. Without NAME: list them. save NAME: keep these settings as one.

    creative, prose, code and mathematics come with the program. One of yours has the model, the system
    prompt, the sampler and all that was changed of how answers are sampled; the configuration file has it as
    a table [preset.NAME], and mink-chat --preset NAME begins with it.
    """
    before, (word, *rest) = chat.session.settings, [*argument.split(), ""]
    if word == "save":
        name = rest[0]
        if not re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII):
            raise MinkError("usage: /preset save NAME, with a name of letters, digits, - and _")
        chat.screen.note(f"preset {name} is in {before.save_preset(name)}")
    elif word:
        settings = before.with_preset(argument)
        reloads = any(one.reloads and settings[one.name] != before[one.name] for one in SETTINGS)
        _take(chat, settings, reloads)
        chat.screen.note(f"preset {argument}: {settings.summary}")
    else:
        rows = [
            (name, ", ".join(f"{key} {one_line(_as_typed(text), 40)}" for key, text in values.items()))
            for name, values in before.presets.items()
        ]
        chat.screen.table(rows)


def _as_typed(value: str | list[str]) -> str:
    """Return a value of a preset on one line."""
    return value if isinstance(value, str) else " ".join(value)


def system(chat: Chat, argument: str) -> None:
    """Set the system prompt of this conversation. Without TEXT: show it.

    /system - removes it, also if a variable or the configuration file sets one; /system default restores it.
    """
    if argument == "-":
        chat.session.set_system(None, SET_HERE)
        argument = ""
    change_setting("system", chat, argument)


def set_(chat: Chat, argument: str) -> None:
    """Change a setting of this chat: /set max-tokens 200. /show lists the settings.

    The value default restores what the command line, the environment or the configuration file set.
    """
    key, *value = re.split(r"\s*[\s=]\s*", argument, maxsplit=1)  # also KEY=VALUE
    change_setting(key, chat, "".join(value).strip())


def show(chat: Chat, argument: str) -> None:
    """List the settings, first those that were changed, with where their values come from.

    all: also those that are rarely needed. With SETTING: show its whole value and what it is for.
    """
    settings, model, screen = chat.session.settings, chat.session.model, chat.screen
    if argument not in ("", "all"):
        setting = _setting(argument)
        screen.show(f"{setting.key} {_value(setting, settings, model)}")
        chat.screen.note(f"{settings.sources[setting.name]}. {with_sampler_names(setting.help or '')}")
        return
    rows = []
    for setting in SETTINGS:
        value, source = _value(setting, settings, model), settings.sources[setting.name]
        if argument or source != DEFAULT or setting.group not in (RARE, CONSTRAINTS):
            rows.append((setting.key, one_line(value, screen.width // 2), source))
    rows.sort(key=lambda row: row[-1] == DEFAULT)
    screen.table(rows, "setting", "value", "from")
    if not argument:
        chat.screen.note("/show all lists the rest, /set changes one")


def _value(setting: Setting, settings: Settings, model: Model) -> str:
    """Return a value as /set takes it, or what is used in its place."""
    sampler, shown = settings.sampler, settings.shown(setting)
    if setting.key == "ctx":  # llama.cpp rounds it up
        return str(model.n_ctx)
    number, n_bytes = model.core.engine.checkpoints
    most = model.core.engine.context.checkpoint_memory / 1e6
    used = {
        "threads": str(n_cores()),
        "checkpoint-memory": f"{most:.0f}, {number} of {n_bytes / 1e6:.1f} MB in use"
        if most
        else "not needed",
    }
    if sampler.name != "min-k":
        used.update(dict.fromkeys(MIN_K, f"not used by {sampler.name}"))
    if not model.has_thinking_switch:
        used["reasoning"] = "no switch"
    return shown if settings[setting.name] is not None else used.get(setting.key, shown)


def show_groups(screen: Screen, groups: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Print groups of names and short texts, each under its title; in two columns if they fit."""
    n = 2 if screen.width >= _TWO_COLUMNS else 1
    grid = Table.grid(padding=(0, 2))
    for _ in range(n):
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
    for title, pairs in groups.items():
        grid.add_row(Text(title, screen.theme.accent))
        for at in range(0, len(pairs), n):
            grid.add_row(*(Text(printable(cell)) for cell in chain(*pairs[at : at + n])))
    screen.show(grid)
