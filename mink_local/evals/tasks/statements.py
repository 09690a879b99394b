"""Finds where a response states its answer, and turns LaTeX and Markdown into plain text.

Flexible scoring reads the last statement of an answer in one of a few common forms (`_FORMS`), up to the end
of its sentence. If none is readable, it tries the last `\\boxed{}`, a last line in bold, a response that is
only an answer, and a last sentence that begins with "so" or states a total. Rarer forms do not count, and
neither do questions, hedges, what others say, what the response retracts and what the answer would be in
another case. The last number of a rambling text never counts: at a high temperature that would reward luck,
and strict and flexible scoring would differ for no visible reason.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_READ = 20_000  # characters read of a response, from the end
_LONGEST = 1000  # maximum characters of a statement; keeps hostile text cheap
_MOST = 20  # statements read, from the end

_OPTION = r"(?:option|choice|alternative|letter)"
_NAME = rf"(?:(?:correct|right|best|closest|only|chosen|answer) {_OPTION}|(?:final )?(?:answer|result))"
_NO_LIST = r"(?!\W*1[.)]\s)"  # a solution in steps
_FORMS = (  # what comes before an answer
    # the answer to it is, the correct option must be
    rf"\b{_NAME}\b(?:(?!(?:not|might|may|could)\b|never|n['’]t)[^.\n:=?]){{0,40}}?"
    r"\b(?:is|was|be|equals|corresponds to)(?![a-z])",
    # Answer: 18   **Answer**: 18   answer = 18   <answer>18
    rf"\b(?:{_NAME}|ans\b\.?)[\s*_\"']{{0,9}}(?:[:：→>]|=>?|[-–](?=\s)){_NO_LIST}",
    # ### Final Answer ⏎ 18
    rf"\banswer[ \t*_]{{0,9}}\n{_NO_LIST}",
    # 答案是18
    r"(?:答案|选项)(?:应该|大约|大概)?[是为：:]",
    # #### 18, GSM8K's own form, and not the heading #### 1. Add them up
    r"####(?!\s*\d+[.)]\s)(?=\W{0,9}\d)",
    # I choose (B), which is option B
    rf"\b(?:choose|select|solution:|corresponds to|matches|which is)(?=\s+(?:{_OPTION}\s)?\(?(?-i:[A-J])\b)",
    # Answer B, at the end
    r"(?:选择?|\banswer(?:\schoice)?\s|(?:\A|\n)option\s)(?=\(?(?-i:[A-J])\W*\Z)",
)
_FORM = re.compile("|".join(_FORMS), re.IGNORECASE)
_BEFORE = re.compile(  # an answer, and what comes after it: 18 is the answer, option B is correct
    r"(?<!\S)((?:(?:\S{0,12}\d\S{0,12}|not|or|and|nor|at|least|most|than|over|under|minus"
    r"|negative|[-−–]) ){0,3}(?!(?:what|this|that|which|here|it)\b)\S{1,40})"
    r" (?:is|as) the (?:(?:final|correct|right) )?(?:answer|option|choice)\b"
    rf"|({_OPTION} \S{{1,9}}|\([A-J]\)) is (?:correct|right)\b",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]++|\{(?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+\})*+)\}")
BOUND = (  # words before a number that is not the answer: at least 18, up to 18, almost 18
    r"(?:(?:at|a|an|the) (?:very )?(?:least|most|minimum|maximum|min|max)(?: of)?|over|under|above|below"
    r"|beyond|exceed\w*|up to|upwards? of|north of|nearly|almost|close to|within|instead of|all but|except"
    r"|(?:more|less|fewer|greater|larger|smaller|higher|lower) than|as (?:many|much|few|little|high|low) as)"
    r"(?:\s+(?:a|an|the|about|around|of|total))*"
)
_SCALE = r"(?:hundred|thousand|million|billion|trillion|lakh|crore|dozen|grand)s?\b"
_GLUE_BEFORE = re.compile(  # what belongs to a box, and stands before it
    r"(?:[-−–+<>≤≥≠±√]|\\(?:leq?|geq?|neq?|lt|gt|pm|sqrt)\b"
    rf"|\b{BOUND}|\b(?:minus|negative|twice|half|not|or))[\s$({{*]*$",
    re.IGNORECASE,
)
_GLUE_AFTER = re.compile(  # and after it
    rf"[\s$)}}*]*(?:\\?%|°|{_SCALE}"
    r"|[*/^×·+<>≤≥](?=\s*[\w\\({])[^.\n]{,12}"
    r"|\\(?:times|cdot|sqrt|pi|text|mathrm)\b[^.\n]{0,20}"
    r"|(?:or|and) (?:more|less|fewer|over|under|up|above|below|higher|lower|a half)\b|at (?:least|most)\b)",
    re.IGNORECASE,
)
_DENIED = re.compile(  # before a form: I don't think the answer is 18, if the answer is 18
    r"(?:(?:n['’]t|\b(?:not|cannot)) (?:\w+ )?(?:think|believe|say|mean|agree|true|the case|that|clear"
    r"|conclude|claim|assume|infer|know)\b"
    r"|(?:\b(?:not|never|cannot|no way)|n['’]t) (?:be )?(?=(?:the )?\Z)"
    r"|\b(?:not (?:sure|certain)|unsure|uncertain)\b(?!.*\bbut\b)"
    r"|\b(?:doubt|deny|denies|false|untrue|unlikely|impossible|wrong|tempting)\b"
    r"|\b(?:mistake|error|misconception) (?:is|was|would be|to)\b|\bnothing (?:suggests|says|shows|proves)\b"
    r"|\b(?:might|may|could) (?:think|say|guess|believe)\b|\bfor (?:example|instance)\b|\bexample:"
    r"|\b(?:people|students?|users?|teachers?|(?<!as )many|most|some(?:one|body)?|others?|everyone|everybody"
    r"|anyone|nobody|no one|they|he|she|key|it) (?:(?:would|will|often|usually|always|sometimes) (?=\Z)"
    r"|(?:\w+ )?(?:think|thought|say|said|believe|guess|answer|conclude|argue|write|wrote|choose|pick|claim)"
    r"(?:e?s|e?d)?(?=(?: that)?:? *[\"“]?(?:(?:the|his|her|their) )?\Z))"
    r"|\bclaim(?:s|ed)(?: that)?(?= (?:the )?\Z)|\bif[^.!?\n]* (?:would|will) (?=\Z)"
    r"|\b(?:teacher|student|friend|user|author|(?:text)?book)['’]s (?=\Z)"
    r"|\b(?:incorrect|previous|old|earlier|first|second|initial|original|intermediate|partial|one|another)"
    r" (?=\Z)"
    r"|\b(?:if|whether|unless|suppose|assume|assuming|imagine)\b"
    r"(?=(?: that)?(?: the| my| your| this)?\s*\Z))(?:(?!\b(?:so|thus|therefore|hence|but)\b)[^.!?\n])*\Z",
    re.IGNORECASE,
)
_IN_SENTENCE = r"(?:(?!\b(?:so|thus|therefore|hence)\b)(?:[^.!?\n]|\.\d))*"
_HYPOTHETICAL = re.compile(  # up to a form's end: if it rained, the answer would be; but not: so it would be
    r"(?:\b(?:if|(?:suppos|imagin)\w+[^.!?\n]*(?:[.;] then\b)?|without|but for|otherwise|in that case|usually"
    rf"|normally|with \d+ (?:more|less|fewer))\b{_IN_SENTENCE}"
    r"\b(?:had|were|answer|result|total|option|choice)\b"
    rf"|(?:\A|[.!?\n])\W{{0,9}}(?:had|were)\b){_IN_SENTENCE}\bwould\b{_IN_SENTENCE}[.!]?\Z"
    rf"|\bwould (?:normally|usually|ordinarily|otherwise)\b{_IN_SENTENCE}[.!]?\Z",
    re.IGNORECASE,
)
_DISPUTED = re.compile(  # after a form: (B) is correct only if; 18, which is wrong; would be 18, but is not
    rf"(?:[\s$*)}}]*|{_IN_SENTENCE}?(?:, (?:which|but|and)|\bbut) (?:(?:that|this|it) ?)?)"
    r"(?:(?:is|was|seems|looks|would be|['’]s) (?:\w+ )?(?:wrong|incorrect|false|impossible|an error"
    r"|a (?:mistake|typo)|not (?:right|correct|true|possible|the answer))"
    r"|(?:is|was|does|ca|could)n['’]t\b|cannot\b)"
    rf"|[\s$*)}}]*(?:\?|(?:only )?(?:if|unless)\b)|{_IN_SENTENCE}?, no, "
    rf"|(?<=would be){_IN_SENTENCE}?\b(?:if|unless|without|otherwise|instead|but|however|normally|usually"
    r"|(?:had|were) (?:I|we|you|he|she|it|they|there))\b",
    re.IGNORECASE,
)
_BOLD = re.compile(r"(?:^|\n) *\*\*(\S[^*\n]{0,40})\*\*$")
_SHORT = re.compile(r"\A(?=[^\n?？]{1,20}\Z)(?:[^A-Za-z=]*=)?(.*)\Z")  # only an answer: 18, or 1 + 1 = 2
_CONCLUSION = re.compile(  # a last sentence that begins with "so", or states a total
    r"\A(?:.*[.!?。\n])?\W{0,9}(?:(?:so|therefore|thus|hence|in (?:total|conclusion))\b|因此|所以"
    r"|(?:the|his|her|their) (?:grand )?total (?:\w+ ){0,9}?(?:is|was|equals|comes to)\b)"
    r"([^\n]+[.!。)*$\]])$",
    re.IGNORECASE | re.DOTALL,
)
_IS = re.compile(r"\b(?:is|are|was|were)\b:?", re.IGNORECASE)
_ONE_SENTENCE = re.compile(rf"[^.!?。\n]*?{_IS.pattern}([^.!?。\n]+)[.!。]?[\s*_\"”’)]*", re.IGNORECASE)
_UNSURE = re.compile(  # it is not, may be, was once, or is said to be
    r"\b(?:not|no|never|n?or|n?either|if|whether|unless|might|may|could|can|would|should|must|maybe|perhaps"
    r"|probabl[ey]|possibl[ey]|(?:un)?likely|presumably|apparently|allegedly|some\w*|many|most|people|others?"
    r"|often|usually|think\w*|thought|guess\w*|believ\w+|say\w*|said|claim\w*|suppos\w+|assum\w+|imagin\w+"
    r"|called|known|(?:un)?sure|(?:un)?certain|doubt\w*|false|untrue|wrong|incorrect|mistak\w+|confus\w+"
    r"|former\w*|previous\w*|once|old|earlier|until|unlike|than|except|besides|but|although|though|while"
    r"|however|instead|opposite|question)\b|n['’]t\b",
    re.IGNORECASE,
)
_IT_IS = r"\b(?:it|that)(?:['’]s| is| should be)(?= \W*\d)"
_WITHDRAWN = re.compile(  # No, wait, that is wrong; I made a mistake: it is 15
    r"(?:^|[.!?…(\n])\W{0,9}((?:no|wait|oops|oh|hmm+|actually|sorry)\b\W+)*(?:"
    r"(?:but )?(?:that|this|it|(?:this|my) answer)"
    r"(?:(?:['’]s| is| was) (?:wrong|incorrect|not (?:right|correct))"
    r"|(?: can(?:not|['’]t)| could(?: not|n['’]t)) be (?:right|correct|true)"
    r"|(?: does(?: not|n['’]t)) make (?:any )?sense)\b"
    rf"|(?(1)(?:(?:[^.!?\n]{{0,60}}[,;] )?{_IT_IS}|I (?:forgot|missed|left out)\b"
    r"|no\b(?=\W*(?:\Z|[.!?,;\n–-])))|(?!)))"
    r"|(?:(?:^|[.!?…(\n])\W{0,9}(?:correction|edit|scratch that|let me (?:correct|fix)|I mean"
    r"|on second thoughts?)"
    r"|(?<!if )\bI (?:\w+ )?(?:double[- ]?counted|miscounted|misread|miscalculated|misunderstood|overlooked"
    rf"|made (?:an? )?(?:\w+ )?(?:mistake|error)s?))\b(?:[^.!?\n]{{0,40}}?{_IT_IS})?",
    re.IGNORECASE,
)
_NO_STATEMENT = re.compile(
    r"\((?:answer|X)\)"  # the echo of the prompt's "(answer)"
    r"|\b(?:to (?:find|get|check)|(?:check|verify)) \w+ answer\b"
    r"|\bnot [^.\n]{1,40}? (?:but|it is)\b"  # not 17 but 18
    r"|\\boxed\{[^{}]*\}[\s$]*or[\s$]*\\boxed\{[^{}]*\}",
    re.IGNORECASE,
)
_DISPLAY = re.compile(r"(\\\[|\$\$)(.+?)(?:\\\]|\$\$)", re.DOTALL)
_BULLET = re.compile(r"\A[-–•+] ")
_OPENING = " \t\n…:：*_`\"“'‘="  # before an answer
_END = re.compile(
    r"\n|(?<!\\)(?<!\bRs)(?<!\bi\.e)(?:[.?]|!(?!\s*[\\*/+=×·÷.,$}]|\s[a-z]))(?=\W*(?:\s|$))|[。！？]"
)

_WIDE = re.compile(  # letters, digits and signs that only look different: （Ｂ）, 𝐁, Ⓑ, １８, ＄
    "[\uff04\uff05\uff08\uff09\uff0b\uff0d\uff0f-\uff19\uff1c-\uff1e\uff21-\uff3b\uff3d\uff41-\uff5b\uff5d"
    "\uffe5\u24b6-\u24e9\U0001d400-\U0001d7ff¼-¾⅐-⅞]"
)
_DIGIT = re.compile(r"(?![0-9])\d")  # of other scripts: १८
_SIGNS = str.maketrans("【】〔〕「」⁄", "[][][]/")
_MIXED = re.compile("(?<=\\d)(?=[¼-¾⅐-⅞])")  # 1½ is 1 1/2
_HALF_DAY = re.compile(r"(?<=\d )([ap])\.m\.?")  # whose full stops end no sentence
_FENCE = re.compile(r"^\s*(?:```|~~~)\w*[ \t]*$", re.MULTILINE)

_PLAIN = (  # pattern, what it means
    (r"<<[^<>]*>>|<\|\w+\|>", ""),  # GSM8K's calculations, special tokens
    (r"<([A-J])>(?!.*</\1>)", r"(\1)"),
    (r"<(-?\$?\d[\d.,]*)>", r"\1"),
    (r"\{,\}", ","),
    (r"\\!", ""),
    (r"[−‐‑﹣]|\\minus\b", "-"),
    (r"(?<=\d)\s*(?=\\[dtc]?frac)", " "),
    (r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))", r"\1\2/\3\4"),
    (r"\\times\b", "×"),
    (r"\\cdot\b", "·"),
    (r"\\div\b", "÷"),
    (r"\\approx\b", "≈"),
    (r"\\pm\b", "±"),
    (r"\\(?:leq?|leqslant)\b|<=|=<", "≤"),
    (r"\\(?:geq?|geqslant)\b|>=", "≥"),
    (r"\\neq?\b|!=|=/=", "≠"),
    (r"\\lt\b", "<"),
    (r"\\gt\b", ">"),
    (r"\\[,;:!> ]|~|[\u00a0\u2000-\u200b\u202f]", " "),  # spaces of LaTeX and of Unicode
    # styling commands; others, such as \sqrt, have a meaning and are kept
    (r"\\[()\[\]]|\\(?:text\w*|math\w+|mbox|boxed|operatorname|left|right|displaystyle|q?quad)\b", ""),
    (r"(?<![\d*])(?<!\d\s)(?!(?<= )\* )\*+|(?<!\*)\*+(?!\s?[\d(*])", ""),  # bold; not the * of 3 * 6
    (r"\bUS(?=\\?\$)|\b(?:Rs\.?|USD|EUR|GBP|JPY|INR)\s*(?=[-\d])|\\?\$|[€£¥₹]", ""),
    (r"\\(?=[%&#_{}])|[{}`]|</?\w+>|(?<!\w)_+|_+(?!\w)", ""),
)


_SOURCES = ((_FORM, _MOST), (_BOXED, 1), (_BEFORE, _MOST), (_BOLD, 1), (_SHORT, 1), (_CONCLUSION, 1))
"""Where an answer is looked for, the most reliable first, and how many of each are read, from the end."""


@dataclass(frozen=True)
class Statement:
    """Text that states the answer, or begins with it.

    `terse` text counts only if it is nothing but the answer, as it may be the beginning of a solution.
    """

    text: str
    terse: bool = False


def statements(response: str) -> Iterator[Statement]:
    """Yield statements of the answer, the most reliable first."""
    response = _FENCE.sub("", narrow(response[-_READ:])).replace("...", "…").strip()
    response = _DISPLAY.sub(lambda found: f" ${' '.join(found[2].splitlines())}$ ", response)
    response = _HALF_DAY.sub(r"\1m", response)
    withdrawn = deque(_WITHDRAWN.finditer(response), maxlen=1)
    response = _NO_STATEMENT.sub("", response[withdrawn[0].end() :] if withdrawn else response)
    for form, most in _SOURCES:
        latest = reversed(deque(form.finditer(response), maxlen=_MOST))
        for found in [one for one in latest if not _is_denied(response, one)][:most]:
            yield _statement(response, found)


def said_to_be(response: str) -> str:
    """Return "Paris" of a response that is nothing but "The capital is Paris."; "" if it hedges or says more.

    It is an answer only if it is one that was asked for.
    """
    found = _ONE_SENTENCE.fullmatch(narrow(response).strip()) if len(response) < _LONGEST else None
    if found is None or _IS.search(found[1]) or _UNSURE.search(found[0]):
        return ""
    return found[1].strip()


def _is_denied(response: str, form: re.Match[str]) -> bool:
    """Return whether the words around a form say that it is no answer, or would be one otherwise."""
    start, end = form.span()
    return bool(
        _DENIED.search(response, max(0, start - 80), start)
        or _HYPOTHETICAL.search(response, max(0, start - 160), end)
        or _DISPUTED.match(response, end, end + 160)
    )


def _with_context(text: str, box: re.Match[str]) -> str:
    """Return what is in a box, with the sign, bound or scale around it: -\\boxed{5}, \\boxed{5} million."""
    before = _GLUE_BEFORE.search(text[max(0, box.start() - 40) : box.start()])
    after = _GLUE_AFTER.match(text[box.end() : box.end() + 40])
    parts = before[0].rstrip(" $({*") if before else "", box[1], after[0].lstrip(" $)}*") if after else ""
    return " ".join(filter(None, parts))


def _statement(response: str, form: re.Match[str]) -> Statement:
    """Return what a form encloses, or else the sentence after it, or the first box in that.

    After "Answer:" or a heading, it is terse if numbers follow: it may be the first sentence of a solution.
    """
    if form.re is _BOXED:
        return Statement(_with_context(response, form))
    if form.lastindex:
        return Statement(form[form.lastindex], terse=form.re is _SHORT)
    rest = response[form.end() : form.end() + _LONGEST]
    start = rest.lstrip(_OPENING)
    if "\n" in rest[: -len(start)]:
        start = _BULLET.sub("", start)
    end = _END.search(start)
    sentence = start[: end.start()] if end else start
    box = _BOXED.search(start)
    if box and box.start() < len(sentence):
        return Statement(_with_context(start, box))
    if end and end[0] in "?？":
        return Statement("")
    is_heading = form[0].endswith((":", "：", "\n")) or "\n" in rest[: -len(start)]
    return Statement(sentence, terse=is_heading and bool(re.search(r"\d", start[len(sentence) :])))


def narrow(text: str) -> str:
    """Return a text with letters, digits and brackets in their usual form: （Ｂ） is (B), and ½ is 1/2."""
    text = _WIDE.sub(lambda found: unicodedata.normalize("NFKC", found[0]), _MIXED.sub(" ", text))
    text = _DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), text)
    return text.translate(_SIGNS)


def plain(text: str) -> str:
    """Return LaTeX and Markdown as plain text: `**\\$1{,}200**` is 1,200, and `\\dfrac{1}{2}` is 1/2.

    Currency signs and styling commands are dropped.
    """
    text = narrow(text)
    for written, meant in _PLAIN:
        text = re.sub(written, meant, text)
    return text.strip()
