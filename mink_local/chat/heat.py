"""The tokens of an answer coloured by a scale: candidates, surprise, entropy, rank, the cut of top-p."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from mink_local.chat.screen import Screen
from mink_local.generation.sampling_step import TokenFigures

# From ordinary to rare; the last ones do not differ by colour alone.
_STYLES = ("", "on dark_green", "on dark_goldenrod", "underline on dark_orange3", "bold underline on red3")
_BARS = "▁▂▃▄▅▆▇█"
_COUNTS: dict[float, str] = {1: "1", 2: "2–3", 4: "4–10", 11: "11–50", 51: "51+"}


@dataclass(frozen=True)
class Scale:
    """A number that tokens are coloured by; `levels` are the least number of each level, and its name."""

    about: str
    levels: dict[float, str]
    shown: Callable[[float], str]

    def level(self, number: float) -> int:
        """Return the level of a number; that of an ordinary token is 0."""
        return max(0, sum(number >= least for least in self.levels) - 1)

    def style(self, level: int) -> str:
        return _STYLES[level * (len(_STYLES) - 1) // (len(self.levels) - 1)]


SCALES = {
    "k": Scale("candidates", _COUNTS, lambda k: f"{k:,}"),
    "surprise": Scale(
        "surprise in bits", {0: "under 1", 1: "1–2", 2: "2–4", 4: "4–8", 8: "8+"}, "{:.1f}".format
    ),
    "entropy": Scale(
        "entropy in bits", {0: "under 0.5", 0.5: "0.5–1", 1: "1–2", 2: "2–4", 4: "4+"}, "{:.1f}".format
    ),
    "rank": Scale("rank of the token", _COUNTS, lambda rank: f"{rank:,}"),
    "top-p": Scale("top-p 0.9", {0: "keeps it", 1: "cuts it"}, lambda _: "cut"),
}


def number(scale: str, k: int, figures: TokenFigures | None) -> float:
    """Return a token's number on a scale; only k needs no figures."""
    if figures is None:
        return k
    numbers = {"surprise": figures.surprise, "entropy": figures.entropy, "rank": figures.rank}
    return float(figures.rank > figures.top_p) if scale == "top-p" else numbers[scale]


def heat(
    texts: Iterable[str], numbers: Iterable[float], scale: Scale = SCALES["k"], plain: bool = False
) -> Text:
    """Return an answer with its tokens `marked`, and the legend below."""
    shown = Text().join(marked(text, n, scale, plain) for text, n in zip(texts, numbers, strict=False))
    return shown if plain else shown.append("\n\n").append(legend(scale))


def marked(text: str, number: float, scale: Scale, plain: bool) -> Text:
    """Return a token with its level as a colour, or if plain with its number in brackets."""
    level = scale.level(number)
    if not level:
        return Text(text)
    if plain:
        return Text(f"{text}[{scale.shown(number)}]")
    return Text(text.replace("\n", "↵\n"), scale.style(level))


def legend(scale: Scale) -> Text:
    """Return the levels of a scale in their colours."""
    shown = Text(f"{scale.about}:")
    for level, name in enumerate(scale.levels.values()):
        shown.append(" ").append(f" {name} ", scale.style(level))
    return shown


def sparkline(k: Sequence[int], cells: int) -> str:
    """Return the numbers of candidates as a row of bars, the largest of each group of tokens, logarithmic."""
    size = math.ceil(len(k) / cells)
    groups = (max(k[start : start + size]) for start in range(0, len(k), size))
    return "".join(_BARS[min(len(_BARS) - 1, math.ceil(math.log2(max(n, 1))))] for n in groups)


class HeatWriter:
    """Shows an answer while it is generated, its tokens coloured by a scale; a `TextWriter`.

    `token` is called for each token, before its text is fed.
    """

    def __init__(self, screen: Screen, scale: str) -> None:
        self._screen, self._scale = screen, SCALES[scale]
        self._number, self._level = 0.0, 0
        self._column = 0

    def token(self, number: float) -> None:
        """Note the number of the token whose text comes next; a character may have several tokens."""
        if self._scale.level(number) >= self._level:
            self._number, self._level = number, self._scale.level(number)

    def feed(self, text: str) -> None:
        shown = marked(text, self._number, self._scale, self._screen.is_plain)
        if text.startswith(" ") and self._column + shown.cell_len > self._screen.width:
            self._print(Text("\n"))
            shown = shown[1:]
        self._print(shown)
        self._number, self._level = 0.0, 0

    def recall(self, text: str) -> None:
        self._print(Text(text.rpartition("\n")[2]))

    def end(self) -> None:
        self._screen.console.print()
        if not self._screen.is_plain:
            self._screen.console.print(legend(self._scale))

    def _print(self, text: Text) -> None:
        self._screen.console.print(text, end="", soft_wrap=True)
        _, newline, last = text.plain.rpartition("\n")
        self._column = cell_len(last) if newline else self._column + cell_len(last)
