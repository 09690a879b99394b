"""The tasks by name: published data sets, samples, and the user's own files.

A new task is an entry of `_ALL`, and perhaps a class.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase

from msgspec.structs import replace

from mink_local.errors import DataError, TaskNotFoundError
from mink_local.evals.tasks.base import OnDisk, OwnCopy, Published, Question, Scorer, Task, csv_rows, worked
from mink_local.evals.tasks.own import SUFFIXES, Columns, OwnRow, OwnTask, RowTask, own_task
from mink_local.evals.tasks.scoring import ChoiceScorer, chosen_scorer, is_users
from mink_local.files import user_path


class PublishedTask(RowTask):
    """GSM8K (Cobbe et al. 2021, arXiv 2110.14168) or MATH500 (Lightman et al. 2023, arXiv 2305.20050)."""

    def question(self, row: OwnRow, seed: int) -> Question:
        found = super().question(row, seed)
        if found is None:
            raise DataError("no answer")
        return replace(found, id="")  # as it is recorded


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


_GITHUB = "https://raw.githubusercontent.com"
_GITHUB_LFS = "https://media.githubusercontent.com/media"

_GSM8K = {"question": ["question"], "answer": ["answer"]}
_AQUA = {"question": ["question"], "answer": ["correct"], "choices": ["options"], "solution": ["rationale"]}

_SAMPLES = Path(__file__).parents[1] / "samples"

_GSM8K_DATA = (
    f"{_GITHUB}/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
)
_AQUA_DATA = f"{_GITHUB}/google-deepmind/AQuA/26b64ed1f22208c6742f47df547dfd65088ec30d"
_MATH_DATA = f"{_GITHUB_LFS}/openai/prm800k/00811d6de065642a6967b9017d4cee59550c0ef4/prm800k/math_splits"
_MOST = 20_000_000  # bytes of a split for examples

_ALL = (
    PublishedTask(
        "gsm8k",
        Published(
            f"{_GSM8K_DATA}/test.jsonl",
            sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
            size=749_738,
        ),
        examples=Published(f"{_GSM8K_DATA}/train.jsonl", _MOST),
        scorer_name="number",
        columns=_GSM8K,
    ),
    Aqua(
        "aqua",
        Published(
            f"{_AQUA_DATA}/test.json",
            sha256="de41581881ef95c5588c44ddc701c77fd480839241dd422a0d181262af24520c",
            size=130_192,
        ),
        examples=Published(f"{_AQUA_DATA}/dev.json", _MOST),  # 254 questions; for training there are 97,467
        scorer_name="letter",
        columns=_AQUA,
    ),
    Gpqa(
        "gpqa",
        OwnCopy(
            "its authors ask that the questions not be put online in plain text: get gpqa_main.csv from "
            "https://huggingface.co/datasets/Idavidrein/gpqa or https://github.com/idavidrein/gpqa"
        ),
        max_tokens=2048,
    ),
    PublishedTask(
        "math500",
        Published(
            f"{_MATH_DATA}/test.jsonl",
            sha256="35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
            size=446_564,
        ),
        examples=Published(f"{_MATH_DATA}/train.jsonl", _MOST),
        max_tokens=2048,
        scorer_name="math",
        columns={
            "question": ["problem"],
            "answer": ["answer"],
            "solution": ["solution"],
            "category": ["subject", "level"],
        },
    ),
    PublishedTask(
        "sample-math",
        OnDisk(_SAMPLES / "sample-math.jsonl"),
        scorer_name="number",
        columns=_GSM8K,
    ),
    Aqua(
        "sample-choice",
        OnDisk(_SAMPLES / "sample-choice.jsonl"),
        scorer_name="letter",
        columns=_AQUA,
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _ALL}


def find_task(name: str, scorer: str = "", columns: Columns | None = None) -> Task:
    """Return the task with a name, or that of the user's own file if the name has its extension.

    `scorer` and `columns` are those of `own_task`, for own files only.

    Raises TaskNotFoundError, which lists the names, or DataError if a file is not a task.
    """
    if name.lower().endswith(SUFFIXES):
        path = user_path(name)
        if not os.path.exists(path):
            raise TaskNotFoundError(f"there is no file {path}")
        if path.stem in TASKS:
            raise DataError(
                f"{path} has the name of a built-in task: rename it, or run {path.stem} with --data {path}"
            )
        return own_task(path, scorer, columns)
    if name in TASKS:
        return TASKS[name]
    if os.path.isfile(user_path(name)):
        formats = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise TaskNotFoundError(f"{name} is in a format that is not read: save it as {formats}")
    own = f"your own files ({', '.join(SUFFIXES)})"
    raise TaskNotFoundError(f"unknown task {name!r}: the tasks are {', '.join(TASKS)}, and {own}")


def recorded_scorer(rule: object) -> str:
    """Return the name of the scorer in a rule of a run's manifest; empty if the user chose none."""
    return str(rule).removeprefix("scorer=") if str(rule).startswith("scorer=") else ""


def recorded_task(name: str, rule: object, trusted: str = "") -> Task | None:
    """Return the task of a recorded run, or None if this version does not know it.

    `rule` comes from the run's manifest, which may be a stranger's: nothing that it names is imported, and no
    pattern in it tried, but for the scorer `trusted`, which is the user's. It is None unless the task is the
    user's own.
    """
    if rule is None:
        return TASKS.get(name)
    scorer = recorded_scorer(rule)
    if is_users(scorer) and scorer != trusted:
        return None
    if scorer:
        try:
            chosen_scorer(scorer)
        except DataError:
            return None
    return OwnTask(name, OnDisk(Path()), open_ended=rule == "open", scorer_name=scorer)
