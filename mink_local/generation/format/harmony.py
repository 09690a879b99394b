"""The format of gpt-oss, in which every message of an answer names its channel, and a call its function.

Its headers vary, so they are brought into one form: `HARMONY`'s, or `CALL` before a call.
"""

import re

from mink_local.generation.format.text import Marks, ReasoningSplitter, ReasoningState, started_length

_END = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
CALL = "<|channel|>commentary to=functions."
HARMONY = Marks(
    f"<|channel|>analysis{_END}",
    _ENDS[0],
    frame=("<|start|>assistant", f"<|channel|>final{_END}", *_ENDS),
    after_end="<|start|>assistant",
    text=f"<|channel|>final{_END}",
    ignored=f"<|channel|>ignored{_END}",
    is_repeated=True,
)
_START, _FIRST = re.compile(r"<\|start\|>assistant|<\|channel\|>"), re.compile(r"\A to=|<\|channel\|>")
_STARTS = ("<|start|>assistant", "<|channel|>")


def _header(text: str) -> str:
    """Return a header in the form of `HARMONY`, or before a call."""
    names = [name for name in re.findall(r" to=([\w.-]+)", text) if name != "assistant"]
    if names and names[-1].startswith("functions."):
        return f"{CALL}{names[-1].removeprefix('functions.')}{_END}"
    if names:  # a tool that the model has not got
        return HARMONY.ignored
    channels = re.findall(r"<\|channel\|>(\w+)", text)
    return HARMONY.start if channels[-1:] == ["analysis"] else HARMONY.text


class Harmony(ReasoningSplitter):
    """Splits a text of gpt-oss into reasoning and content, in which calls follow `CALL`."""

    def __init__(self, state: ReasoningState = "start", *, is_expected: bool = True) -> None:
        super().__init__(state, HARMONY, is_expected=is_expected)
        self._begun = ""  # of a header
        self._header = _FIRST if state == "start" else _START

    @property
    def n_held(self) -> int:
        return len(self.held) + len(self._begun)

    def feed(self, text: str, *, is_final: bool = False) -> tuple[str, str]:
        return super().feed(self._with_plain_headers(text, is_final), is_final=is_final)

    def _with_plain_headers(self, text: str, is_final: bool) -> str:
        """Return the text with plain headers, but for one at its end that has only begun."""
        text, done = self._begun + text, ""
        while (start := self._header.search(text)) and (end := text.find(_END, start.start())) >= 0:
            done += text[: start.start()] + _header(text[start.start() : end])
            text = text[end + len(_END) :]
            self._header = _START
        starts = (" to=", *_STARTS) if self._header is _FIRST else _STARTS
        n_begun = len(text) - start.start() if start else started_length(text, starts)
        at = len(text) - (0 if is_final else n_begun)
        self._header = _START if at else self._header
        self._begun = text[at:]
        return done + text[:at]


def splitter_of(
    marks: Marks, state: ReasoningState = "start", *, is_expected: bool = True
) -> ReasoningSplitter:
    """Return what splits an answer with such marks."""
    if marks is HARMONY:
        return Harmony(state, is_expected=is_expected)
    return ReasoningSplitter(state, marks, is_expected=is_expected)
