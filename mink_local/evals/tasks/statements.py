"""Finds where a response states its answer, and turns LaTeX and Markdown into plain text.

Flexible scoring reads the last statement of an answer in one of a few common forms (`_FORMS`), up to the end
of its sentence. If none is readable, it tries the last `\\boxed{}`, a last line in bold, a response that is
only an answer, and a last sentence that begins with "so" or states a total. Rarer forms do not count, and
neither do questions, hedges and anything the response retracts. The last number of a rambling text never
counts: at a high temperature that would reward luck, and strict and flexible scoring would differ for no
visible reason.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_READ = 20_000  # characters read of a response, from the end
_LONGEST = 1000  # maximum characters of a statement; keeps hostile text cheap
_MOST = 20  # statements read, from the end
_SHORT = 20  # maximum characters of a response that is only an answer

_OPTION = r"(?:option|choice|alternative|letter)"
_NAME = rf"(?:(?:correct|right|best|closest|only|chosen|answer) {_OPTION}|(?:final )?(?:answer|result))"
_NO_LIST = r"(?!\W*1[.)]\s)"  # a solution in steps
_FORMS = (  # what comes before an answer
    # the answer to it is, the correct option must be
    rf"\b{_NAME}\b(?:(?!not\b|never|n['’]t)[^.\n:=?]){{0,40}}?\b(?:is|was|be|equals|corresponds to)(?![a-z])",
    # Answer: 18   **Answer**: 18   answer = 18   <answer>18
    rf"\b(?:{_NAME}|ans\b\.?)[\s*_\"']{{0,9}}(?:[:：→>]|=>?|[-–](?=\s)){_NO_LIST}",
    # ### Final Answer ⏎ 18
    rf"\banswer[ \t*_]{{0,9}}\n{_NO_LIST}",
    # 答案是18
    r"(?:答案|选项)(?:应该)?[是为：:]",
    # #### 18, GSM8K's own form, and not the heading #### 1. Add them up
    r"####(?!\s*\d+[.)]\s)(?=\W{0,9}\d)",
    # I choose (B), which is option B
    rf"\b(?:choose|select|solution:|corresponds to|matches|which is)(?=\s+(?:{_OPTION}\s)?\(?(?-i:[A-J])\b)",
    # Answer B, at the end
    r"(?:选择?|\banswer(?:\schoice)?\s|(?:\A|\n)option\s)(?=\(?(?-i:[A-J])\W*\Z)",
)
_FORM = re.compile("|".join(_FORMS), re.IGNORECASE)
_BEFORE = re.compile(  # an answer, and what comes after it: 18 is the answer, option B is correct
    r"(\S{1,40}) (?:is|as) the (?:(?:final|correct|right) )?(?:answer|option|choice)\b"
    rf"|({_OPTION} \S{{1,9}}|\([A-J]\)) is (?:correct|right)\b",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]++|\{(?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+\})*+)\}")
_BOLD = re.compile(r"(?:^|\n) *\*\*(\S[^*\n]{0,40})\*\*$")
_CONCLUSION = re.compile(  # a last sentence that begins with "so", or states a total
    r"(?:.*[.!?。\n])?\W*(?:(?:so|therefore|thus|hence|in (?:total|conclusion))\b|因此|所以"
    r"|(?:the|his|her|their) (?:grand )?total (?:\w+ ){0,9}?(?:is|was|equals|comes to)\b)"
    r"([^\n]+[.!。)*$\]])$",
    re.IGNORECASE | re.DOTALL,
)
_WITHDRAWN = re.compile(  # No, wait, that is wrong
    r"(?:^|[.!?\n])\W*(?:(?:no|wait|oops|hmm+|actually|sorry|but)\b\W+)*(?:that|this|it|(?:this|my) answer)"
    r"(?:['’]s| is| was) (?:wrong|incorrect|not (?:right|correct))\b",
    re.IGNORECASE,
)
_NO_STATEMENT = re.compile(
    r"\((?:answer|X)\)"  # the echo of the prompt's "(answer)"
    r"|\b(?:to (?:find|get|check)|(?:check|verify)) \w+ answer\b"
    r"|\bnot [^.\n]{1,40}? (?:but|it is)\b"  # not 17 but 18
    r"|\\boxed\{[^{}]*\}[\s$]*or[\s$]*\\boxed\{[^{}]*\}",
    re.IGNORECASE,
)
_DISPLAY = re.compile(r"\\\[(.+?)\\\]|\$\$(.+?)\$\$", re.DOTALL)
_OPENING = " \t\n…:：*_`\"“'‘="  # before an answer
_END = re.compile(r"\n|(?<!\\)(?<!\bRs)(?:[.?]|!(?!\s*[\\*/+=×·÷]))(?=\W*(?:\s|$))|[。！？]")

_PLAIN = (  # pattern, what it means
    (r"<<[^<>]*>>", ""),  # GSM8K's calculations
    (r"\{,\}", ","),
    (r"\\!", ""),
    ("−", "-"),
    ("½", " 1/2"),
    ("¼", " 1/4"),
    ("¾", " 3/4"),
    (r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))", r" \1\2/\3\4"),
    (r"\\times\b", "×"),
    (r"\\cdot\b", "·"),
    (r"\\div\b", "÷"),
    (r"\\approx\b", "≈"),
    (r"\\pm\b", "±"),
    (r"\\[,;:!> ]|~|[\u00a0\u2000-\u200b\u202f]", " "),  # spaces of LaTeX and of Unicode
    # styling commands; others, such as \sqrt, have a meaning and are kept
    (r"\\[()\[\]]|\\(?:text\w*|math\w+|mbox|boxed|operatorname|left|right|displaystyle|q?quad)\b", ""),
    (r"(?<![\d*])(?<!\d\s)(?!(?<= )\* )\*+|(?<!\*)\*+(?!\s?[\d(*])", ""),  # bold; not the * of 3 * 6
    (r"\bUS(?=\$)|\b(?:Rs\.?|USD|EUR)\s*(?=\d)|\$|[€£¥₹]", ""),
    (r"\\(?=[%&#_{}])|[{}`]|</?\w+>|(?<!\w)_+|_+(?!\w)", ""),
)


@dataclass(frozen=True)
class Statement:
    """Text that states the answer, or begins with it.

    `terse` text counts only if it is nothing but the answer, as it may be the beginning of a solution.
    """

    text: str
    terse: bool = False


def statements(response: str) -> Iterator[Statement]:
    """Yield statements of the answer, the most reliable first."""
    response = _DISPLAY.sub(_on_one_line, response[-_READ:].replace("...", "…"))
    withdrawn = deque(_WITHDRAWN.finditer(response), maxlen=1)
    response = _NO_STATEMENT.sub("", response[withdrawn[0].end() :] if withdrawn else response)
    for form in reversed(deque(_FORM.finditer(response), maxlen=_MOST)):
        yield _statement(response, form)
    for box in deque(_BOXED.findall(response), maxlen=1):
        yield Statement(box)
    for before in reversed(_BEFORE.findall(response)):
        yield Statement("".join(before))
    if bold := _BOLD.search(response):
        yield Statement(bold[1])
    if len(response) <= _SHORT and "\n" not in response:
        yield Statement(response, terse=True)
    if conclusion := _CONCLUSION.match(response[-_LONGEST:]):
        yield Statement(conclusion[1])


def _on_one_line(display: re.Match[str]) -> str:
    return f" ${(display[1] or display[2]).replace(chr(10), ' ')}$ "


def _statement(response: str, form: re.Match[str]) -> Statement:
    """Return the sentence after a form, or the first box in it.

    After "Answer:" or a heading, it is terse if numbers follow: it may be the first sentence of a solution.
    """
    rest = response[form.end() : form.end() + _LONGEST]
    start = rest.lstrip(_OPENING)
    end = _END.search(start)
    sentence = start[: end.start()] if end else start
    box = _BOXED.search(start)
    if box and box.start() < len(sentence):
        return Statement(box[1])
    if end and end[0] in "?？":
        return Statement("")
    is_heading = form[0].endswith((":", "：", "\n")) or "\n" in rest[: -len(start)]
    return Statement(sentence, terse=is_heading and bool(re.search(r"\d", start[len(sentence) :])))


def plain(text: str) -> str:
    """Return LaTeX and Markdown as plain text: `**\\$1{,}200**` is 1,200, and `\\dfrac{1}{2}` is 1/2.

    Currency signs and styling commands are dropped.
    """
    for written, meant in _PLAIN:
        text = re.sub(written, meant, text)
    return text.strip()
