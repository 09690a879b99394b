"""The evaluation grid (question × sampler × temperature × repeat) and which of its responses are missing.

All missing responses to a question follow one another, so that its prompt is evaluated once for all of them.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mink_local.evals.run.records import Response, ResponseKey
from mink_local.evals.tasks.base import Question, Task
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
        left = (variant for variant in self.variants if self.key(variant) not in done)
        return replace(self, variants=tuple(left))


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
        """Return the work without the responses that have these keys."""
        left = (item.without(done) for item in self.items)
        return replace(self, items=tuple(item for item in left if item.variants))


# Called with the SHA-256 of a model's chat template and its runtime environment, when a model is loaded.
Ready = Callable[[str, Mapping[str, Any]], None]


class Executor(Protocol):
    """Has a model answer questions: on this machine, or on a cluster."""

    def answer(
        self, options: Mapping[str, Any], work: Sequence[TaskWork], ready: Ready
    ) -> Iterator[Response]:
        """Yield the responses as they are complete, until `interrupt`.

        Args:
            options: Those of a `Worker`.
            work: What is to be answered.
            ready: Called when the model is loaded.
        """

    def interrupt(self) -> None:
        """End `answer` soon; called by a signal."""


def variants(
    samplers: Iterable[Sampler], temperatures: Iterable[float], repeats: int, greedy: bool = True
) -> list[Variant]:
    """Return every sampler at every temperature, `repeats` times, each once, and greedy, once.

    Greedy says the same at every temperature and repeat, and so does every sampler at temperature 0: all
    these are one Variant(Greedy(), 0.0, 0). It is what a sampler has to beat, so it is there in any case,
    unless `greedy` is False.
    """
    pairs = dict.fromkeys(
        (sampler, float(temperature)) for sampler in samplers for temperature in temperatures
    )
    methods = [pair for pair in pairs if pair[1] and pair[0] != Greedy()]
    repeated = [Variant(*method, repeat) for method in methods for repeat in range(repeats)]
    once = [Variant(Greedy(), 0.0, 0)] if greedy or len(methods) < len(pairs) else []
    return [*once, *repeated]
