"""Loops: where a text begins to repeat itself, with nothing else in between."""

import re
from bisect import bisect_left

_STEP = 32  # characters between two looks
_TAIL = 24  # characters that must have occurred before; fewer than any loop has
_LONGEST = 2000  # characters of a repeated phrase; longer ones go unnoticed
_WINDOW = 6 * _LONGEST  # characters that are kept
_IN_A_LINE = 200  # characters of repetition make a loop, if the phrase has no line break,
_IN_LINES = 500  # or so many, and
_TIMES = 3  # copies of the phrase after the first
_TIMES_A_WORD = 9  # copies after the first make a loop of a single word,
_LETTERS = 4  # with at least so many letters: laughter is none
_PATIENCE = 8  # times as long for code and data, but not fences, and for what has no letters: zeros, drawings
_LETTER, _FENCE, _DATA = re.compile(r"[^\W\d_]"), re.compile("(?<!`)```"), re.compile(r"\s*[\[{<]")


class LoopFinder:
    """Finds where a text begins to repeat itself, as its pieces come.

    Args:
        number: The first piece's.

    In lists, tables, code and poems with a refrain something soon differs; in a loop of a model nothing does.
    What is found depends on the text, not on how it is cut into pieces, but for steps of 32 characters.

    Attributes:
        since: Number of the piece in which the repetition begins; None if there is none.
    """

    def __init__(self, number: int = 0) -> None:
        self._number = number
        self.since: int | None = None
        self._ends: list[int] = []  # of the pieces
        self._new: list[str] = []  # pieces since the last look
        self._text, self._start = "", 0  # the last part of the text, and where it begins
        self._n_fences = 0
        self._is_data = False

    def feed(self, piece: str) -> bool:
        """Take the next piece of the text; return whether there is a loop."""
        before = self._ends[-1] if self._ends else 0
        self._ends.append(before + len(piece))
        self._new.append(piece)
        if self.since is None and before // _STEP < self._ends[-1] // _STEP:
            self._look(before // _STEP + 1)
        return self.since is not None

    def _look(self, step: int) -> None:
        kept = self._text[-_WINDOW:]
        self._start += len(self._text) - len(kept)
        self._text, self._new = kept + "".join(self._new), []
        self._is_data = self._is_data or (self._start == 0 and _DATA.match(self._text) is not None)
        for end in range(step * _STEP - self._start, len(self._text) + 1, _STEP):
            self._n_fences += len(_FENCE.findall(self._text, max(0, end - _STEP - 2), end))
            if n := _repeated(self._text, end, self._n_fences % 2 == 1 or self._is_data):
                self.since = self._number + bisect_left(self._ends, self._start + end - n + 1)
                return


def _repeated(text: str, end: int, is_data: bool) -> int:
    """Return how many characters before `end` are a repetition, if they are enough for a loop, or 0."""
    period, n = 0, _TAIL - 1
    while end > n:
        # A longer phrase makes a loop only if more is repeated than of a shorter one: so each time, one
        # character more must have occurred before.
        tail = n + 1
        at = text.rfind(text[end - tail : end], max(0, end - tail - _LONGEST), end - period - 1)
        if at < 0:
            return 0
        period = end - tail - at
        n = _run(text, end, period)
        if n >= _needed(text[end - period : end], is_data):
            return n
    return 0


def _run(text: str, end: int, period: int) -> int:
    """Return how many characters before `end` are equal to those a period before."""

    def differs(n: int) -> bool:
        return text[end - n : end] != text[end - period - n : end - period]

    return bisect_left(range(1, end - period + 1), True, key=differs)


def _needed(phrase: str, is_data: bool) -> int:
    """Return how many characters of repetition make a loop of a phrase."""
    is_fences = "`" in phrase and not phrase.strip("` \n")
    is_prose = _LETTER.search(phrase) and not is_data
    patience = 1 if is_prose or is_fences else _PATIENCE
    is_word = len((phrase * 3).split()) <= 4  # wherever in the word it begins
    if is_word and len(_LETTER.findall(phrase)) >= _LETTERS:
        return patience * _TIMES_A_WORD * len(phrase)
    return patience * max(_IN_LINES if "\n" in phrase else _IN_A_LINE, _TIMES * len(phrase))
