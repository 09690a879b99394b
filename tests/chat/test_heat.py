"""The colours and numbers of /heat, and the sparkline of the status line."""

import pytest

from mink_local.chat.heat import SCALES, heat, number, sparkline
from mink_local.generation.sampling_step import TokenFigures


def test_colours() -> None:
    shown = heat(["a", "b", "c\n", "d"], [1, 2, 60, 4, 1])
    assert shown.plain.startswith("abc↵\nd\n\ncandidates:  1   2–3 ")
    assert [str(span.style) for span in shown.spans[:3]] == [
        "on dark_green",
        "bold underline on red3",
        "on dark_goldenrod",
    ]


def test_numbers_instead_of_colours() -> None:
    assert heat(["a", "b\n", "c"], [1, 7, 1], plain=True).plain == "ab\n[7]c"
    assert heat(["a", "b"], [0, 1], SCALES["top-p"], plain=True).plain == "ab[cut]"
    assert heat(["a", "b"], [0.2, 3.14], SCALES["surprise"], plain=True).plain == "ab[3.1]"


@pytest.mark.parametrize(
    ("scale", "expected"), [("k", 3), ("surprise", 5.5), ("entropy", 1.5), ("rank", 7), ("top-p", 1)]
)
def test_scales(scale: str, expected: float) -> None:
    figures = TokenFigures(surprise=5.5, entropy=1.5, rank=7, top_p=4)
    assert number(scale, 3, None if scale == "k" else figures) == expected


def test_levels_have_names_and_styles() -> None:
    for scale in SCALES.values():
        assert scale.level(min(scale.levels)) == 0
        assert scale.style(0) == ""
        assert "underline" in scale.style(len(scale.levels) - 1)  # not colour alone


def test_sparkline() -> None:
    assert sparkline([1, 1, 2, 3, 9, 1000, 50_000], 8) == "▁▁▂▃▅██"
    assert sparkline([1] * 99 + [4], 10) == "▁" * 9 + "▃"
