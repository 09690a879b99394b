"""Strict and flexible scorers for numbers, options, texts and mathematical expressions."""

import re
import unicodedata
from fractions import Fraction
from string import ascii_uppercase

from mink_local.evals.tasks.base import Question, Scorer, Verdict
from mink_local.evals.tasks.equivalence import equivalent
from mink_local.evals.tasks.statements import Statement, plain

_SPELLINGS = (
    (r"(?<=\d),?\s?(?=\d{3}\b)", ""),  # 1,800 and 1 800
    (r"\s*[×x*]\s?10\s?\^", "e"),
    (r"(?<=\d)(?:\s*thousand|k)\b", "e3"),
    (r"(?<=\d)\s*million\b", "e6"),
    (r"(?<=\d)\s*billion\b", "e9"),
    (r"\b(?:minus|negative) (?=\d)", "-"),
)
_NUMBER = re.compile(
    r"(?<![A-Za-z_\d.,])(?<!\d:)(?:(?<![\w)]\s)-|(?<!-)\d+ (?=\d+ ?/ ?\d))?"  # -18, and the 1 of 1 1/2
    r"(?:\d+(?:\.\d+)?|\.\d+)(?:e-?\d{1,2}(?!\d)| ?/ ?\d+(?![\d.]))?(?![\w,:]*\d)",
    re.IGNORECASE,
)
_NUMBER_HEDGES = re.compile(  # # is the only number
    r"\b(?:not|never|neither|nor|either|or|between|than)\b|n['’]t\b|不|或"  # no 18, at least 18, 18 or more
    r"|\b(?:twice|half|double|multiple|sum|squared|cubed|dozens?)\b"  # twice 9
    r"|[A-Za-z)]\s*[-+*/^×·÷]\s*#|√|#\s?[²³(±]|#\s*[xyzn]\b"  # x + 5, 3x
    r"|\b(?:because|by|from|after|in|on|to|with|step)\b[^#]*#",  # found by adding 3
    re.IGNORECASE,
)
_NUMBER_TAIL = re.compile(  # what follows a number and explains it
    r"(?<=\d)([^\d=≈]*?)(?:(?<![-+*/^×·÷]) \(|\b(?:because|since|as|which|and not|rather)\b|, not\b"
    r"|(?:, (?=[a-z])|[;:]\s|\b(?:in|for|per|from|after|on|at|with)\b)(?=[^=≈]*$)).*",
    re.IGNORECASE | re.DOTALL,
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
        return _value(answer.replace(",", "")) == _value(gold)

    def read(self, statement: Statement, question: Question) -> str | None:  # noqa: ARG002
        text = plain(statement.text)
        for written, meant in _SPELLINGS:
            text = re.sub(written, meant, text, flags=re.IGNORECASE)
        if statement.terse and not _TERSE.match(text):
            return None
        for part in reversed(re.split("[=≈]", _NUMBER_TAIL.sub(r"\1", text))):
            numbers: list[str] = _NUMBER.findall(part)
            if len(numbers) == 1 and not _NUMBER_HEDGES.search(_NUMBER.sub("#", part)):
                return numbers[0]
        return None


def _value(number: str) -> Fraction | None:
    """Return the value of a number such as 18, -1.5, 1e6, 1/2 or 1 1/2."""
    try:
        return sum(map(Fraction, re.sub(" ?/ ?", "/", number).split()), Fraction(0))
    except (ValueError, ZeroDivisionError):  # more digits than Python parses
        return None


_GOLD_NUMBER = re.compile(
    r"-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+|\d+(?:\.\d+)?e[-+]?\d{1,3}|(?:\d+ )?\d+ ?/ ?\d+)", re.ASCII
)


def as_number(gold: str) -> str | None:
    """Return a gold answer that is a number, such as $5, 50% or \\frac{1}{2}, as a plain one; else None."""
    text = plain(gold).removesuffix("%").strip()
    found = _GOLD_NUMBER.fullmatch(text)
    number = text.replace(",", "")
    return number if found and _value(number) is not None else None


_LEAD = r"\W*(?i:(?:the|option|choice|letter|answer|therefore|thus|so|most|\w+ly)\b\W+){0,3}"
_LETTER = re.compile(
    r"\(\s*([A-Za-z])\s*\)|\b[Oo]ption ([A-Z])\b"  # 0.26, which is (B), option B
    rf"|\A{_LEAD}\[?([A-Za-z])\s*(?=[).,;:=\]。，!]|[\"'”’](?!\w)|\Z)"  # B) 21, b.
    rf"|\A{_LEAD}([A-Z])(?=\s+(?:because|since|as|which|and|[-–—(]))"
    rf"|\A{_LEAD}([B-Z])(?=\s)"  # not A, which is a word
)
_LETTER_HEDGES = re.compile(
    r"\b(?:or|(?:can)?not|never|neither|nor|between|than|both|because|by|incorrect|wrong)\b|n['’]t\b|不|或"
    r"|\b[A-J]\)?(?:, | ?[/&] ?| and )\(?[A-J]\b",
    re.IGNORECASE,
)
_LETTER_TAIL = re.compile(  # (B), not (A)
    r"(\b[A-J]\b[)\]]?),? (?:and not|not|rather than|because|since|as)\b.*", re.DOTALL
)
_LOOSE = re.compile(r"[\s,]+|\.$")


class ChoiceScorer(Scorer):
    """Scores answers that are one of a question's options.

    Flexible scoring reads the letter, in brackets, bold or a box, in lower case where it cannot be a word, or
    the option's text: "Apples" is A only if option A says so. Options with the same text are the same answer,
    whatever their letters. "A or B", "not B" and "B is wrong" do not count as answers.
    """

    def read(self, statement: Statement, question: Question) -> str | None:
        text, options = plain(statement.text), _options(question)
        worded = [letter for letter, option in options.items() if option == _key(text)]
        if worded and not (len(text) == 1 and text.isalpha()):
            return worded[0]
        text = _LETTER_TAIL.sub(r"\1", text)
        if _LETTER_HEDGES.search(text):
            return None
        named = {"".join(letters).upper() for letters in _LETTER.findall(text)}
        return named.pop() if len(named) == 1 and named <= options.keys() else None

    def is_right(self, answer: str, question: Question) -> bool:
        options = _options(question)
        return options[answer] == options[question.gold]


def _options(question: Question) -> dict[str, str]:
    """Return the options' texts by letter."""
    return dict(zip(ascii_uppercase, map(_key, question.choices), strict=False))


def _key(text: str) -> str:
    """Return an option's text in the form used for comparison."""
    return _LOOSE.sub("", plain(text)).casefold()


_ARTICLE = re.compile(r"^(?:an?|the) ")
_LEADER = "\u2024"  # for a full stop within a sentence, as in St. Petersburg
_AROUND_TEXT = " \t\n.,;:!?\"'“”‘’()[]"


class TextScorer(Scorer):
    """Scores answers that are texts, by equality with the stated answer.

    Case, markup, a leading article and surrounding punctuation make no difference.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        return normal_text(answer) == normal_text(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        shielded = response.replace(question.gold, question.gold.replace(".", _LEADER))
        return super().flexible(shielded, question)

    def read(self, statement: Statement, question: Question) -> str | None:  # noqa: ARG002
        answer = plain(statement.text).replace(_LEADER, ".")
        return answer if normal_text(answer) else None


def normal_text(answer: str) -> str:
    """Return a text in the form used for comparison: plain, lower case, no article or punctuation."""
    text = unicodedata.normalize("NFKC", plain(answer)).casefold()
    return _ARTICLE.sub("", " ".join(text.split()).strip(_AROUND_TEXT)).strip(_AROUND_TEXT)


_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))")
_TEXT = re.compile(r"\\(?:text|textbf|mbox|mathrm|mathbf|boxed)\{([^{}]*)\}")
_DRESS = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[()\[\],;:! ]|\$|\s")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?:\\!\s*)?(?=\d{3}(?!\d))")
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")

_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_DELIMITER = re.compile(r"\\[()\[\]]|(?<!\\)\$")
_ROOT = re.compile(r"√(\w+|\([^()]*\))")
_PROSE = re.compile(r"^(?:not\b|answer$|(?:in)?correct\b)|(?<!\\)\b[A-Za-z]{2,}[ ,]+[A-Za-z]{2,}\b")
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
        text = statement.text
        if _PROSE.search(_MATHS.sub("", text)):
            return None
        pieces = _MATHS.findall(text)
        text = "".join(pieces[0]) if len(pieces) == 1 else _DELIMITER.sub("", text)
        text = text.lstrip(_AROUND_MATHS).rstrip(f"{_AROUND_MATHS}.")
        if text.count("{") != text.count("}") or _PROSE.search(normalized(text)):
            return None
        return _ROOT.sub(r"\\sqrt{\1}", text).replace("π", "\\pi").replace("°", "^\\circ")

    def is_right(self, answer: str, question: Question) -> bool:
        is_bracketed = answer.startswith("(") and answer.endswith(")")
        readings = [answer, answer[1:-1].strip()] if is_bracketed else [answer]
        return any(self.is_same(one, question.gold) or equivalent(question.gold, one) for one in readings)


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
