"""A limit on reasoning: when its tokens are used up, its closing mark is forced."""

import re
from collections import deque
from collections.abc import Sequence

from mink_local.generation.text import THINK_END, ReasoningSplitter, ReasoningState
from mink_local.llama.weights import Weights

GRACE = 32  # tokens in which the present sentence may end
# Qwen3 was trained to go on from this sentence (arXiv:2505.09388, section 4.3); others understand it.
CLOSING = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking "
    f"directly now.\n{THINK_END}\n\n"
)
_SENTENCE_END = re.compile(r"""((?<!\d)[.!?…]["'”’)\]*]*\s*|[。！？]|\n\s*)$""")  # not the dot of 3.14
_TAIL = 8  # characters in which the end of a sentence is looked for


class ReasoningBudget:
    """Decides which tokens of an answer are forced so that its reasoning ends.

    Tokens count from the first one after the opening mark. When `budget` tokens are used up, `CLOSING` is
    forced as soon as a sentence has ended, at the latest after `GRACE` more; a budget of 0 forces the mark
    alone, at once.

    Args:
        budget: At least 0.
        state: Where the answer begins.
        weights: Tell the text of tokens.
        prefix: Token ids that the answer begins with; its reasoning may be among them.

    Attributes:
        is_used_up: Whether the closing has been forced.
    """

    def __init__(
        self, budget: int, state: ReasoningState, weights: Weights, prefix: Sequence[int] = ()
    ) -> None:
        self.is_used_up = False
        self._budget = budget
        self._weights = weights
        self._splitter = ReasoningSplitter(state)
        self._n_tokens = 0
        self._tail = ""
        self._forced: deque[int] = deque()
        self._check()
        for token in prefix:
            self.add(token)

    @property
    def forced(self) -> int | None:
        """The next token if it is forced; `add` takes it as any other."""
        return self._forced[0] if self._forced else None

    def add(self, token: int) -> None:
        """Count a token of the answer."""
        if self.forced == token:
            self._forced.popleft()
        text = self._weights.piece(token).decode(errors="replace")
        self._n_tokens += self._splitter.in_reasoning
        self._tail = (self._tail + text)[-_TAIL:]
        for _ in self._splitter.feed(text):
            pass
        self._check()

    def _check(self) -> None:
        """Force the closing if it is time."""
        over = self._n_tokens - self._budget
        if not self._splitter.in_reasoning or self.is_used_up or over < 0:
            return
        if self._budget == 0 or over >= GRACE or _SENTENCE_END.search(self._tail):
            self.is_used_up = True
            closing = CLOSING if self._budget else f"{THINK_END}\n\n"
            self._forced.extend(self._weights.tokenize(closing, add_special=False, parse_special=True))
