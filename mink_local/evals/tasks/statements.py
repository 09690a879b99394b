"""Find where a response states its answer, and turn LaTeX and Markdown into plain text.

For flexible scoring a statement is the words after "the answer is", "final answer:", "the correct option is",
"答案是", "####" and the like up to the end of the sentence, whatever the case and the markup. The last
statement from which an answer can be taken counts. If there is none, these are tried: the last `\\boxed{}`,
the words before "is the answer", a last line in bold, a response of a few characters, and a complete last
sentence that begins with "so" or "therefore". A question states nothing, nor does text before "that is
wrong". The last number of a rambling text never counts: at a high temperature that would reward luck, and
strict and flexible would differ for no visible reason.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


def _any(*patterns: str) -> str:
    return f"(?:{'|'.join(patterns)})"


_OPTION = r"(?:option|choice|alternative|letter)"
_LETTER = r"(?-i:[A-J])"  # a capital, also where case is ignored
_NAME = _any(  # what an answer is called
    "answer",
    r"ans\b\.?",
    r"result(?=\W{0,4}[:=])",
    "final (?:result|value|total)",
    f"(?:correct|right|best|closest|only|final|chosen) {_OPTION}",
    f"answer {_OPTION}",
)
_LINK = _any(  # between its name and the answer
    r"[ ,]+(?:of[ ]+)?(?=[*$\\(]{0,4}\d)",  # of 18
    r"[^.\n:=?]{0,40}?\b(?:is|was|equals|(?:w(?:ould|ill)|should|must) be|corresponds to)(?![a-z])",  # is
    r"[\s*_\"'>]{0,9}(?:[:：]|=>?|→|[-–—](?=\s)|(?<=>))",  # Answer: …   **Answer**: …
    r"[ \t*_:]{0,9}\n",  # ### Final Answer ⏎
)
_PHRASE = re.compile(
    r"(?P<aim>(?:to (?:find|get)|check|verify)[ ]\w+[ ])?"  # to find the answer: …
    + _any(
        rf"\b{_NAME}(?!\w){_LINK}",
        "(?:答案|选项|最终结果)(?:应该|就)?[是为：:]",
        # I choose (B)
        rf"(?:\b(?:choose|select|pick|solution)|选择?)\s*[：:]?(?=[\s*]*(?:{_OPTION}\s)?[(*]*{_LETTER}\b)",
        # which matches option B
        rf"\b(?:(?:corresponds|equal) to|matches|which is)(?=[\s*]+(?:{_OPTION}\s+\(?|\()[A-J]\b)",
        # a last line: Option B
        rf"(?:\banswer(?:\schoice)?\s|(?:\A|\n)\s*(?:option\s)?)(?=\(?{_LETTER}\W*\Z)",
        # #### 18, and not the heading #### 1. Add them up
        r"####(?!\s*\d+[.)]\s)(?=\W{0,9}\d)",
    ),
    re.IGNORECASE,
)
_BEFORE = re.compile(
    # 18 is the answer, 1 1/2 cups is the answer
    r"((?:[^\s.:?]{0,20}\d[^\s:]{0,20}[ ]+)?\S{1,40})\s+(?:is|as)\s+the\s+"
    rf"(?:(?:final|correct|right|best)\s+)?(?:answer|{_OPTION})\b|"
    # option B is correct
    rf"(\b{_OPTION}\s+\S{{1,9}}|\([A-J]\))\s+is\s+(?:correct|right)\b|"
    r"选项\s*([A-J])\s*是?正确",
    re.IGNORECASE,
)
_WITHDRAWN = re.compile(
    r"(?:^|[.!?\n])\s*(?:(?:no|wait|oops|hmm+|actually|sorry|but)\b\W+)*(?:that|this|it|(?:this|my) answer)"
    r"(?:['’]s|\s+is|\s+was)\s+(?:wrong|incorrect|not\s+(?:right|correct))\b",
    re.IGNORECASE,
)
_SO = r"(?:(?:so|therefore|thus|\bhence|in (?:total|conclusion))\b|因此|所以)"
_CONCLUSION = re.compile(  # a last sentence that begins with "so"
    rf"(?:.*[.!?。\n])?\W*(?:{_SO}[\s,，]*)+" r"([^\n]+[.!。)*$\]])$",
    re.IGNORECASE | re.DOTALL,
)
_BOLD = re.compile(r"(?:^|\n)[ ]*\*\*(\S[^*\n]{0,40})\*\*$")
_OPENING = re.compile(  # markup, the echo of "(answer)" and "not 17 but" before the answer itself
    r"(?:\.{3}|[\s…:：*_`\"“'‘=]|\((?:answer|X)\)|not\s[^.\n]{1,40}?\s(?:but|it(?:['’]s| is))\s)*"
)
_SENTENCE = re.compile(r"[A-Za-z]{2,}\s+(?:[a-z]+\s|\d+:)")  # We have …, Step 1: …
_EITHER = re.compile(r"\}[\s$,\\()*]*\bor\b[\s$,\\()*]*\\boxed\s*\{")
_LIST = re.compile(r"1[.)]\s+\S")
_ANSWERS = (  # words that may begin a sentence with the answer in it
    "that|the|an?|s?he|it|they|we|you|there|his|her|their|each|all|about|around|just|only|equal|negative|minus"
    rf"|now|still|also|then|thus|therefore|indeed|so|{_OPTION}|\w+ly"
)
_ABOUT = re.compile(  # "correct because …": in lower case, and neither such a word, nor "x =", nor "sum (3"
    rf"(?!(?:{_ANSWERS})\b|\w+\s*[=≈]|[a-z -]+\(\d)" r"(?:[a-z]{2,},?\s+\w|(?:in)?correct\b)"
)
_DISPLAY = re.compile(r"\\\[(.+?)\\\]|\$\$(.+?)\$\$", re.DOTALL)
_END = re.compile(r"\n|(?<!\\)(?<!\bRs)(?:[.?]|!(?!\s*[\\*/+=×·÷]))(?=\W*(?:\s|$))|[。！？]")
_READ = 20_000  # characters of a response, from the end
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
_STARS = re.compile(r"(?<![\d*])(?<!\d\s)(?!(?<= )\* )\*+|(?<!\*)\*+(?!\s?[\d(*])")  # not the * of 3 * 6
_MARKUP = re.compile(
    r"\\(?=[%$&#_{}])|\bUS(?=\$)|\b(?:Rs\.?|USD|EUR)\s*(?=\d)|[{}$€£¥₹`]|</?\w+>|(?<!\w)_+|_+(?!\w)"
)


@dataclass(frozen=True)
class Statement:
    """Text that states the answer.

    Attributes:
        text: It begins with the answer, or is a sentence with the answer in it.
        terse: It can only begin with the answer.
        unfinished: It may be the beginning of a solution: the answer is all of it, or it states none.
        about: It describes the answer ("correct because …"), and may not state one.
    """

    text: str
    terse: bool = False
    unfinished: bool = False
    about: bool = False


def statements(response: str) -> Iterator[Statement]:
    """Yield the statements of the answer, the weightiest first."""
    response = response[-_READ:]
    withdrawn = deque(_WITHDRAWN.finditer(response), maxlen=1)
    response = response[withdrawn[0].end() :] if withdrawn else response
    response = _EITHER.sub(" or ", response)
    for phrase in reversed(deque(_PHRASE.finditer(response), maxlen=_MOST)):
        if not phrase["aim"]:
            yield _statement(response[phrase.end() :], phrase[0].endswith(("\n", ":", "：")))
    if boxes := boxed(response):
        yield Statement(boxes[-1][1], terse=True)
    for before in reversed(_BEFORE.findall(response)):
        yield Statement("".join(before), terse=True)
    if bold := _BOLD.search(response):
        yield Statement(bold[1], terse=True)
    if len(response) <= _SHORT and "\n" not in response:
        yield Statement(response, terse=True, about=bool(_SENTENCE.match(response)))
    if conclusion := _CONCLUSION.match(response[-_LONGEST:]):
        yield _statement(conclusion[1])


def _statement(rest: str, separated: bool = False) -> Statement:
    """Return what `rest` begins with: a formula on lines of its own, a sentence, or the first box in it.

    Text after "Answer:" (`separated`) may be the beginning of a solution if numbers come after it.
    """
    further, rest = rest, rest[:_LONGEST]
    opening = _OPENING.match(rest)
    start = opening.end() if opening else 0
    display = _DISPLAY.match(rest, start)
    end = _END.search(rest, start)
    stop = display.end() if display else end.start() if end else len(rest)
    separated = separated or "\n" in rest[:start]
    for place, content in boxed(rest):
        if start <= place < stop:
            return Statement(content, terse=True)
    if display:
        return Statement(display[1] or display[2], terse=True)
    is_list = _LIST.match(rest, start) and (separated or "2." in rest)
    if is_list or (end and end[0] in "?？"):
        return Statement("")
    text = rest[start:stop].strip()
    unfinished = separated and bool(re.search(r"\d", further[stop:]))
    return Statement(text, unfinished=unfinished, about=bool(_ABOUT.match(text)))


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
    text = re.sub("[½¼¾⅓⅔]", lambda sign: " " + unicodedata.normalize("NFKC", sign[0]), text).replace(
        "⁄", "/"
    )
    text = _FRACTION.sub(_fraction, text)
    text = _SIGN.sub(lambda sign: _SIGNS[sign[1]], text)
    text = _DRESS.sub("", _SPACE.sub(" ", text))
    return _MARKUP.sub("", _STARS.sub("", text)).strip()


def _fraction(match: re.Match[str]) -> str:
    return f" {match[1] or match[2]}/{match[3] or match[4]}"
