"""How long a run will take, by tokens.

Source: E. L. Kaplan and P. Meier (1958), doi:10.1080/01621459.1958.10501452: responses that are still being
generated are longer than they are now, which their estimate of the distribution of lengths accounts for.
"""

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

_WINDOW_SECONDS, _SAMPLE_SECONDS = 30.0, 0.5


def survival(finished: Sequence[int], unfinished: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return lengths, ascending from 0, and the estimated share of responses that are longer than each.

    Args:
        finished: Lengths of the responses that are complete.
        unfinished: Lengths so far of those that are not.
    """
    ended = np.sort(np.asarray(finished, np.int64))
    everything = np.sort(np.concatenate([ended, np.asarray(unfinished, np.int64)]))
    lengths, share = [0], [1.0]
    for length, n_ended in zip(*np.unique(ended, return_counts=True), strict=True):
        at_risk = len(everything) - int(np.searchsorted(everything, length))
        lengths.append(int(length))
        share.append(share[-1] * (1 - int(n_ended) / at_risk))
    return lengths, share


def tokens_left(finished: Sequence[int], unfinished: Sequence[int], n_waiting: int, most: int) -> float:
    """Return how many tokens responses are expected to have before all are complete.

    Args:
        finished: Lengths of the responses that are complete; at least one.
        unfinished: Lengths so far of those that are being generated.
        n_waiting: Number of responses that are yet to begin.
        most: Maximum length.
    """
    lengths, share = survival(finished, unfinished)
    last = lengths[-1]
    # beyond the longest that is complete, as if one more had ended there
    mean = sum(n - last for n in unfinished if n > last) + max(1.0, float(np.mean(finished)))

    def beyond(n: int) -> float:
        return mean * -math.expm1(-max(0, most - n) / mean)

    def after(n: int) -> float:
        """The expected number of tokens after the n-th of a response that has more."""
        here = bisect_right(lengths, n) - 1 if n else 0
        if not share[here]:
            return 0.0
        ends = np.maximum(lengths[here + 1 :], n)
        spans = np.diff(ends, prepend=n) if len(ends) else ends
        return (float(spans @ share[here:-1]) + share[-1] * beyond(max(n, last))) / share[here]

    return n_waiting * after(0) + sum(after(n) for n in unfinished)


class Pace:
    """The tokens of a model's responses, and the time that they took.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.finished: list[int] = []
        self._clock, self._began = clock, clock()
        self._past = deque([(self._began, 0)])  # the number of tokens at some times, within the window

    def speed(self, unfinished: Sequence[int]) -> float:
        """Return the tokens per second of the last third of the time, but no less than 30 seconds.

        Other programs, and what is in the slots, change the speed: of a whole run, the beginning says little.
        """
        now, n_tokens = self._clock(), sum(self.finished) + sum(unfinished)
        if now - self._past[-1][0] >= _SAMPLE_SECONDS:
            self._past.append((now, n_tokens))
        window = max(_WINDOW_SECONDS, (now - self._began) / 3)
        while len(self._past) > 1 and now - self._past[1][0] > window:
            self._past.popleft()
        then, n_before = self._past[0]
        return (n_tokens - n_before) / max(1e-3, now - then)

    def seconds_left(self, unfinished: Sequence[int], n_left: int, most: int) -> float | None:
        """Return the expected time for `n_left` responses; None before the first one is complete."""
        speed = self.speed(unfinished)
        if not (self.finished and speed):
            return None
        n_waiting = max(0, n_left - len(unfinished))
        return tokens_left(self.finished, unfinished, n_waiting, most) / speed
