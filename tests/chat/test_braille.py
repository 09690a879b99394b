"""Pictures of a step made of characters."""

import numpy as np
import pytest

from mink_local.chat.braille import RankAxis, bar, braille


def test_dots() -> None:
    dots = np.zeros((8, 4), bool)
    dots[0, 0] = dots[7, 3] = True
    dots[4:, 0] = True
    assert braille(dots) == ["⠁⠀", "⡇⢀"]


@pytest.mark.parametrize(
    ("share", "shown"), [(0, ""), (0.5, "██"), (1, "████"), (3, "████"), (1 / 32, "▏"), (0.31, "█▎")]
)
def test_bars(share: float, shown: str) -> None:
    assert bar(share, 4) == shown


@pytest.mark.parametrize("n", [1, 7, 151_936])
def test_axis(n: int) -> None:
    axis = RankAxis(n)
    assert (axis.share(0), axis.share(n)) == (0, 1)
    ranks = axis.ranks(400)
    assert (ranks[0], ranks[-1]) == (1, n)
    assert (np.diff(ranks) >= 0).all()
    assert (ranks[: int(axis.share(1) * 400)] == 1).all()


def test_ticks() -> None:
    ticks = RankAxis(151_936).ticks(40)
    assert ticks.split() == ["1", "10", "100", "1k", "10k"]
    assert len(ticks) <= 40
    assert ticks.index("10k") == int(RankAxis(151_936).share(9_999) * 40)
    assert RankAxis(5).ticks(40) == "1"
