"""How many prompt tokens a step prefills."""

from collections import deque
from statistics import median

_SLOWDOWN = 4.0  # maximum duration of a step with prompts beside answers, relative to one without
_UNNOTICED = 0.25  # seconds that such a step may always take
_LONGEST = 1.0  # seconds that no step should exceed: somebody may come meanwhile
_FIRST = 64  # tokens, until the times are known
_LEAST = 16  # tokens: fewer would cost nearly the same, and prompts must make progress
_EVERY = 8  # one step in so many prefills nothing, to measure what a step takes now
_RECENT = 3  # times whose median counts: one step of a machine that is busy for a moment means nothing
_SURPRISE = 2.0  # times the expected duration, after which a step is measured again at once


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
        self._steps: dict[int, deque[float]] = {}  # seconds of steps without prompts, by number of answers
        self._tokens: deque[float] = deque(maxlen=_RECENT)  # seconds per prompt token
        self._n_steps = 0  # since the last step without prompts
        self._is_surprised = False  # by the last step
        # Seconds, answers and prompt tokens of steps that nothing was learned from yet
        self._noted: deque[tuple[float, int, int]] = deque(maxlen=_EVERY)

    def tokens(self, n_slots: int) -> int:
        """Return the next step's budget beside answers, given the number of slots in use."""
        self._learn()
        if not self._steps or self._n_steps >= _EVERY - 1 or self._is_surprised:
            return 0
        step, token = self._without_prompts(n_slots), self._per_token
        if not token:
            return _FIRST
        wanted = max(_LEAST, int((max(_SLOWDOWN * step, _UNNOTICED) - step) / token))
        return max(1, min(wanted, int((_LONGEST - step) / token)))

    @property
    def longest(self) -> int:
        """The next step's budget without answers."""
        return self._in(_LONGEST)

    @property
    def unnoticed(self) -> int:
        """How many tokens of a prompt are read in a moment."""
        return self._in(_UNNOTICED)

    def note(self, seconds: float, n_answers: int, n_prompt: int) -> None:
        """Learn from a step, at the latest when that is needed.

        Args:
            seconds: Duration of the step.
            n_answers: Number of answers that got a token.
            n_prompt: Number of prompt tokens evaluated.
        """
        self._noted.append((seconds, n_answers, n_prompt))
        if n_prompt:
            self._learn()

    def _learn(self) -> None:
        for seconds, n_answers, n_prompt in self._noted:
            if n_answers and (self._steps or n_prompt == 0):
                step = self._without_prompts(n_answers) if self._steps else seconds
                self._is_surprised = seconds > _SURPRISE * (step + n_prompt * self._per_token)
                self._n_steps = self._n_steps + 1 if n_prompt else 0
                if n_prompt:
                    seconds -= step
                else:
                    self._steps.setdefault(n_answers, deque(maxlen=_RECENT)).append(seconds)
            # Without answers, what every step costs is part of it: much, if a step reads only a few tokens.
            if n_prompt and (self._steps if n_answers else n_prompt >= _LEAST):
                self._tokens.append(max(0.0, seconds / n_prompt))
        self._noted.clear()

    def _in(self, seconds: float) -> int:
        self._learn()
        return max(_LEAST, int(seconds / self._per_token)) if self._per_token else _FIRST

    @property
    def _per_token(self) -> float:
        return median(self._tokens) if self._tokens else 0.0

    def _without_prompts(self, n_answers: int) -> float:
        """Return a step's seconds without prompts, from a line through the fewest and the most answers."""
        fewest, most = min(self._steps), max(self._steps)
        low, high = median(self._steps[fewest]), median(self._steps[most])
        slope = (high - low) / max(1, most - fewest)
        return low + max(0.0, slope) * (n_answers - fewest)
