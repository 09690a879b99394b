"""How long a run will take, by tokens."""

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

_WINDOW_SECONDS, _SAMPLE_SECONDS = 30.0, 0.5


def expected_lengths(finished: Sequence[int], unfinished: Sequence[int], most: int) -> list[float]:
    """Return how long unfinished responses will be, of which one that has not begun has 0 tokens.

    Early in a run, the finished responses are the short ones. So lengths are those of Kaplan and Meier's
    estimate, in which an unfinished response says that it is longer than it is now.

    Args:
        finished: Lengths of the responses that are complete.
        unfinished: Lengths so far of those that are not.
        most: Maximum length; what is longer than all so far is expected to end halfway to it.
    """
    known = np.array([*finished, *unfinished])
    lengths, n_ended = np.unique(np.array(finished, np.int64), return_counts=True)
    n_as_long = (known[:, None] >= lengths).sum(axis=0)
    longer = np.array([1.0, *np.cumprod(1 - n_ended / n_as_long)])  # share, than each length
    lengths = np.append(lengths, (known.max() + most) / 2)
    shares = np.append(longer[:-1] - longer[1:], longer[-1])
    is_ahead = lengths > np.array(unfinished)[:, None]
    is_ahead[:, -1] = True
    weights = is_ahead * shares
    expected: list[float] = (weights @ lengths / weights.sum(axis=1)).tolist()
    return expected


class Pace:
    """The tokens of a model's responses, and the time that they took.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.finished: list[int] = []
        self._clock, self._began = clock, clock()
        # times within the window, each with the numbers until then of tokens and of seconds of a busy slot
        self._past = deque([(self._began, 0, 0.0)])

    def speed(self, unfinished: Sequence[int]) -> float:
        """Return the tokens per second of late, given the lengths of the responses being generated."""
        seconds, n_tokens, _ = self._lately(unfinished)
        return n_tokens / max(1e-3, seconds)

    def seconds_left(self, unfinished: Sequence[int], n_left: int, most: int) -> float | None:
        """Return the expected time for `n_left` responses; None before the first token.

        When no response is waiting, slots fall idle: some devices then serve the others faster, and some do
        not, so that the longest response decides. The truth lies between these, and so does the estimate.
        """
        seconds, n_tokens, slot_seconds = self._lately(unfinished)
        if not n_tokens:
            return None
        of_new, *ends = expected_lengths(self.finished, [0, *unfinished], most)
        ahead = [end - n for end, n in zip(ends, unfinished, strict=True)]
        waiting = max(0, n_left - len(unfinished)) * of_new
        together, longest = sum(ahead) * seconds, max(ahead, default=0.0) * slot_seconds
        return (waiting * seconds + (together + max(together, longest)) / 2) / n_tokens

    def _lately(self, unfinished: Sequence[int]) -> tuple[float, int, float]:
        """Return the seconds, tokens and seconds of busy slots of late: of the last third, but at least 30 s.

        Other programs, and what is in the slots, change the speed: of a whole run, the beginning says little.
        """
        now, n_tokens = self._clock(), sum(self.finished) + sum(unfinished)
        if not n_tokens:  # the first step may have to wait for samplers to be compiled
            self._began, self._past = now, deque([(now, 0, 0.0)])
        last, _, slot_seconds = self._past[-1]
        slot_seconds += (now - last) * len(unfinished)
        if now - last >= _SAMPLE_SECONDS:
            self._past.append((now, n_tokens, slot_seconds))
        window = max(_WINDOW_SECONDS, (now - self._began) / 3)
        while len(self._past) > 1 and now - self._past[1][0] > window:
            self._past.popleft()
        then, n_before, slot_seconds_before = self._past[0]
        return now - then, n_tokens - n_before, slot_seconds - slot_seconds_before
