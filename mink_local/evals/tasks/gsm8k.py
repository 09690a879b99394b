"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems whose answer is a number."""

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import msgspec

from mink_local.errors import DataError
from mink_local.evals.tasks.base import NO_ANSWER, Question, Scorer, Task, Verdict, worked
from mink_local.evals.tasks.lines import Text, rows
from mink_local.evals.tasks.statements import Statement, plain, statements

GOLD = re.compile(r"####\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*$")
_CALCULATION = re.compile(r"<<[^<>]*>>")

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
_HEDGES = re.compile(  # # is the only number
    r"\b(?:not|never|neither|nor|either|or|between|than)\b|n['’]t\b|不|或"  # no 18, at least 18, 18 or more
    r"|\b(?:twice|half|double|multiple|sum|squared|cubed|dozens?)\b"  # twice 9
    r"|[A-Za-z)]\s*[-+*/^×·÷]\s*#|√|#\s?[²³(±]|#\s*[xyzn]\b"  # x + 5, 3x
    r"|\b(?:because|by|from|after|in|on|to|with|step)\b[^#]*#",  # found by adding 3
    re.IGNORECASE,
)
_TAIL = re.compile(  # what follows a number and explains it
    r"(?<=\d)([^\d=≈]*?)(?:(?<![-+*/^×·÷]) \(|\b(?:because|since|as|which|and not|rather)\b|, not\b"
    r"|(?:, (?=[a-z])|[;:]\s|\b(?:in|for|per|from|after|on|at|with)\b)(?=[^=≈]*$)).*",
    re.IGNORECASE | re.DOTALL,
)
_TERSE = re.compile(r"\W*\d[\d./ ]*(?:[\w%/]+\s*){0,4}\W*$")  # 18 dollars per day
_DOZENS = re.compile(r"(?<=\d)\W{0,3} dozens?\b")


class NumberScorer(Scorer):
    """Scores answers that are one number.

    Flexible takes the only number of a statement, or of the last part of an equation that is not left to be
    computed, with or without currency, percent, unit, bold, LaTeX and thousands separators; a fraction; 1.5
    million. No answer: a range, two numbers, a bound ("less than 18"), numbers in words.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        return Decimal(answer.replace(",", "")) == Decimal(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        if "how many dozen" in question.prompt.lower():  # then 7 dozen is 7; else it may be 84
            response = _DOZENS.sub("", response)
        answer = next(filter(None, map(_number, statements(response))), None)
        return NO_ANSWER if answer is None else Verdict(answer, _value(answer) == _value(question.gold))


class _Gsm8kRow(msgspec.Struct):
    question: Text
    answer: Text


class Gsm8k(Task):
    """Questions with one number as the answer, in GSM8K's format."""

    instruction = 'Your response must end with "The final answer is (answer)".'
    scorer = NumberScorer(r"The final answer is\s*([-]?\d{1,3}(?:,\d{3})*\.?\d*)")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        for line, row in rows(path, _Gsm8kRow):
            gold = GOLD.search(row.answer)
            if gold is None:
                raise DataError(f"{path}, line {line}: 'answer' does not end in '#### NUMBER'")
            number = gold[1].replace(",", "")
            prompt = f"{row.question}\n\n{self.instruction}"
            yield line, Question("", prompt, number, worked=worked_number(row.answer, number))


def worked_number(answer: str, gold: str) -> str:
    """Return what is before "#### NUMBER", without calculations in <<>>, ending as the prompt asks."""
    return worked(_CALCULATION.sub("", GOLD.sub("", answer)), f"The final answer is {gold}.")


def _number(statement: Statement) -> str | None:
    """Return the number that a statement states, None if it is not certain which."""
    text = plain(statement.text)
    for written, meant in _SPELLINGS:
        text = re.sub(written, meant, text, flags=re.IGNORECASE)
    if statement.terse and not _TERSE.match(text):
        return None
    for part in reversed(re.split("[=≈]", _TAIL.sub(r"\1", text))):
        numbers: list[str] = _NUMBER.findall(part)
        if len(numbers) == 1 and not _HEDGES.search(_NUMBER.sub("#", part)):
            return numbers[0]
    return None


def _value(number: str) -> Fraction | None:
    """Return the value of a number such as 18, -1.5, 1e6, 1/2 or 1 1/2."""
    try:
        return sum(map(Fraction, re.sub(" ?/ ?", "/", number).split()), Fraction(0))
    except (ValueError, ZeroDivisionError):  # more digits than Python reads
        return None
