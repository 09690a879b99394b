"""The colours and numbers of /heat."""

from collections.abc import Callable

import pytest
from rich.color import Color
from rich.style import Style

from mink_local.chat.terminal.progress import coloured
from mink_local.chat.terminal.screen import COLOURLESS, DARK, LIGHT, Theme
from tests.chat.conftest import Typist


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_colours(theme: Theme) -> None:
    """Each has a foreground that can be read on its background; not by colour alone."""
    shown = coloured(["a", "b", "c\r", "\nd", "e"], [1, 2, 60, 4, 1], theme)
    assert shown.plain.startswith("abc↵\nde\n\n")
    assert "1   2–3   4–10   11–50   51+" in shown.plain
    styles = [Style.parse(str(span.style)) for span in shown.spans[:3]]
    assert [style.underline for style in styles] == [None, True, None]
    for style in map(Style.parse, theme.candidates[1:]):
        assert style.color
        assert style.bgcolor
        ink, paper = (luminance(colour) for colour in (style.color, style.bgcolor))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 4.5  # WCAG 2.1, contrast (minimum)


def luminance(colour: Color) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = (part / 255 for part in colour.get_truecolor())
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_numbers_instead_of_colours() -> None:
    assert coloured(["a", "b\n", "c", "d"], [1, 7, 0, 1000], COLOURLESS).plain == "ab\n[7]cd[1,000]"


@pytest.mark.usefixtures("own_files")
def test_an_answer(typist: Callable[..., Typist]) -> None:
    typed = typist("--temp", "5", "--tau", "90", "--seed", "1", "-n", "12")
    typed.say("Name three animals.")
    answer = typed.chat.session.last_answer()
    shown = typed.say("/heat")
    for k in answer.k[:12]:
        assert k == 1 or f"[{k}]" in shown
    assert "T = 5" in typed.say("/stats")
