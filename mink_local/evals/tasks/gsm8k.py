"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems whose answer is a number."""

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from mink_local.errors import DataError
from mink_local.evals.tasks.base import NO_ANSWER, Question, Task, Verdict, worked
from mink_local.evals.tasks.lines import read_rows, text_of
from mink_local.evals.tasks.statements import Statement, plain, statements

GOLD = re.compile(r"####\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*$")
_CALCULATION = re.compile(r"<<[^<>]*>>")

_LEAD = re.compile(
    r"(?:[^\w.+\-/*^√\\]|(?:about|around|just|a total of|equal to|so|\bhence|thus|then|therefore|indeed|now"
    r"|still|also|most|\w+ly)\b)*",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?<![A-Za-z_\d.,])(?P<sign>[-+]\s?|(?:minus|negative)\s)?"
    r"(?:(?P<whole>\d+)\s+(?=\d+\s*/\s*\d))?"  # 1 1/2
    r"(?P<number>(?:\d{1,3}(?:,\s?\d{3})+(?![\d,])|\d{1,3}(?:\s\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:\s*/\s*(?P<divisor>\d+)(?![\d.]))?"
    r"(?:(?:e|\s*[×·x*]\s*10\s?\^)(?P<exponent>[-+]?\d{1,2})(?!\d)"
    r"|(?P<scale>k|\s*(?:thousand|million|billion))\b)?",
    re.IGNORECASE,
)
_GOES_ON = re.compile(  # 3 * 6, 2:30, 3x, 5 or 6, 18 dollars and 50 cents, 10 less than 28, 3 dozen
    r"(?!\s+(?:because|since)\b)(?:"
    r"(?:\s+[a-z]+)?\s*(?:\*\*|[-+*/^×·÷±–])\s*[\d(]|\s*x\s*\d|!\s*[-+*/×·÷]|[,.:]\d|e[-+]?\d|[²³(]|\s*[xyzn]\b"
    r"|\s*[,;]?\s*(?:(?:or|and|to)\s+)?\d|\s+(?:[a-z]+\s+){0,2}(?:or|and|to)\s+(?:maybe\s+|\w+ly\s+)?\d"
    r"|\s*[\w%]*\s+(?:of|times|plus|minus|(?:less|more|fewer|greater)\s+than|(?:divid|multipli)ed\s+by)\s+\d"
    r"|\s+(?!(?:in|for|per|from|after|on|at|by|with|as|so|which)\b)[a-z]+\s+\d|\s+(?:dozens?|squared|cubed)\b|\s*或)",
    re.IGNORECASE,
)
_EXPLAINED = re.compile(
    r"(?:\s*[\w%/]+){0,3}?\s*(?:[(,;]|\b(?:because|since|as|which|where|so)\b)", re.IGNORECASE
)
_WHOLE = re.compile(r"(?:\s*[\w%/()]+){0,4}\W*$")  # 18 dollars per day
_OTHER = re.compile(  # before a number that is not the answer
    r"\b(?:not|never|than|half|twice|double|between|steps?|multiple|add|subtract|multiply|divide|^(?:let|to))\b"
    r"|n['’]t\b|[*/^×·÷]\s*$|\w\s*[-+]\s+$",
    re.IGNORECASE,
)
_DOZENS = re.compile(r"(?<=\d)\W{0,3} dozens?\b")
_SCALES = {"k": 10**3, "thousand": 10**3, "million": 10**6, "billion": 10**9}


class Gsm8k(Task):
    """Questions with one number as the answer, in GSM8K's format.

    Flexible takes the last number that is stated as the answer (see `statements`): the number that begins the
    statement, the result of an equation or the only number of a sentence, with or without currency, percent,
    unit, bold, LaTeX and thousands separators; a fraction; 1.5 million. Not taken: an expression that is left
    to be computed, a range, two numbers, a bound ("less than 18"), numbers in words.
    """

    instruction = 'Your response must end with "The final answer is (answer)".'
    pattern = re.compile(r"The final answer is\s*([-]?\d{1,3}(?:,\d{3})*\.?\d*)")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        for line, row in read_rows(path):
            where = f"{path}, line {line}"
            question, answer = text_of(row, "question", where), text_of(row, "answer", where)
            gold = GOLD.search(answer)
            if gold is None:
                raise DataError(f"{where}: 'answer' has no gold answer, it does not end in '#### NUMBER'")
            prompt, number = f"{question}\n\n{self.instruction}", gold[1].replace(",", "")
            yield line, Question("", prompt, number, worked=worked_number(answer, number))

    def is_same(self, answer: str, gold: str) -> bool:
        return Decimal(answer.replace(",", "")) == Decimal(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        if "how many dozen" in question.prompt.lower():  # then 7 dozen is 7; else it may be 84
            response = _DOZENS.sub("", response)
        values = (_value(statement) for statement in statements(response))
        value = next((value for value in values if value is not None), None)
        if value is None:
            return NO_ANSWER
        return Verdict(_shown(value), value == Fraction(question.gold))


def worked_number(answer: str, gold: str) -> str:
    """Return what is before "#### NUMBER", without calculations in <<>>, ending as the prompt asks."""
    return worked(_CALCULATION.sub("", GOLD.sub("", answer)), f"The final answer is {gold}.")


def _value(statement: Statement) -> Fraction | None:
    """Return the number that a statement states, None if it is not certain which.

    It begins the statement, is a part of an equation (the last that is not computed), or the only number.
    """
    if statement.about:
        return None
    text = plain(statement.text)
    number = _first(text)
    if statement.unfinished:
        return number and _WHOLE.match(text, number.end()) and _as_fraction(number)
    if number and not _EXPLAINED.match(text, number.end()):  # 9 * 2 = 18
        number = None
    parts = reversed(re.split("[=≈]", text))
    number = number or next(filter(None, map(_first, parts)), None)
    if number is None and not statement.terse:
        numbers = list(_NUMBER.finditer(text))
        if (
            len(numbers) == 1
            and not _OTHER.search(text[: numbers[0].start("number")])
            and not _GOES_ON.match(text, numbers[0].end())
        ):
            number = numbers[0]
    return number and _as_fraction(number)


def _first(text: str) -> re.Match[str] | None:
    """Return the number that begins a text, None if the number is a part of something else."""
    lead = _LEAD.match(text)
    number = _NUMBER.match(text, lead.end() if lead else 0)
    return None if number is None or _GOES_ON.match(text, number.end()) else number


def _as_fraction(number: re.Match[str]) -> Fraction | None:
    divisor = int(number["divisor"] or 1)
    if divisor == 0:
        return None
    size = Fraction(re.sub(r"[,\s]", "", number["number"])) / divisor + int(number["whole"] or 0)
    size *= _SCALES[number["scale"].strip().lower()] if number["scale"] else 1
    size *= Fraction(10) ** int(number["exponent"] or 0)
    return -size if number["sign"] and not number["sign"].startswith("+") else size


def _shown(value: Fraction) -> str:
    """Return a number as text: 18, 17.5, and 1/3 if no decimal is exact."""
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)
