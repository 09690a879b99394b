"""Judging: what is the same whatever a judge is asked, such as asking again for what is unreadable."""

import hashlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count as numbers
from itertools import starmap
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from mink_local.errors import GenerationError, JudgeError
from mink_local.evals.answering import Answered, Answerer, ModelSession
from mink_local.evals.measurement import Measurement, Results
from mink_local.evals.run.records import OfResponse, ResponseKey
from mink_local.evals.store import Store
from mink_local.evals.tables import percent
from mink_local.evals.tasks.base import without_reasoning
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constraints import Constraints

ATTEMPTS = 3  # at getting a readable answer
MOST_MISSING = 0.1  # share of what a judge was shown without a readable answer above which it is useless
_MAX_TOKENS = 64  # of a verdict
_RETRY_TEMPERATURE = 0.7  # the first attempt is at 0

_NAMED = r"""(?<!\w){field}["'`*]*\s*[:=]\s*["'`*]*(-?\w+(?:\.\d+)?)["'`*]*\s*(?:[}},;\n]|\.(?!\d)|\Z)"""
_ALONE = r"""[\s"'`*(\[]*(?:answer\s+)?{choice}[\s"'`*)\].]*"""

log = logging.getLogger("mink_local")

Key = tuple[Any, ...]


class Prompt(NamedTuple):
    """A prompt, as UTF-8; its answer is a JSON object with one field, which has one of some values."""

    content: bytes
    field: str
    values: Sequence[str | int]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def request(self, attempt: int) -> Request:
        """Return the request after some unreadable answers."""
        kind = "string" if isinstance(self.values[0], str) else "integer"
        schema = {
            "type": "object",
            "properties": {self.field: {"type": kind, "enum": list(self.values)}},
            "required": [self.field],
            "additionalProperties": False,
        }
        params = SamplingParams(
            temperature=_RETRY_TEMPERATURE if attempt else 0.0,
            seed=attempt,
            max_tokens=_MAX_TOKENS,
            constraints=Constraints(json_schema=schema),
        )
        return Request([{"role": "user", "content": self.content.decode()}], params, enable_thinking=False)

    def read(self, answer: str) -> str | int | None:
        """Return the value in an answer; None if none or several are named.

        The answer may be JSON, with text around it, or just the value.
        """
        values = {str(value).lower(): value for value in self.values}
        text = without_reasoning(answer)
        named = re.findall(_NAMED.format(field=self.field), text, re.IGNORECASE)
        alone = re.fullmatch(_ALONE.format(choice=f"({'|'.join(values)})"), text, re.IGNORECASE)
        found = set(map(str.lower, named or (alone.groups() if alone else ())))
        return values.get(found.pop()) if len(found) == 1 else None


@dataclass(frozen=True, kw_only=True)
class Judged(OfResponse):
    """A judge's answer about a response: a line of `judgements.jsonl`.

    Attributes:
        prompt_sha256: SHA-256 of the prompt.
        raw: The judge's answer.
        attempts: Number of answers it took; 0 for what the judge need not see, and `ATTEMPTS` for what does
            not fit into its context.
        characters: Maximum number of characters of each response shown to the judge.
        is_cut: Whether a response is longer than that.
    """

    judge: str
    prompt_sha256: str
    raw: str = ""
    attempts: int = 0
    characters: int
    is_cut: bool

    identity: ClassVar[tuple[str, ...]] = ("judge", "prompt_sha256", *ResponseKey._fields)
    """Fields that together are unique in judgements.jsonl."""

    @property
    def key(self) -> Key:
        return tuple(getattr(self, name) for name in self.identity)


@dataclass(frozen=True)
class Unit(ABC):
    """What a judge is asked about.

    Attributes:
        key: The response, or the first of several.
        question: The user message that it answers.
        texts: The responses without their reasoning.
    """

    key: ResponseKey
    question: str
    texts: tuple[str, ...]

    @abstractmethod
    def prompt(self, characters: int) -> Prompt:
        """Return what the judge is asked, with `characters` characters of each response."""

    @abstractmethod
    def blank(self) -> dict[str, Any]:
        """Return the fields of a row that are its own, before the judge has answered."""


AnyUnit = TypeVar("AnyUnit", bound=Unit)
Row = TypeVar("Row", bound=Any)


class Judging(Measurement[Row], Generic[AnyUnit, Row]):
    """Base class of what a judge is asked.

    After an unreadable answer, it is asked up to twice more; then there is no verdict: it is never guessed.
    Nor is there one if the responses do not fit into its context.

    Args:
        judge: Answers the prompts.
        units: What it is asked about; what has a verdict from the start needs no judge.
        characters: Maximum number of characters of a response to show the judge.
        against: The sampler that the report compares the others with, as text.

    Attributes:
        verdict: The field of a row with what the judge says; None if nothing is readable.
    """

    noun, file = "judgements", "judgements.jsonl"
    verdict: ClassVar[str]

    def __init__(self, judge: Answerer, units: Iterable[AnyUnit], characters: int, against: str) -> None:
        self._judge, self._against = judge, against
        blanks = ((unit, self._blank(unit, characters)) for unit in units)
        self._wanted = {row.key: (unit, row) for unit, row in blanks}
        self.settings = {"judges": {judge.name: judge.facts}}

    def _blank(self, unit: AnyUnit, characters: int) -> Row:
        """Return a row before the judge has answered."""
        row: Row = self.row_type(
            judge=self._judge.name,
            prompt_sha256=unit.prompt(characters).sha256,
            characters=characters,
            is_cut=max(map(len, unit.texts)) > characters,
            **unit.key._asdict(),
            **unit.blank(),
        )
        return row

    def prepare(self, store: Store[Row]) -> None:
        store.note(against=self._against)

    def plan(self) -> list[Key]:
        return list(self._wanted)

    def measure(self, keys: Sequence[Key], store: Store[Row]) -> Generator[Row, None, None]:
        waiting: list[tuple[AnyUnit, Row]] = []
        for unit, row in (self._wanted[key] for key in keys):
            if getattr(row, self.verdict) is None:
                waiting.append((unit, row))
            else:
                yield row
        room = list(starmap(_request, waiting))
        with closing(self._judge):
            while waiting and not self.interrupted:
                again = []
                with closing(self._judge.answers(list(starmap(_request, waiting)), room)) as answers:
                    for answer in answers:
                        if isinstance(answer, ModelSession):
                            answer.record(store, "judge", self._judge.name)
                            continue
                        unit, last = waiting[answer.index]
                        row, is_last = self._updated(unit, last, answer)
                        if is_last:
                            yield row
                        else:
                            again.append((unit, row))
                waiting = again

    def _updated(self, unit: AnyUnit, last: Row, answer: Answered) -> tuple[Row, bool]:
        """Return a row with another answer, and whether that is the last one. Raises GenerationError."""
        if answer.finish_reason == "error":
            raise GenerationError(f"the judge {self._judge.name}: {answer.error}")
        if answer.finish_reason == "overflow":
            of = (last.question_id, last.task)
            log.warning("question %s of %s does not fit into the judge's context: see --max-chars", *of)
            return replace(last, attempts=ATTEMPTS), True
        raw, attempts = answer.text or answer.error, last.attempts + 1
        found = unit.prompt(last.characters).read(raw)
        row: Row = replace(last, raw=raw, attempts=attempts, **{self.verdict: found})
        return row, found is not None or attempts == ATTEMPTS

    def interrupt(self) -> None:
        super().interrupt()
        self._judge.interrupt()

    def conclude(self, results: Results) -> None:
        super().conclude(results)
        frame = results.frame
        shown = frame[(frame["judge"] == self._judge.name) & (frame["attempts"] > 0)]
        missing = shown[self.verdict].isna().mean()  # NaN if nothing was shown
        if missing > MOST_MISSING:
            raise JudgeError(
                f'{percent(missing)}% of what the judge was shown has no readable judgement: see "raw" in '
                f"{results.folder / self.file}, and try another judge"
            )


def _request(unit: Unit, row: Judged) -> Request:
    return unit.prompt(row.characters).request(row.attempts)


def mark_of(question: str, texts: Sequence[str]) -> str:
    """Return 12 characters that do not occur in a question or texts; nearly always the same for a question.

    Between lines with the mark, no text can pretend to be part of the prompt.
    """
    marks = (hashlib.sha256(f"{n} {question!r}".encode()).hexdigest()[:12] for n in numbers())
    return next(mark for mark in marks if mark not in "".join((question, *texts)))
