"""GPQA-main (Rein et al. 2023, arXiv 2311.12022): four options; the user's own `gpqa_main.csv`."""

import csv
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Question, worked
from mink_local.evals.tasks.choices import ChoiceTask, listed
from mink_local.evals.tasks.lines import checked_text, decoded_lines

_QUESTION = "Question"
_EXPLANATION = "Explanation"
_OPTIONS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


class Gpqa(ChoiceTask):
    """Questions with the options A to D, shuffled."""

    max_tokens = 2048
    instruction = (
        'Your response *must* end with "The final answer is (answer)". '
        "For example: (Question and your reasoning) The final answer is (A)."
    )
    pattern = re.compile(r"The final answer is\s*\(([A-D])\)\.?\s*$")

    def questions(self, path: Path, seed: int) -> Iterator[tuple[int, Question]]:
        for line, row in _rows(path):
            where = f"{path}, line {line}"
            question = checked_text(row[_QUESTION], _QUESTION, where).strip()
            options = [checked_text(row[name], name, where).strip() for name in _OPTIONS]
            order = shuffled(question, len(options), seed)
            choices = tuple(options[place] for place in order)
            prompt = f"{question}\n\n{listed(choices)}\n\n{self.instruction}"
            gold = ascii_uppercase[order.index(0)]
            solution = worked(row.get(_EXPLANATION), f"The final answer is ({gold}).")
            yield line, Question("", prompt, gold, choices, order, solution)


def shuffled(question: str, n: int, seed: int) -> tuple[int, ...]:
    """Return the numbers below `n` in an order that depends only on the run's seed and the question's text.

    They are sorted by hashes, because Python's shuffle may change from one version to the next.
    """

    def key(place: int) -> bytes:
        return hashlib.sha256(f"{seed}\n{place}\n{question}".encode()).digest()

    return tuple(sorted(range(n), key=key))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield the number of its first line, and its fields by column, of every row. Raises DataError."""
    reader = csv.reader((text for _, text in decoded_lines(path)), strict=True)
    line = 1
    try:
        header = next(reader, None)
        if header is None:
            return
        missing = [name for name in (_QUESTION, *_OPTIONS) if name not in header]
        if missing:
            raise DataError(f"{path}, line 1: no column '{missing[0]}'; GPQA's gpqa_main.csv is wanted")
        line = reader.line_num + 1
        for row in reader:
            if row:
                if len(row) != len(header):
                    raise DataError(f"{path}, line {line}: {len(row)} columns and not {len(header)}")
                yield line, dict(zip(header, row, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {line}: this is not CSV ({error})") from None
