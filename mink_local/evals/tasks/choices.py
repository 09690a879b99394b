"""Multiple choice: find the option that a response states; AQuA-RAT and GPQA.

AQuA-RAT (Ling et al. 2017, arXiv 1705.04146) asks for algebra with five options. GPQA-main (Rein et al. 2023,
arXiv 2311.12022) has four, and is read from the user's own `gpqa_main.csv`.
"""

import csv
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Literal

import msgspec

from mink_local.errors import DataError
from mink_local.evals.tasks.base import NO_ANSWER, Question, Scorer, Task, Verdict, worked
from mink_local.evals.tasks.lines import Text, decoded_lines, rows
from mink_local.evals.tasks.statements import Statement, plain, statements

_LEAD = r"\W*(?i:(?:the|option|choice|letter|answer|therefore|thus|so|most|\w+ly)\b\W+){0,3}"
_LETTER = re.compile(
    r"\(\s*([A-Za-z])\s*\)|\b[Oo]ption ([A-Z])\b"  # 0.26, which is (B), option B
    rf"|\A{_LEAD}\[?([A-Za-z])\s*(?=[).,;:=\]。，!]|[\"'”’](?!\w)|\Z)"  # B) 21, b.
    rf"|\A{_LEAD}([A-Z])(?=\s+(?:because|since|as|which|and|[-–—(]))"
    rf"|\A{_LEAD}([B-Z])(?=\s)"  # not A, which is a word
)
_HEDGES = re.compile(
    r"\b(?:or|(?:can)?not|never|neither|nor|between|than|both|because|by|incorrect|wrong)\b|n['’]t\b|不|或"
    r"|\b[A-J]\)?(?:, | ?[/&] ?| and )\(?[A-J]\b",
    re.IGNORECASE,
)
_TAIL = re.compile(  # (B), not (A)
    r"(\b[A-J]\b[)\]]?),? (?:and not|not|rather than|because|since|as)\b.*", re.DOTALL
)
_LOOSE = re.compile(r"[\s,]+|\.$")


def listed(choices: Sequence[str]) -> str:
    """Return the options as a model gets them, one a line: (A) …"""
    return "\n".join(f"({letter}) {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False))


class ChoiceScorer(Scorer):
    """Scores answers that are one of a question's options.

    Flexible takes the letter in brackets, in bold, in a box, in lower case if it cannot be a word, or the
    option's text. "Apples" is A only if option A says so. Options with the same text are the same answer,
    whatever their letters. "A or B", "not B" and "B is wrong" are no answer.
    """

    def flexible(self, response: str, question: Question) -> Verdict:
        options = dict(zip(ascii_uppercase, (_key(choice) for choice in question.choices), strict=False))
        for statement in statements(response):
            letter = _letter(statement, options)
            if letter is not None:
                return Verdict(letter, options[letter] == options[question.gold])
        return NO_ANSWER


def _letter(statement: Statement, options: dict[str, str]) -> str | None:
    text = plain(statement.text)
    worded = [letter for letter, option in options.items() if option == _key(text)]
    if worded and not (len(text) == 1 and text.isalpha()):
        return worded[0]
    text = _TAIL.sub(r"\1", text)
    if _HEDGES.search(text):
        return None
    named = {"".join(letters).upper() for letters in _LETTER.findall(text)}
    return named.pop() if len(named) == 1 and named <= options.keys() else None


def _key(text: str) -> str:
    """Return the form of an option's wording that is compared."""
    return _LOOSE.sub("", plain(text)).casefold()


class _AquaRow(msgspec.Struct):
    question: Text
    options: Annotated[list[Text], msgspec.Meta(min_length=5, max_length=5)]
    correct: Literal["A", "B", "C", "D", "E"]
    rationale: str | None = None


class Aqua(Task):
    """Questions with the options A to E, in AQuA's format."""

    instruction = 'Your response must end with "The answer is (X)" where X is one of A, B, C, D, or E.'
    scorer = ChoiceScorer(r"The answer is\s*\(?([A-E])\)?")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        for line, row in rows(path, _AquaRow):
            choices = []
            for letter, option in zip("ABCDE", row.options, strict=True):
                if not option.startswith(f"{letter})"):
                    raise DataError(
                        f"{path}, line {line}: an option begins with {option[:5]!r} and not with '{letter})'"
                    )
                choices.append(option[2:].strip())
            prompt = f"{row.question}\n\n{listed(choices)}\n\n{self.instruction}"
            solution = worked(row.rationale, f"The answer is ({row.correct}).")
            yield line, Question("", prompt, row.correct, tuple(choices), worked=solution)


_GPQA_COLUMNS = (
    "Question",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
)


class Gpqa(Task):
    """Questions with the options A to D, shuffled."""

    max_tokens = 2048
    instruction = (
        'Your response *must* end with "The final answer is (answer)". '
        "For example: (Question and your reasoning) The final answer is (A)."
    )
    scorer = ChoiceScorer(r"The final answer is\s*\(([A-D])\)\.?\s*$")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:
        reader = csv.DictReader((text for _, text in decoded_lines(path)), strict=True)
        try:
            for row in reader:
                yield reader.line_num, self._question(row, seed, f"{path}, line {reader.line_num}")
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.reader.line_num}: this is not CSV ({error})") from None

    def _question(self, row: dict[str, str], seed: int, where: str) -> Question:
        missing = [column for column in _GPQA_COLUMNS if not (row.get(column) or "").strip()]
        if missing:
            raise DataError(f"{where}: no '{missing[0]}'; this takes GPQA's gpqa_main.csv")
        if None in row:
            raise DataError(f"{where}: more columns than line 1 has")
        question, *options = (row[column].strip() for column in _GPQA_COLUMNS)
        order = shuffled(question, len(options), seed)
        choices = tuple(options[place] for place in order)
        prompt = f"{question}\n\n{listed(choices)}\n\n{self.instruction}"
        gold = ascii_uppercase[order.index(0)]
        solution = worked(row.get("Explanation"), f"The final answer is ({gold}).")
        return Question("", prompt, gold, choices, order, solution)


def shuffled(question: str, n: int, seed: int) -> tuple[int, ...]:
    """Return the numbers below `n` in an order that depends only on the run's seed and the question's text.

    They are sorted by hashes, because Python's shuffle may change from one version to the next.
    """

    def key(place: int) -> bytes:
        return hashlib.sha256(f"{seed}\n{place}\n{question}".encode()).digest()

    return tuple(sorted(range(n), key=key))
