"""The list of conversations."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.table import Table

from mink_local.chat.screen import Screen, one_line
from mink_local.chat.store import Conversation


def show_conversations(
    screen: Screen, conversations: Sequence[Conversation], current: int | None = None
) -> None:
    """Print a table of conversations; an asterisk marks the one with the id `current`."""
    shown = [conversation for conversation in conversations if conversation.turns]
    if not shown:
        screen.note("(there is no conversation yet)")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("", "name", "turns", "last", "model", "begins with"):
        table.add_column(name, no_wrap=True, justify="right" if name == "turns" else "left")
    for one in shown:
        title = one_line(one.title, max(20, screen.width - 50))
        mark = "*" if one.id == current else ""
        cells = (
            mark,
            one.name or str(one.id),
            str(one.turns),
            _when(one.updated),
            Path(one.model).name,
            title,
        )
        table.add_row(*map(screen.cell, cells))
    screen.show(table)


def _when(seconds: float) -> str:
    """Return the time of day of a time today, or else the date."""
    then = datetime.fromtimestamp(seconds)
    return f"{then:%H:%M}" if then.date() == datetime.now().date() else f"{then:%Y-%m-%d}"
