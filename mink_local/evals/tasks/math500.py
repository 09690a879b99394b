"""MATH500 (Lightman et al. 2023, arXiv 2305.20050): competition problems whose answer is an expression."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mink_local.evals.tasks.base import NO_ANSWER, Question, Scorer, Task, Verdict, worked
from mink_local.evals.tasks.equivalence import equivalent, require
from mink_local.evals.tasks.lines import Text, rows
from mink_local.evals.tasks.statements import statements

_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))")
_TEXT = re.compile(r"\\(?:text|textbf|mbox|mathrm|mathbf|boxed)\{([^{}]*)\}")
_DRESS = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[()\[\],;:! ]|\$|\s")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?:\\!\s*)?(?=\d{3}(?!\d))")
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")

_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_DELIMITER = re.compile(r"\\[()\[\]]|(?<!\\)\$")
_ROOT = re.compile(r"√(\w+|\([^()]*\))")
_PROSE = re.compile(r"^(?:not\b|answer$|(?:in)?correct\b)|(?<!\\)\b[A-Za-z]{2,}[ ,]+[A-Za-z]{2,}\b")
_AROUND = " \t\n*_`,:;\"'“”"


class MathScorer(Scorer):
    """Scores answers that are mathematical expressions.

    Strict compares as the paper describes: normalized texts (see `normalized`), or floats within 1e-6.
    Flexible takes the stated answer, boxed, in math mode or bare, with or without the brackets that the
    prompt's "(answer)" shows, and asks math-verify whether it is the same. A sentence is no expression.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        return _same(normalized(answer), normalized(gold))

    def flexible(self, response: str, question: Question) -> Verdict:
        expressions = (_expression(statement.text) for statement in statements(response))
        answer = next(filter(None, expressions), None)
        if answer is None:
            return NO_ANSWER
        is_bracketed = answer.startswith("(") and answer.endswith(")")
        gold = question.gold
        readings = [answer, answer[1:-1].strip()] if is_bracketed else [answer]
        same = any(self.is_same(reading, gold) or equivalent(gold, reading) for reading in readings)
        return Verdict(answer, same)


class _Math500Row(msgspec.Struct):
    problem: Text
    answer: Text
    solution: str | None = None


class Math500(Task):
    """Problems with an answer in LaTeX."""

    max_tokens = 2048
    instruction = 'Your response must end with "The final answer is (answer)".'
    scorer = MathScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        require()  # before a run has cost hours
        for line, row in rows(path, _Math500Row):
            gold = row.answer.strip()
            solution = worked(row.solution, f"The final answer is {gold}.")
            yield line, Question("", f"{row.problem}\n\n{self.instruction}", gold, worked=solution)


def normalized(answer: str) -> str:
    """Return the paper's canonical form: no LaTeX for looks, fractions as a/b, no spaces, lower case.

    The paper removes all commands; here \\sqrt, \\pi and the like keep their names, or 2\\pi would be 2.
    """
    text = _THOUSANDS.sub("", answer)
    text = _DRESS.sub("", _TEXT.sub(r"\1", text))
    text = _FRACTION.sub(lambda match: f"{match[1] or match[2]}/{match[3] or match[4]}", text)
    return text.replace("\\", "").lower()


def _same(answer: str, gold: str) -> bool:
    """Return whether normalized texts are equal, or numbers within 1e-6."""
    if answer == gold:
        return True
    numbers = [float(text) for text in (answer, gold) if _FLOAT.fullmatch(text)]  # not nan
    return len(numbers) == 2 and abs(numbers[0] - numbers[1]) <= 1e-6


def _expression(text: str) -> str:
    """Return the only piece in math mode of a statement, or all of it; an empty text if it states nothing."""
    if _PROSE.search(_MATHS.sub("", text)):
        return ""
    pieces = _MATHS.findall(text)
    text = "".join(pieces[0]) if len(pieces) == 1 else _DELIMITER.sub("", text)
    text = text.lstrip(_AROUND).rstrip(f"{_AROUND}.")
    if text.count("{") != text.count("}") or _PROSE.search(normalized(text)):
        return ""
    return _ROOT.sub(r"\\sqrt{\1}", text).replace("π", "\\pi").replace("°", "^\\circ")
