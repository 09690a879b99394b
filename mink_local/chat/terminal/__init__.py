"""The terminal: input lines, and everything that is shown."""

from rich.console import Console
from rich.text import Text

MOST_COLUMNS = 100  # of prose: longer lines are hard to read


def wrapped_rows(text: Text, columns: int) -> list[Text]:
    """Return the rows of a text in a window of so many columns."""
    return list(text.wrap(Console(width=columns), columns))
