"""Strict and flexible scorers for numbers, options, texts and formulas, and those that users name."""

import os
import pkgutil
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from string import ascii_uppercase

import numpy as np

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Question, Scorer, ScorerError, Verdict
from mink_local.evals.tasks.equivalence import UNIT, quantity, same, same_maths, spelled
from mink_local.evals.tasks.statements import BOUND, Statement, plain, said_to_be

_NUMBER = re.compile(
    r"(?<![A-Za-z_\d.,])(?<!\d:)(?:(?<![\d)\]]\s)(?<!\b[A-Za-z]\s)(?<![)\]])-)?"  # a sign, no subtraction
    r"(?:\d+ (?=\d+ ?/ ?\d))?(?:\d+(?:\.\d+)?|\.\d+)"  # the 1 of 1 1/2
    r"(?:e-?\d{1,2}(?!\d)| ?/ ?\d+(?![\d.]))?(?![\w,:]*\d|\.\d)",
    re.IGNORECASE,
)
_WORDS = r"(?:[a-z%]+\s+){0,3}?"
_LIMIT = (  # 18 at most, 18 if it rains
    r"(?:(?:at (?:the )?(?:least|most|minimum|maximum|min|max)|minimum|maximum|in (?:the )?(?:case|event)"
    r"|(?-i:if|unless|provided|depending|when|whenever|assuming|supposing|given that|(?:as|so) long as"
    r"|except|excepting|excluding|without|not counting|apart from|other than))\b)"
)
_MONTHS = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_PARTS = (
    r"(?:half|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|part|portion|fraction"
    r"|share|rest|remainder|none|some|any|most|many|few|several|one|each|two|three|four|five|six)s?"
)
_NUMBER_HEDGES = re.compile(  # where # is the only number
    "|".join(
        (
            r"\b(?:not|never|neither|nor|either|or|between|than|wrong|incorrect)\b|n['’]t\b|不|或",
            rf"\b{BOUND}\s+#|[<>≤≥≠±]|#\s*\+",  # at least 18
            r"不到|不足|至少|至多|超过|以上|以下|[大小多少高低]于",
            rf"#\s*{_WORDS}[(,]?\s*(?:{_LIMIT}|plus\b|tops\b)",  # 18 at most
            rf"#\s*{_WORDS}and (?:more|less|fewer|over|under|above|below|up|older|younger|an?|one)\b",
            r"\b(?:twice|thrice|half|double|triple|quadruple|treble|multiple|sum|squared|cubed|dozens?)\b",
            r"\bbelow zero\b|\b(?:opposite|inverse|reciprocal|root|square|cube|factorial|logarithm) of\b",
            rf"\b{_PARTS} of (?:(?:the|these|those|them|all|his|her|their|its|our|my) )*#",  # a third of 18
            r"\btimes\s+#|#\s+times\s+(?:as|more|less|the|his|her|their|that|what|larger|bigger)\b|#\s*-?fold\b",
            r"#\s*-?(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth)s?\b|#-?(?:st|nd|rd|th|ish)\b",
            r"#\s*-?\w*(?:hundred|thousand|million)ths?\b|\b(?:hundred|thousand|million)\s+(?:and\s+)?#",
            r"[A-Za-z)]\s*[-+*/^×·÷]\s*#|#\s*[-+*×·÷]\s*\(?[a-z]\b|-\s*[(\[|]\s*#",  # x + 5, 5 + x, -(5)
            r"\b(?:sqrt|root|log|ln|sin|cos|tan|exp)\b[\s({]*#|#\s+(?:factorial|score|gross)\b",
            r"√|#\s?[⁰¹²³⁴-⁹ⁿ(±^√π!]|#\s*\(?(?:[xyzn]|pi|i)\b|#[abrqvBT]\b",  # 18², 3x
            r"#\s*\\(?!circ|degree|d?l?dots|checkmark|square|pounds|euro)[a-z]",  # 3\pi
            rf"\b{_MONTHS}\.?,? (?:the )?#|#(?: of)? {_MONTHS}\b(?!\W*\w)",  # June 5
            r"\b(?:because|by|from|after|in|on|to|with|step)\b[^#]*#",  # found by adding 3
        )
    ),
    re.IGNORECASE,
)
_NUMBER_TAIL = re.compile(  # what follows a number and explains it, but is no bound
    rf"(?<=\d)([^\d=≈]*?)(?!{_LIMIT})"
    rf"(?:(?<![-+*/^×·÷]) \((?!\s*(?:{_LIMIT}|or\b|and (?:up|above|over|more)|not (?:more|less)))"
    r"|\b(?:because|since|(?<! long )as(?! (?:many|much|\w+ as))|which|and not|rather|instead)\b|, not\b"
    rf"|(?:, (?=[a-z])(?!{_LIMIT}|or\b)|(?<!\s)[;:]\s"
    r"|\b(?:in|for|per(?! cent)|from|after|on|at|with|over(?= \d))\b)"
    r"(?=[^=≈]*$)|, or (?:about |around )?\d[\d.,]*(?!\1)(?= [a-z])).*",  # or 1.5 hours
    re.IGNORECASE | re.DOTALL,
)
_POWER = re.compile(r"(?<=[A-Za-z])[²³]")  # of a unit
_SEVERAL = re.compile(
    r"[A-Za-z]\s*=[^=,;]*\d[^=]*?(?:[,;]|\b(?:and|or)\b)\s*[A-Za-z]\w*\s*="  # x = 5 and y = 7
    r"|\b(?:1 in|\d out of) \d|\d in \d+\W*$"  # 7 in 10
    r"|\d for \w+(?: \w+)?,? and \$?\d"  # 18 for Tom and 20 for Ann
    r"|\A[^=(]*\d[^=(]*\b(?:each|apiece)\b[^=(]*[,;:][^=(]*\d"  # 18 each, or 36 in all
    r"|\d cents? \(\d"  # 20 cents ($0.20)
)
_EUROS = re.compile(  # 1.800 € is 1800, or 1.8
    r"(?:€|EUR) ?[1-9]\d{0,2}\.\d{3}(?!\d)|(?<![\d.,])[1-9]\d{0,2}\.\d{3} ?(?:€|EUR|[Ee]uros?\b)"
)
_TERSE = re.compile(r"\W*\d[\d./ ]*(?:[\w%/]+\s*){0,4}\W*$")  # 18 dollars per day


class NumberScorer(Scorer):
    """Scores answers that are a single number.

    Flexible scoring reads the only number in a statement, or in the last part of an equation that needs no
    more arithmetic: with or without currency, percent, unit, bold, LaTeX and thousands separators; a
    fraction; 1.5 million. Ranges, two numbers, bounds ("less than 18"), "7 dozen" and numbers in words do not
    count as answers.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        """Return whether the values are equal: the pattern leaves the answer's unit out."""
        values = quantity(_with_point(gold)), quantity(_with_point(answer))
        return values[0] is not None and values[1] is not None and values[0].value == values[1].value

    def is_right(self, answer: str, question: Question) -> bool:
        values = quantity(_with_point(question.gold)), quantity(_with_point(answer))
        return values[0] is not None and values[1] is not None and same(values[0], values[1])

    def read(self, statement: Statement, question: Question) -> str | None:
        found = quantity(_with_point(question.gold))
        has_unit = bool(found and (found.measure or found.value.denominator > 1))  # 0.5 is 50%
        text = spelled(statement.text)
        if _COMMA.fullmatch(question.gold):
            text = _as_point(text)
        if (
            _EUROS.search(statement.text)
            or _SEVERAL.search(text)
            or (statement.terse and not _TERSE.match(text))
        ):
            return None
        for part in reversed(re.split("[=≈]", _NUMBER_TAIL.sub(r"\1", text))):
            numbers = list(_NUMBER.finditer(part))
            if len(numbers) == 1 and not _NUMBER_HEDGES.search(_POWER.sub("", _NUMBER.sub("#", part))):
                unit = UNIT.match(part, numbers[0].end()) if has_unit else None
                with_unit = f"{numbers[0][0]}{unit[0] if unit else ''}"
                return with_unit if quantity(with_unit) else numbers[0][0]
        return None


NUMBER_SCORER = NumberScorer(r"The final answer is\s*([-]?\d{1,3}(?:,\d{3})*\.?\d*)")

_COMMA = re.compile(r"[-+−]?\s*(?:\d{1,3}(?:\.\d{3})+|\d+),(?!\d{3}$)\d+")  # 3,5 and 1.450,50


def _with_point(text: str) -> str:
    """Return a number with a decimal comma, such as 1.450,5, with a point; other texts as they are."""
    return _as_point(text) if _COMMA.fullmatch(text.strip()) else text


def _as_point(text: str) -> str:
    return re.sub(r"(\d),(\d+)", r"\1.\2", re.sub(r"(?<=\d)\.(?=\d{3}(?:\D|$))", "", text))


def as_number(gold: str) -> str | None:
    """Return a gold answer that is a number, such as $5, 50%, +5, 3,5 or 18 dollars, as it is recorded.

    That is a plain number, unless it is a percentage or has a unit or a decimal comma. None for other texts.
    """
    if quantity(_with_point(gold)) is None:
        return None
    text = spelled(gold).removeprefix("+").strip()
    return text if re.fullmatch(r"-?[\d.e/ ]+", text, re.ASCII) else gold.strip()


_LEAD = r"\W*(?i:(?:the|option|choice|letter|answer|therefore|thus|so|just|most|\w+ly)\b\W+){0,3}"
_LETTER = re.compile(
    r"\(\s*([A-Za-z])\s*\)|\b[Oo]ption ([A-Z])\b"  # 0.26, which is (B), option B
    rf"|\A{_LEAD}\[?([A-Za-z])\s*(?=[).,;:=\]。，!]|[\"'”’](?!\w)|\Z)"  # B) 21, b.
    rf"|\A{_LEAD}([A-Z])(?=\s+(?:because|since|as|which|and|[-–—(]))"
    rf"|\A{_LEAD}([B-Z])(?=\s)"  # not A, which is a word
)
_LETTER_HEDGES = re.compile(
    r"\b(?:or|(?:can)?not|never|neither|nor|between|than|both|because|by|incorrect|wrong)\b|n['’]t\b|不|或"
    r"|\b[A-J]\)?(?:, | ?[/&] ?| and )\(?[A-J]\b|\b[A-J]\)?,? (?:only )?(?:if|unless|when|provided)\b"
    r"|\b(?:except|apart from|other than)\b",
    re.IGNORECASE,
)
_LETTER_TAIL = re.compile(  # (B), not (A)
    r"(\b[A-J]\b[)\]]?),? (?:and not|not|rather than|instead of|because|since|as|after|though|although)\b.*",
    re.DOTALL,
)
_LOOSE = re.compile(r"[\s,]+|\.$")
_WORD = re.compile(r"[^\W\d_]{2}")
_AROUND_OPTION = " .\"'“”‘’()[]"
_LOOSE_WORDS = re.compile(r"^[().:;=-]+|[().;]+$")


class ChoiceScorer(Scorer):
    """Scores answers that are one of a question's options.

    Flexible scoring reads the letter, in brackets, bold or a box, in lower case where it cannot be a word, or
    the option's text: "Apples" is A only if option A says so. Options with the same text are the same answer,
    whatever their letters. "A or B", "not B" and "B is wrong" do not count as answers.
    """

    def read(self, statement: Statement, question: Question) -> str | None:
        text, options = plain(statement.text), _options(question)
        words = text.strip(_AROUND_OPTION)
        worded = [letter for letter, option in options.items() if option in (_key(text), _key(words))]
        if worded and not (len(words) == 1 and words.isalpha()):
            return worded[0]
        text = _without_own_words(_LETTER_TAIL.sub(r"\1", text), question.choices)
        if _LETTER_HEDGES.search(text):
            return None
        named = {"".join(letters).upper() for letters in _LETTER.findall(text)}
        if len(named) != 1 or not named <= options.keys():
            return None
        (letter,) = named
        words = _LOOSE_WORDS.sub("", _key(_LETTER.sub("", text)))
        return None if words in options.values() and words != options[letter] else letter

    def flexible(self, response: str, question: Question) -> Verdict:
        found, last = super().flexible(response, question), _key(said_to_be(response))
        named = [letter for letter, option in _options(question).items() if option == last]
        if found.answer or not named or not _WORD.search(last):  # numbers may be a step of the solution
            return found
        return Verdict(named[0], self.is_right(named[0], question))

    def is_right(self, answer: str, question: Question) -> bool:
        options = _options(question)
        return options[answer] == options[question.gold]


LETTER_SCORER = ChoiceScorer(r"The answer is\s*\(?([A-J])\b\)?")


def _without_own_words(text: str, choices: Sequence[str]) -> str:
    """Return a statement without an option's text beside its letter: (C) of (C) Cannot be determined."""
    for letter, choice in zip(ascii_uppercase, choices, strict=False):
        words = r"\s+".join(map(re.escape, plain(choice).rstrip(".").split()))
        own = rf"(\b{letter}\b[\s).:,=–—-]*){words}(?!\w)|(?<!\w){words}[\s,]*(\(?{letter}\b)"
        text = re.sub(own, r"\1\2 ", text, flags=re.IGNORECASE)
    return text


def _options(question: Question) -> dict[str, str]:
    """Return the options' texts by letter."""
    return dict(zip(ascii_uppercase, map(_key, question.choices or ascii_uppercase[:10]), strict=False))


def _key(text: str) -> str:
    """Return an option's text in the form used for comparison."""
    return _LOOSE.sub("", plain(text)).casefold()


_ARTICLE = re.compile(r"^(?:an?|the) ")
_GOLD = "\ue000"  # stands for the gold while sentences are found: it may have a full stop
_SIGNS = str.maketrans("’‘“”‐‑‒–—", "''\"\"-----")
_AROUND_TEXT = " \t\n.,;:!?\"'()[]"
_TEXT_TAIL = re.compile(
    r",? (?:not|and not|rather than|because|since|which is|as)\b.*|, the\b.*|\s*\(.*\)$", re.DOTALL
)


class TextScorer(Scorer):
    """Scores answers that are texts, by equality with the stated answer.

    Case, markup, a leading article, surrounding punctuation and what explains the answer (", not London",
    "because …") make no difference. A response that is no more than "… is ANSWER." counts, too.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        return normal_text(answer) == normal_text(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        if re.search("[.?!。]", question.gold):
            words = r"\s+".join(map(re.escape, question.gold.split()))
            response = re.sub(words, _GOLD, response, flags=re.IGNORECASE)
        found, last = super().flexible(response, question), said_to_be(response)
        last = last.replace(_GOLD, question.gold)
        is_other = found.answer and last not in found.answer  # it may be of the whole sentence
        return found if is_other or not self.is_same(last, question.gold) else Verdict(last, correct=True)

    def read(self, statement: Statement, question: Question) -> str | None:
        answer = plain(statement.text).replace(_GOLD, question.gold)
        head = _TEXT_TAIL.sub("", answer)
        if self.is_same(head, question.gold):
            return head
        return answer if normal_text(answer) else None


TEXT_SCORER = TextScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")


def normal_text(answer: str) -> str:
    """Return a text in the form used for comparison: plain, lower case, no article or punctuation."""
    text = unicodedata.normalize("NFKC", plain(answer)).casefold().translate(_SIGNS)
    return _ARTICLE.sub("", " ".join(text.split()).strip(_AROUND_TEXT)).strip(_AROUND_TEXT)


_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))")
_TEXT = re.compile(r"\\(?:text|textbf|mbox|mathrm|mathbf|boxed)\{([^{}]*)\}")
_DRESS = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[()\[\],;:! ]|\$|\s")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?:\\!\s*)?(?=\d{3}(?!\d))")
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")

_DELIMITER = re.compile(r"\\[()\[\]]|(?<!\\)\$\$?")
_ROOT = re.compile(r"√(\w+|\([^()]*\))")
_PROSE = re.compile(r"^(?:not\b|answer$|(?:in)?correct\b)|(?<!\\)\b[A-Za-z]{2,}[ ,]+[A-Za-z]{2,}\b")
_NO_MORE_THAN_UNIT = re.compile(
    r"(?:\\?%|(?:(?:square|cubic|sq|cu)\.? )?[A-Za-z°]+(?:[²³]|\^[23])?(?: (?:per|an?) [a-z]+)?)?"
)
_UNIT_AFTER = re.compile(r"(?<=[\d)}])\s*(?:\\[,;:! ])*\\(?:text\w*|mathrm|mbox)\s*\{[^{}]*\}[.\s]*$")
_AROUND_MATHS = " \t\n*_`,:;\"'“”"


class MathScorer(Scorer):
    """Scores answers that are mathematical expressions.

    Strict scoring compares as in the paper: normalized texts (see `normalized`), or floats within 1e-6.
    Flexible scoring reads the stated answer, boxed, in math mode or bare, with or without the brackets of the
    prompt's "(answer)", and asks math-verify whether it is equivalent. Sentences do not count as expressions.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        both = [normalized(answer), normalized(gold)]
        if both[0] == both[1]:
            return True
        numbers = [float(text) for text in both if _FLOAT.fullmatch(text)]  # excludes nan
        return len(numbers) == 2 and abs(numbers[0] - numbers[1]) <= 1e-6

    def read(self, statement: Statement, question: Question) -> str | None:  # noqa: ARG002
        """Return the statement's only part in math mode, or all of it; None for a sentence."""
        parts = _DELIMITER.split(statement.text)
        text = "".join(parts)
        if len(parts) == 3:
            sign, unit = (part.strip(f"{_AROUND_MATHS}().") for part in parts[::2])
            if sign not in ("", "-", "−") or not _NO_MORE_THAN_UNIT.fullmatch(unit):
                return None
            text = f"{'-' if sign else ''}{parts[1].rstrip('. ')}" + (rf" \text{{ {unit}}}" if unit else "")
        elif _PROSE.search(" ".join(_DELIMITER.split(_UNIT_AFTER.sub("", statement.text))[::2])):
            return None
        text = text.lstrip(_AROUND_MATHS).rstrip(f"{_AROUND_MATHS}.")
        # Names of commands are no words: (\sin x, \cos x) is no prose.
        words = re.sub(r"\\(?!text|mbox|math|boxed)[A-Za-z]+", ".", _UNIT_AFTER.sub("", text))
        if text.count("{") != text.count("}") or _PROSE.search(normalized(words)):
            return None
        return _ROOT.sub(r"\\sqrt{\1}", text).replace("π", "\\pi").replace("°", "^\\circ")

    def is_right(self, answer: str, question: Question) -> bool:
        is_bracketed = answer.startswith("(") and answer.endswith(")")
        readings = [answer, answer[1:-1].strip()] if is_bracketed else [answer]
        return any(same_maths(question.gold, one) for one in readings)


MATH_SCORER = MathScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")


_COMMAND = re.compile(r"\\[a-zA-Z]|\^|[√π]")
_OPERATION = re.compile(r"(?=.*\b\d*[a-z]\b).*[\w)] ?[-+*/=<>] ?[\w(-]", re.DOTALL)  # with a variable


def as_formula(gold: str) -> str | None:
    """Return a gold answer that is a mathematical expression, without delimiters; None for other texts."""
    text, shown = _DELIMITER.sub("", gold).strip(), plain(gold)
    is_operation = _OPERATION.match(shown) and not re.search("[A-Za-z]{2}", shown)
    return text if _COMMAND.search(shown) or is_operation else None


def normalized(answer: str) -> str:
    """Return the paper's canonical form: no LaTeX styling, fractions as a/b, no spaces, lower case.

    The paper removes all commands; here \\sqrt, \\pi and the like keep their names, or 2\\pi would become 2.
    """
    text = _THOUSANDS.sub("", answer)
    text = _DRESS.sub("", _TEXT.sub(r"\1", text))
    text = _FRACTION.sub(lambda match: f"{match[1] or match[2]}/{match[3] or match[4]}", text)
    return text.replace("\\", "").lower()


# Scorers that users name


OwnFunction = Callable[[str, Question], object]
"""A user's scorer of a response, without its reasoning, to a question; returns True, False or a Verdict."""

_NAMED: dict[str, Scorer] = {
    "number": NUMBER_SCORER,
    "letter": LETTER_SCORER,
    "text": TEXT_SCORER,
    "math": MATH_SCORER,
}


def is_code(name: str) -> bool:
    """Return whether a scorer's name is that of a Python function, which only its user may have imported."""
    return ":" in name and not name.startswith("regex:")


@lru_cache
def chosen_scorer(name: str) -> Scorer:
    """Return the scorer with a name: number, letter, text, math, regex:PATTERN or MODULE:FUNCTION.

    A function is imported, so the name must be the user's own, and never what a file says. The module is
    looked for in the current folder, too. Raises DataError if there is no such scorer.
    """
    if name in _NAMED:
        return _NAMED[name]
    _, colon, rest = name.partition(":")
    if not colon:
        raise DataError(f"no scorer {name!r}: use {', '.join(_NAMED)}, regex:PATTERN or MODULE:FUNCTION")
    if is_code(name):
        return FunctionScorer(name, _function(name))
    try:
        n_groups = re.compile(rest).groups
    except re.error as error:
        raise DataError(f"{rest!r} is no regular expression ({error})") from None
    if n_groups > 1:
        raise DataError(f"{rest!r} has {n_groups} groups: leave one, and write the others as (?:…)")
    return RegexScorer(rest)


def _function(name: str) -> OwnFunction:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: OwnFunction = pkgutil.resolve_name(name)
    except Exception as error:  # whatever the user's module raises
        raise DataError(f"no scorer {name!r} ({type(error).__name__}: {error})") from None
    if not callable(found):
        raise DataError(f"the scorer {name!r} is no function")
    return found


class RegexScorer(Scorer):
    """Scores the group, or all, of the pattern's last match: as a number if both are, or else as a text."""

    flexible = Scorer.strict

    def is_same(self, answer: str, gold: str) -> bool:
        values = quantity(gold), quantity(answer)
        if values[0] and values[1]:
            return same(values[0], values[1])
        return normal_text(answer) == normal_text(gold)


class FunctionScorer(Scorer):
    """Scores by a function of the user's."""

    is_own = True

    def __init__(self, name: str, function: OwnFunction) -> None:
        super().__init__("")
        self._name, self._function = name, function

    def strict(self, response: str, question: Question) -> Verdict:
        """Return the function's verdict. Raises ScorerError if it fails, or returns something else."""
        try:
            found = self._function(response, question)
        except Exception as error:  # whatever the user's function raises
            reason = f"{type(error).__name__}: {error}"
        else:
            if isinstance(found, Verdict):
                return found
            if isinstance(found, bool | np.bool_):
                return Verdict(None, bool(found))
            reason = f"it returned {found!r:.40}, and neither True, False nor a Verdict"
        raise ScorerError(f"{self._name} cannot score question {question.id} of {question.task}: {reason}")
