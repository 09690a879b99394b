"""Questions from the user's own file: JSON Lines, a list in JSON, CSV or TSV.

A row has a `question` and may have an `answer` or a list of accepted ones, `choices` (2 to 10 options, or
columns A, B, …), an `id`, a `category`, and for --shots a worked `solution`. Where a file has other names for
these, the user says which column is what: nothing is guessed, and nothing that matters is left unread. Unless
the user names a scorer, the scoring depends on the question:

- With choices, the answer is an option's letter, its index from 0 if it is an integer, its text, or its label
  in Hugging Face's `{"text": […], "label": […]}`. It is scored as in AQuA.
- A number (also 1/2, $5, 3,5, 50% or 18 dollars), or a solution that ends in `#### NUMBER`, is scored as in
  GSM8K, in its unit if the response states one, too.
- A formula, such as x^2+1 or \\frac{\\pi}{2}, is scored as in MATH500.
- Any other answer is scored by equality with the stated answer (see `TextScorer`).
- If no row has an answer, the task is open-ended, and responses get no verdicts. Otherwise, rows without one
  are left out.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from mink_local.errors import DataError
from mink_local.evals.tasks.base import (
    Name,
    OnDisk,
    Question,
    Scorer,
    Task,
    Text,
    csv_rows,
    in_words,
    json_rows,
    worked,
)
from mink_local.evals.tasks.scoring import (
    LETTER_SCORER,
    MATH_SCORER,
    NUMBER_SCORER,
    TEXT_SCORER,
    as_formula,
    as_number,
    chosen_scorer,
)

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
NAMES = ("question", "answer", "choices", "id", "category", "solution")
_ELSEWHERE = {
    "question": r"question|prompt|problem|instruction|input|query|system(_prompt)?"
    r"|article|body|context|narrative|passage|premise|story|support",
    "answer": r"answers|answerkey|answer_number|target|gold|label|correct(_answer)?|expected(_answer)?"
    r"|ground_truth|reference_answer|output|ideal|cop",
    "choices": r"options|endings|(op|option|choice|ending)[ _]?[a-j\d]",
    "id": "question_id|unique_id",
    "category": "subject|domain|level",
    "solution": "rationale|explanation",
}
"""Other files' names for ours, in lower case, which are suggested, not assumed."""
_ALL_OF = ("question", "choices", "category")  # of which several columns are suggested
_LETTERS = tuple(ascii_uppercase[:10])
_NOT_READ = re.compile("_.*|unnamed: 0|", re.DOTALL)  # the user's own, the index of a pandas frame
_ANSWERS_IN = ("text", "value", "aliases", "spans")  # of SQuAD, TriviaQA and DROP
_INDEX = re.compile("0|[1-9][0-9]{0,17}")  # an answer in CSV that may be one, unlike 007
_NO_ANSWERS = ("nan", "NaN", "<NA>")  # what pandas writes for a missing one
_CALCULATION = re.compile(r"<<[^<>]*>>")  # of GSM8K
_LABEL = re.compile(r"\(?([A-J])[).:]\s*")
_SHOWN = 5  # left-out rows that are named

Columns = Mapping[str, Sequence[str]]
"""The columns of a file that are each of `NAMES`; several are joined, none if the file is to lack it."""


_Value = Text | int | float


class Choices(msgspec.Struct):
    """Options, and their labels if they have any."""

    text: Annotated[list[_Value], msgspec.Meta(min_length=2, max_length=len(_LETTERS))]
    label: list[str | int] = []

    def __post_init__(self) -> None:
        if len(self.label) not in (0, len(self.text)):
            raise ValueError("as many labels as texts are needed")


class OwnRow(msgspec.Struct):
    """A row of a file, with its accepted answers as they are written."""

    question: _Value
    answer: list[_Value]
    choices: Choices | None
    id: Name | int
    category: str
    solution: str


@dataclass(frozen=True)
class RowTask(Task):
    """Questions from a file, each scored by its kind of answer, or all by a named scorer.

    Attributes:
        scorer_name: What `chosen_scorer` takes; empty to choose by the kind of answer.
        columns: Which of the file's columns are read.
    """

    scorer_name: str = ""
    columns: Columns = field(default_factory=lambda: {name: [name] for name in NAMES})

    instruction = 'Your response must end with "The final answer is (answer)".'

    def scorer_of(self, question: Question) -> Scorer:
        if self.scorer_name:
            return chosen_scorer(self.scorer_name)
        if question.choices:
            return LETTER_SCORER
        if as_number(question.gold) == question.gold:
            return NUMBER_SCORER
        return MATH_SCORER if as_formula(question.gold) == question.gold else TEXT_SCORER

    def rows(self, path: Path) -> Iterator[tuple[str, OwnRow]]:
        for place, row in _cells(path):
            try:
                yield place, _own_row(row, self.columns)
            except (DataError, msgspec.ValidationError) as error:
                raise DataError(f"{path}, {place}: {in_words(error)}") from None

    def question(self, row: OwnRow, seed: int) -> Question | None:  # noqa: ARG002
        if self.open_ended and row.choices:
            raise DataError("'choices' without an 'answer'")
        if self.open_ended:
            found = Question("", self.prompt(str(row.question), (), ""), "")
        elif not row.answer:
            return None
        else:
            found = self._choice_question(row, row.choices) if row.choices else self._answered(row)
        return replace(found, id=str(row.id).strip(), category=row.category)

    def _answered(self, row: OwnRow) -> Question:
        """Return a question with an answer, or several."""
        first, *others = (str(answer).strip() for answer in row.answer)
        solution, _, last = map(str.strip, first.rpartition("####"))  # as in GSM8K
        is_solved = "####" in first and last and "\n" not in last
        golds = tuple(dict.fromkeys(map(self._gold, (last if is_solved else first, *others))))
        ending = f"The final answer is {golds[0]}."
        steps = worked(_CALCULATION.sub("", solution) if is_solved else row.solution, ending)
        return Question(
            "", self.prompt(str(row.question)), golds[0], others=golds[1:], worked=steps or ending
        )

    def _gold(self, gold: str) -> str:
        """Return a right answer as it is compared. Raises DataError if the named scorer cannot find it."""
        found = {"letter": gold.upper() if gold.upper() in _LETTERS else None, "number": as_number(gold)}
        compared = found.get(self.scorer_name, gold)
        if compared is None:
            raise DataError(f"'answer' is {gold[:20]!r}, which is no {self.scorer_name}")
        return compared if self.scorer_name else as_number(gold) or as_formula(gold) or gold

    def _choice_question(self, row: OwnRow, given: Choices) -> Question:
        if self.scorer_name in ("number", "text", "math"):
            raise DataError(
                f"a question with choices, which --scorer {self.scorer_name} cannot score: use letter"
            )
        choices = _without_labels([str(one).strip() for one in given.text])
        gold, *others = (_letter(answer, given, choices) for answer in row.answer)
        letters = _LETTERS[: len(choices)]
        instruction = (
            f'Your response must end with "The answer is (X)" where X is one of {", ".join(letters[:-1])}, '
            f"or {letters[-1]}."
        )
        ending = f"The answer is ({gold})."
        steps = worked(row.solution, ending) or ending
        prompt = self.prompt(str(row.question), choices, instruction)
        return Question("", prompt, gold, tuple(choices), worked=steps, others=tuple(others))


class OwnTask(RowTask):
    """Questions from the user's own file."""

    @property
    def rule(self) -> str:
        """What a run's manifest records about the task."""
        named = f"scorer={self.scorer_name}" if self.scorer_name else "question"
        return "open" if self.open_ended else named


def own_task(path: Path, scorer: str = "", columns: Columns | None = None) -> OwnTask:
    """Return the task for the user's own file, named after the file without its extension.

    Args:
        path: The file.
        scorer: What `chosen_scorer` takes, if the user names one.
        columns: What the user says of the file's columns.

    Raises:
        DataError: A row is malformed; the file has a column that must be read under another name, or no
            answers, although the user has not asked to do without; or `scorer` is none.
    """
    if not path.stem.isprintable():
        raise DataError(f"{path.stem!r} contains an unprintable character: rename the file")
    if scorer:
        chosen_scorer(scorer)
    named = dict.fromkeys(name for _, row in _cells(path) for name in row)
    read = _columns_in(path, list(named), columns or {})
    rows = list(RowTask(path.stem, OnDisk(path), columns=read).rows(path))
    if not rows:
        raise DataError(f"{path} contains no questions")
    unread = [name for name in named if not any(name in some for some in read.values())]
    left_out = [place for place, row in rows if not row.answer]
    is_open = len(left_out) == len(rows)
    if is_open and scorer:
        raise DataError(f"{path} has no answers that --scorer could compare with")
    if is_open and unread and "answer" not in (columns or {}):
        raise DataError(
            f"{path} has no answers, and nothing would be scored: name their column with --columns "
            f"answer=COLUMN ({', '.join(unread)}), or ask without answers with --columns answer="
        )
    remarks = [f"{path}: ignored {', '.join(map(repr, unread))}."] if unread else []
    if left_out and not is_open:
        more = f" and {len(left_out) - _SHOWN:,} more" if len(left_out) > _SHOWN else ""
        remarks.append(f"{path}: left out without an answer: {', '.join(left_out[:_SHOWN])}{more}.")
    return OwnTask(
        path.stem,
        OnDisk(path),
        open_ended=is_open,
        scorer_name=scorer,
        columns=read,
        remarks=tuple(remarks),
    )


def parse_columns(texts: Sequence[str]) -> Columns:
    """Return the columns that a user names: NAME=COLUMN or NAME=COLUMN+COLUMN, with commas between several.

    Raises ValueError.
    """
    found: dict[str, Sequence[str]] = {}
    for part in filter(None, ",".join(texts).split(",")):
        name, equals, columns = part.partition("=")
        if not equals or name not in NAMES:
            raise ValueError(f"{part!r}: write NAME=COLUMN, where NAME is one of {', '.join(NAMES)}")
        found[name] = [column for column in columns.split("+") if column]
    return found


def _columns_in(path: Path, named: Sequence[str], given: Columns) -> Columns:
    """Return which of a file's columns are read.

    Args:
        path: The file, for messages.
        named: The columns that have anything in them.
        given: What the user says.

    Raises:
        DataError: One that must be read has another name, with what to write; or there are none as given.
    """
    by_name = {name.casefold(): name for name in named}
    own: dict[str, Sequence[str]] = {name: [by_name[name]] for name in NAMES if name in by_name}
    letters = [number for number, letter in enumerate(_LETTERS, start=1) if letter in named]
    if len(letters) > 1:  # an A alone, beside a Q, is its answer
        own.setdefault("choices", _LETTERS[: letters[-1]])
    for column in (column for columns in given.values() for column in columns):
        if column not in named:
            raise DataError(f"{path} has no column {column!r} with anything in it: it has {', '.join(named)}")
    found = dict(given)
    for name in (name for name in NAMES if name not in given and (name == "question" or name not in own)):
        columns = [by_name[low] for low in by_name if re.fullmatch(_ELSEWHERE[name], low)]
        if columns and columns != own.get(name):
            found[name] = columns if name in _ALL_OF else columns[:1]
    if found != given:
        wanted = ",".join(f"{name}={'+'.join(columns)}" for name, columns in found.items())
        new = next(name for name in found if name not in given)
        raise DataError(f"{path}: add  --columns {shlex.quote(wanted)}  ({new}= if that is no {new})")
    if named and "question" not in {**own, **given}:
        raise DataError(f"{path} has no 'question': name its column with --columns question=COLUMN")
    return {**own, **given}


def _cells(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every row's place, and its cells by column, without empty ones and those that are not to be read.

    Raises DataError for a file that is not in the format that its suffix says.
    """
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    for place, row in csv_rows(path) if is_csv else json_rows(path, dict[str, Any]):
        cells = {name.strip(): _from_csv(value) if is_csv else value for name, value in row.items()}
        yield (
            place,
            {
                name: value
                for name, value in cells.items()
                if value not in (None, "", []) and not _NOT_READ.fullmatch(name.casefold())
            },
        )


def _from_csv(cell: str) -> Any:
    """Return what a cell means: a number that may be an index, nothing, or a text."""
    if cell in _NO_ANSWERS:
        return None
    return int(cell) if _INDEX.fullmatch(cell) else cell


def _own_row(row: Mapping[str, Any], columns: Columns) -> OwnRow:
    """Return what a row has in the columns. Raises DataError, or msgspec's ValidationError."""
    cells = {name: [row.get(column) for column in columns.get(name, ())] for name in NAMES}
    there = {name: [cell for cell in cells[name] if cell is not None] for name in NAMES}
    if not there["question"]:
        raise DataError("no question")
    fields = {
        "question": _joined(there["question"], "\n\n"),
        "answer": [answer for cell in there["answer"] for answer in _answers(cell)],
        "choices": _choices(cells["choices"]),
        "id": _joined(there["id"], " "),
        "category": "\n".join(
            " ".join(f"{column} {cell}".split() if isinstance(cell, int | float) else str(cell).split())
            for column, cell in zip(columns.get("category", ()), cells["category"], strict=True)
            if cell is not None
        ),
        "solution": _joined(there["solution"], "\n"),
    }
    return msgspec.convert(fields, OwnRow)


def _joined(cells: Sequence[Any], separator: str) -> Any:
    return cells[0] if len(cells) == 1 else separator.join(map(str, cells))


def _answers(cell: Any) -> list[Any]:
    """Return the accepted answers in a cell."""
    if isinstance(cell, dict):
        parts = [_answers(cell[name]) for name in _ANSWERS_IN if name in cell]
        return [answer for part in parts for answer in part] or [cell]
    is_list = isinstance(cell, str) and cell.startswith('["')  # [0, 1] may be an interval
    cell = _list_in(cell) if is_list else cell
    cells = cell if isinstance(cell, list) else [cell]
    return [str(one) if isinstance(one, bool) else one for one in cells if one is not None]


def _choices(cells: Sequence[Any]) -> Any:
    """Return options that are each in a column, of which the last may be empty, or all in one."""
    if len(cells) > 1:
        n = max((number for number, cell in enumerate(cells, start=1) if cell is not None), default=0)
        return {"text": cells[:n]} if n else None
    choices = _list_in(cells[0]) if cells else None
    if isinstance(choices, dict) and choices.keys() != {"text", "label"}:  # {"A": …, "B": …}
        return {"text": list(choices.values()), "label": list(choices)}
    return {"text": choices} if isinstance(choices, str | list) else choices


def _list_in(cell: Any) -> Any:
    """Return the list in JSON that a text is, or else what it is."""
    with suppress(ValueError, RecursionError, TypeError):
        return json.loads(cell)
    return cell


def _without_labels(choices: Sequence[str]) -> Sequence[str]:
    """Return options without the labels that AQuA's have: A)21, B)24."""
    found = [_LABEL.match(choice) for choice in choices]
    labels = tuple(label[1] for label in found if label)
    if labels != _LETTERS[: len(choices)]:
        return choices
    return [_LABEL.sub("", choice, count=1) for choice in choices]


def _letter(answer: object, given: Choices, choices: Sequence[str]) -> str:
    """Return the letter of the right option. Raises DataError if there is no or more than one reading."""
    letters, text = _LETTERS[: len(choices)], str(answer).strip()
    labels, texts = ([str(one).strip() for one in some] for some in (given.label, given.text))
    if labels.count(text) == 1:
        return letters[labels.index(text)]
    options = zip(letters, choices, texts, strict=True)
    found = {names[0] for names in options if text in names}
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
