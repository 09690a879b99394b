"""What is to be asked: every question with every method, and what of that is missing.

The order is question-major, all missing responses to a question behind one another, so that its prompt is
evaluated once for all of them.
"""

import hashlib
import json
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mink_local.evals.run.records import Key, Record
from mink_local.evals.tasks.base import Question
from mink_local.samplers import Greedy, Sampler

_SEEDS = 2**32 - 1  # the largest 32-bit number means "any seed" to llama.cpp

Method = tuple[Sampler, float]  # with the temperature


@dataclass(frozen=True)
class Draw:
    """One response to a question: how it is to be drawn. repeat: from 0."""

    sampler: Sampler
    temperature: float
    repeat: int


@dataclass(frozen=True)
class Job:
    """A question of a task and the responses to it that are wanted, of at most `max_tokens` each."""

    task: str
    question: Question
    max_tokens: int
    draws: tuple[Draw, ...]


@dataclass(frozen=True)
class Part:
    """What one model is to do on one task.

    prompts: of all questions of the run, those that are answered included: the longest of them decides
    about the context, which is thus the same whenever the run goes on. max_tokens: of an answer. jobs: what
    is missing.
    """

    prompts: tuple[str, ...]
    max_tokens: int
    jobs: tuple[Job, ...]


Ready = Callable[[str, Mapping[str, Any]], None]  # takes a template's SHA-256 and circumstances to note

# Takes the options of a `Worker`, what is to be done and whom to tell when the model is ready; closing it
# ends it early. Raises KeyboardInterrupt after Ctrl-C, as soon as what was complete is handed over.
Executor = Callable[[Mapping[str, Any], Sequence[Part], Ready], Generator[Record, None, None]]


def methods(samplers: Iterable[Sampler], temperatures: Iterable[float]) -> list[Method]:
    """Every sampler at every temperature, each once. Greedy has no temperature and stands as (greedy, 0),
    which is what every sampler is at temperature 0."""
    pairs = [(sampler, float(temperature)) for sampler in samplers for temperature in temperatures]
    greedy = (Greedy(), 0.0)
    return list(dict.fromkeys(greedy if pair[1] == 0 or pair[0] == Greedy() else pair for pair in pairs))


def draws(methods: Iterable[Method], repeats: int) -> list[Draw]:
    """Every method `repeats` times, greedy once: it would only say the same again."""
    return [
        Draw(sampler, temperature, repeat)
        for sampler, temperature in methods
        for repeat in range(repeats if temperature else 1)
    ]


def keys(model: str, task: str, questions: Iterable[Question], wanted: Sequence[Draw]) -> Iterator[Key]:
    """The keys of all records of a model and a task, in the order of the cells."""
    listed = list(questions)
    return (key(model, task, question, draw) for draw in wanted for question in listed)


def key(model: str, task: str, question: Question, draw: Draw) -> Key:
    return model, task, str(draw.sampler), draw.temperature, draw.repeat, question.id


def part(
    model: str,
    task: str,
    questions: Sequence[Question],
    max_tokens: int,
    wanted: Sequence[Draw],
    done: Container[Key],
) -> Part:
    """What is left of a task when the records with the keys `done` are there."""
    jobs = []
    for question in questions:
        missing = tuple(draw for draw in wanted if key(model, task, question, draw) not in done)
        if missing:
            jobs.append(Job(task, question, max_tokens, missing))
    return Part(tuple(question.prompt for question in questions), max_tokens, tuple(jobs))


def seed_of(run_seed: int, task: str, question_id: str, repeat: int) -> int:
    """The seed of a response, 0 to 2^32 - 2: the same in whatever batch, with whatever limit, and for every
    method, so that methods meet a question with the same luck."""
    text = json.dumps([run_seed, task, question_id, repeat])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % _SEEDS
