"""How much of waiting prompts a step evaluates while answers are being generated."""

_SLOWDOWN = 4.0  # of a step by prompts: its time divided by that of a step without them
_UNNOTICED = 0.25  # seconds that a step may take whatever the slowdown
_FIRST = 64  # tokens, before both times are known
_LEAST = 16  # tokens: fewer would cost nearly the same, and a prompt must get on
_EVERY = 8  # steps: one of so many evaluates no prompt, to learn what a step takes now
_WEIGHT = 0.5  # of a new time in the moving averages


class PromptBudget:
    """The number of prompt tokens for a step, so that running answers do not stutter.

    A prompt that is evaluated whole delays the next token of every answer by as long. In parts, as in chunked
    prefill (Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", 2024),
    it delays each token a little. Parts that are too small cost throughput: the first answers end before the
    others begin, few are generated together, and those that wait never catch up. So what a step may take is
    relative to one in which all slots in use generate, though at first few do. The times depend on the model
    and the machine, and are learned from the steps.
    """

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}  # seconds of a step without prompts, by its number of answers
        self._token: float | None = None  # seconds that a prompt's token adds
        self._n_steps = 0  # since one without prompts

    def tokens(self, n_slots: int) -> int:
        """Return the budget of the next step, for the number of slots in use."""
        if not self._steps or self._n_steps >= _EVERY - 1:
            return 0
        if not self._token:
            return _FIRST
        step = self._without_prompts(n_slots)
        return max(_LEAST, int((max(_SLOWDOWN * step, _UNNOTICED) - step) / self._token))

    def note(self, seconds: float, n_answers: int, n_prompt: int) -> None:
        """Learn from a step.

        Args:
            seconds: How long it took.
            n_answers: Number of answers that got a token, at least 1.
            n_prompt: Number of prompt tokens that it evaluated.
        """
        if n_prompt == 0:
            self._steps[n_answers] = _averaged(self._steps.get(n_answers), seconds)
            self._n_steps = 0
        elif self._steps:
            added = max(0.0, seconds - self._without_prompts(n_answers))
            self._token = _averaged(self._token, added / n_prompt)
            self._n_steps += 1

    def _without_prompts(self, n_answers: int) -> float:
        """Return the seconds of a step without prompts, by a line through the fewest and the most answers."""
        fewest, most = min(self._steps), max(self._steps)
        slope = (self._steps[most] - self._steps[fewest]) / max(1, most - fewest)
        return self._steps[fewest] + max(0.0, slope) * (n_answers - fewest)


def _averaged(average: float | None, value: float) -> float:
    return value if average is None else average + _WEIGHT * (value - average)
