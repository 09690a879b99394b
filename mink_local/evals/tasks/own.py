"""Tasks from anybody's own `.jsonl` file: a question a line, with an answer, with choices, or open-ended.

A line is a JSON object with `question` (or `prompt`, `problem`, or AlpacaEval's `instruction`), and may have
`answer`, `choices` (the texts of 2 to 10 options) and `id`. All lines of a file are scored by one rule, which
`own_task` finds in the data:

- `choices`: the answer is a letter or the text of an option; scored as AQuA's.
- `number`: every answer is a number, or a solution that ends in `#### NUMBER`; scored as GSM8K's.
- `text`: another answer; scored by equality with the stated answer (see `normalized`).
- `open`: no line has an answer, and no response gets a verdict.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar

from mink_local.errors import DataError
from mink_local.evals.tasks.base import NO_ANSWER, OwnFile, Question, Task, Verdict
from mink_local.evals.tasks.choices import ChoiceTask, listed
from mink_local.evals.tasks.gsm8k import GOLD, Gsm8k, worked_number
from mink_local.evals.tasks.lines import checked_text, prompt_of, read_rows
from mink_local.evals.tasks.statements import plain, statements

_MOST_CHOICES = 10  # A to J
_NUMBER = re.compile(r"-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)")
_ARTICLE = re.compile(r"^(?:an?|the) ")
_LEADER = "\u2024"  # for a full stop that ends no sentence, as in St. Petersburg
_AROUND = " \t\n.,;:!?\"'“”‘’()[]"


@dataclass(frozen=True)
class _Row:
    """A line of an own file; `answer` is None if it has none."""

    line: int
    where: str
    id: str
    question: str
    answer: str | None
    choices: tuple[str, ...]

    @property
    def is_solution(self) -> bool:
        return bool(GOLD.search(self.answer or ""))

    @property
    def number(self) -> str | None:
        """The answer if it is a number, without thousands separators."""
        answer = self.answer or ""
        gold = GOLD.search(answer)
        number = gold[1] if gold else answer.strip()
        is_number = gold or _NUMBER.fullmatch(number) or _is_float(number)
        return number.replace(",", "") if is_number else None

    @property
    def letter(self) -> str:
        """The letter of the right option. Raises DataError."""
        answer = (self.answer or "").strip()
        letters = ascii_uppercase[: len(self.choices)]
        texts = [letter for letter, choice in zip(letters, self.choices, strict=True) if choice == answer]
        found = {*texts, *([answer] if answer in tuple(letters) else [])}
        if len(found) != 1:
            raise DataError(
                f"{self.where}: 'answer' is {answer[:20]!r}: write the letter of the right option, "
                f"A to {letters[-1]}, or its text"
            )
        return found.pop()


class OwnTask(Task):
    """Base of the rules: questions are rows, in the rule's form."""

    rule: ClassVar[str]

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        rows = list(_rows(path))
        if rows and self.rule not in {(found := _rule(rows)), "text" if found == "number" else found}:
            raise DataError(f"{path} has {_TITLES[found]}: other lines than those of {self.name}")
        for row in rows:
            yield row.line, self.question(row)

    def question(self, row: _Row) -> Question:
        raise NotImplementedError


class OwnChoices(OwnTask, ChoiceTask):
    """Questions with options, scored as AQuA's."""

    rule = "choices"
    pattern = re.compile(r"The answer is\s*\(?([A-J])\b\)?")

    def question(self, row: _Row) -> Question:
        *most, last = list(ascii_uppercase[: len(row.choices)])
        instruction = (
            f'Your response must end with "The answer is (X)" where X is one of {", ".join(most)}, or {last}.'
        )
        prompt = f"{row.question}\n\n{listed(row.choices)}\n\n{instruction}"
        return Question(row.id, prompt, row.letter, row.choices, worked=f"The answer is ({row.letter}).")


class OwnNumbers(OwnTask, Gsm8k):
    """Questions with a number as the answer, scored as GSM8K's."""

    rule = "number"

    def question(self, row: _Row) -> Question:
        gold, prompt = row.number or "", f"{row.question}\n\n{self.instruction}"
        solution = (
            worked_number(row.answer or "", gold) if row.is_solution else f"The final answer is {gold}."
        )
        return Question(row.id, prompt, gold, worked=solution)


class OwnTexts(OwnTask):
    """Questions with a text as the answer, scored by equality with the stated answer.

    Upper and lower case, markup, an article in front and punctuation around an answer make no difference.
    """

    rule = "text"
    instruction = Gsm8k.instruction
    pattern = re.compile(r"The final answer is[:\s]+(.+?)(?:\.|$)")

    def question(self, row: _Row) -> Question:
        gold, prompt = (row.answer or "").strip(), f"{row.question}\n\n{self.instruction}"
        return Question(row.id, prompt, gold, worked=f"The final answer is {gold}.")

    def is_same(self, answer: str, gold: str) -> bool:
        return normalized(answer) == normalized(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        shielded = response.replace(question.gold, question.gold.replace(".", _LEADER))
        answers = (plain(statement.text).replace(_LEADER, ".") for statement in statements(shielded))
        answer = next(filter(normalized, answers), None)
        return NO_ANSWER if answer is None else Verdict(answer, self.is_same(answer, question.gold))


class OwnOpen(OwnTask):
    """Open-ended questions, whose responses are recorded without verdicts."""

    rule = "open"
    open_ended = True

    def question(self, row: _Row) -> Question:
        return Question(row.id, row.question, "")

    def flexible(self, response: str, question: Question) -> Verdict:  # noqa: ARG002
        return NO_ANSWER


RULES = {kind.rule: kind for kind in (OwnChoices, OwnNumbers, OwnTexts, OwnOpen)}
_TITLES = {
    "choices": "questions with choices, scored as AQuA's",
    "number": "questions with a number as the answer, scored as GSM8K's",
    "text": "questions with a text as the answer, scored by equality with the stated answer",
    "open": "open-ended questions, whose responses get no verdict",
}


def own_task(path: Path) -> Task:
    """Return the task of an own file: its name is the file's, without ".jsonl".

    Raises DataError if a line is not in the format, or lines need different rules.
    """
    if not path.stem.isprintable():
        raise DataError(f"{path.stem!r} holds a character that cannot be printed: rename the file")
    rows = list(_rows(path))
    if not rows:
        raise DataError(f"{path} holds no questions")
    rule = _rule(rows)
    title = _TITLES[rule]
    if rule == "text" and any(row.number for row in rows):
        title += f" (that of line {next(row.line for row in rows if not row.number)} is no number)"
    return RULES[rule](path.stem, title, OwnFile(path))


def _rule(rows: Sequence[_Row]) -> str:
    for field in ("answer", "choices"):
        has = [bool(getattr(row, field)) for row in rows]
        if len(set(has)) > 1:
            other = rows[has.index(not has[0])]
            words = (f"no '{field}'", "has one") if has[0] else (f"'{field}'", "has none")
            raise DataError(
                f"{other.where}: {words[0]}, and line {rows[0].line} {words[1]}: "
                "a file has it in every line or in none"
            )
    if rows[0].answer is None:
        if rows[0].choices:
            raise DataError(f"{rows[0].where}: 'choices' and no 'answer'")
        return "open"
    if rows[0].choices:
        return "choices"
    return "number" if all(row.number for row in rows) else "text"


def normalized(answer: str) -> str:
    """Return the form of an answer that is compared: plain text in lower case, no article or punctuation
    around it, single spaces.
    """
    text = unicodedata.normalize("NFKC", plain(answer)).casefold()
    return _ARTICLE.sub("", " ".join(text.split()).strip(_AROUND)).strip(_AROUND)


def _rows(path: Path) -> Iterator[_Row]:
    for line, row in read_rows(path):
        where = f"{path}, line {line}"
        question = prompt_of(row, where)
        answer = None if row.get("answer") is None else _text_or_number(row["answer"], "answer", where)
        yield _Row(line, where, _id(row, where), question, answer, _choices(row, where))


def _choices(row: dict[str, Any], where: str) -> tuple[str, ...]:
    choices = row.get("choices")
    if choices is None:
        return ()
    if not isinstance(choices, list) or not 2 <= len(choices) <= _MOST_CHOICES:
        raise DataError(f"{where}: 'choices' is not a list of 2 to {_MOST_CHOICES}")
    return tuple(_text_or_number(choice, "choices", where).strip() for choice in choices)


def _id(row: dict[str, Any], where: str) -> str:
    if row.get("id") is None:
        return ""
    text = _text_or_number(row["id"], "id", where)
    if not text.isprintable():
        raise DataError(f"{where}: 'id' holds a character that cannot be printed")
    return text


def _text_or_number(value: object, field: str, where: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise DataError(f"{where}: '{field}' is not a finite number")
        return str(value)
    return checked_text(value, field, where)


def _is_float(text: str) -> bool:
    """Return if text is a float as JSON writes it, such as 1e+20."""
    return bool(re.fullmatch(r"-?\d+(?:\.\d+)?e[-+]?\d{1,3}", text))
