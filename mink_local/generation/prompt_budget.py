"""How many prompt tokens a step prefills while answers are being generated."""

_SLOWDOWN = 4.0  # maximum duration of a step with prompts, relative to one without
_UNNOTICED = 0.25  # seconds that a step may always take
_FIRST = 64  # tokens, until both times are known
_LEAST = 16  # tokens: fewer would cost nearly the same, and prompts must make progress
_EVERY = 8  # one step in so many prefills nothing, to measure what a step takes now
_WEIGHT = 0.5  # of a new time in the moving averages


class PromptBudget:
    """The number of prompt tokens per step, chosen so that running answers do not stutter.

    A prompt evaluated in one go delays the next token of every answer by that long. In chunks (Agrawal et
    al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", 2024), it delays each token
    a little. Chunks that are too small cost throughput: the first answers end before the others begin, few
    are generated together, and waiting ones never catch up. So a step's limit is relative to a step in which
    all slots in use generate, though at first few do. The times depend on the model and the machine, and are
    learned from the steps.
    """

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}  # seconds of a step without prompts, by number of answers
        self._token: float | None = None  # seconds added per prompt token
        self._n_steps = 0  # since the last step without prompts

    def tokens(self, n_slots: int) -> int:
        """Return the next step's budget, given the number of slots in use."""
        if not self._steps or self._n_steps >= _EVERY - 1:
            return 0
        if not self._token:
            return _FIRST
        step = self._without_prompts(n_slots)
        return max(_LEAST, int((max(_SLOWDOWN * step, _UNNOTICED) - step) / self._token))

    def note(self, seconds: float, n_answers: int, n_prompt: int) -> None:
        """Learn from a step.

        Args:
            seconds: Duration of the step.
            n_answers: Number of answers that got a token, at least 1.
            n_prompt: Number of prompt tokens evaluated.
        """
        if n_prompt == 0:
            self._steps[n_answers] = _averaged(self._steps.get(n_answers), seconds)
            self._n_steps = 0
        elif self._steps:
            added = max(0.0, seconds - self._without_prompts(n_answers))
            self._token = _averaged(self._token, added / n_prompt)
            self._n_steps += 1

    def _without_prompts(self, n_answers: int) -> float:
        """Return a step's seconds without prompts, from a line through the fewest and the most answers."""
        fewest, most = min(self._steps), max(self._steps)
        slope = (self._steps[most] - self._steps[fewest]) / max(1, most - fewest)
        return self._steps[fewest] + max(0.0, slope) * (n_answers - fewest)


def _averaged(average: float | None, value: float) -> float:
    return value if average is None else average + _WEIGHT * (value - average)
