"""The colours and numbers of /heat."""

from collections.abc import Callable

import pytest

from mink_local.chat.terminal.progress import coloured
from tests.chat.conftest import Typist


def test_colours() -> None:
    shown = coloured(["a", "b", "c\n", "d"], [1, 2, 60, 4, 1])
    assert shown.plain.startswith("abc↵\nd\n\ncandidates:  1   2–3 ")
    styles = [str(span.style) for span in shown.spans[:3]]
    assert styles == ["on dark_green", "bold underline on red3", "on dark_goldenrod"]  # not colour alone


def test_numbers_instead_of_colours() -> None:
    assert coloured(["a", "b\n", "c", "d"], [1, 7, 0, 1000], plain=True).plain == "ab\n[7]cd[1,000]"


@pytest.mark.usefixtures("own_files")
def test_an_answer(typist: Callable[..., Typist]) -> None:
    typed = typist("--temp", "5", "--tau", "90", "--seed", "1", "-n", "12")
    typed.say("Name three animals.")
    answer = typed.chat.session.last_answer()
    shown = typed.say("/heat")
    for k in answer.k[:12]:
        assert k == 1 or f"[{k}]" in shown
    assert "temperature 5" in typed.say("/stats")
