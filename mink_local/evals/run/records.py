"""The files of a run: its manifest, its questions, and its records with one response per line."""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from mink_local.cli import NO_TEXT
from mink_local.evals.store import MANIFEST, as_run_error
from mink_local.evals.tasks.base import Question, Verdict
from mink_local.llama.constants import MAX_SEED

QUESTIONS, RECORDS = "questions.jsonl", "records.jsonl"

# Names are printed to terminals and in tables.
Name = Annotated[str, msgspec.Meta(pattern=rf"\A[^{NO_TEXT}]*\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


class ResponseKey(NamedTuple):
    """Identifies a response by the fields that together are unique in a run; `sampler` is text."""

    model: str
    task: str
    sampler: str
    temperature: float
    repeat: int
    question_id: str


@dataclass(frozen=True)
class Response:
    """A response to a question, its verdicts, and how it was generated: one line of `records.jsonl`.

    A response to an open-ended question has no verdicts: `strict` and `flexible` are None, and null in the
    line. It is neither right nor wrong, and does not count towards any accuracy.

    Attributes:
        sampler: The sampler as text, `str(sampler)`.
        order: When temperature is applied; None if the cut does not depend on temperature.
        repeat: Index of the repeat, from 0.
        n_tokens: Length of the response in tokens, without the token that ends it.
        finish_reason: "stop", "length" (truncated) or "overflow" (the prompt did not fit into the context).
        k: Number of candidates at every step; 0 where a token was forced.
        thoughts_cut: Whether the reasoning was ended by its budget.
        prompt_sha256: SHA-256 of the user's message, as UTF-8.
        seconds: Time from getting a slot to the end.
    """

    model: Name
    task: Name
    sampler: Name
    temperature: Amount
    order: str | None
    repeat: Count
    question_id: Name
    response: str
    n_tokens: Count
    finish_reason: str
    k: list[Count]
    strict: Verdict | None
    flexible: Verdict | None
    seed: Count = 0
    prompt_sha256: str = ""
    prompt_tokens: Count = 0
    seconds: Amount = 0.0
    thoughts_cut: bool = False

    def __post_init__(self) -> None:
        if (self.strict is None) != (self.flexible is None):
            raise ValueError('"strict" and "flexible" must both be null or both be set')

    @property
    def open_ended(self) -> bool:
        return self.flexible is None

    @property
    def key(self) -> ResponseKey:
        return ResponseKey(*(getattr(self, name) for name in ResponseKey._fields))


@dataclass(frozen=True)
class RecordedQuestion:
    """A question of a run: one line of `questions.jsonl`, which makes the report independent of the data."""

    task: Name
    question_id: Name
    prompt: str
    gold: str
    choices: list[str]
    order: list[int]

    @classmethod
    def of(cls, task: str, question: Question) -> "RecordedQuestion":
        return cls(
            task, question.id, question.prompt, question.gold, list(question.choices), list(question.order)
        )

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.question_id

    @property
    def question(self) -> Question:
        return Question(self.question_id, self.prompt, self.gold, tuple(self.choices), tuple(self.order))


class _TaskSettings(msgspec.Struct):
    max_tokens: int


class RunManifest(msgspec.Struct):
    """The parts of a run's manifest that a response is checked against, or a report relies on."""

    seed: int
    models: dict[str, dict[str, Any]]
    tasks: dict[str, _TaskSettings]
    sessions: list[dict[str, Any]] = []


class RecordCheck:
    """Tells why a response does not belong to a run: `check(response)` returns a text or None.

    Args:
        manifest: The run's manifest; if missing or damaged, only the prompts are compared.
        questions: The run's questions.

    Attributes:
        manifest: The manifest's known parts; None if it is missing or damaged.
    """

    def __init__(self, manifest: Mapping[str, Any], questions: Iterable[RecordedQuestion]) -> None:
        self._prompts = {question.key: prompt_sha256(question.prompt) for question in questions}
        self.manifest: RunManifest | None = None
        with suppress(msgspec.ValidationError):
            self.manifest = msgspec.convert(manifest, RunManifest)

    def __call__(self, response: Response) -> str | None:
        prompt = self._prompts.get((response.task, response.question_id))
        if prompt is None:
            return f"question {response.question_id} of {response.task} is not in {QUESTIONS}"
        if response.prompt_sha256 not in ("", prompt):
            return f"question {response.question_id} of {response.task} has a different prompt in {QUESTIONS}"
        return self._misfit(response, self.manifest) if self.manifest else None

    def _misfit(self, response: Response, manifest: RunManifest) -> str | None:
        if response.model not in manifest.models:
            return f"model {response.model} is not in {MANIFEST}"
        if response.task not in manifest.tasks:
            return f"task {response.task} is not in {MANIFEST}"
        wanted = seed_of(manifest.seed, response.task, response.question_id, response.repeat)
        if response.seed and response.seed != wanted:  # records need not have a seed
            return f"seed differs from that of the run's --seed ({manifest.seed})"
        limit = manifest.tasks[response.task].max_tokens
        if response.n_tokens > limit:
            return f"longer than the run's --max-tokens ({limit})"
        return None


def methods(
    samplers: Sequence[str], temperatures: Sequence[float], repeats: int, greedy: bool = True
) -> list[tuple[str, float, int]]:
    """Return sampler, temperature and repeat of every response wanted for a question.

    Greedy gives the same response at every temperature and repeat, as does every sampler at temperature 0:
    all of these are ("greedy", 0.0, 0). It is the baseline that samplers have to beat, so it is always
    included, unless `greedy` is False.
    """
    every = list(dict.fromkeys(product(samplers, map(float, temperatures), range(repeats))))
    sampled = [method for method in every if method[0] != "greedy" and method[1]]
    once = [("greedy", 0.0, 0)] if greedy or len(sampled) < len(every) else []
    return [*once, *sampled]


def prompt_sha256(prompt: str) -> str:
    """Return a prompt's SHA-256, as UTF-8."""
    return hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()


def seed_of(run_seed: int, task: str, question_id: str, repeat: int) -> int:
    """Return the seed of a response, 0 to MAX_SEED.

    It depends on neither batch nor limit, and is the same for all samplers, so that they face each question
    with the same random numbers.
    """
    text = json.dumps([run_seed, task, question_id, repeat])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % (MAX_SEED + 1)


def record_files(folder: Path) -> list[Path]:
    """Return the `*.jsonl` files of a folder that contain a "response", such as another machine's."""
    found = []
    for path in sorted(set(folder.glob("*.jsonl")) - {folder / QUESTIONS}):
        with as_run_error(path, "read"), path.open("rb") as stream:
            if any(b'"response"' in line for line in stream):
                found.append(path)
    return found
