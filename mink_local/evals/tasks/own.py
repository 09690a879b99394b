"""Questions from the user's own file: JSON Lines, a list in JSON, CSV or TSV.

A row has a question and may have an answer or a list of accepted ones, choices (2 to 10 options, or columns
A, B, …), an id, a worked solution, a category, a system message, and beside another name of the question an
instruction, under any of the names in `_SPELLINGS`; other columns are ignored. In JSON, a first row
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
from difflib import get_close_matches
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
_LETTERS = tuple(ascii_uppercase[:10])
_SPELLINGS = {
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
_FIELDS = {name.casefold(): field for field, names in _SPELLINGS.items() for name in names}
_CATEGORIES = ("category", "subject", "domain", "level")
"""Names of a question's category; the first of them that a row has counts."""

_UNUSED = {
    *("comment", "dataset", "difficulty", "generator", "language", "license", "notes", "source", "split"),
    *("subset", "task", "topic", "type", "url"),
    "unnamed: 0",  # the index of a pandas frame
}
_NEAR = 0.8  # similarity from which a name is a known one, misspelt
_INDEX = re.compile("0|[1-9][0-9]{0,17}")  # an answer in CSV that may be one, unlike 007
_PASSAGES = ("article", "body", "context", "narrative", "passage", "story", "support")
_ANSWERS = re.compile(r"answer|output|solution|cop\b|label|target|gold|ideal")
"""Names of columns that are ignored, and without which questions have no sense, or no verdict."""
_NO_ANSWERS = ("nan", "NaN", "<NA>")  # what pandas writes for a missing one
_CALCULATION = re.compile(r"<<[^<>]*>>")  # of GSM8K
_LABEL = re.compile(r"\(?([A-J])[).:]\s*")

_Value = Text | int | float


class _Choices(msgspec.Struct):
    """Options, and their labels if they have any."""

    text: Annotated[list[_Value], msgspec.Meta(min_length=2, max_length=len(_LETTERS))]
    label: list[str | int] = []

    def __post_init__(self) -> None:
        if len(self.label) not in (0, len(self.text)):
            raise ValueError("as many labels as texts are needed")


class OwnRow(msgspec.Struct, kw_only=True):
    """A row with our names; `unknown` has the names of what is ignored."""

    question: _Value
    answer: _Value | list[_Value] | None = None
    choices: _Choices | None = None
    id: Name | int = ""
    solution: str | None = None
    system: str = ""
    instruction: str = ""
    category: Any = ""
    unknown: list[str] = []

    @property
    def answers(self) -> list[str | int | float]:
        """The accepted answers."""
        given = self.answer if isinstance(self.answer, list) else [self.answer]
        return [one for one in given if one is not None]


@dataclass(frozen=True)
class RowTask(Task):
    """Questions from a file, each scored by its kind of answer, or all by a named scorer.

    Attributes:
        scorer_name: What `chosen_scorer` takes; empty to choose by the kind of answer.
    """

    scorer_name: str = ""

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
        return _rows(path)

    def question(self, row: OwnRow, seed: int) -> Question | None:  # noqa: ARG002
        if self.open_ended and row.choices:
            raise DataError("'choices' without an 'answer'")
        if self.open_ended:
            found = Question("", self.prompt(str(row.question), (), row.instruction), "")
        elif not row.answers:
            return None
        else:
            found = self._choice_question(row, row.choices) if row.choices else self._answered(row)
        return replace(found, id=str(row.id).strip(), system=row.system.strip(), category=str(row.category))

    def _answered(self, row: OwnRow) -> Question:
        """Return a question with an answer, or several."""
        first, *others = map(_text, row.answers)
        solution, _, last = map(str.strip, first.rpartition("####"))  # as in GSM8K
        is_solved = "####" in first and last and "\n" not in last
        golds = tuple(dict.fromkeys(map(self._gold, (last if is_solved else first, *others))))
        ending = f"The final answer is {golds[0]}."
        steps = worked(_CALCULATION.sub("", solution) if is_solved else row.solution, ending)
        prompt = self.prompt(str(row.question), (), row.instruction or None)
        return Question("", prompt, golds[0], others=golds[1:], worked=steps or ending)

    def _gold(self, gold: str) -> str:
        """Return a right answer as it is compared. Raises DataError if the named scorer cannot find it."""
        found = {"letter": gold.upper() if gold.upper() in _LETTERS else None, "number": as_number(gold)}
        compared = found.get(self.scorer_name, gold)
        if compared is None:
            raise DataError(f"'answer' is {gold[:20]!r}, which is no {self.scorer_name}")
        return compared if self.scorer_name else as_number(gold) or as_formula(gold) or gold

    def _choice_question(self, row: OwnRow, given: _Choices) -> Question:
        if self.scorer_name in ("number", "text", "math"):
            raise DataError(
                f"a question with choices, which --scorer {self.scorer_name} cannot score: use letter"
            )
        choices = _without_labels(tuple(map(_text, given.text)))
        gold, *others = (_letter(answer, given, choices) for answer in row.answers)
        letters = _LETTERS[: len(choices)]
        instruction = (
            f'Your response must end with "The answer is (X)" where X is one of {", ".join(letters[:-1])}, '
            f"or {letters[-1]}."
        )
        ending = f"The answer is ({gold})."
        prompt = self.prompt(str(row.question), choices, row.instruction or instruction)
        steps = worked(row.solution, ending) or ending
        return Question("", prompt, gold, choices, worked=steps, others=tuple(others))


class OwnTask(RowTask):
    """Questions from the user's own file."""

    @property
    def rule(self) -> str:
        """What a run's manifest records about the task."""
        named = f"scorer={self.scorer_name}" if self.scorer_name else "question"
        return "open" if self.open_ended else named


def own_task(path: Path, scorer: str = "") -> OwnTask:
    """Return the task for the user's own file, named after the file without its extension.

    Raises DataError if a row is malformed, or if `scorer` is none.
    """
    if not path.stem.isprintable():
        raise DataError(f"{path.stem!r} contains an unprintable character: rename the file")
    if scorer:
        chosen_scorer(scorer)
    rows = [row for _, row in _rows(path)]
    if not rows:
        raise DataError(f"{path} contains no questions")
    n_answered = sum(bool(row.answers) for row in rows)
    unread = {name: None for row in rows for name in row.unknown if _ANSWERS.search(name.casefold())}
    if unread and not n_answered:
        raise DataError(
            f"{path} has no answers under a name that is known, and nothing would be scored: rename "
            f"{' or '.join(map(repr, unread))} to 'answer', or to _… to ask without answers"
        )
    if scorer and not n_answered:
        raise DataError(f"{path} has no answers that --scorer could compare with")
    remarks = []
    if names := dict.fromkeys(name for row in rows for name in row.unknown):
        remarks.append(f"{path}: ignored {', '.join(map(repr, names))}.")
    if n_left := (len(rows) - n_answered) * bool(n_answered):
        left_out = "1 question" if n_left == 1 else f"{n_left:,} questions"
        remarks.append(f"{path}: left out {left_out} without an answer.")
    return OwnTask(
        path.stem,
        OnDisk(path),
        open_ended=not n_answered,
        scorer_name=scorer,
        remarks=tuple(remarks),
    )


def _rows(path: Path) -> Iterator[tuple[str, OwnRow]]:
    """Yield every question's place and row, with the fields of a first {"defaults": {…}} that it lacks.

    Raises DataError for a file that is not in the format that its suffix says, and for a malformed row.
    """
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    defaults: dict[str, Any] = {}
    for number, (place, row) in enumerate(csv_rows(path) if is_csv else json_rows(path, dict[str, Any])):
        if number == 0 and list(row) == ["defaults"] and isinstance(row["defaults"], dict):
            defaults = row["defaults"]
            continue
        try:
            yield place, msgspec.convert(_with_our_names({**defaults, **row}, is_csv), OwnRow)
        except (DataError, msgspec.ValidationError) as error:
            raise DataError(f"{path}, {place}: {in_words(error)}") from None


def _with_our_names(row: Mapping[str, Any], is_csv: bool) -> dict[str, Any]:
    """Return a row's fields under our names, without empty ones, and the names that are ignored.

    Raises DataError for what is nearly a known name, and for two names of one field.
    """
    given = {name.strip(): value for name, value in row.items() if value not in (None, "", [])}
    options = {name: given.pop(name) for name in sorted(given.keys() & set(_LETTERS))}
    if tuple(options) != _LETTERS[: len(options)]:
        raise DataError(f"choices {', '.join(options)}: name them A, B, … without a gap")
    fields: dict[str, Any] = {"choices": list(options.values())} if options else {}
    is_question = [_FIELDS.get(name.casefold()) == "question" for name in given]
    for name, value in given.items():
        field = _FIELDS.get(name.casefold())
        if name.casefold() == "instruction" and sum(is_question) > 1:
            field = "instruction"
        if field in fields:
            raise DataError(f"{name!r} gives the {field}, which another field gives, too: keep one")
        if field:
            fields[field] = value
    if "question" not in fields:
        raise DataError(f"no question: name it {' or '.join(map(repr, _SPELLINGS['question']))}")
    if "choices" in fields:
        fields["choices"] = _with_labels(fields["choices"])
    if is_csv and "answer" in fields:
        fields["answer"] = _from_csv(fields["answer"])
    if isinstance(fields.get("answer"), bool):
        fields["answer"] = str(fields["answer"])
    if passage := next((name for name in given if name.casefold() in _PASSAGES), None):
        raise DataError(
            f"{passage!r} would not be shown: put it before each question, or name the column _{passage} if "
            "the questions do without"
        )
    by_name = {name.casefold(): value for name, value in given.items()}
    named = [by_name[name] for name in _CATEGORIES if isinstance(by_name.get(name), str | int)]
    category = " ".join(str(named[0]).split()) if named else ""
    return {**fields, "category": category, "unknown": [name for name in given if _is_unknown(name)]}


def _is_unknown(name: str) -> bool:
    """Return whether a column has no meaning here. Raises DataError if it nearly has one."""
    known = [*_FIELDS, *_CATEGORIES]
    if name[:1] in ("", "_") or name.casefold() in (*known, *_UNUSED):
        return False
    near = get_close_matches(name.casefold(), known, n=1, cutoff=_NEAR)
    if near:
        raise DataError(
            f"unknown field {name!r}: did you mean {near[0]!r}? (Fields that start with _ are ignored.)"
        )
    return True


def _with_labels(choices: Any) -> dict[str, Any]:
    """Return options, {"A": …, "B": …} too, as Hugging Face writes them."""
    if not isinstance(choices, dict):
        return {"text": choices}
    is_labelled = choices.keys() == {"text", "label"}
    return choices if is_labelled else {"text": list(choices.values()), "label": list(choices)}


def _from_csv(answer: str) -> str | int | None:
    """Return an answer, which may be an index, as an integer if it is one."""
    if answer in _NO_ANSWERS:
        return None
    return int(answer) if _INDEX.fullmatch(answer) else answer


def _text(value: object) -> str:
    return str(value).strip()


def _without_labels(choices: tuple[str, ...]) -> tuple[str, ...]:
    """Return options without the labels that AQuA's have: A)21, B)24."""
    found = [_LABEL.match(choice) for choice in choices]
    labels = tuple(label[1] for label in found if label)
    if labels != _LETTERS[: len(choices)]:
        return choices
    return tuple(_LABEL.sub("", choice, count=1) for choice in choices)


def _letter(answer: object, given: _Choices, choices: Sequence[str]) -> str:
    """Return the letter of the right option. Raises DataError if there is no or more than one reading."""
    letters, text = _LETTERS[: len(choices)], _text(answer)
    labels = list(map(_text, given.label))
    if labels.count(text) == 1:
        return letters[labels.index(text)]
    options = zip(letters, choices, map(_text, given.text), strict=True)
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
