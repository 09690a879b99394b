"""The lists of the chat, at any width: conversations, settings, commands."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path

from rich.cells import cell_len
from rich.text import Text

from mink_local.chat.options import DEFAULT, MIN_K, SETTINGS, Setting
from mink_local.chat.screen import Screen, one_line
from mink_local.chat.settings import Settings
from mink_local.chat.store import Conversation
from mink_local.generation.model import Model
from mink_local.generation.request import SamplingParams
from mink_local.llama.cores import n_cores
from mink_local.samplers import MinK

_GAP = 2  # blanks between the columns of a table
_LEAST_TEXT = 20  # columns for the text of a conversation, before other columns are left out
_LONGEST_KEY = 22  # columns of the key of a setting, or of the title of a group, with its gap


def show_conversations(
    screen: Screen,
    conversations: Sequence[Conversation],
    current: int | None = None,
    text: str = "begins with",
) -> None:
    """Print a table of conversations; an asterisk marks the one with the id `current`.

    Long names are cut, and a narrow table lacks the columns that matter least. `text` is the title of the
    last column.
    """
    shown = [one for one in conversations if one.turns]
    if not shown:
        screen.note("(there is no conversation)")
        return
    columns = {
        "": ["*" if one.id == current else "" for one in shown],
        "name": [one_line(one.name or str(one.id), screen.width // 4) for one in shown],
        "turns": [f"{one.turns:5}" for one in shown],
        "last": [_when(one.updated) for one in shown],
        "model": [one_line(Path(one.model).name, screen.width // 5) for one in shown],
    }
    widths = {title: max(map(cell_len, (title, *column))) + _GAP for title, column in columns.items()}
    for title in ("model", "turns", "last"):
        if screen.width - sum(widths.values()) < _LEAST_TEXT:
            del columns[title], widths[title]
    columns[text] = [one_line(one.title, screen.width - sum(widths.values())) for one in shown]
    screen.table(zip(*columns.values(), strict=True), *columns)


def _when(seconds: float) -> str:
    """Return the time of a moment of today, or the date of another day."""
    then = datetime.fromtimestamp(seconds)
    return f"{then:%H:%M}" if then.date() == datetime.now().date() else f"{then:%Y-%m-%d}"


def show_settings(screen: Screen, settings: Settings, model: Model) -> None:
    """Print the settings that were changed, with the sources of their values, then the others by groups."""
    changed = [setting for setting in SETTINGS if settings.sources[setting.name] != DEFAULT]
    if changed:
        rows = []
        for one in changed:
            value = one_line(_value(one, settings, model), screen.width // 2)
            rows.append((one.key, value, settings.sources[one.name]))
        screen.table(rows, "changed", "value", "from")
    longest = max(18, screen.width // _beside(screen) - _LONGEST_KEY)
    groups: dict[str, list[tuple[str, str]]] = {}
    for setting in SETTINGS:
        if setting not in changed:
            value = one_line(_value(setting, settings, model), longest)
            groups.setdefault(setting.group, []).append((setting.key, value))
    show_groups(screen, groups)


def show_setting(screen: Screen, setting: Setting, settings: Settings, model: Model) -> None:
    """Print the whole value of a setting, where it comes from, and what the setting is for."""
    screen.show(f"{setting.key} {_value(setting, settings, model)}")
    screen.note(f"({settings.sources[setting.name]}) {setting.help}")


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
    rows: list[Sequence[str | Text]] = []
    for title, pairs in groups.items():
        rows.append([Text(title, "bold")])
        rows += [[*chain(*pairs[at : at + n])] for at in range(0, len(pairs), n)]
    screen.table(rows)


def _beside(screen: Screen) -> int:
    return 2 if screen.width >= 78 else 1
