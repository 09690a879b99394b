"""How things look on a dark ground, on a light one, and without colours."""

import re
from typing import NamedTuple

from rich.theme import Theme as RichTheme

from mink_local.chat.terminal.input import QuietTerminal

_ASK_BACKGROUND = "\x1b]11;?\x07"  # OSC 11, which not every terminal answers
_ASK_DEVICE = "\x1b[c"  # DA1, which every one does, after what it was asked before
_BACKGROUND = re.compile(
    r"\x1b\]11;rgba?:([0-9a-f]+)/([0-9a-f]+)/([0-9a-f]+)[^\x07\x1b]*(?:\x07|\x1b\\)", re.I
)
_DEVICE = re.compile(r"\x1b\[\?[\d;]*c")


class Theme(NamedTuple):
    """Styles of rich; those of candidates are for 1, 2, 4, 11 and 51 of them, the last not by colour alone.

    Attributes:
        accent: Headings, and the user's own messages.
        own: These in the input line, in prompt_toolkit's words.
        code: The style of Pygments for code.
        inline_code: Code within a line.
        candidates: Backgrounds with a foreground that can be read on them.
    """

    accent: str
    own: str
    code: str
    inline_code: str
    candidates: tuple[str, str, str, str, str]


_MANY = "bold underline #ffffff on #b01010"
DARK = Theme(
    "bold cyan",
    "bold ansicyan",
    "ansi_dark",
    "cyan",
    (
        "",
        "#ffffff on #00590c",
        "#000000 on #b89500",
        "underline #000000 on #e08030",
        _MANY,
    ),
)
LIGHT = Theme(
    "bold blue",
    "bold ansiblue",
    "default",
    "blue",
    (
        "",
        "#000000 on #c4ecc4",
        "#000000 on #fbe48a",
        "underline #000000 on #f7b98b",
        _MANY,
    ),
)
COLOURLESS = Theme("bold", "bold", "bw", "", ("",) * 5)
THEMES = {"dark": DARK, "light": LIGHT, "none": COLOURLESS}


def rich_styles(theme: Theme) -> RichTheme:
    """Return the styles of Markdown."""
    headings = {f"markdown.h{level}": theme.accent for level in range(1, 7)}
    accents = dict.fromkeys(("markdown.item.number", "markdown.list", "markdown.table.border"), "")
    links = {"markdown.link": "underline", "markdown.link_url": theme.inline_code}
    texts = {"markdown.code": theme.inline_code, "markdown.block_quote": "italic"}
    return RichTheme({**headings, **accents, **links, **texts, "markdown.table.header": theme.accent})


def asked(terminal: QuietTerminal) -> Theme:
    """Return the theme for the background that the terminal says it has; dark if it does not say."""
    reply = terminal.exchange(_ASK_BACKGROUND + _ASK_DEVICE, _DEVICE, _BACKGROUND)
    if not (found := _BACKGROUND.search(reply)):
        return DARK
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return LIGHT if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else DARK
