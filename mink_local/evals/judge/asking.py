"""What is asked of a judge, and asking again for what is unreadable; see `ask` for the judges."""

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count as numbers
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ATTEMPTS = 3  # at getting a readable answer
SHORTEST = 200  # characters of a response; one that does not fit even so is left out
MOST_MISSING = 0.1  # share of what a judge was shown without a readable answer above which it is useless

Unit = TypeVar("Unit")
Row = TypeVar("Row", bound="DataclassInstance")
Answers = Generator[tuple[int, str | None], None, None]


class Prompt(NamedTuple):
    """A prompt, the JSON schema of its answer, and how many unreadable answers it has received."""

    text: str
    schema: Mapping[str, Any]
    attempt: int = 0


class Judge(Protocol):
    """Answers prompts.

    Attributes:
        name: Name in the records.
        facts: What the manifest records about it, such as the SHA-256 of its file.
    """

    name: str
    facts: Mapping[str, Any]

    def answers(self, prompts: Sequence[Prompt]) -> Answers:
        """Yield each prompt's index and answer as it arrives; None if the prompt exceeds the context.

        Raises MinkError.
        """

    def interrupt(self) -> None:
        """Make `answers` end soon; safe to call from another thread."""

    def close(self) -> None:
        """Free what the judge holds."""


def asked(
    judge: Judge,
    items: Sequence[tuple[Unit, Row]],
    prompt: Callable[[Unit, Row], Prompt],
    answered: Callable[[Unit, Row, str | None], tuple[Row, bool]],
    stopped: Callable[[], bool],
    same: str,
    given: Sequence[str],
) -> Iterator[Row]:
    """Yield the rows of what a judge is asked about, as it answers.

    Args:
        items: What it is asked about, each with its row so far.
        answered: Returns a row with an answer, and whether that is the last one; if not, it is asked again.
        stopped: Whether to ask nothing more.
        same: Field that is the same in rows with the same prompt, about which the judge is asked once.
        given: Fields that its answer gives.
    """
    alike: dict[str, list[tuple[Unit, Row]]] = {}
    for item in items:
        alike.setdefault(getattr(item[1], same), []).append(item)
    waiting = [group[0] for group in alike.values()]
    while waiting and not stopped():
        again = []
        with closing(judge.answers(list(starmap(prompt, waiting)))) as answers:
            for index, raw in answers:
                unit, last = waiting[index]
                row, done = answered(unit, last, raw)
                if not done:
                    again.append((unit, row))
                    continue
                for _, twin in alike[getattr(row, same)]:
                    yield replace(twin, **{name: getattr(row, name) for name in given})
        waiting = again


def mark_of(question: str, texts: Sequence[str]) -> str:
    """Return 12 characters that do not occur in a question or texts; nearly always the same for a question.

    Between lines with the mark, no text can pretend to be part of the prompt.
    """
    marks = (hashlib.sha256(f"{n} {question!r}".encode()).hexdigest()[:12] for n in numbers())
    return next(mark for mark in marks if mark not in "".join((question, *texts)))
