"""The table of conversations. It needs no llama.cpp, so that it is there also where that does not load."""

from datetime import datetime
from pathlib import Path

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from mink_local.chat.conversation.store import ConversationStore, time_of
from mink_local.chat.terminal.screen import Screen, one_line

_SHOWN = 20  # conversations, in a terminal
_COLUMNS = {"": 0, "name": 0, "turns": 60, "last": 60, "model": 100}  # and the least width of their window


def show_conversations(
    screen: Screen, store: ConversationStore, text: str = "", current: int | None = None
) -> None:
    """Print a table of the conversations that contain a text; an asterisk marks the one with an id.

    The newest is at the end, where one looks. A terminal shows the last 20, a pipe gets all. A narrow table
    leaves out the columns that matter least.
    """
    found = [one for one in store.conversations(text) if one.turns]
    if not found:
        screen.note(f"no conversation contains {text!r}" if text else "there is no conversation")
        return
    conversations = found[:_SHOWN] if screen.is_terminal else found
    last = "found in" if text else "begins with"
    titles = [title for title, least in _COLUMNS.items() if screen.width >= least] + [last]
    table = Table(box=None, pad_edge=False, header_style=screen.theme.accent)
    for title in titles:
        justify: JustifyMethod = "right" if title == "turns" else "left"
        width = None if title == last else screen.width // 4  # the last column gives way
        table.add_column(title, no_wrap=title != last, max_width=width, justify=justify)
    for one in reversed(conversations):
        cells = {
            "": "*" if one.id == current else "",
            "name": one.name or str(one.id),
            "turns": str(one.turns),
            "last": _when(one.updated),
            "model": Path(one.model).name,
            last: one.title,
        }
        texts = (one_line(cells[title], screen.width) for title in titles)
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in texts))
    screen.show(table)
    if n_older := len(found) - len(conversations):
        screen.note(f"{n_older} older: /list TEXT and mink-chat --list TEXT search them")


def _when(seconds: float) -> str:
    """Return the time of a moment of today, or the date of another day."""
    then = time_of(seconds)
    return f"{then:%H:%M}" if then.date() == datetime.now().date() else f"{then:%Y-%m-%d}"
