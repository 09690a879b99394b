"""Repetition: the token from which an answer repeats itself."""

import numpy as np

_LONGEST = 256  # tokens of a repeated phrase; longer ones go unnoticed
_TOKENS = 128  # of repetition make a loop,
_TOKENS_IN_A_LINE = 48  # or so many, if the phrase has no line break, and
_TIMES = 3  # copies of the phrase after the first
_PATIENCE = 8  # times as long for code, and for what has no letters: rows of zeros, rules, drawings


class LoopGuard:
    """Notices that an answer repeats itself, as its tokens come.

    For each period p it counts how many of the last tokens are equal to the one p tokens before. In lists,
    tables, code and poems with a refrain something soon differs; in a loop of a model nothing does.

    Attributes:
        since: The number of the first token that is a repetition, counted from 1; None if there is no loop.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self._text = ""
        self._starts: list[int] = []  # of each token's part of the text
        self._run = np.zeros(_LONGEST, np.int64)  # for each period from 1 on
        self._ids = np.full(_LONGEST, -1, np.int64)  # of the last tokens, newest first

    def feed(self, token: int, text: str) -> bool:
        """Take the next token of the answer and the text that it adds; return whether there is a loop."""
        self._starts.append(len(self._text))
        self._text += text
        self._run = np.where(self._ids == token, self._run + 1, 0)
        self._ids = np.append(token, self._ids[:-1])
        if self.since is None and (run := self._loop()):
            self.since = len(self._starts) - run + 1
        return self.since is not None

    @property
    def repeated(self) -> int:
        """The number of characters at the end of the text that the loop says again; 0 if there is none."""
        return len(self._text) - self._starts[self.since - 1] if self.since else 0

    def _loop(self) -> int:
        """Return the length of a run that is long enough for a loop, or 0."""
        for i in np.flatnonzero(self._run >= _TOKENS_IN_A_LINE):
            period = int(i) + 1
            phrase = self._text[self._starts[-period] :]
            tokens = _TOKENS if "\n" in phrase else _TOKENS_IN_A_LINE
            is_prose = any(map(str.isalpha, phrase)) and self._text.count("```") % 2 == 0
            if self._run[i] >= (1 if is_prose else _PATIENCE) * max(tokens, _TIMES * period):
                return int(self._run[i])
        return 0
