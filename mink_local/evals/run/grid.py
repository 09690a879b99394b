"""The evaluation grid (question × sampler × temperature × repeat) and which of its responses are missing.

All missing responses to a question follow one another, so that its prompt is evaluated once for all of them.
"""

import hashlib
import json
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mink_local.evals.run.records import Response, ResponseKey
from mink_local.evals.tasks.base import Question, Task
from mink_local.llama.context import MAX_SEED
from mink_local.samplers import Greedy, Sampler


@dataclass(frozen=True)
class Variant:
    """One of the responses to a question, by how it is sampled. `repeat` counts from 0."""

    sampler: Sampler
    temperature: float
    repeat: int


@dataclass(frozen=True)
class TaskSettings:
    """A task and how its questions are asked.

    Attributes:
        max_tokens: Longest response, in tokens.
        shots: Examples before every question: a prompt and the answer to it each.
        stop: Strings that end a response and are not part of it.
    """

    task: Task
    max_tokens: int
    shots: tuple[tuple[str, str], ...] = ()
    stop: tuple[str, ...] = ()

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """Return the conversation that ends with a prompt; the examples are its earlier turns."""
        turns = [
            {"role": role, "content": content}
            for shot in self.shots
            for role, content in zip(("user", "assistant"), shot, strict=True)
        ]
        return [*turns, {"role": "user", "content": prompt}]


@dataclass(frozen=True)
class WorkItem:
    """Responses of a model to a question of a task."""

    model: str
    settings: TaskSettings
    question: Question
    variants: tuple[Variant, ...]

    def key(self, variant: Variant) -> ResponseKey:
        method = (str(variant.sampler), variant.temperature)
        return ResponseKey(self.model, self.settings.task.name, *method, variant.repeat, self.question.id)

    def without(self, done: Container[ResponseKey]) -> "WorkItem":
        missing = (variant for variant in self.variants if self.key(variant) not in done)
        return replace(self, variants=tuple(missing))


@dataclass(frozen=True)
class TaskWork:
    """Responses of a model to the questions of a task.

    `prompts` are those of all questions of the run, the answered ones included: the longest prompt decides
    the context's length, so that it is the same whenever the run is continued.
    """

    settings: TaskSettings
    prompts: tuple[str, ...]
    items: tuple[WorkItem, ...]

    @classmethod
    def of(
        cls, model: str, settings: TaskSettings, questions: Sequence[Question], wanted: Sequence[Variant]
    ) -> "TaskWork":
        items = (WorkItem(model, settings, question, tuple(wanted)) for question in questions)
        return cls(settings, tuple(question.prompt for question in questions), tuple(items))

    @property
    def keys(self) -> list[ResponseKey]:
        """The keys of all responses, question by question."""
        return [item.key(variant) for item in self.items for variant in item.variants]

    def without(self, done: Container[ResponseKey]) -> "TaskWork":
        """Return the work that is left if the responses with these keys are recorded."""
        left = (item.without(done) for item in self.items)
        return replace(self, items=tuple(item for item in left if item.variants))


# Called with the SHA-256 of a model's chat template and its runtime environment, when a model is loaded.
Ready = Callable[[str, Mapping[str, Any]], None]

# Takes the options of a `Worker`, the work, and what to call when the model is loaded. Closing the generator
# ends the work early. After Ctrl-C it yields what is complete and raises KeyboardInterrupt.
Executor = Callable[[Mapping[str, Any], Sequence[TaskWork], Ready], Generator[Response, None, None]]


def variants(samplers: Iterable[Sampler], temperatures: Iterable[float], repeats: int) -> list[Variant]:
    """Return greedy, once, and every other sampler at every temperature, `repeats` times, each once.

    Greedy is what a sampler has to beat, so it is always wanted. It says the same at every temperature and
    repeat, and so does every sampler at temperature 0: all these are one Variant(Greedy(), 0.0, 0).
    """
    pairs = dict.fromkeys(
        (sampler, float(temperature)) for sampler in samplers for temperature in temperatures
    )
    methods = [pair for pair in pairs if pair[1] and pair[0] != Greedy()]
    repeated = [Variant(*method, repeat) for method in methods for repeat in range(repeats)]
    return [Variant(Greedy(), 0.0, 0), *repeated]


def seed_of(run_seed: int, task: str, question_id: str, repeat: int) -> int:
    """Return the seed of a response, 0 to MAX_SEED.

    It depends on neither batch nor limit, and is the same for every method: methods meet a question with
    the same random numbers.
    """
    text = json.dumps([run_seed, task, question_id, repeat])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % (MAX_SEED + 1)
