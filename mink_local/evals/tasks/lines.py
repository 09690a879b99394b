"""Lines of data files, with errors that name the line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from mink_local.errors import DataError

Row = TypeVar("Row")
Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
"""A field that must have text, and not blanks alone."""


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


def rows(path: Path, kind: type[Row]) -> Iterator[tuple[int, Row]]:
    """Yield number, from 1, and JSON object of every line that is not blank, as a msgspec struct.

    Raises DataError, which names file and line, if a line is not such an object.
    """
    for number, line in decoded_lines(path):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line, type=kind)
        except (msgspec.ValidationError, RecursionError) as error:
            wrong = str(error).replace(" matching regex '\\\\S'", " that is not blank")
            raise DataError(f"{path}, line {number}: {wrong}") from None
        except msgspec.DecodeError as error:
            raise DataError(f"{path}, line {number}: write one JSON object a line ({error})") from None
