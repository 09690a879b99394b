"""Tasks from anybody's own `.jsonl` file: a question a line, with an answer, with choices, or open-ended.

A line is a JSON object with `question` (or `prompt`, `problem`, or AlpacaEval's `instruction`), and may have
`answer`, `choices` (the texts of 2 to 10 options) and `id`. The question decides how it is scored:

- With choices, the answer is a letter or the text of an option; scored as AQuA's.
- A number, or a solution that ends in `#### NUMBER`, is scored as GSM8K's.
- Another answer is scored by equality with the stated answer (see `normalized`).
- If no line has an answer, the task is open-ended, and no response gets a verdict.
"""

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated

import msgspec

from mink_local.errors import DataError
from mink_local.evals.tasks.base import NO_ANSWER, OwnFile, Question, Scorer, Task, Verdict
from mink_local.evals.tasks.choices import ChoiceScorer, listed
from mink_local.evals.tasks.gsm8k import GOLD, Gsm8k, worked_number
from mink_local.evals.tasks.lines import Text, rows
from mink_local.evals.tasks.statements import plain, statements

_NUMBER = re.compile(r"-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+|\d+(?:\.\d+)?e[-+]?\d{1,3})")
_ARTICLE = re.compile(r"^(?:an?|the) ")
_LEADER = "\u2024"  # for a full stop that ends no sentence, as in St. Petersburg
_AROUND = " \t\n.,;:!?\"'“”‘’()[]"


class TextScorer(Scorer):
    """Scores answers that are texts, by equality with the stated answer.

    Upper and lower case, markup, an article in front and punctuation around an answer make no difference.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        return normalized(answer) == normalized(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        shielded = response.replace(question.gold, question.gold.replace(".", _LEADER))
        answers = (plain(statement.text).replace(_LEADER, ".") for statement in statements(shielded))
        answer = next(filter(normalized, answers), None)
        return NO_ANSWER if answer is None else Verdict(answer, self.is_same(answer, question.gold))


class _OwnRow(msgspec.Struct):
    question: Text | None = None
    prompt: Text | None = None
    problem: Text | None = None
    instruction: Text | None = None
    answer: Text | int | float | None = None
    choices: Annotated[list[Text | int | float], msgspec.Meta(min_length=2, max_length=10)] | None = None
    id: Text | int | float | None = None


class OwnTask(Task):
    """Questions from a file of the user's, each scored by the kind of its answer."""

    instruction = Gsm8k.instruction
    scorer = TextScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")
    _choice_scorer = ChoiceScorer(r"The answer is\s*\(?([A-J])\b\)?")

    @property
    def rule(self) -> str:
        """What a run's manifest says of the task."""
        return "open" if self.open_ended else "question"

    def scorer_of(self, question: Question) -> Scorer:
        if question.choices:
            return self._choice_scorer
        return Gsm8k.scorer if _NUMBER.fullmatch(question.gold) else self.scorer

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        for line, row in rows(path, _OwnRow):
            where = f"{path}, line {line}"
            if (row.answer is None) != self.open_ended:
                wrong = "'answer', and earlier lines have none" if self.open_ended else "no 'answer'"
                raise DataError(f"{where}: {wrong}; give every question an answer, or none")
            yield line, self._question(row, where)

    def _question(self, row: _OwnRow, where: str) -> Question:
        text = row.question or row.prompt or row.problem or row.instruction
        if text is None:
            raise DataError(f"{where}: no 'question', 'prompt', 'problem' or 'instruction'")
        name = "" if row.id is None else str(row.id)
        if not name.isprintable():
            raise DataError(f"{where}: 'id' holds a character that cannot be printed")
        if row.answer is None:
            if row.choices:
                raise DataError(f"{where}: 'choices' without an 'answer'")
            return Question(name, text, "")
        answer = str(row.answer).strip()
        if row.choices:
            choices = [str(choice).strip() for choice in row.choices]
            return _choice_question(name, text, answer, choices, where)
        prompt = f"{text}\n\n{self.instruction}"
        if solution := GOLD.search(answer):
            number = solution[1].replace(",", "")
            return Question(name, prompt, number, worked=worked_number(answer, number))
        gold = answer.replace(",", "") if _NUMBER.fullmatch(answer) else answer
        return Question(name, prompt, gold, worked=f"The final answer is {gold}.")


def _choice_question(name: str, text: str, answer: str, choices: list[str], where: str) -> Question:
    letters = ascii_uppercase[: len(choices)]
    found = {letter for letter, choice in zip(letters, choices, strict=True) if answer in (letter, choice)}
    if len(found) != 1:
        raise DataError(
            f"{where}: 'answer' is {answer[:20]!r}: write the letter of the right option, "
            f"A to {letters[-1]}, or its text"
        )
    gold = found.pop()
    instruction = (
        f'Your response must end with "The answer is (X)" where X is one of {", ".join(letters[:-1])}, '
        f"or {letters[-1]}."
    )
    prompt = f"{text}\n\n{listed(choices)}\n\n{instruction}"
    return Question(name, prompt, gold, tuple(choices), worked=f"The answer is ({gold}).")


def own_task(path: Path) -> OwnTask:
    """Return the task of an own file: its name is the file's, without ".jsonl".

    Raises DataError if the first line is not in the format.
    """
    if not path.stem.isprintable():
        raise DataError(f"{path.stem!r} holds a character that cannot be printed: rename the file")
    first = next(rows(path, _OwnRow), None)
    if first is None:
        raise DataError(f"{path} holds no questions")
    return OwnTask(path.stem, path.stem, OwnFile(path), open_ended=first[1].answer is None)


def normalized(answer: str) -> str:
    """Return the form of an answer that is compared: plain text in lower case, no article or punctuation
    around it, single spaces.
    """
    text = unicodedata.normalize("NFKC", plain(answer)).casefold()
    return _ARTICLE.sub("", " ".join(text.split()).strip(_AROUND)).strip(_AROUND)
