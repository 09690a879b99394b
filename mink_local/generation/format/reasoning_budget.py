"""Where reasoning ends: by a limit, after which the closing tag is forced, or before a constrained answer."""

import re
from collections.abc import Mapping

from mink_local.generation.format.text import Marks, ReasoningSplitter, literal, up_to
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


def before_constrained(
    constraints: Constraints,
    reasoning: ReasoningSplitter,
    texts: Mapping[int, bytes],
    enable_thinking: bool | None,
    budget: int | None = None,
) -> str:
    """Return a grammar for the reasoning that may come before a constrained answer; see `Guide`.

    It is empty if there is none, or if the answer's own grammar ends it.

    Args:
        reasoning: Has read the prompt.
        texts: Texts of the marks' tokens that have none.
        enable_thinking: Whether the model was told to reason; None if it was told nothing.
        budget: Maximum length of the reasoning in tokens.
    """
    state, marks = reasoning.state, reasoning.marks
    end = marks.closing.strip()
    may_begin = reasoning.is_expected and enable_thinking is not False and budget != 0
    if state == "text" or end in (constraints.grammar or "") or (state == "start" and not may_begin):
        return ""
    ids = {text.decode(): token for token, text in texts.items()}
    before = "rest SPACE"
    if state == "start":
        begun = f"{literal(marks.start.strip(), ids)} rest SPACE"
        before = f"({begun} | {literal(marks.text, ids)})" if marks.text else f"({begun})?"
    return f"start: {before} @answer\n{up_to(end, 'rest', ids)}SPACE: /[ \\n]{{0,2}}/\n"


def closing(weights: Weights, marks: Marks, message: str) -> list[int]:
    """Return the tokens that end reasoning: those of a message, if there is one, and of the closing tag."""
    end = f"{message}{marks.closing}" if message else marks.closing.lstrip()
    return weights.tokenize(end, add_special=False, parse_special=True)


class ReasoningBudget:
    """Tells when an answer's reasoning has to end.

    When `budget` tokens of it are used up, it ends at the end of the current sentence, or after `GRACE` more
    tokens at the latest; with a budget of 0 at once.

    Args:
        budget: At least 0; None or -1 for no limit.
    """

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        self._n_tokens = 0
        self._tail = ""

    def add(self, text: str) -> None:
        """Count a token of the reasoning, given its text: from the first one after the opening tag."""
        self._n_tokens += 1
        self._tail = (self._tail + text)[-_TAIL:]

    @property
    def is_used_up(self) -> bool:
        """Whether the reasoning has to end here."""
        if self._budget is None or not 0 <= self._budget <= self._n_tokens:
            return False
        is_sentence = _SENTENCE_END.search(self._tail) is not None
        return self._budget == 0 or self._n_tokens - self._budget >= GRACE or is_sentence
