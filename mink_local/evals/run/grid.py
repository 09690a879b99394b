"""The evaluation grid (question × sampler × temperature × repeat) and which of its responses are missing.

All missing responses to a question follow one another, so that its prompt is evaluated once for all of them.
"""

import hashlib
import json
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mink_local.evals.run.records import Response, ResponseKey
from mink_local.evals.tasks.base import Question
from mink_local.llama.context import MAX_SEED
from mink_local.samplers import Greedy, Sampler


@dataclass(frozen=True)
class Variant:
    """How one of the responses to a question is generated. `repeat` counts from 0."""

    sampler: Sampler
    temperature: float
    repeat: int


@dataclass(frozen=True)
class WorkItem:
    """A question of a task and the responses to it that are wanted, of at most `max_tokens` each."""

    task: str
    question: Question
    max_tokens: int
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class TaskWork:
    """The responses of one task that a model has yet to give.

    Attributes:
        prompts: Of all questions of the run, the answered ones included: the longest prompt decides how
            long the context is, so that it is the same whenever the run is continued.
        max_tokens: Of a response.
        items: The missing responses.
    """

    prompts: tuple[str, ...]
    max_tokens: int
    items: tuple[WorkItem, ...]


# Called with the SHA-256 of a model's chat template and its runtime environment, when a model is loaded.
Ready = Callable[[str, Mapping[str, Any]], None]

# Takes the options of a `Worker`, the work, and what to call when the model is loaded. Closing the generator
# ends the work early. After Ctrl-C it yields what is complete and raises KeyboardInterrupt.
Executor = Callable[[Mapping[str, Any], Sequence[TaskWork], Ready], Generator[Response, None, None]]


def variants(samplers: Iterable[Sampler], temperatures: Iterable[float], repeats: int) -> list[Variant]:
    """Return every sampler at every temperature, `repeats` times, each once.

    At temperature 0 every sampler is greedy, and greedy says the same at every temperature and repeat:
    it is asked for once, as Variant(Greedy(), 0.0, 0).
    """
    pairs = [(sampler, float(temperature)) for sampler in samplers for temperature in temperatures]
    greedy = (Greedy(), 0.0)
    methods = dict.fromkeys(greedy if pair[1] == 0 or pair[0] == Greedy() else pair for pair in pairs)
    return [
        Variant(sampler, temperature, repeat)
        for sampler, temperature in methods
        for repeat in range(repeats if temperature else 1)
    ]


def keys(
    model: str, task: str, questions: Sequence[Question], wanted: Sequence[Variant]
) -> Iterator[ResponseKey]:
    """Return the keys of all responses of a model to a task, cell by cell."""
    return (key(model, task, question, variant) for variant in wanted for question in questions)


def key(model: str, task: str, question: Question, variant: Variant) -> ResponseKey:
    """Return the key of one response."""
    sampler = str(variant.sampler)
    return ResponseKey(model, task, sampler, variant.temperature, variant.repeat, question.id)


def task_work(
    model: str,
    task: str,
    questions: Sequence[Question],
    max_tokens: int,
    wanted: Sequence[Variant],
    done: Container[ResponseKey],
) -> TaskWork:
    """Return the work of a model on a task, except the responses whose keys are in `done`."""
    items = []
    for question in questions:
        missing = tuple(variant for variant in wanted if key(model, task, question, variant) not in done)
        if missing:
            items.append(WorkItem(task, question, max_tokens, missing))
    return TaskWork(tuple(question.prompt for question in questions), max_tokens, tuple(items))


def seed_of(run_seed: int, task: str, question_id: str, repeat: int) -> int:
    """Return the seed of a response, 0 to MAX_SEED.

    It depends on neither batch nor limit, and is the same for every method: methods meet a question with
    the same random numbers.
    """
    text = json.dumps([run_seed, task, question_id, repeat])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % (MAX_SEED + 1)
