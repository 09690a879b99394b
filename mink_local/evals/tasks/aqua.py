"""AQuA-RAT (Ling et al. 2017, arXiv 1705.04146): algebra with five options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Question, worked
from mink_local.evals.tasks.choices import ChoiceTask, listed
from mink_local.evals.tasks.lines import checked_text, read_rows, text_of

_LETTERS = "ABCDE"


class Aqua(ChoiceTask):
    """Questions with the options A to E, in AQuA's format."""

    instruction = 'Your response must end with "The answer is (X)" where X is one of A, B, C, D, or E.'
    pattern = re.compile(r"The answer is\s*\(?([A-E])\)?")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:  # noqa: ARG002
        for line, row in read_rows(path):
            where = f"{path}, line {line}"
            question = text_of(row, "question", where)
            choices = _options(row, where)
            gold = text_of(row, "correct", where)
            if gold not in tuple(_LETTERS):
                raise DataError(f"{where}: 'correct' is {gold[:20]!r} and not one of A to E")
            prompt = f"{question}\n\n{listed(choices)}\n\n{self.instruction}"
            solution = worked(row.get("rationale"), f"The answer is ({gold}).")
            yield line, Question("", prompt, gold, choices, worked=solution)


def _options(row: dict[str, Any], where: str) -> tuple[str, ...]:
    """Return the texts of the five options, without their letters."""
    if "options" not in row:
        raise DataError(f"{where}: no 'options'")
    options = row["options"]
    if not isinstance(options, list) or len(options) != len(_LETTERS):
        raise DataError(f"{where}: 'options' is not a list of five")
    choices = []
    for letter, option in zip(_LETTERS, options, strict=True):
        text = checked_text(option, "options", where)
        if not text.startswith(f"{letter})"):
            raise DataError(f"{where}: an option does not begin with '{letter})' but with {text[:5]!r}")
        choices.append(text[2:].strip())
    return tuple(choices)
