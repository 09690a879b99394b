"""Questions from the user's own file: JSON Lines, a list in JSON, CSV or TSV.

A row has a question and may have an answer or a list of accepted ones, choices (2 to 10 options, or columns
A, B, …), an id, a worked solution, a category, a system message, and beside another name of the question an
instruction, under any of the names in `rows.SPELLINGS`; other columns are ignored. In JSON, a first row
{"defaults": {…}} has the fields that other rows lack. Unless the user names a scorer, the scoring depends on
the question:

- With choices, the answer is an option's letter, its index from 0 if it is an integer, its text, or its label
  in Hugging Face's `{"text": […], "label": […]}`. It is scored as in AQuA.
- A number (also 1/2, $5, 3,5, 50% or 18 dollars), or a solution that ends in `#### NUMBER`, is scored as in
  GSM8K, in its unit if the response states one, too.
- A formula, such as x^2+1 or \\frac{\\pi}{2}, is scored as in MATH500.
- Any other answer is scored by equality with the stated answer (see `TextScorer`).
- If no row has an answer, the task is open-ended, and responses get no verdicts. Otherwise, rows without one
  are left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mink_local.errors import DataError
from mink_local.evals.tasks.base import OnDisk, Question, Scorer, Task, worked
from mink_local.evals.tasks.chosen import chosen_scorer
from mink_local.evals.tasks.datasets import Gsm8k, Math500, gsm8k_solution
from mink_local.evals.tasks.rows import (
    LETTERS,
    SPELLINGS,
    as_text,
    either,
    fields_of,
    rows,
    text_of,
)
from mink_local.evals.tasks.scoring import LETTER_SCORER, TEXT_SCORER, as_formula, as_number

_LABEL = re.compile(r"\(?([A-J])[).:]\s*")


@dataclass(frozen=True)
class OwnTask(Task):
    """Questions from the user's own file, each scored by its kind of answer, or all by a named scorer.

    Attributes:
        scorer_name: What `chosen_scorer` takes; empty to choose by the kind of answer.
    """

    scorer_name: str = ""

    instruction = Gsm8k.instruction

    @property
    def rule(self) -> str:
        """What a run's manifest records about the task."""
        named = f"scorer={self.scorer_name}" if self.scorer_name else "question"
        return "open" if self.open_ended else named

    def scorer_of(self, question: Question) -> Scorer:
        if self.scorer_name:
            return chosen_scorer(self.scorer_name)
        if question.choices:
            return LETTER_SCORER
        if as_number(question.gold) == question.gold:
            return Gsm8k.scorer
        return Math500.scorer if as_formula(question.gold) == question.gold else TEXT_SCORER

    def rows(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        return rows(path)

    def remarks(self, path: Path) -> list[str]:
        names: dict[str, None] = {}
        unanswered = 0
        for _, row in rows(path):
            fields = fields_of(row)
            names |= dict.fromkeys(fields["unknown"])
            unanswered += "answer" not in fields
        ignored = [f"{path}: ignored {', '.join(map(repr, names))}."] if names else []
        if unanswered and not self.open_ended:
            left_out = "1 question" if unanswered == 1 else f"{unanswered:,} questions"
            ignored.append(f"{path}: left out {left_out} without an answer.")
        return ignored

    def question(self, row: Mapping[str, Any], seed: int) -> Question | None:  # noqa: ARG002
        fields = fields_of(row)
        text, name = text_of(fields, "question"), text_of(fields, "id")
        if not text:
            raise DataError(f"no {either(SPELLINGS['question'])}")
        if not name.isprintable():
            raise DataError("'id' contains an unprintable character")
        if "answer" not in fields and not self.open_ended:
            return None
        if self.open_ended:
            if "choices" in fields:
                raise DataError("'choices' without an 'answer'")
            found = Question(name, self.prompt(text, (), text_of(fields, "instruction") or ""), "")
        elif "choices" in fields:
            found = self._choice_question(name, text, fields)
        else:
            found = self._answered(name, text, fields)
        return replace(found, system=text_of(fields, "system"), category=fields.get("category", ""))

    def _answered(self, name: str, text: str, fields: Mapping[str, Any]) -> Question:
        """Return a question with an answer, or several."""
        first, *others = (as_text(answer, "answer") for answer in _listed(fields["answer"]))
        solution, _, last = first.rpartition("####")  # as in GSM8K
        is_solved = "####" in first and last.strip() and "\n" not in last.strip()
        golds = tuple(dict.fromkeys(map(self._gold, (last.strip() if is_solved else first, *others))))
        ending = f"The final answer is {golds[0]}."
        own = worked(text_of(fields, "solution"), ending)
        steps = gsm8k_solution(solution, golds[0]) if is_solved else own
        prompt = self.prompt(text, (), text_of(fields, "instruction") or None)
        return Question(name, prompt, golds[0], others=golds[1:], worked=steps or ending)

    def _gold(self, gold: str) -> str:
        """Return a right answer as it is compared. Raises DataError if the named scorer cannot find it."""
        if self.scorer_name == "letter":
            if gold.upper() not in LETTERS:
                raise DataError(f"'answer' is {gold[:20]!r}, and no letter, as --scorer letter needs")
            return gold.upper()
        if self.scorer_name == "number" and as_number(gold) is None:
            raise DataError(f"'answer' is {gold[:20]!r}, and no number, as --scorer number needs")
        if self.scorer_name not in ("", "number"):
            return gold
        return as_number(gold) or as_formula(gold) or gold

    def _choice_question(self, name: str, text: str, fields: Mapping[str, Any]) -> Question:
        if self.scorer_name in ("number", "text", "math"):
            raise DataError(
                f"a question with choices, which --scorer {self.scorer_name} cannot score: use letter"
            )
        written, labels = _choices(fields["choices"])
        choices = _without_labels(written)
        answers = _listed(fields["answer"])
        gold, *others = (_letter(answer, written, choices, labels) for answer in answers)
        letters = LETTERS[: len(choices)]
        instruction = (
            f'Your response must end with "The answer is (X)" where X is one of {", ".join(letters[:-1])}, '
            f"or {letters[-1]}."
        )
        ending = f"The answer is ({gold})."
        prompt = self.prompt(text, choices, text_of(fields, "instruction") or instruction)
        steps = worked(text_of(fields, "solution"), ending) or ending
        return Question(name, prompt, gold, choices, worked=steps, others=tuple(others))


def own_task(path: Path, scorer: str = "") -> OwnTask:
    """Return the task for the user's own file, named after the file without its extension.

    Raises DataError if a row is malformed, or if `scorer` is none.
    """
    if not path.stem.isprintable():
        raise DataError(f"{path.stem!r} contains an unprintable character: rename the file")
    if scorer:
        chosen_scorer(scorer)
    place, open_ended = None, True
    for place, row in rows(path):
        try:
            open_ended = open_ended and "answer" not in fields_of(row)
        except DataError as error:
            raise DataError(f"{path}, {place}: {error}") from None
    if place is None:
        raise DataError(f"{path} contains no questions")
    if scorer and open_ended:
        raise DataError(f"{path} has no answers that --scorer could compare with")
    return OwnTask(path.stem, path.stem, OnDisk(path), open_ended=open_ended, scorer_name=scorer)


def _listed(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


def _without_labels(choices: tuple[str, ...]) -> tuple[str, ...]:
    """Return options without the labels that AQuA's have: A)21, B)24."""
    found = [_LABEL.match(choice) for choice in choices]
    labels = tuple(label[1] for label in found if label)
    if labels != LETTERS[: len(choices)]:
        return choices
    return tuple(_LABEL.sub("", choice, count=1) for choice in choices)


def _choices(given: Any) -> tuple[tuple[str, ...], list[str]]:
    """Return the options in a field, and their labels if they have any. Raises DataError."""
    labels: list[str] = []
    if isinstance(given, dict):  # {"text": […], "label": […]}, or {"A": …, "B": …}
        is_listed = set(given) == {"text", "label"}
        given, labels = (given["text"], given["label"]) if is_listed else (list(given.values()), list(given))
    if not isinstance(given, list) or not 2 <= len(given) <= len(LETTERS):
        raise DataError(f"'choices' must be a list of 2 to {len(LETTERS)} options")
    if not isinstance(labels, list) or len(labels) not in (0, len(given)):
        raise DataError("'choices' needs as many labels as texts")
    return tuple(as_text(choice, "choices") for choice in given), list(map(str, labels))


def _letter(answer: Any, written: Sequence[str], choices: Sequence[str], labels: Sequence[str]) -> str:
    """Return the letter of the right option. Raises DataError if there is no or more than one reading."""
    letters, text = LETTERS[: len(choices)], str(answer).strip()
    if labels.count(text) == 1:
        return letters[labels.index(text)]
    found = {names[0] for names in zip(letters, choices, written, strict=True) if text in names}
    if isinstance(answer, int) and 0 <= answer < len(letters):
        found.add(letters[answer])
    if len(found) == 1:
        return found.pop()
    named = " or ".join(f"({letter}) {choices[letters.index(letter)]}" for letter in sorted(found))
    raise DataError(
        f"'answer' is {text[:20]!r}"
        + (f", which may mean {named}" if found else "")
        + f": write the letter of the right option, A to {letters[-1]}, its index from 0, or its text"
    )
