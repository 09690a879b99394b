"""Scorers of numbers, options, texts and formulas, and those that users name.

Each reads a response in three ways. Strict: the last match of the paper's regular expression. Flexible: the
answer stated last (see `stated`). Last: for numbers and options, the last one there is, stated or not, as the
lm-evaluation-harness's `flexible-extract` does; what it has right beyond flexible is prose, or luck.
"""

import os
import pkgutil
import re
import sys
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from string import ascii_uppercase

import numpy as np

from mink_local.errors import DataError
from mink_local.evals.tasks.base import NO_ANSWER, Question, Scorer, ScorerError, Verdict
from mink_local.evals.tasks.equivalence import number_of, same_maths, same_number
from mink_local.evals.tasks.stated import before_next_question, plain

_NUMBER = re.compile(
    r"(?<![\d.,A-Za-z])-?(?:\d+ (?=\d+/\d))?(?:\d+(?:\.\d+)?|\.\d+)(?:\s?/\s?\d+)?(?![\d.]*\d)(?:\s?%)?"
)
_COMMA = re.compile(r"-?\d+,\d{1,2}|-?\d{1,3}(?:\.\d{3})+,\d+")  # 3,5 and 1.450,50


class NumberScorer(Scorer):
    """Scores answers that are a single number, by its value.

    A statement's number is the first one after its last "=", which may be a fraction, and have a currency, a
    percent sign, a unit and thousands separators.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        return bool(same_number(_with_point(gold), _with_point(answer)))

    def read(self, statement: str, question: Question) -> str | None:
        text = _numbers_with_points(statement, question)
        found = _NUMBER.findall(re.split(r"[=≈]|\bequals\b", text)[-1])
        return found[0] if found else None

    def last(self, response: str, question: Question) -> Verdict:
        found = _NUMBER.findall(_numbers_with_points(before_next_question(response), question))
        return Verdict(found[-1], self.is_same(found[-1], question.gold)) if found else NO_ANSWER


def _with_point(text: str) -> str:
    """Return a number with a decimal comma, such as 1.450,5, with a point; other texts as they are."""
    return _as_point(text) if _COMMA.fullmatch(text.strip()) else text


def _as_point(text: str) -> str:
    return re.sub(r"(\d),(\d)", r"\1.\2", re.sub(r"(?<=\d)\.(?=\d{3}(?:\D|$))", "", text))


def _numbers_with_points(text: str, question: Question) -> str:
    """Return plain text; where the gold answer has a decimal comma, so has the text."""
    return plain(_as_point(text) if _COMMA.fullmatch(question.gold) else text)


NUMBER_SCORER = NumberScorer(r"The final answer is\s*([-]?\d{1,3}(?:,\d{3})*\.?\d*)")


_UNIT = r"(?:(?!(?:hundred|thousand|million|billion|trillion|dozen)\b)[a-z]{2,}[.²³]?(?: [a-z]+)?)?"
_GOLD_NUMBER = re.compile(rf"(?!-?0\d)(-?[\d.,/ ]*\d(?:\s*%)?)\s*{_UNIT}")


def as_number(gold: str) -> str | None:
    """Return a gold answer that is a number, such as $5, 50%, 3,5 or 18 dollars, as it is recorded.

    None for other texts, such as 007, which is no 7.
    """
    text = gold.strip() if _COMMA.fullmatch(gold.strip()) else plain(gold).removeprefix("+")
    number = _GOLD_NUMBER.fullmatch(text)
    is_number = number and number_of(_with_point(number[1])) is not None
    return number[1] if number and is_number else None


_LETTER = re.compile(r"\(\s*([A-Ja-j])\s*\)|(?<![A-Za-z'’])(A(?! (?!or\b|and\b)[a-z])|[B-J])(?![A-Za-z'’])")


class ChoiceScorer(Scorer):
    """Scores answers that are one of a question's options.

    A statement names the option's letter, or is its text. Options with the same text are the same answer,
    whatever their letters.
    """

    def read(self, statement: str, question: Question) -> str | None:
        text, options = plain(statement), _options(question)
        head = re.split(r"[,;](?!\s*\(?[A-J]\b)", text)[0]  # A, B or C has none
        alike = [letter for letter, option in options.items() if option == _key(text)]
        if len(alike) >= 1 and not re.fullmatch(r"\W*[A-J]\W*", text):
            return alike[0]
        named = set(_letters(head, options) or _letters(text, options))
        return named.pop() if len(named) == 1 else None

    def last(self, response: str, question: Question) -> Verdict:
        found = _letters(plain(before_next_question(response)), _options(question))
        return Verdict(found[-1], self.is_right(found[-1], question)) if found else NO_ANSWER

    def is_right(self, answer: str, question: Question) -> bool:
        options = _options(question)
        return options[answer] == options[question.gold]


LETTER_SCORER = ChoiceScorer(r"The answer is\s*\(?([A-J])\b\)?")


def _letters(text: str, options: dict[str, str]) -> list[str]:
    return [letter for pair in _LETTER.findall(text) if (letter := "".join(pair).upper()) in options]


def _options(question: Question) -> dict[str, str]:
    """Return the options' texts, as they are compared, by letter."""
    return dict(zip(ascii_uppercase, map(_key, question.choices or ascii_uppercase[:10]), strict=False))


def _key(text: str) -> str:
    return re.sub(r"[\s,]+", "", plain(text)).strip(".()'\"“”").casefold()


_ARTICLE = re.compile(r"^(?:an?|the) ")
_SIGNS = str.maketrans("’‘“”‐‑‒–—", "''\"\"-----")
_GOLD = "\ue000"  # stands for the gold while sentences are found: it may have a full stop
_ONE_SENTENCE = re.compile(r"[^.!?,\n]*\b(?:is|are|was|were)\b:?\s*([^.!?,\n]+)[.!]?[\s*_\"”’)]*")
_AROUND_TEXT = " \t\n.,;:!?\"'()[]"


class TextScorer(Scorer):
    """Scores answers that are texts, by equality with the stated answer.

    Case, markup, a leading article and surrounding punctuation make no difference, nor does what follows a
    comma. A response of one line may be no more than the answer, or "… is ANSWER.".
    """

    def is_same(self, answer: str, gold: str) -> bool:
        return normal_text(answer) == normal_text(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        if re.search("[.?!。]", question.gold):
            words = r"\s+".join(map(re.escape, question.gold.split()))
            response = re.sub(words, _GOLD, response, flags=re.IGNORECASE)
        said = _ONE_SENTENCE.fullmatch(response.strip())
        last = (said[1] if said else response).replace(_GOLD, question.gold).strip()
        if "\n" not in last and self.is_same(last, question.gold):
            return Verdict(last, correct=True)
        return super().flexible(response, question)

    def read(self, statement: str, question: Question) -> str | None:
        answer = plain(statement).replace(_GOLD, question.gold)
        head = answer[: len(question.gold) + answer.casefold().find(question.gold[:1].casefold())]
        is_head = self.is_same(head, question.gold) and re.match(
            r"\W*(?:$|[,;(]|because\b|since\b)", answer[len(head) :]
        )
        return (head if is_head else answer) if normal_text(answer) else None


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
_PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{2,}[ ,]+[A-Za-z]{2,}\b")
_AROUND_MATHS = " \t\n*_`,:;\"'“”"


class MathScorer(Scorer):
    """Scores answers that are mathematical expressions.

    Strict scoring compares as in the paper: normalized texts (see `normalized`), or floats within 1e-6.
    Flexible scoring reads what is boxed, in math mode or bare, with or without the brackets of the prompt's
    "(answer)", and asks math-verify whether it is equivalent. Sentences do not count as expressions.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        both = [normalized(answer), normalized(gold)]
        if both[0] == both[1]:
            return True
        numbers = [float(text) for text in both if _FLOAT.fullmatch(text)]  # excludes nan
        return len(numbers) == 2 and abs(numbers[0] - numbers[1]) <= 1e-6

    def read(self, statement: str, question: Question) -> str | None:  # noqa: ARG002
        """Return the statement's only part in math mode, or all of it; None for a sentence."""
        parts = _DELIMITER.split(statement)
        text = (parts[1] if len(parts) == 3 else "".join(parts)).lstrip(_AROUND_MATHS)
        text = text.rstrip(f"{_AROUND_MATHS}.")
        return None if _PROSE.search(re.sub(r"\\text\s*\{[^{}]*\}", "", text)) else text or None

    def is_right(self, answer: str, question: Question) -> bool:
        is_bracketed = answer.startswith("(") and answer.endswith(")")
        readings = [answer, answer[1:-1].strip()] if is_bracketed else [answer]
        return any(same_maths(question.gold, one) for one in readings)


MATH_SCORER = MathScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")

_FORMULA = re.compile(r"\\[a-zA-Z]|\^|[√π]|\d*[a-z]\b.*[\w)] ?[-+*/=<>] ?[\w(-]")


def as_formula(gold: str) -> str | None:
    """Return a gold answer that is a mathematical expression, without delimiters; None for other texts."""
    text = _DELIMITER.sub("", gold).strip()
    shown = re.sub(r"\\text\w*\{([^{}]*)\}", r"\1", text)
    is_words = re.search("[A-Za-z]{2}", shown) and not re.search(r"\\[a-zA-Z]", shown)
    return text if _FORMULA.search(shown) and not is_words else None


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


def is_users(name: str) -> bool:
    """Return whether a scorer's name is a user's function or pattern, which only its user may have run."""
    return ":" in name


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
    if not name.startswith("regex:"):
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
    """Scores the group, or all, of the pattern's last match: as a number if both are, or else as a text.

    A pattern may take for ever, so that it is its user's own, too.
    """

    is_own = True

    def is_same(self, answer: str, gold: str) -> bool:
        same = same_number(gold, answer)
        return same if same is not None else normal_text(answer) == normal_text(gold)


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
