"""MATH500 (Lightman et al. 2023, arXiv 2305.20050): competition problems whose answer is an expression."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

from mink_local.evals.tasks.base import NO_ANSWER, Question, Task, Verdict, worked
from mink_local.evals.tasks.equivalence import equivalent, require
from mink_local.evals.tasks.lines import read_rows, text_of
from mink_local.evals.tasks.statements import Statement, statements

_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))")
_TEXT = re.compile(r"\\(?:text|textbf|mbox|mathrm|mathbf|boxed)\{([^{}]*)\}")
_DRESS = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[()\[\],;:! ]|\$|\s")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?:\\!\s*)?(?=\d{3}(?!\d))")
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")

_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_DELIMITER = re.compile(r"\\[()\[\]]|(?<!\\)\$")
_ROOT = re.compile(r"√(\w+|\([^()]*\))")
_NONE = re.compile(r"^\(?answer\)?$|^not\b")  # the echo of the prompt's "(answer)"
_AROUND = " \t\n*_`,:;\"'“”"


class Math500(Task):
    """Problems with an answer in LaTeX.

    Strict compares as the paper describes: normalized texts (see `normalized`), or floats within 1e-6.
    Flexible takes the stated answer (see `statements`), boxed, in math mode or bare, with or without the
    brackets that the prompt's "(answer)" shows, and asks math-verify if it is the same.
    """

    max_tokens = 2048
    instruction = 'Your response must end with "The final answer is (answer)".'
    pattern = re.compile(r"The final answer is[:\s]+(.+?)(?:\.|$)")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        require()  # before a run has cost hours
        for line, row in read_rows(path):
            where = f"{path}, line {line}"
            problem, gold = text_of(row, "problem", where), text_of(row, "answer", where).strip()
            solution = worked(row.get("solution"), f"The final answer is {gold}.")
            yield line, Question("", f"{problem}\n\n{self.instruction}", gold, worked=solution)

    def is_same(self, answer: str, gold: str) -> bool:
        return _same(normalized(answer), normalized(gold))

    def flexible(self, response: str, question: Question) -> Verdict:
        answers = (_expression(statement) for statement in statements(response))
        answer = next((answer for answer in answers if answer), None)
        if answer is None:
            return NO_ANSWER
        readings = dict.fromkeys([answer, _unbracketed(answer)])
        return Verdict(answer, any(_matches(reading, question.gold) for reading in readings))


def normalized(answer: str) -> str:
    """Return the paper's canonical form: no LaTeX for looks, fractions as a/b, no spaces, lower case.

    The paper removes all commands; here \\sqrt, \\pi and the like keep their names, or 2\\pi would be 2.
    """
    text = _THOUSANDS.sub("", answer)
    text = _DRESS.sub("", _TEXT.sub(r"\1", text))
    text = _FRACTION.sub(lambda match: f"{match[1] or match[2]}/{match[3] or match[4]}", text)
    return text.replace("\\", "").lower()


def _same(answer: str, gold: str) -> bool:
    if answer == gold:
        return True
    if not (_FLOAT.fullmatch(answer) and _FLOAT.fullmatch(gold)):  # float() takes nan and 1_000 too
        return False
    value = float(answer)
    return math.isfinite(value) and abs(value - float(gold)) <= 1e-6


def _matches(answer: str, gold: str) -> bool:
    """Compare normalized texts, then numbers, and ask math-verify only if an answer is not a number."""
    text, wanted = normalized(answer), normalized(gold)
    if _same(text, wanted):
        return True
    if _FLOAT.fullmatch(text) and _FLOAT.fullmatch(wanted):
        return False
    return equivalent(gold, answer)


def _expression(statement: Statement) -> str:
    """Return the only piece in math mode of a statement, or all of it; an empty text if it states nothing."""
    pieces = _MATHS.findall(statement.text)
    text = "".join(pieces[0]) if len(pieces) == 1 else _DELIMITER.sub("", statement.text)
    text = text.lstrip(_AROUND).rstrip(f"{_AROUND}.")
    is_none = statement.about or text.count("{") != text.count("}") or _NONE.search(normalized(text))
    return "" if is_none else _ROOT.sub(r"\\sqrt{\1}", text).replace("π", "\\pi").replace("°", "^\\circ")


def _unbracketed(answer: str) -> str:
    """Return the content of "(answer)", or the answer if it is not all in one pair of brackets."""
    if not (answer.startswith("(") and answer.endswith(")")):
        return answer
    inner = answer[1:-1]
    depth = 0
    for character in inner:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return answer
    return inner.strip()
