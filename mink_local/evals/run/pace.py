"""How long a run will take, by tokens."""

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

_WINDOW_SECONDS, _SAMPLE_SECONDS = 30.0, 0.5
_SAMPLES = 200  # of a long run, at most


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
    """The prompts and tokens of a model's responses, and the time that they took.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.finished: list[int] = []
        self._clock, self._began, self._n_slots = clock, clock(), 1
        # times within the window, each with the numbers of responses that have begun, and of tokens
        self._past = deque([(self._began, 0, 0)])

    def speed(self, unfinished: Sequence[int]) -> float:
        """Return the tokens per second of late, given the lengths of the responses being generated."""
        *_, last = self._lately(unfinished)
        return float(last[2] / max(1e-3, last[0]))

    def seconds_left(self, unfinished: Sequence[int], n_left: int, most: int) -> float | None:
        """Return the expected time for `n_left` responses; None before the first token.

        When no response is waiting, slots fall idle: some devices then serve the others faster, and some do
        not, so that the longest response decides. The truth lies between these, and so does the estimate.
        """
        past = self._lately(unfinished)
        if not past[-1, 2]:
            return None
        (of_prompt, of_token), _ = nnls(past[:, 1:], past[:, 0])
        of_new, *ends = expected_lengths(self.finished, [0, *unfinished], most)
        ahead = [end - n for end, n in zip(ends, unfinished, strict=True)]
        waiting = max(0, n_left - len(unfinished)) * of_new
        n_prompts = n_left - sum(n > 0 for n in unfinished)
        together, longest = sum(ahead), max(ahead, default=0.0) * self._n_slots
        tokens = waiting + (together + max(together, longest)) / 2
        return float(n_prompts * of_prompt + tokens * of_token)

    def _lately(self, unfinished: Sequence[int]) -> NDArray[np.float64]:
        """Return the growth of what is in `_past`, of the last half, but of at least 30 s.

        Other programs, and what is in the slots, change the speed: of a whole run, the beginning says little.
        Only at first are there many prompts to few tokens, so that both need a time of their own.
        """
        now, n_begun = self._clock(), len(self.finished) + sum(n > 0 for n in unfinished)
        here = (now, n_begun, sum(self.finished) + sum(unfinished))
        self._n_slots = max(self._n_slots, len(unfinished))
        if now - self._past[-1][0] >= max(_SAMPLE_SECONDS, (now - self._began) / _SAMPLES):
            self._past.append(here)
        window = max(_WINDOW_SECONDS, (now - self._began) / 2)
        while len(self._past) > 1 and now - self._past[1][0] > window:
            self._past.popleft()
        return np.array([*self._past, here])[1:] - self._past[0]
