"""Published data sets, each with its prompt and scorer."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Literal

import msgspec

from mink_local.errors import DataError
from mink_local.evals.tasks.base import (
    Question,
    Task,
    Text,
    csv_rows,
    worked,
)
from mink_local.evals.tasks.scoring import MATH_SCORER, NUMBER_SCORER, ChoiceScorer

_GSM8K_GOLD = re.compile(r"####\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*$")
_CALCULATION = re.compile(r"<<[^<>]*>>")


class _Gsm8kRow(msgspec.Struct):
    question: Text
    answer: Text


class Gsm8k(Task):
    """GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems whose answer is a number."""

    instruction = 'Your response must end with "The final answer is (answer)".'
    scorer = NUMBER_SCORER
    row_type = _Gsm8kRow

    def question(self, row: _Gsm8kRow, seed: int) -> Question:  # noqa: ARG002
        gold = gsm8k_number(row.answer)
        if gold is None:
            raise DataError("'answer' does not end in '#### NUMBER'")
        prompt = self.prompt(row.question)
        return Question("", prompt, gold, worked=gsm8k_solution(row.answer, gold))


def gsm8k_number(answer: str) -> str | None:
    """Return the number, without commas, at the end of a solution with "#### NUMBER"; None otherwise."""
    found = _GSM8K_GOLD.search(answer)
    return found[1].replace(",", "") if found else None


def gsm8k_solution(answer: str, gold: str) -> str:
    """Return the text before "#### NUMBER" without its <<calculations>>, ending as the prompt asks."""
    return worked(_CALCULATION.sub("", _GSM8K_GOLD.sub("", answer)), f"The final answer is {gold}.")


class _AquaRow(msgspec.Struct):
    question: Text
    options: Annotated[list[Text], msgspec.Meta(min_length=5, max_length=5)]
    correct: Literal["A", "B", "C", "D", "E"]
    rationale: str | None = None


class Aqua(Task):
    """AQuA-RAT (Ling et al. 2017, arXiv 1705.04146): algebra with the options A to E."""

    instruction = 'Your response must end with "The answer is (X)" where X is one of A, B, C, D, or E.'
    scorer = ChoiceScorer(r"The answer is\s*\(?([A-E])\)?")
    row_type = _AquaRow

    def question(self, row: _AquaRow, seed: int) -> Question:  # noqa: ARG002
        for letter, option in zip("ABCDE", row.options, strict=True):
            if not option.startswith(f"{letter})"):
                raise DataError(f"an option begins with {option[:5]!r} instead of '{letter})'")
        choices = tuple(option[2:].strip() for option in row.options)
        prompt = self.prompt(row.question, choices)
        solution = worked(row.rationale, f"The answer is ({row.correct}).")
        return Question("", prompt, row.correct, choices, worked=solution)


_GPQA_COLUMNS = (
    "Question",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
)


class Gpqa(Task):
    """GPQA-main (Rein et al. 2023, arXiv 2311.12022): shuffled options A to D, from `gpqa_main.csv`."""

    max_tokens = 2048
    instruction = (
        'Your response *must* end with "The final answer is (answer)". '
        "For example: (Question and your reasoning) The final answer is (A)."
    )
    scorer = ChoiceScorer(r"The final answer is\s*\(([A-D])\)\.?\s*$")

    def rows(self, path: Path) -> Iterator[tuple[str, dict[str, str]]]:
        return csv_rows(path)

    def question(self, row: dict[str, str], seed: int) -> Question:
        missing = [column for column in _GPQA_COLUMNS if not (row.get(column) or "").strip()]
        if missing:
            raise DataError(f"no '{missing[0]}'; use GPQA's gpqa_main.csv")
        question, *options = (row[column].strip() for column in _GPQA_COLUMNS)
        order = shuffled(question, len(options), seed)
        choices = tuple(options[place] for place in order)
        gold = ascii_uppercase[order.index(0)]
        solution = worked(row.get("Explanation"), f"The final answer is ({gold}).")
        return Question("", self.prompt(question, choices), gold, choices, order, solution)


def shuffled(question: str, n: int, seed: int) -> tuple[int, ...]:
    """Return the numbers below `n` in an order that depends only on the run's seed and the question.

    They are sorted by hash, because Python's shuffle may change between versions.
    """

    def key(place: int) -> bytes:
        return hashlib.sha256(f"{seed}\n{place}\n{question}".encode()).digest()

    return tuple(sorted(range(n), key=key))


class _Math500Row(msgspec.Struct):
    problem: Text
    answer: Text
    solution: str | None = None


class Math500(Task):
    """MATH500 (Lightman et al. 2023, arXiv 2305.20050): competition problems with an answer in LaTeX."""

    max_tokens = 2048
    instruction = Gsm8k.instruction
    scorer = MATH_SCORER
    row_type = _Math500Row

    def question(self, row: _Math500Row, seed: int) -> Question:  # noqa: ARG002
        gold = row.answer.strip()
        solution = worked(row.solution, f"The final answer is {gold}.")
        return Question("", self.prompt(row.problem), gold, worked=solution)
