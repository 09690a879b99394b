"""Base classes of tasks: questions from a file, and two ways to score a response, strict and flexible."""

import csv
import io
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from mink_local.cli import NO_TEXT
from mink_local.errors import DataError, MinkError
from mink_local.evals.tasks.stated import statements
from mink_local.files import as_text, regular

Row = TypeVar("Row")
Item = TypeVar("Item")
Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
"""A field with non-blank text."""
Name = Annotated[str, msgspec.Meta(pattern=rf"\A[^{NO_TEXT}]*\Z")]
"""A field that is printed to terminals and in tables."""

_PATTERN = re.compile(" matching regex '.*'")
_PLACE = re.compile(r"\{(question|choices)\}")
_REASONING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Published:
    """A published version of a data set, which its address says.

    Attributes:
        size: In bytes; without a SHA-256, the most there may be.
    """

    url: str
    size: int
    sha256: str = ""


@dataclass(frozen=True)
class OnDisk:
    """A data set on disk: a sample in this package, or the user's own file."""

    path: Path


@dataclass(frozen=True)
class OwnCopy:
    """A data set that users have to get themselves. `advice` says why and where."""

    advice: str


class Question(msgspec.Struct, frozen=True, omit_defaults=True, rename={"id": "question_id"}):
    """A question as given to a model, and a line of a run's `questions.jsonl`.

    Attributes:
        id: The data's own id, or the row's index from 0: stable, and unique within the task.
        prompt: The user message.
        gold: The right answer ("18", "B", "\\frac{1}{2}"); empty if the question is open-ended.
        choices: The options of a multiple-choice question, in the order shown.
        order: The i-th option shown is option `order[i]` in the file; empty if options are not shuffled.
        worked: The worked answer, for few-shot prompts; empty if the data has none, and in a run's files.
        task: Name of the task.
        others: Other answers that are right as well.
        category: What the data calls the question's category, subject or level, each on a line; may be empty.
    """

    id: Name
    prompt: str
    gold: str
    choices: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    worked: str = ""
    task: Name = ""
    others: tuple[str, ...] = ()
    category: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.id

    @property
    def golds(self) -> tuple[str, ...]:
        """All right answers."""
        return self.gold, *self.others


@dataclass(frozen=True)
class Verdict:
    """The answer found in a response, or None, and whether it is correct."""

    answer: str | None
    correct: bool


NO_ANSWER = Verdict(None, correct=False)


class ScorerError(MinkError):
    """A user's scorer failed on a response."""


class Scorer:
    """Extracts and compares answers of one kind, such as numbers.

    Args:
        pattern: The paper's regular expression for an answer; its last match counts.

    Attributes:
        is_own: Whether it is the user's, and may give another verdict whenever it is asked.
    """

    is_own = False

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def strict(self, response: str, question: Question) -> Verdict:
        """Score the last match of the pattern."""
        found = self._pattern.findall(response)
        return Verdict(found[-1], self.is_same(found[-1], question.gold)) if found else NO_ANSWER

    def flexible(self, response: str, question: Question) -> Verdict:
        """Score the last statement of an answer that is readable."""
        for statement in statements(response):
            answer = self.read(statement, question)
            if answer:
                return Verdict(answer, self.is_right(answer, question))
        return NO_ANSWER

    def last(self, response: str, question: Question) -> Verdict | None:  # noqa: ARG002
        """Score the last number or option, stated or not; None for other kinds of answers."""
        return None

    def read(self, statement: str, question: Question) -> str | None:
        """Return the answer in a statement; None or "" if it is uncertain."""
        raise NotImplementedError

    def is_same(self, answer: str, gold: str) -> bool:
        """Return whether an answer matched by the pattern is the gold answer."""
        return answer == gold

    def is_right(self, answer: str, question: Question) -> bool:
        """Return whether an answer found by `read` is right."""
        return self.is_same(answer, question.gold)


@dataclass(frozen=True)
class Task(ABC):
    """A data set, its prompt, and how its answers are scored.

    Attributes:
        name: Name in commands and records.
        source: Where the questions come from.
        examples: The split for few-shot examples, which are no test questions; None if there is none.
        max_tokens: Default response limit in tokens (the paper gives none).
        instruction: The end of every prompt (the paper's appendix, "Reasoning Datasets").
        scorer: Scores the responses, unless it depends on the question.
        open_ended: Whether questions have no right answer, so that responses get no verdict.
        given_instruction: The user's, in place of the task's own; see `prompt_of`.
        remarks: Sentences on what of the user's own file is not used.
    """

    name: str
    source: Published | OnDisk | OwnCopy
    max_tokens: int = 1024
    examples: Published | None = None
    open_ended: bool = False
    given_instruction: str | None = None
    remarks: tuple[str, ...] = ()

    instruction: ClassVar[str]
    scorer: ClassVar[Scorer]

    def read(self, path: Path, seed: int) -> list[Question]:
        """Return the questions in a file in this task's format.

        The run's `seed` determines the order of shuffled options. Raises DataError, which names the line, if
        the file is malformed.
        """

        n_of: Counter[str] = Counter()  # questions, by their id in the file

        def question(row: Any, number: int) -> Question | None:
            if (found := self.question(row, seed)) is None:
                return None
            name = found.id or str(number)
            n_of[name] += 1
            own = name if n_of[name] == 1 else f"{name}-{n_of[name]}"
            return msgspec.structs.replace(found, id=own, task=self.name)

        return read_each_once(path, self.rows(path), question)

    @abstractmethod
    def rows(self, path: Path) -> Iterator[tuple[str, Any]]:
        """Yield every row's place, such as "line 3", and content. Raises DataError."""

    @abstractmethod
    def question(self, row: Any, seed: int) -> Question | None:
        """Return the question in a row, or None to leave it out; its id is empty unless the data has ids.

        Raises DataError, which says what is wrong with the row.
        """

    def prompt(self, question: str, choices: Sequence[str] = (), instruction: str | None = None) -> str:
        """Return the prompt for a question with the user's instruction, or the one given, or the task's."""
        own = self.instruction if instruction is None else instruction
        return prompt_of(question, own if self.given_instruction is None else self.given_instruction, choices)

    def scorer_of(self, question: Question) -> Scorer:  # noqa: ARG002
        """Return the scorer for responses to a question."""
        return self.scorer


def read_each_once(
    path: Path, rows: Iterable[tuple[str, Row]], convert: Callable[[Row, int], Item | None]
) -> list[Item]:
    """Convert the rows of a file to items with a `prompt` and an `id`, and require these to be unique.

    Args:
        path: The file, for messages.
        rows: Places, such as "line 3", and rows.
        convert: Takes a row and its index, from 0; returns None to leave it out, and may raise DataError.

    Raises:
        DataError: A row is invalid, two have the same prompt or id, or there are none; names the place.
    """
    items: list[Item] = []
    first: dict[tuple[str, str], str] = {}
    for number, (place, row) in enumerate(rows):
        try:
            item: Any = convert(row, number)
        except DataError as error:
            raise DataError(f"{path}, {place}: {error}") from None
        if item is None:
            continue
        for what, text in (("prompt", item.prompt), ("id", item.id)):
            earlier = first.setdefault((what, text), place)
            if earlier != place:
                raise DataError(f"{path}, {place}: same {what} as in {earlier}; remove one")
        items.append(item)
    if not items:
        raise DataError(f"{path} contains no questions")
    return items


def prompt_of(question: str, instruction: str, choices: Sequence[str] = ()) -> str:
    """Return a prompt: the question, its options, one per line as (A) …, and the instruction.

    Where the instruction has {question}, it is the whole prompt, and the options follow the question unless
    it has {choices}, too.
    """
    options = [f"({letter}) {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False)]
    shown, places = "\n".join(options), set(_PLACE.findall(instruction))
    if "choices" not in places:
        question = "\n\n".join(filter(None, (question, shown)))
    placed = _PLACE.sub(lambda found: {"question": question, "choices": shown}[found[1]], instruction)
    return placed if "question" in places else "\n\n".join(filter(None, (question, placed)))


def worked(solution: str | None, ending: str) -> str:
    """Return a solution that ends as the prompt asks; "" if the data has none."""
    return f"{solution.strip()}\n{ending}" if solution and solution.strip() else ""


def decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every line's number, from 1, and text, which ends in \\n.

    The text is UTF-8, or whatever a byte order mark says. Raises DataError.
    """
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = as_text(data)
    except UnicodeDecodeError as error:
        line, encoding = 1 + data[: error.start].count(b"\n"), error.encoding.upper()
        raise DataError(f"{path}, line {line}: not {encoding} text; save the file as UTF-8") from None
    if "\0" in text:
        raise DataError(f"{path} has NUL characters; if this is UTF-16 or UTF-32, save it as UTF-8")
    yield from enumerate(io.StringIO(text.removeprefix("\ufeff"), newline=None), start=1)


def csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place of every row, such as "line 3", and its cells by column. Raises DataError.

    Cells are separated by tabs in TSV, and elsewhere by commas, semicolons or tabs: what line 1 has most of.
    """
    lines = [text for _, text in decoded_lines(path)]
    tabs = path.suffix.lower() == ".tsv"
    separator = "\t" if tabs else max(",;\t", key="".join(lines[:1]).count)
    reader = csv.reader(lines, strict=True, delimiter=separator)
    try:
        columns = [name.strip() for name in next(reader, [])]
        twice = [name for name in columns if name and columns.count(name) > 1]
        if twice:
            raise DataError(f"{path}, line 1: two columns are named {twice[0]!r}")
        for cells in reader:
            place = f"line {reader.line_num}"
            if len(cells) > len(columns):
                raise DataError(f"{path}, {place}: more columns than line 1")
            if any(map(str.strip, cells)):
                yield place, {name: cell.strip() for name, cell in zip(columns, cells, strict=False)}
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: this is not CSV ({error})") from None


def json_rows(path: Path, kind: type[Row]) -> Iterator[tuple[str, Row]]:
    """Yield the place and the content of every JSON object, on a line of its own or in a list.

    Args:
        path: The file.
        kind: A msgspec struct, or a dict.

    Raises:
        DataError: An object is malformed; names the line, or the number in the list.
    """
    lines = [(f"line {number}", line) for number, line in decoded_lines(path) if line.strip()]
    if lines and lines[0][1].lstrip().startswith("["):
        try:
            items = msgspec.json.decode("".join(line for _, line in lines), type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError) as error:
            raise DataError(f"{path} is no list of JSON objects ({error})") from None
        lines = [(f"item {number}", bytes(item).decode()) for number, item in enumerate(items, start=1)]
    for place, line in lines:
        try:
            yield place, msgspec.json.decode(line, type=kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise DataError(f"{path}, {place}: {in_words(error)}") from None
        except msgspec.DecodeError as error:
            raise DataError(
                f"{path}, {place}: write one JSON object per line, or a list of them ({error})"
            ) from None


def in_words(error: Exception) -> str:
    """Return what is wrong with a row, without regular expressions."""
    return _PATTERN.sub(
        lambda found: " that is not blank" if "\\S" in found[0] else " of printable characters", str(error)
    )


class Verdicts(NamedTuple):
    """The verdicts on a response; `last` is None for answers that are neither numbers nor options."""

    strict: Verdict
    flexible: Verdict
    last: Verdict | None


CUT_OFF = ("length", "repetition")  # by the token limit, or since it repeated itself


def score(task: Task, question: Question, response: str, finish_reason: str) -> Verdicts:
    """Return the verdicts on a response: each the best by any of the accepted answers.

    A response that was cut off is wrong, even if it has the right answer.
    """
    text = without_reasoning(response)
    columns = zip(*(_verdicts(task, question, gold, text) for gold in question.golds), strict=True)
    return Verdicts(*(_best(one, is_cut=finish_reason in CUT_OFF) for one in columns))


def _best(verdicts: Sequence[Verdict | None], *, is_cut: bool) -> Any:
    given = [one for one in verdicts if one is not None]
    best = max(given, key=lambda one: (one.correct, bool(one.answer)), default=None)
    return replace(best, correct=False) if best and is_cut else best


def _verdicts(task: Task, question: Question, gold: str, text: str) -> Verdicts:
    question = msgspec.structs.replace(question, gold=gold, others=())
    scorer = task.scorer_of(question)
    strict = scorer.strict(text, question)
    if scorer.is_own:
        return Verdicts(strict, strict, None)
    return Verdicts(strict, scorer.flexible(text, question), scorer.last(text, question))


def without_reasoning(response: str) -> str:
    """Return a response without its `<think>…</think>` blocks, stripped.

    An unclosed block extends to the end. A block without an opening tag was opened in the prompt, as some
    chat templates do.
    """
    return _REASONING.sub("", response).rpartition("</think>")[2].strip()
