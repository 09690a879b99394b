"""Find where a response states its answer, and turn LaTeX and Markdown into plain text.

For flexible scoring a statement is the words after "the answer is", "final answer:", "Answer =" and the like
up to the end of the sentence, whatever the case and the markup. The last statement from which an answer can
be taken counts. If there is none, these are tried: the word before "is the answer", the last `\\boxed{}`,
and a response of only a few characters on one line. The last number of a rambling text never counts: at a
high temperature that would reward luck, and strict and flexible would differ for no visible reason.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_PHRASE = re.compile(
    r"\banswers?\b"
    r"(?:[^.\n:=]{0,40}?\b(?:is|was|equals|(?:w(?:ould|ill)|should|must) be)\b"  # … to the question is
    r"|[\s*_]{0,9}[:=]"  # Answer: …   **Answer**: …
    r"|[ \t*_:]{0,9}\n)",  # ### Final Answer …
    re.IGNORECASE,
)
_BEFORE = re.compile(r"(\S{1,40})\s+is\s+the\s+(?:(?:final|correct|right|best)\s+)?answer\b", re.IGNORECASE)
_OPENING = re.compile(r"[\s:*_`\"“'‘=]*")  # markup before the answer itself
_DISPLAY = re.compile(r"\\\[(.+?)\\\]|\$\$(.+?)\$\$", re.DOTALL)
_END = re.compile(r"\n|(?<!\\)[.!?](?=\W*(?:\s|$))")
_LONGEST = 1000  # characters of a statement; keeps hostile text cheap
_MOST = 20  # statements that are looked at, from the end
_SHORT = 20  # characters of a response that is nothing but its answer
_BRACE = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\.|[{}]", re.DOTALL)

_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))")
_SIGNS = {"times": "×", "cdot": "·", "div": "÷", "approx": "≈", "pm": "±", "percent": "%"}
_SIGN = re.compile(r"\\(" + "|".join(_SIGNS) + r")\b")
_SPACE = re.compile(r"\\[,;:!> ]|~|[\u00a0\u2000-\u200b\u202f]")
_DRESS = re.compile(  # what is not in here, such as \sqrt, has a meaning and is kept
    r"\\[()\[\]]|\\(?:text\w*|math\w+|mbox|[fh]?boxed?|operatorname|left|right|[bB]igg?[lr]?|displaystyle|q?quad)\b"
)
_STARS = re.compile(r"(?<![\d*])(?<!\d\s)\*+|(?<!\*)\*+(?!\s?[\d(*])")  # not the * of 3 * 6
_MARKUP = re.compile(r"\\(?=[%$&#_{}])|[{}$€£¥`]|(?<!\w)_+|_+(?!\w)")


@dataclass(frozen=True)
class Statement:
    """Text that states the answer. `terse`: it begins with the answer, there is no sentence around it."""

    text: str
    terse: bool = False


def statements(response: str) -> Iterator[Statement]:
    """Yield the statements of the answer, the weightiest first."""
    for phrase in reversed(deque(_PHRASE.finditer(response), maxlen=_MOST)):
        yield _statement(response[phrase.end() : phrase.end() + _LONGEST], phrase[0].endswith("\n"))
    before, boxes = _BEFORE.findall(response), boxed(response)
    if before:
        yield Statement(before[-1], terse=True)
    if boxes:
        yield Statement(boxes[-1][1], terse=True)
    if len(response) <= _SHORT and "\n" not in response:
        yield Statement(response, terse=True)


def _statement(rest: str, new_line: bool) -> Statement:
    """Return what `rest` begins with: a formula on lines of its own, a sentence, or the first box in it."""
    opening = _OPENING.match(rest)
    start = opening.end() if opening else 0
    display = _DISPLAY.match(rest, start)
    end = _END.search(rest, start)
    stop = display.end() if display else end.start() if end else len(rest)
    for place, content in boxed(rest):
        if start <= place < stop:
            return Statement(content, terse=True)
    if display:
        return Statement(display[1] or display[2], terse=True)
    return Statement(rest[start:stop].strip(), terse=new_line or "\n" in rest[:start])


def boxed(text: str) -> list[tuple[int, str]]:
    """Return start and content of every `\\boxed{}` that is closed, in order."""
    open_braces: list[tuple[int, int, bool]] = []  # place, beginning of the content, whether a box
    boxes = []
    for token in _BRACE.finditer(text):
        if token[0].endswith("{") and not token[0].startswith("\\{"):
            open_braces.append((token.start(), token.end(), len(token[0]) > 1))
        elif token[0] == "}" and open_braces:
            place, start, is_box = open_braces.pop()
            if is_box:
                boxes.append((place, text[start : token.start()].strip()))
    return sorted(boxes)


def plain(text: str) -> str:
    """Return LaTeX and Markdown as plain text: `**\\$1{,}200**` is 1,200 and `\\dfrac{1}{2}` is 1/2.

    Currency signs and commands that change only the looks are dropped.
    """
    text = text.replace("{,}", ",").replace("−", "-").replace("\\!", "")
    text = _FRACTION.sub(_fraction, text)
    text = _SIGN.sub(lambda sign: _SIGNS[sign[1]], text)
    text = _DRESS.sub("", _SPACE.sub(" ", text))
    return _MARKUP.sub("", _STARS.sub("", text)).strip()


def _fraction(match: re.Match[str]) -> str:
    return f" {match[1] or match[2]}/{match[3] or match[4]}"
