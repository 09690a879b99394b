"""Published data sets and users' own files, each with its prompt and scorer.

A line of a user's own file is a JSON object with `question` (or `prompt`, `problem`, or AlpacaEval's
`instruction`), and may have `answer`, `choices` (the texts of 2 to 10 options) and `id`. The scoring depends
on the question:

- With choices, the answer is a letter or the text of an option, scored as in AQuA.
- A number, or a solution that ends in `#### NUMBER`, is scored as in GSM8K.
- Any other answer is scored by equality with the stated answer (see `TextScorer`).
- If no line has an answer, the task is open-ended, and responses get no verdicts.
"""

import csv
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Literal

import msgspec

from mink_local.errors import DataError
from mink_local.evals.tasks.base import (
    OnDisk,
    Question,
    Scorer,
    Task,
    Text,
    decoded_lines,
    json_rows,
    prompt_of,
    worked,
)
from mink_local.evals.tasks.scoring import ChoiceScorer, MathScorer, NumberScorer, TextScorer

_GSM8K_GOLD = re.compile(r"####\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*$")
_CALCULATION = re.compile(r"<<[^<>]*>>")


class _Gsm8kRow(msgspec.Struct):
    question: Text
    answer: Text


class Gsm8k(Task):
    """GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems whose answer is a number."""

    instruction = 'Your response must end with "The final answer is (answer)".'
    scorer = NumberScorer(r"The final answer is\s*([-]?\d{1,3}(?:,\d{3})*\.?\d*)")
    row_type = _Gsm8kRow

    def question(self, row: _Gsm8kRow, seed: int) -> Question:  # noqa: ARG002
        gold = _gsm8k_number(row.answer)
        if gold is None:
            raise DataError("'answer' does not end in '#### NUMBER'")
        prompt = prompt_of(row.question, self.instruction)
        return Question("", prompt, gold, worked=_gsm8k_solution(row.answer, gold))


def _gsm8k_number(answer: str) -> str | None:
    """Return the number, without commas, at the end of a solution with "#### NUMBER"; None otherwise."""
    found = _GSM8K_GOLD.search(answer)
    return found[1].replace(",", "") if found else None


def _gsm8k_solution(answer: str, gold: str) -> str:
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
        prompt = prompt_of(row.question, self.instruction, choices)
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

    def rows(self, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
        reader = csv.DictReader((text for _, text in decoded_lines(path)), strict=True)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.reader.line_num}: this is not CSV ({error})") from None

    def question(self, row: dict[str, str], seed: int) -> Question:
        missing = [column for column in _GPQA_COLUMNS if not (row.get(column) or "").strip()]
        if missing:
            raise DataError(f"no '{missing[0]}'; use GPQA's gpqa_main.csv")
        if None in row:
            raise DataError("more columns than line 1")
        question, *options = (row[column].strip() for column in _GPQA_COLUMNS)
        order = shuffled(question, len(options), seed)
        choices = tuple(options[place] for place in order)
        gold = ascii_uppercase[order.index(0)]
        solution = worked(row.get("Explanation"), f"The final answer is ({gold}).")
        return Question("", prompt_of(question, self.instruction, choices), gold, choices, order, solution)


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
    scorer = MathScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")
    row_type = _Math500Row

    def question(self, row: _Math500Row, seed: int) -> Question:  # noqa: ARG002
        gold = row.answer.strip()
        solution = worked(row.solution, f"The final answer is {gold}.")
        return Question("", prompt_of(row.problem, self.instruction), gold, worked=solution)


_NUMBER = re.compile(r"-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+|\d+(?:\.\d+)?e[-+]?\d{1,3})")


class _OwnRow(msgspec.Struct):
    question: Text | None = None
    prompt: Text | None = None
    problem: Text | None = None
    instruction: Text | None = None
    answer: Text | int | float | None = None
    choices: Annotated[list[Text | int | float], msgspec.Meta(min_length=2, max_length=10)] | None = None
    id: Text | int | float | None = None


class OwnTask(Task):
    """Questions from the user's own file, each scored by its kind of answer."""

    instruction = Gsm8k.instruction
    scorer = TextScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")
    row_type = _OwnRow
    _choice_scorer = ChoiceScorer(r"The answer is\s*\(?([A-J])\b\)?")

    @property
    def rule(self) -> str:
        """What a run's manifest records about the task."""
        return "open" if self.open_ended else "question"

    def scorer_of(self, question: Question) -> Scorer:
        if question.choices:
            return self._choice_scorer
        return Gsm8k.scorer if _NUMBER.fullmatch(question.gold) else self.scorer

    def question(self, row: _OwnRow, seed: int) -> Question:  # noqa: ARG002
        text = row.question or row.prompt or row.problem or row.instruction
        if text is None:
            raise DataError("no 'question', 'prompt', 'problem' or 'instruction'")
        name = "" if row.id is None else str(row.id)
        if not name.isprintable():
            raise DataError("'id' contains an unprintable character")
        if (row.answer is None) != self.open_ended:
            wrong = "'answer', but earlier lines have none" if self.open_ended else "no 'answer'"
            raise DataError(f"{wrong}; give all questions an answer, or none")
        choices = tuple(str(choice).strip() for choice in row.choices or ())
        if row.answer is None:
            if choices:
                raise DataError("'choices' without an 'answer'")
            return Question(name, text, "")
        answer = str(row.answer).strip()
        if choices:
            return _choice_question(name, text, answer, choices)
        prompt = prompt_of(text, self.instruction)
        number = _gsm8k_number(answer)
        if number is not None:
            return Question(name, prompt, number, worked=_gsm8k_solution(answer, number))
        gold = answer.replace(",", "") if _NUMBER.fullmatch(answer) else answer
        return Question(name, prompt, gold, worked=f"The final answer is {gold}.")


def _choice_question(name: str, text: str, answer: str, choices: tuple[str, ...]) -> Question:
    letters = ascii_uppercase[: len(choices)]
    found = {letter for letter, choice in zip(letters, choices, strict=True) if answer in (letter, choice)}
    if len(found) != 1:
        raise DataError(
            f"'answer' is {answer[:20]!r}: write the letter of the right option, A to {letters[-1]}, "
            "or its text"
        )
    gold = found.pop()
    instruction = (
        f'Your response must end with "The answer is (X)" where X is one of {", ".join(letters[:-1])}, '
        f"or {letters[-1]}."
    )
    prompt = prompt_of(text, instruction, choices)
    return Question(name, prompt, gold, choices, worked=f"The answer is ({gold}).")


def own_task(path: Path) -> OwnTask:
    """Return the task for the user's own file, named after the file without ".jsonl".

    Raises DataError if the first line is malformed.
    """
    if not path.stem.isprintable():
        raise DataError(f"{path.stem!r} contains an unprintable character: rename the file")
    first = next(json_rows(path, _OwnRow), None)
    if first is None:
        raise DataError(f"{path} contains no questions")
    return OwnTask(path.stem, path.stem, OnDisk(path), open_ended=first[1].answer is None)
