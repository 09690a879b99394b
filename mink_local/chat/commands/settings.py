"""The commands that show and change settings."""

import difflib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from rich.table import Table
from rich.text import Text

from mink_local.chat.chat import Chat
from mink_local.chat.commands import completion
from mink_local.chat.commands.completion import Completions
from mink_local.chat.commands.registry import command
from mink_local.chat.settings.options import BY_KEY, DEFAULT, MIN_K, SETTINGS, Setting
from mink_local.chat.settings.values import SET_HERE, Settings
from mink_local.chat.terminal.screen import Screen, one_line
from mink_local.cli import printable
from mink_local.generation.model import Model
from mink_local.generation.request import SamplingParams
from mink_local.llama.devices import n_cores
from mink_local.models.options import with_sampler_names
from mink_local.samplers import MinK

_LONGEST_KEY = 22  # columns of the key of a setting, with its gap
_TWO_COLUMNS = 78  # columns of a window in which two settings are beside each other

_command = partial(command, group="Settings")


def change_setting(chat: Chat, key: str, text: str) -> None:
    """Change a setting, unless the text is empty, and show it."""
    setting = BY_KEY[key]
    if text:
        chat.change(setting, text)
    settings = chat.session.settings
    chat.note(f"({key} is {settings.shown(setting)}, {settings.sources[setting.name]})")


def _setting_command(usage: str, about: str) -> None:
    """Register a command that changes the setting of its name."""
    key = usage.split()[0]

    def run(chat: Chat, text: str) -> None:
        change_setting(chat, key, text)

    def complete(chat: Chat, text: str) -> Completions:
        return completion.values(chat, key, text)

    run.__doc__ = f"{about}. {BY_KEY[key].help}\n\nWithout a value: show it. default: reset it."
    _command(usage, about, complete)(run)


def _setting(key: str) -> Setting:
    """Return the setting of a key. Raises ValueError, with the nearest key, if there is none."""
    if key in BY_KEY:
        return BY_KEY[key]
    near = difflib.get_close_matches(key, BY_KEY, n=1)
    hint = f"did you mean {near[0]}?" if near else "/show lists them"
    raise ValueError(f"there is no setting {key!r}; {hint}")


_setting_command("temp [T]", "Set the temperature")
_setting_command("sampler [NAME[:OPTION=…]]", "Set the sampler")


@_command("system [TEXT]", "Set the system prompt")
def system(chat: Chat, argument: str) -> None:
    """Set the system prompt of this conversation. Without TEXT: show it.

    /system - removes it, also if a variable or the configuration file sets one; /system default restores it.
    """
    if argument == "-":
        chat.session.set_system(None, SET_HERE)
        argument = ""
    change_setting(chat, "system", argument)


@_command("set SETTING VALUE", "Change any setting", completion.settings)
def set_(chat: Chat, argument: str) -> None:
    """Change a setting of this chat: /set max-tokens 200. /show lists the settings.

    The value default is that of the environment or the configuration file, if they set one.
    """
    key, _, value = argument.partition(" ")
    change_setting(chat, _setting(key).key, value.strip())


@_command("show [SETTING]", "Show the settings", completion.settings)
def show(chat: Chat, argument: str) -> None:
    """List the settings, those that were changed first, and where their values come from.

    With SETTING: show its whole value and what it is for.
    """
    session, screen = chat.session, chat.screen
    if argument:
        setting = _setting(argument)
        screen.show(f"{setting.key} {_value(setting, session.settings, session.model)}")
        source = session.settings.sources[setting.name]
        chat.note(f"({source}) {with_sampler_names(setting.help or '')}")
    else:
        _show_all(screen, session.settings, session.model)


_setting_command("model [NAME|PATH]", "Continue with another model")


def _show_all(screen: Screen, settings: Settings, model: Model) -> None:
    """Print the settings that were changed, with the sources of their values, then the others by groups."""
    changed: list[Sequence[str]] = []
    groups: dict[str, list[tuple[str, str]]] = {}
    for setting in SETTINGS:
        value = _value(setting, settings, model)
        if settings.sources[setting.name] == DEFAULT:
            short = one_line(value, max(18, screen.width // _beside(screen) - _LONGEST_KEY))
            groups.setdefault(setting.group, []).append((setting.key, short))
        else:
            short = one_line(value, screen.width // 2)
            changed.append((setting.key, short, settings.sources[setting.name]))
    if changed:
        screen.table(changed, "changed", "value", "from")
    show_groups(screen, groups)


def _value(setting: Setting, settings: Settings, model: Model) -> str:
    """Return a value as /set takes it, or what is used in its place; for `sampling` also what it means."""
    if setting.key == "sampling":
        params = SamplingParams(
            sampler=settings.sampler, temperature=settings["temp"], constraints=settings.constraints
        )
        return f"{settings.shown(setting)} ({model.sampling(params)})"
    if settings[setting.name] is None:
        sampler = settings.sampler
        if setting.key == "ctx":
            return str(model.n_ctx)
        if setting.key == "threads":
            return str(n_cores())
        if setting.key in MIN_K and not isinstance(sampler, MinK):
            return f"not used by {sampler.name}"
        if setting.key == "think" and not model.has_thinking_switch:
            return "no switch"
    return settings.shown(setting)


def show_groups(screen: Screen, groups: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Print groups of names and short texts, each under its title; in two columns if they fit."""
    n = _beside(screen)
    grid = Table.grid(padding=(0, 2))
    for _ in range(n):
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
    for title, pairs in groups.items():
        grid.add_row(Text(title, "bold"))
        for at in range(0, len(pairs), n):
            grid.add_row(*(Text(printable(cell)) for cell in chain(*pairs[at : at + n])))
    screen.show(grid)


def _beside(screen: Screen) -> int:
    """Return how many names with their texts fit beside each other."""
    return 2 if screen.width >= _TWO_COLUMNS else 1
