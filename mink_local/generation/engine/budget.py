"""How many prompt tokens a step prefills."""

from collections import deque

from mink_local.llama.constants import N_BATCH

_LONGEST = 1.0  # seconds of a step: in parts of 0.7 s, a prompt takes 5% longer, and of 0.25 s 20%
_UNNOTICED = 0.25  # seconds
_FIRST = 64  # tokens, until the times are known
_LEAST = 16  # tokens: fewer would cost nearly the same, and prompts must make progress
_GROWTH = 2  # times as many tokens as were ever read at once: a line that chance has drawn is not trusted far
_MEMORY = 0.8  # of a time after the next one of its kind
_LATELY = 16  # times, of which earlier ones would no longer count
_SURPRISE = 2.0  # times the expected duration, beyond which a step says nothing: the machine was busy

Sums = tuple[float, float, float, float, float]
"""Of steps, of which older ones count less: 1, tokens, seconds, tokens², tokens * seconds."""


class PromptBudget:
    """The number of prompt tokens per step, chosen so that running answers do not stutter.

    A prompt evaluated in one go delays the next token of every answer by that long. In chunks (Agrawal et
    al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", 2024), it delays each token
    a little. Chunks that are too small cost throughput: the first answers end before the others begin, few
    are generated together, and waiting ones never catch up.

    The times depend on the model and the machine. They are learned from the steps, as a line by least
    squares: each step takes so long, and each of its tokens, an answer's or a prompt's, so much longer.
    Steps with and without prompts are forgotten apart, so that a long answer leaves the line its slope.
    """

    def __init__(self) -> None:
        self._alone: Sums = (0, 0, 0, 0, 0)  # steps without prompts
        self._reading: Sums = (0, 0, 0, 0, 0)
        self._most_read = 0  # tokens of prompts, in a step
        self._noted: deque[tuple[float, int]] = deque(
            maxlen=_LATELY
        )  # steps without prompts, not learned yet

    def tokens(self, n_waiting: int, n_answers: int = 0) -> int:
        """Return the next step's budget: of the tokens that wait, as many as the steps after it will read.

        A step for a small rest costs more than somewhat longer ones.

        Args:
            n_waiting: Number of prompt tokens to be read.
            n_answers: Number of answers that get a token.
        """
        self._learn()
        n_steps = -(-n_waiting // self._within(_LONGEST, n_answers))
        return max(_LEAST, -(-n_waiting // n_steps))

    @property
    def unnoticed(self) -> int:
        """How many tokens of a prompt are read in a moment."""
        return self._within(_UNNOTICED)

    def note(self, seconds: float, n_answers: int, n_prompt: int) -> None:
        """Learn from a step.

        Args:
            seconds: Duration of the step.
            n_answers: Number of answers that got a token.
            n_prompt: Number of prompt tokens evaluated.
        """
        if not n_prompt:
            self._noted.append((seconds, n_answers))
            return
        self._most_read = max(self._most_read, n_prompt)
        tokens = n_answers + n_prompt
        self._reading = _with(self._reading, tokens, self._usual(seconds, tokens))

    def _learn(self) -> None:
        """Learn from the last steps without prompts, which is only needed when one is to be read."""
        while self._noted:
            seconds, n_answers = self._noted.popleft()
            self._alone = _with(self._alone, n_answers, self._usual(seconds, n_answers))

    def _usual(self, seconds: float, tokens: int) -> float:
        step, token = self._times
        return min(seconds, _SURPRISE * (step + tokens * token)) if token else seconds

    def _within(self, seconds: float, n_answers: int = 0) -> int:
        """Return how many tokens of prompts a step of so many seconds reads beside answers."""
        step, token = self._times
        if not (self._most_read and token):
            return _FIRST
        most = min(N_BATCH, max(_FIRST, _GROWTH * self._most_read))
        return max(_LEAST, min(most, int((seconds - step) / token) - n_answers))

    @property
    def _times(self) -> tuple[float, float]:
        """Seconds of a step, and of each of its tokens; 0 for what is not known yet."""
        n, x, y, xx, xy = map(sum, zip(self._alone, self._reading, strict=True))
        spread = n * xx - x * x
        if spread <= 1e-9 * n * xx:  # all had as many tokens
            return (y / n if n else 0.0), 0.0
        token = (n * xy - x * y) / spread
        step = (y - token * x) / n
        return (step, max(0.0, token)) if step >= 0 else (0.0, xy / xx)


def _with(sums: Sums, x: float, y: float) -> Sums:
    n, sum_x, sum_y, sum_xx, sum_xy = (_MEMORY * each for each in sums)
    return n + 1, sum_x + x, sum_y + y, sum_xx + x * x, sum_xy + x * y
