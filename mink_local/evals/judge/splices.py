"""Sentences, and responses that collapse at a known one, by which a judge of semantic noise is calibrated."""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mink_local.errors import ReportError
from mink_local.evals.run.recorded_run import RecordedRun
from mink_local.evals.run.records import Response, ResponseKey
from mink_local.evals.tasks.base import without_reasoning

COHERENT = -1  # the sentence at which a coherent response collapses
N_SPLICED = 60  # responses of a calibration, of which a tenth are left whole
LEAST = 12  # responses of a calibration: a few of every kind
SALAD, REPETITION, OFF_TOPIC, WHOLE = "word salad", "repetition", "off topic", "whole"
SALAD_TEMPERATURE = 10.0

_PROSE = Path(__file__).parents[1] / "quants" / "text.txt"
_LONGEST = 300  # characters of a sentence: what has no punctuation is cut at a space
_SPLICE = 500  # characters that follow the coherent beginning
_FEWEST = 3  # sentences of a response to splice something into

# Not after the number of a list's item, as in "2. Add both."
_SENTENCE = re.compile(r".*?(?:(?<!\n\d)(?<!\A\d)[.!?…][\"'”’)\]*]*(?=\s)|[。！？]|\n|\Z)\s*", re.DOTALL)
_PIECE = re.compile(rf".{{1,{_LONGEST}}}(?:\s+|\Z)|.{{1,{_LONGEST}}}", re.DOTALL)


def sentences(text: str) -> list[str]:
    """Split a text into sentences with the white space after them: together, they are the text.

    A sentence ends at its punctuation or at a line break, and is at most 300 characters long.
    """
    found = [piece for sentence in _SENTENCE.findall(text) for piece in _PIECE.findall(sentence)]
    return [one for one in found if one]


@dataclass(frozen=True)
class JudgedText:
    """A response without its reasoning, or one with a splice.

    Attributes:
        question: The user message.
        kind: What was spliced in; empty for a response as it is.
        known: The sentence at which it collapses, from 1, or `COHERENT`; None if that is to be found out.
    """

    key: ResponseKey
    question: str
    text: str
    kind: str = ""
    known: int | None = None

    @cached_property
    def sentences(self) -> list[str]:
        return sentences(self.text)


def judged_texts(run: RecordedRun, limit: int | None) -> list[JudgedText]:
    """Return a run's responses to the first questions of each task; those without a text are left out."""
    first = run.first_questions(limit)
    return [
        one
        for response in run.responses
        if (response.task, response.question_id) in first and (one := _judged(run, response)).sentences
    ]


def _judged(run: RecordedRun, response: Response) -> JudgedText:
    question = run.questions[response.task, response.question_id]
    return JudgedText(response.key, question.prompt, without_reasoning(response.response))


def spliced(run: RecordedRun) -> list[JudgedText]:
    """Return coherent responses of a run that turn into nonsense, repetition or another topic at some point.

    Coherent are the coldest responses to a question that ended by themselves and are right, if there are
    verdicts. The word salad is what top-p wrote at T = 10. A tenth of the responses are left whole.

    Raises ReportError if the run has too few coherent responses, or no word salad.
    """
    coherent: dict[tuple[str, str], Response] = {}
    for response in sorted(run.responses, key=lambda one: one.temperature):
        is_right = response.flexible is None or response.flexible.correct
        if response.temperature <= 1 and response.finish_reason == "stop" and is_right:
            coherent.setdefault((response.task, response.question_id), response)
    salads = [
        text
        for response in run.responses
        if response.sampler.startswith("top-p:")
        and response.order == "temperature-first"
        and response.temperature >= SALAD_TEMPERATURE
        and len(text := without_reasoning(response.response)) >= _SPLICE // 2
    ]
    whole = (_judged(run, response) for response in coherent.values())
    long_enough = [one for one in whole if len(one.sentences) >= _FEWEST]
    if len(long_enough) < LEAST:
        raise ReportError(
            f"a calibration needs {LEAST} coherent responses of {_FEWEST} sentences or more, and the run has "
            f"{len(long_enough)}: repeat its mink-eval run command with more questions, and with --temp 1"
        )
    if not salads:
        raise ReportError(
            "the run has no word salad to calibrate with: repeat its mink-eval run command, and add  "
            "--sampler top-p --temp 10"
        )
    rng = random.Random(0)
    rng.shuffle(long_enough)
    return list(_splices(long_enough[:N_SPLICED], salads, sentences(_PROSE.read_text("utf-8")), rng))


def _splices(
    texts: Iterable[JudgedText], salads: Sequence[str], prose: Sequence[str], rng: random.Random
) -> Iterator[JudgedText]:
    for number, one in enumerate(texts):
        at = rng.randrange(1, len(one.sentences))
        kind = WHOLE if number % 10 == 0 else (SALAD, REPETITION, OFF_TOPIC)[number % 3]
        begin = rng.randrange(len(prose) // 2)
        tail = {
            WHOLE: "".join(one.sentences[at:]),
            SALAD: rng.choice(salads),
            REPETITION: one.sentences[at - 1] * (_SPLICE // len(one.sentences[at - 1]) + 2),
            OFF_TOPIC: "".join(prose[begin:]),
        }[kind]
        beginning = "".join(one.sentences[:at])
        text = beginning + (tail if kind == WHOLE else tail[:_SPLICE])
        known = COHERENT if kind == WHOLE else at + 1
        found = replace(one, text=text, kind=kind, known=known)
        if kind == WHOLE or found.sentences[:at] == one.sentences[:at]:  # else the splice has no boundary
            yield found
