"""Repetition: the token from which an answer repeats itself."""

import numpy as np

_LONGEST = 256  # tokens of a repeated phrase; longer ones go unnoticed
_TOKENS = 128  # of repetition make a loop,
_TOKENS_IN_A_LINE = 48  # or so many, if the phrase has no line break, and
_TIMES = 3  # copies of the phrase after the first
_TIMES_A_WORD = 9  # copies after the first make a loop of a single word,
_LETTERS = 4  # with at least so many letters: laughter is none
_PATIENCE = 8  # times as long for code, but not its fences, and for what has no letters: zeros, drawings
_LEAST = np.minimum(_TOKENS_IN_A_LINE, _TIMES_A_WORD * np.arange(1, _LONGEST + 1))  # for each period


class LoopGuard:
    """Notices that an answer repeats itself, as its tokens come.

    For each period p it counts how many of the last tokens are equal to the one p tokens before. In lists,
    tables, code and poems with a refrain something soon differs; in a loop of a model nothing does.

    Attributes:
        since: The number of the first token that is a repetition, counted from 1; None if there is no loop.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self._starts = [0]  # of each token's part of the text, and of the next one's
        self._run = np.zeros(_LONGEST, np.int64)  # for each period from 1 on
        self._ids = np.full(_LONGEST, -1, np.int64)  # of the last tokens, newest first

    def feed(self, token: int, n_characters: int, text: str) -> bool:
        """Take the next token of the answer; return whether there is a loop.

        Args:
            token: Its id.
            n_characters: By how many the text grows by it.
            text: The whole text, at least up to there.
        """
        self._starts.append(self._starts[-1] + n_characters)
        self._run = np.where(self._ids == token, self._run + 1, 0)
        self._ids = np.append(token, self._ids[:-1])
        if self.since is None and (run := self._loop(text[: self._starts[-1]])):
            self.since = len(self._starts) - run
        return self.since is not None

    @property
    def repeated(self) -> int:
        """The number of characters at the end of the text that the loop says again; 0 if there is none."""
        return self._starts[-1] - self._starts[self.since - 1] if self.since else 0

    def _loop(self, text: str) -> int:
        """Return the length of a run that is long enough for a loop, or 0."""
        for i in np.flatnonzero(self._run >= _LEAST):
            period = int(i) + 1
            phrase = text[self._starts[-period - 1] :]
            is_prose = any(map(str.isalpha, phrase)) and text.count("```") % 2 == 0
            is_fences = "`" in phrase and not phrase.strip("` \n")
            if self._run[i] >= (1 if is_prose or is_fences else _PATIENCE) * _needed(phrase, period):
                return int(self._run[i])
        return 0


def _needed(phrase: str, period: int) -> int:
    """Return how many tokens of repetition make a loop of a phrase in prose."""
    if len(phrase.split()) == 1 and sum(map(str.isalpha, phrase)) >= _LETTERS:
        return _TIMES_A_WORD * period
    return max(_TOKENS if "\n" in phrase else _TOKENS_IN_A_LINE, _TIMES * period)
