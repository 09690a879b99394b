"""Questions from the user's own file: JSON Lines, a list in JSON, or CSV.

A row has a question and may have an answer, choices (2 to 10 options, or columns A, B, …), an id, a worked
solution, a system message, and beside another name of the question an instruction, under any of the names in
`_SPELLINGS`; other names are refused, except those in `_UNUSED` and those that begin with "_". In JSON, a
first row {"defaults": {…}} has the fields that other rows lack. The scoring depends on the question:

- With choices, the answer is an option's letter, its index from 0 if it is an integer, its text, or its label
  in Hugging Face's `{"text": […], "label": […]}`. It is scored as in AQuA.
- A number (also 1/2, $5 or 50%), or a solution that ends in `#### NUMBER`, is scored as in GSM8K.
- A formula, such as x^2+1 or \\frac{\\pi}{2}, is scored as in MATH500.
- Any other answer is scored by equality with the stated answer (see `TextScorer`).
- If no row has an answer, the task is open-ended, and responses get no verdicts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import msgspec

from mink_local.errors import DataError
from mink_local.evals.tasks.base import (
    OnDisk,
    Question,
    Scorer,
    Task,
    csv_rows,
    json_rows,
    worked,
)
from mink_local.evals.tasks.datasets import Gsm8k, Math500, gsm8k_number, gsm8k_solution
from mink_local.evals.tasks.scoring import ChoiceScorer, TextScorer, as_formula, as_number

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")

_SPELLINGS = {
    "question": ("question", "prompt", "problem", "instruction", "input", "query"),
    "answer": ("answer", "target", "gold", "label", "answerKey", "correct"),
    "choices": ("choices", "options"),
    "id": ("id", "question_id", "unique_id"),
    "solution": ("solution", "rationale", "explanation"),
    "system": ("system", "system_prompt"),
}
_FIELDS = {name.casefold(): field for field, names in _SPELLINGS.items() for name in names}
_UNUSED = {
    *("category", "comment", "dataset", "difficulty", "generator", "language", "level", "license", "notes"),
    *("source", "split", "subject", "subset", "task", "topic", "type", "url"),
}
_LETTERS = ascii_uppercase[:10]
_MOST_DIGITS = 18  # of a number in CSV that may be an index


class OwnTask(Task):
    """Questions from the user's own file, each scored by its kind of answer."""

    instruction = Gsm8k.instruction
    scorer = TextScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")
    _choice_scorer = ChoiceScorer(r"The answer is\s*\(?([A-J])\b\)?")

    @property
    def rule(self) -> str:
        """What a run's manifest records about the task."""
        return "open" if self.open_ended else "question"

    def scorer_of(self, question: Question) -> Scorer:
        if question.choices:
            return self._choice_scorer
        if as_number(question.gold) == question.gold:
            return Gsm8k.scorer
        return Math500.scorer if as_formula(question.gold) == question.gold else self.scorer

    def rows(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        return _rows(path)

    def question(self, row: Mapping[str, Any], seed: int) -> Question:  # noqa: ARG002
        fields = _fields(row)
        text, name = _text(fields, "question"), _text(fields, "id")
        if not text:
            raise DataError(f"no {_either(_SPELLINGS['question'])}")
        if not name.isprintable():
            raise DataError("'id' contains an unprintable character")
        answer = fields.get("answer")
        if (answer is None) != self.open_ended:
            wrong = "'answer', but earlier lines have none" if self.open_ended else "no 'answer'"
            raise DataError(f"{wrong}; give all questions an answer, or none")
        if answer is None:
            if "choices" in fields:
                raise DataError("'choices' without an 'answer'")
            prompt = self.prompt(text, (), _text(fields, "instruction"))
            return Question(name, prompt, "", system=_text(fields, "system"))
        found = self._answered(name, text, fields)
        return msgspec.structs.replace(found, system=_text(fields, "system"))

    def _answered(self, name: str, text: str, fields: Mapping[str, Any]) -> Question:
        """Return a question with an answer."""
        gold, solution = _text(fields, "answer"), _text(fields, "solution")
        instruction = _text(fields, "instruction") or None
        if "choices" in fields:
            return self._choice_question(name, text, fields, solution)
        prompt = self.prompt(text, (), instruction)
        number = gsm8k_number(gold)
        if number is not None:
            return Question(name, prompt, number, worked=gsm8k_solution(gold, number))
        gold = as_number(gold) or as_formula(gold) or gold
        ending = f"The final answer is {gold}."
        return Question(name, prompt, gold, worked=worked(solution, ending) or ending)

    def _choice_question(self, name: str, text: str, fields: Mapping[str, Any], solution: str) -> Question:
        choices, labels = _choices(fields["choices"])
        gold = _letter(fields["answer"], choices, labels)
        letters = _LETTERS[: len(choices)]
        instruction = (
            f'Your response must end with "The answer is (X)" where X is one of {", ".join(letters[:-1])}, '
            f"or {letters[-1]}."
        )
        ending = f"The answer is ({gold})."
        prompt = self.prompt(text, choices, _text(fields, "instruction") or instruction)
        return Question(name, prompt, gold, choices, worked=worked(solution, ending) or ending)


def own_task(path: Path) -> OwnTask:
    """Return the task for the user's own file, named after the file without its extension.

    Raises DataError if the first row is malformed.
    """
    if not path.stem.isprintable():
        raise DataError(f"{path.stem!r} contains an unprintable character: rename the file")
    first = next(_rows(path), None)
    if first is None:
        raise DataError(f"{path} contains no questions")
    where, row = first
    try:
        open_ended = _fields(row).get("answer") is None
    except DataError as error:
        raise DataError(f"{path}, {where}: {error}") from None
    return OwnTask(path.stem, path.stem, OnDisk(path), open_ended=open_ended)


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every question's place and row, with the fields of a first {"defaults": {…}} that it lacks."""
    defaults: dict[str, Any] = {}
    for number, (where, row) in enumerate(_rows_as_written(path)):
        if number == 0 and list(row) == ["defaults"] and isinstance(row["defaults"], dict):
            defaults = row["defaults"]
        else:
            yield where, {**defaults, **row}


def _rows_as_written(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix not in (".csv", ".tsv"):
        yield from json_rows(path, dict[str, Any])
        return
    for where, row in csv_rows(path):
        yield where, {name: _cell(name, text) for name, text in row.items()}


def _cell(column: str, text: str) -> str | int:
    """Return a cell of CSV: an integer if it is the answer, since that may be an index."""
    is_answer = _FIELDS.get(column.casefold()) == "answer"
    return int(text) if is_answer and re.fullmatch(f"[0-9]{{1,{_MOST_DIGITS}}}", text) else text


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's fields under our names, without empty ones. Raises DataError for unknown names."""
    found: dict[str, tuple[str, Any]] = {}
    options: dict[str, Any] = {}
    questions = [name for name, value in row.items() if _is_question(name) and value not in (None, "")]
    for written, value in row.items():
        name = written.strip()
        if value is None or value == "" or name.startswith("_") or name.casefold() in _UNUSED:
            continue
        if name in ("", "Unnamed: 0"):  # the index of a pandas frame
            continue
        if name in _LETTERS:
            options[name] = value
            continue
        field = _FIELDS.get(name.casefold())
        if name.casefold() == "instruction" and len(questions) > 1:
            field = "instruction"
        if field is None:
            raise DataError(_unknown(name))
        if field in found:
            raise DataError(f"{found[field][0]!r} and {name!r} both give the {field}: keep one")
        found[field] = name, value
    fields = {field: value for field, (_, value) in found.items()}
    if options:
        if "choices" in fields:
            raise DataError(
                f"{found['choices'][0]!r} and '{min(options)}' both give choices: keep one of them"
            )
        if sorted(options) != list(_LETTERS[: len(options)]):
            raise DataError(f"choices {', '.join(sorted(options))}: name them A, B, … without a gap")
        fields["choices"] = [options[letter] for letter in sorted(options)]
    return fields


def _is_question(name: str) -> bool:
    return _FIELDS.get(name.strip().casefold()) == "question"


def _unknown(name: str) -> str:
    known = [spelling for names in _SPELLINGS.values() for spelling in names]
    near = get_close_matches(name.casefold(), known, n=1, cutoff=0.7)
    meant = f"did you mean {near[0]!r}?" if near else f"fields are {_either(list(_SPELLINGS))}"
    return f"unknown field {name!r}: {meant} (A name that begins with _ is ignored.)"


def _either(names: Sequence[str]) -> str:
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}"


def _text(fields: Mapping[str, Any], field: str) -> str:
    """Return a field as text; "" if missing. Raises DataError if it is no text or number, or blank."""
    if field not in fields:
        return ""
    value = fields[field]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"'{field}' is {_kind(value)}: write a text or a number")
    text = str(value) if field == "question" else str(value).strip()
    if not text.strip():
        raise DataError(f"'{field}' is blank")
    return text


def _kind(value: object) -> str:
    return {bool: "true or false", list: "a list", dict: "an object"}.get(type(value), "something else")


def _choices(given: Any) -> tuple[tuple[str, ...], list[str]]:
    """Return the options in a field, and their labels if they have any. Raises DataError."""
    labels: list[str] = []
    if isinstance(given, dict):  # {"text": […], "label": […]}, or {"A": …, "B": …}
        is_listed = set(given) == {"text", "label"}
        given, labels = (given["text"], given["label"]) if is_listed else (list(given.values()), list(given))
    if not isinstance(given, list) or not 2 <= len(given) <= len(_LETTERS):
        raise DataError(f"'choices' must be a list of 2 to {len(_LETTERS)} options")
    if not isinstance(labels, list) or len(labels) not in (0, len(given)):
        raise DataError("'choices' needs as many labels as texts")
    return tuple(_text({"choices": choice}, "choices") for choice in given), list(map(str, labels))


def _letter(answer: Any, choices: Sequence[str], labels: Sequence[str]) -> str:
    """Return the letter of the right option. Raises DataError if there is no or more than one reading."""
    letters, text = _LETTERS[: len(choices)], str(answer).strip()
    if labels.count(text) == 1:
        return letters[labels.index(text)]
    found = {letter for letter, choice in zip(letters, choices, strict=True) if text in (letter, choice)}
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
