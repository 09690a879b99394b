"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems whose answer is a number."""

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from mink_local.errors import DataError
from mink_local.evals.tasks.base import NO_ANSWER, Question, Task, Verdict
from mink_local.evals.tasks.lines import read_rows, text_of
from mink_local.evals.tasks.statements import Statement, plain, statements

_GOLD = re.compile(r"####\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*$")

_LEAD = re.compile(
    r"(?:[\s(\[\"'“≈~]|(?:about|approximately|around|exactly|roughly|only|just|a total of|equal to)\b)*", re.I
)
_NUMBER = re.compile(
    r"(?<![\w.,])(?P<sign>[-+]\s?|(?:minus|negative)\s)?"
    r"(?:(?P<whole>\d+)\s+(?=\d+\s*/\s*\d))?"  # 1 1/2
    r"(?P<number>\d{1,3}(?:,\s?\d{3})+(?![\d,])(?:\.\d+)?|\d{1,3}(?:\s\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?:\s*/\s*(?P<divisor>\d+)(?![\d.]))?"
    r"(?:\s*(?P<scale>thousand|million|billion)\b)?",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"\s*(?:\*\*|[-+*/^×·÷±–])\s*[\d(]|\s*x\s*\d|[,.:]\d|e[-+]?\d", re.IGNORECASE
)  # 3 * 6, 2:30
_SCALES = {None: 1, "thousand": 10**3, "million": 10**6, "billion": 10**9}


class Gsm8k(Task):
    """Questions with one number as the answer, in GSM8K's format.

    Flexible takes the last number that is stated as the answer (see `statements`): after the last `=` of the
    statement; the number that begins it or the only one in it, with or without currency, percent, unit,
    bold, LaTeX and thousands separators; a fraction; 1.5 million. Not taken: an expression that is left
    to be computed, a range, numbers in words. If there is no such number, GSM8K's own `#### 18` counts.
    """

    instruction = 'Your response must end with "The final answer is (answer)".'
    pattern = re.compile(r"The final answer is\s*([-]?\d{1,3}(?:,\d{3})*\.?\d*)")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        for line, row in read_rows(path):
            where = f"{path}, line {line}"
            question = text_of(row, "question", where)
            gold = _GOLD.search(text_of(row, "answer", where))
            if gold is None:
                raise DataError(f"{where}: 'answer' has no gold answer, it does not end in '#### NUMBER'")
            yield line, Question("", f"{question}\n\n{self.instruction}", gold[1].replace(",", ""))

    def is_same(self, answer: str, gold: str) -> bool:
        return Decimal(answer.replace(",", "")) == Decimal(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        value = _stated(response)
        if value is None:
            return NO_ANSWER
        return Verdict(_shown(value), value == Fraction(question.gold))


def _stated(response: str) -> Fraction | None:
    values = (_value(statement) for statement in statements(response))
    value = next((value for value in values if value is not None), None)
    if value is None and "####" in response:
        line = response.rpartition("####")[2].strip().partition("\n")[0]
        value = _value(Statement(line[:100], terse=True))
    return value


def _value(statement: Statement) -> Fraction | None:
    """Return the number that a statement states, None if it is not certain which."""
    text = re.split("[=≈]", plain(statement.text))[-1]
    lead = _LEAD.match(text)
    number = _NUMBER.match(text, lead.end() if lead else 0)
    if number is None and not statement.terse:
        numbers = list(_NUMBER.finditer(text))
        number = numbers[0] if len(numbers) == 1 else None
    if number is None or _GOES_ON.match(text, number.end()):
        return None
    return _as_fraction(number)


def _as_fraction(number: re.Match[str]) -> Fraction | None:
    divisor = int(number["divisor"] or 1)
    if divisor == 0:
        return None
    size = Fraction(re.sub(r"[,\s]", "", number["number"])) / divisor + int(number["whole"] or 0)
    scale = number["scale"]
    size *= _SCALES[scale and scale.lower()]
    return -size if number["sign"] and not number["sign"].startswith("+") else size


def _shown(value: Fraction) -> str:
    """Return a number as text: 18, 17.5, and 1/3 if no decimal is exact."""
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)
