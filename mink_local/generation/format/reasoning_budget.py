"""Where reasoning ends: by a limit, after which the closing tag is forced, or before a constrained answer."""

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence

from mink_local.generation.format.harmony import splitter_of
from mink_local.generation.format.text import (
    THINK_MARKS,
    Marks,
    ReasoningSplitter,
    ReasoningState,
    literal,
)
from mink_local.llama.constraints import Constraints
from mink_local.llama.weights import Weights

GRACE = 32  # extra tokens in which the current sentence may end
# Qwen3 was trained to continue from this sentence (arXiv:2505.09388, section 4.3); others understand it.
CLOSING = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking "
    "directly now."
)
LOOP_CLOSING = "\n\nI am repeating myself, so I have to give the solution based on the thinking directly now."
_SENTENCE_END = re.compile(r"""((?<!\d)[.!?…]["'”’)\]*]*\s*|[。！？]|\n\s*)$""")  # not the dot of 3.14
_TAIL = 8  # characters searched for the end of a sentence


def before_answer(
    constraints: Constraints,
    state: ReasoningState,
    marks: Marks = THINK_MARKS,
    ids: Mapping[str, int] | None = None,
) -> str:
    """Return a grammar for the reasoning that may come before a constrained answer; see `Guide`.

    It is empty if there is none, or if the answer's own grammar ends it.

    Args:
        ids: Ids of the marks' tokens that have no text.
    """
    end, ids = marks.closing.strip(), ids or {}
    if state == "text" or end in (constraints.grammar or ""):
        return ""
    is_plain = not any(token in end for token in ids)
    rest = f"[suffix={json.dumps(end)}]: /(?s:.*)/" if is_plain else f": /(?s:.*)/ {literal(end, ids)}"
    before = "rest SPACE"
    if state == "start":
        begun = f"{literal(marks.start.strip(), ids)} rest SPACE"
        before = f"({begun} | {literal(marks.text, ids)})" if marks.text else f"({begun})?"
    return f"start: {before} @answer\nrest{rest}\nSPACE: /[ \\n]{{0,2}}/\n"


def before_constrained(
    constraints: Constraints,
    state: ReasoningState,
    reasoning: ReasoningSplitter,
    texts: Mapping[int, bytes],
    enable_thinking: bool | None,
    budget: int | None = None,
) -> str:
    """Return `before_answer` of an answer that is about to begin.

    Args:
        state: Where the answer begins.
        reasoning: Has read the prompt.
        texts: Texts of the marks' tokens that have none.
        enable_thinking: Whether the model was told to reason; None if it was told nothing.
        budget: Maximum length of the reasoning in tokens.
    """
    may_reason = reasoning.is_expected and enable_thinking is not False
    if state == "start" and (budget == 0 or not may_reason):
        return ""
    ids = {text.decode(): token for token, text in texts.items()}
    return before_answer(constraints, state, reasoning.marks, ids)


def closing(weights: Weights, marks: Marks, message: str) -> list[int]:
    """Return the tokens that end reasoning: those of a message, if there is one, and of the closing tag."""
    end = f"{message}{marks.closing}" if message else marks.closing.lstrip()
    return weights.tokenize(end, add_special=False, parse_special=True)


class ReasoningBudget:
    """Decides which tokens of an answer are forced so that its reasoning ends.

    Tokens count from the first one after the opening tag. When `budget` tokens are used up, a message is
    forced at the end of the current sentence, or after `GRACE` more tokens at the latest; a budget of 0
    forces just the tag, at once.

    Args:
        budget: At least 0.
        state: Where the answer begins.
        weights: The model, for token texts.
        prefix: Token ids that the answer begins with, possibly including reasoning.
        marks: What stands around the reasoning.
        texts: Texts of tokens among the marks that have none.
        message: What is forced before the tag.

    Attributes:
        is_used_up: Whether the closing has been forced.
    """

    def __init__(
        self,
        budget: int,
        state: ReasoningState,
        weights: Weights,
        prefix: Sequence[int] = (),
        marks: Marks = THINK_MARKS,
        texts: Mapping[int, bytes] | None = None,
        message: str = CLOSING,
    ) -> None:
        self.is_used_up = False
        self._message = message if budget else ""
        self._budget = budget
        self._weights = weights
        self._marks, self._texts = marks, texts or {}
        self._splitter = splitter_of(marks, state)
        self._n_tokens = 0
        self._tail = ""
        self._forced: deque[int] = deque()
        self._check()
        for token in prefix:
            self.add(token)

    @property
    def forced(self) -> int | None:
        """The next token if it is forced; `add` takes it like any other."""
        return self._forced[0] if self._forced else None

    def add(self, token: int) -> None:
        """Count a token of the answer."""
        if self.forced == token:
            self._forced.popleft()
        elif self._forced:  # a prefix goes on in its own way
            self._forced.clear()
            self.is_used_up = False
        text = (self._texts.get(token) or self._weights.piece(token)).decode(errors="replace")
        self._n_tokens += self._splitter.in_reasoning
        self._tail = (self._tail + text)[-_TAIL:]
        self._splitter.feed(text)
        self._check()

    def _check(self) -> None:
        """Force the closing if it is time."""
        over = self._n_tokens - self._budget
        if not self._splitter.in_reasoning or self.is_used_up or over < 0:
            return
        if self._budget == 0 or over >= GRACE or _SENTENCE_END.search(self._tail):
            self.is_used_up = True
            self._forced.extend(closing(self._weights, self._splitter.marks, self._message))
