"""Rows of the user's own files (JSON Lines, a list in JSON, CSV or TSV) and their fields' names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from mink_local.errors import DataError
from mink_local.evals.tasks.base import csv_rows, json_rows

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
LETTERS = tuple(ascii_uppercase[:10])

SPELLINGS = {
    "question": ("question", "prompt", "problem", "instruction", "input", "query"),
    "answer": (
        *("answer", "answers", "target", "gold", "label", "answerKey", "correct", "correct_answer"),
        *("expected", "expected_answer", "ground_truth", "reference_answer"),
    ),
    "choices": ("choices", "options"),
    "id": ("id", "question_id", "unique_id"),
    "solution": ("solution", "rationale", "explanation"),
    "system": ("system", "system_prompt"),
}
_FIELDS = {name.casefold(): field for field, names in SPELLINGS.items() for name in names}
_CATEGORIES = ("category", "subject", "domain", "level")
"""Names of a question's category; the first of them that a row has counts."""

_UNUSED = {
    *("comment", "dataset", "difficulty", "generator", "language", "license", "notes", "source", "split"),
    *("subset", "task", "topic", "type", "url"),
}
_KNOWN = {*_FIELDS, *_CATEGORIES, *_UNUSED, "unnamed: 0"}  # the index of a pandas frame
_NEAR = 0.8  # similarity from which a name is a known one, misspelt
_MOST_DIGITS = 18  # of a number in CSV that may be an index
_NO_ANSWERS = ("nan", "NaN", "<NA>")  # what pandas writes for a missing one


def rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every question's place and row, with the fields of a first {"defaults": {…}} that it lacks.

    Raises DataError for a file that is not in the format that its suffix says.
    """
    defaults: dict[str, Any] = {}
    for number, (where, row) in enumerate(_rows_as_written(path)):
        if number == 0 and list(row) == ["defaults"] and isinstance(row["defaults"], dict):
            defaults = row["defaults"]
        else:
            yield where, {**defaults, **row}


def _rows_as_written(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix.lower() not in (".csv", ".tsv"):
        yield from json_rows(path, dict[str, Any])
        return
    for where, row in csv_rows(path):
        yield where, {name: _cell(name, text) for name, text in row.items()}


def _cell(column: str, text: str) -> str | int:
    """Return a cell of CSV; an answer, which may be an index, as an integer, or "" if it is missing."""
    if _FIELDS.get(column.casefold()) != "answer":
        return text
    if re.fullmatch(f"[0-9]{{1,{_MOST_DIGITS}}}", text):
        return int(text)
    return "" if text in _NO_ANSWERS else text


def fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's fields under our names, without empty ones; "unknown" has the names that are ignored.

    Raises DataError for what is nearly a known name, and for two names of one field.
    """
    given = {name.strip(): value for name, value in row.items() if value not in (None, "", [])}
    options = {name: value for name, value in given.items() if name in LETTERS}
    n_questions = sum(_FIELDS.get(name.casefold()) == "question" for name in given)
    found: dict[str, str] = {}
    for name in given.keys() - options.keys():
        field = _FIELDS.get(name.casefold())
        if name.casefold() == "instruction" and n_questions > 1:
            field = "instruction"
        if field and field in found:
            first, second = sorted((found[field], name), key=list(given).index)
            raise DataError(f"{first!r} and {second!r} both give the {field}: keep one")
        if field:
            found[field] = name
    fields: dict[str, Any] = {field: given[name] for field, name in found.items()}
    if options:
        if "choices" in fields:
            raise DataError(f"{found['choices']!r} and '{min(options)}' both give choices: keep one of them")
        if tuple(sorted(options)) != LETTERS[: len(options)]:
            raise DataError(f"choices {', '.join(sorted(options))}: name them A, B, … without a gap")
        fields["choices"] = [options[letter] for letter in sorted(options)]
    by_name = {name.casefold(): value for name, value in given.items()}
    named = [by_name[name] for name in _CATEGORIES if isinstance(by_name.get(name), str | int)]
    category = {"category": " ".join(str(named[0]).split())} if named else {}
    return {**fields, **category, "unknown": [name for name in given if _is_unknown(name)]}


def _is_unknown(name: str) -> bool:
    """Return whether a column has no meaning here. Raises DataError if it nearly has one."""
    if name in LETTERS or name[:1] in ("", "_") or name.casefold() in _KNOWN:
        return False
    near = get_close_matches(name.casefold(), [*_FIELDS, *_CATEGORIES], n=1, cutoff=_NEAR)
    if near:
        raise DataError(
            f"unknown field {name!r}: did you mean {near[0]!r}? (A name that begins with _ is ignored.)"
        )
    return True


def either(names: Sequence[str]) -> str:
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}"


def text_of(fields: Mapping[str, Any], field: str) -> str:
    """Return a field as text; "" if missing. Raises DataError if it is no text or number, or blank."""
    return as_text(fields[field], field) if field in fields else ""


def as_text(value: Any, field: str) -> str:
    """Return the value of a field as text. Raises DataError if it is no text or number, or blank."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"'{field}' is {_kind(value)}: write a text or a number")
    text = str(value) if field == "question" else str(value).strip()
    if not text.strip():
        raise DataError(f"'{field}' is blank")
    return text


def _kind(value: object) -> str:
    return {bool: "true or false", list: "a list", dict: "an object"}.get(type(value), "something else")
