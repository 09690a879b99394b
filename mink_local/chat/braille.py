"""Pictures of a step made of characters: the sorted logits, and what each method keeps."""

import math

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from mink_local.generation.sampling_step import SamplingStep

_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of a character
_EIGHTHS = " ▏▎▍▌▋▊▉"
_METHOD, _NUMBER = 16, 8  # columns left and right of the axis


def braille(dots: NDArray[np.bool_]) -> list[str]:
    """Return rows of characters for dots (4 * rows, 2 * columns), the first row on top."""
    rows, columns = dots.shape[0] // 4, dots.shape[1] // 2
    codes = np.einsum("rycx,yx->rc", dots.reshape(rows, 4, columns, 2), _DOTS)
    return ["".join(chr(0x2800 + code) for code in row) for row in codes]


def bar(share: float, columns: int) -> str:
    """Return a bar that fills a share of so many columns, to an eighth of a column."""
    whole, eighth = divmod(round(min(max(share, 0.0), 1.0) * columns * 8), 8)
    return ("█" * whole + _EIGHTHS[eighth]).rstrip()


class RankAxis:
    """A logarithmic axis of n ranks: rank r, counted from 1, is between r - 1/2 and r + 1/2."""

    def __init__(self, n: int) -> None:
        self._n = n

    def share(self, kept: int) -> float:
        """Return which share of the axis the first `kept` ranks take, from 0 to 1."""
        return math.log(2 * kept + 1) / math.log(2 * self._n + 1)

    def ranks(self, points: int) -> NDArray[np.int64]:
        """Return the ranks at so many evenly spaced points of the axis."""
        ranks = np.rint((2 * self._n + 1) ** np.linspace(0, 1, points) / 2).astype(np.int64)
        return np.clip(ranks, 1, self._n)

    def ticks(self, columns: int) -> str:
        """Return the powers of ten, each where its rank begins."""
        line = ""
        for power in range(6):
            at = int(self.share(10**power - 1) * columns)
            label = f"{10**power}" if power < 3 else f"{10 ** (power - 3)}k"
            if 10**power <= self._n and at >= len(line) + bool(line) and at + len(label) <= columns:
                line = line.ljust(at) + label
        return line


def curve(step: SamplingStep, columns: int, rows: int) -> list[Text]:
    """Return the sorted logits as a curve over `axis`, with a dotted line at the cliff."""
    ranks, width, height = RankAxis(len(step.ids)), 2 * (columns - _METHOD - _NUMBER), 4 * rows
    logits = step.logits[ranks.ranks(width) - 1]
    first, last = step.logits[0], step.logits[-1]
    y = np.rint((first - logits) / max(first - last, 1e-8) * (height - 1)).astype(int)
    dots = np.zeros((height, width), bool)
    for x, (above, here) in enumerate(zip(np.append(y[0], y[:-1]), y, strict=True)):
        dots[above : here + 1, x] = True
    dots[::2, min(round(ranks.share(step.cliff) * width), width - 1)] = True
    labels = {0: f"logit {first:.1f}", rows - 1: f"{last:.1f}"}
    return [Text(f"{labels.get(row, ''):>{_METHOD - 1}} {line}") for row, line in enumerate(braille(dots))]


def axis(step: SamplingStep, columns: int) -> Text:
    """Return the axis below `curve` and above the bars of `cuts`."""
    width = columns - _METHOD - _NUMBER
    ticks = RankAxis(len(step.ids)).ticks(width)
    return Text(f"{'rank':<{_METHOD}}{ticks:<{width}}", "dim")


def cuts(step: SamplingStep, columns: int) -> list[Text]:
    """Return the axis, and below it a bar for what each method keeps."""
    ranks, width = RankAxis(len(step.ids)), columns - _METHOD - _NUMBER
    methods = [
        Text(f"{name:<{_METHOD}}{bar(ranks.share(kept), width):<{width}}{kept:>{_NUMBER},}")
        for name, kept in step.cuts
    ]
    return [axis(step, columns).append(f"{'keeps':>{_NUMBER}}"), *methods]
