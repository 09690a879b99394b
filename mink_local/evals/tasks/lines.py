"""Lines of data files, with errors that name the line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mink_local.errors import DataError

PROMPTS = ("question", "prompt", "instruction", "problem")
"""Names of the field that holds what is asked."""


def decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number, from 1, and text of every line. Raises DataError."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {number}: this is not UTF-8 text") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number, from 1, and JSON object of every line that is not blank. Raises DataError."""
    for number, line in decoded_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(
                f"{path}, line {number}: this is not JSON: write one JSON object a line"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: {line.strip()[:20]} is not a JSON object")
        yield number, row


def text_of(row: dict[str, Any], field: str, where: str) -> str:
    """Return a field that must be text. `where` names file and line. Raises DataError."""
    if field not in row:
        raise DataError(f"{where}: no '{field}'")
    return checked_text(row[field], field, where)


def prompt_of(row: dict[str, Any], where: str) -> str:
    """Return what a row asks, in the first of `PROMPTS` that it has. Raises DataError."""
    field = next((name for name in PROMPTS if name in row), None)
    if field is None:
        raise DataError(f"{where}: no 'question', 'prompt', 'instruction' or 'problem'")
    return checked_text(row[field], field, where)


def checked_text(value: object, field: str, where: str) -> str:
    """Return `value` if it is text that is not blank and fits UTF-8. Raises DataError."""
    if not isinstance(value, str):
        raise DataError(f"{where}: '{field}' is not text")
    if not value.strip():
        raise DataError(f"{where}: '{field}' is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{where}: '{field}' holds half a character (a lone surrogate)") from None
    return value
