"""What is asked of a judge, and asking again for what is unreadable; see `ask` for the judges."""

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count as numbers
from typing import Any, NamedTuple, Protocol, TypeVar

ATTEMPTS = 3  # at getting a readable answer
SHORTEST = 200  # characters of a response; one that does not fit even so is left out
MOST_MISSING = 0.1  # share of what a judge was shown without a readable answer above which it is useless

Item = TypeVar("Item")
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
        sha256: SHA-256 of the file; empty for a model behind a server.
    """

    name: str
    sha256: str

    def answers(self, prompts: Sequence[Prompt]) -> Answers:
        """Yield each prompt's index and answer as it arrives; None if the prompt exceeds the context.

        Raises MinkError.
        """

    def interrupt(self) -> None:
        """Make `answers` end soon; safe to call from another thread."""

    def close(self) -> None:
        """Free what the judge holds."""


def until_done(
    judge: Judge,
    items: Sequence[Item],
    prompt: Callable[[Item], Prompt],
    answered: Callable[[Item, str | None], tuple[Item, bool]],
    stopped: Callable[[], bool],
) -> Iterator[Item]:
    """Have a judge answer a prompt about every item, and yield the items as they are done.

    Args:
        answered: Returns an item with an answer, and whether it is done; if not, its new prompt is asked.
        stopped: Whether to ask nothing more.
    """
    while items and not stopped():
        again = []
        with closing(judge.answers(list(map(prompt, items)))) as answers:
            for index, raw in answers:
                item, done = answered(items[index], raw)
                if done:
                    yield item
                else:
                    again.append(item)
        items = again


def mark_of(question: str, texts: Sequence[str]) -> str:
    """Return 12 characters that do not occur in a question or texts; nearly always the same for a question.

    Between lines with the mark, no text can pretend to be part of the prompt.
    """
    marks = (hashlib.sha256(f"{n} {question!r}".encode()).hexdigest()[:12] for n in numbers())
    return next(mark for mark in marks if mark not in "".join((question, *texts)))
