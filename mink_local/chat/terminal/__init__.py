"""The terminal: input lines, and everything that is shown."""

import re

from rich.console import Console
from rich.text import Text

MOST_COLUMNS = 100  # of prose: longer lines are hard to read


def broken_paths(text: Text, columns: int) -> Text:
    """Return a text in which a path or an address that is longer than a row is broken between its names."""
    part = re.compile(rf"\S{{1,{columns}}}(?!\S)|\S{{0,{columns - 1}}}[/\\?&]|\S{{1,{columns}}}")
    long = (word for word in re.finditer(rf"\S{{{columns + 1},}}", text.plain) if {*word[0]} & {*"/\\?&"})
    cuts = [word.start() + found.start() for word in long for found in part.finditer(word[0])]
    return Text("\n").join(text.divide([cut for cut in cuts if text.plain[:cut][-1:] not in ("", "\n")]))


def wrapped_rows(text: Text, columns: int) -> list[Text]:
    """Return the rows of a text in a window of so many columns."""
    return list(broken_paths(text, columns).wrap(Console(width=columns), columns))
