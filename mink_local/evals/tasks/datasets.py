"""Published data sets, each with its prompt and scorer."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase

from msgspec.structs import replace

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Question, Scorer, Task, csv_rows, worked
from mink_local.evals.tasks.own import OwnRow, RowTask
from mink_local.evals.tasks.scoring import ChoiceScorer


class PublishedTask(RowTask):
    """GSM8K (Cobbe et al. 2021, arXiv 2110.14168) or MATH500 (Lightman et al. 2023, arXiv 2305.20050)."""

    def question(self, row: OwnRow, seed: int) -> Question:
        found = super().question(row, seed)
        if found is None:
            raise DataError("no answer")
        return replace(found, id="", category="")  # as they are recorded


class Aqua(PublishedTask):
    """AQuA-RAT (Ling et al. 2017, arXiv 1705.04146): algebra with the options A to E."""

    scorer = ChoiceScorer(r"The answer is\s*\(?([A-E])\)?")

    def question(self, row: OwnRow, seed: int) -> Question:
        found = super().question(row, seed)
        if len(found.choices) != len("ABCDE"):
            raise DataError(f"{len(found.choices)} options instead of five")
        return found

    def scorer_of(self, question: Question) -> Scorer:  # noqa: ARG002
        return self.scorer


_GPQA_COLUMNS = (
    "Question",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
)


class Gpqa(Task):
    """GPQA-main (Rein et al. 2023, arXiv 2311.12022): shuffled options A to D, from `gpqa_main.csv`."""

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
