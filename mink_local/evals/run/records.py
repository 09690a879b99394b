"""The files of a run: its manifest, its questions, and its records with one response per line.

They are read however the run ended.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from mink_local.errors import ReportError
from mink_local.evals.store import MANIFEST, Rows, public, read_manifest
from mink_local.evals.tables import listed
from mink_local.evals.tasks import TASKS, recorded_scorer, recorded_task
from mink_local.evals.tasks.base import Name, Question, Task, Verdict, score
from mink_local.evals.tasks.scoring import is_users
from mink_local.llama.constants import RANDOM_SEED
from mink_local.samplers import Greedy, Sampler

QUESTIONS, RECORDS = "questions.jsonl", "records.jsonl"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


@dataclass(frozen=True)
class ResponseKey:
    """Identifies a response by the fields that together are unique in a run.

    Attributes:
        sampler: The sampler as text, `str(sampler)`.
        repeat: Index of the repeat, from 0.
    """

    model: Name
    task: Name
    sampler: Name
    temperature: Amount
    repeat: Count
    question_id: Name


KEY = tuple(one.name for one in fields(ResponseKey))


class Wanted(NamedTuple):
    """A response to generate."""

    key: ResponseKey
    sampler: Sampler
    question: Question


@dataclass(frozen=True)
class Response(ResponseKey):
    """A response to a question, and how it was generated: one line of `records.jsonl`.

    Attributes:
        order: When temperature is applied; None if the cut does not depend on temperature.
        n_tokens: Length of the response in tokens, without the token that ends it; None if a server does not
            say.
        finish_reason: "stop", "length" (truncated) or "overflow" (the prompt did not fit into the context).
        k: Number of candidates at every step; 0 where a token was forced.
        strict, flexible, last: The verdicts, which are computed for a report; see `scored`. Only those by a
            user's function are recorded. None, too, if the question is open-ended.
        thoughts_cut: Whether the reasoning was ended by its budget.
        n_reasoning: Tokens of the reasoning, which are among `n_tokens`; None if a server does not say.
        prompt_sha256: SHA-256 of the user's message, as UTF-8.
        seconds: Seconds from when generation started (not queued) to the end.
    """

    order: str | None
    response: str
    n_tokens: Count | None
    finish_reason: str
    k: list[Count]
    strict: Verdict | None = None
    flexible: Verdict | None = None
    last: Verdict | None = None
    seed: Count = 0
    prompt_sha256: str = ""
    prompt_tokens: Count = 0
    seconds: Amount = 0.0
    thoughts_cut: bool = False
    n_reasoning: Count | None = None

    @property
    def question(self) -> tuple[str, str]:
        """The key of its question."""
        return self.task, self.question_id

    @property
    def key(self) -> ResponseKey:
        return ResponseKey(*(getattr(self, name) for name in KEY))


class Asked(msgspec.Struct):
    """What a command asked for: samplers at every temperature, and settings, each with its own."""

    samplers: list[str] = []
    settings: list[tuple[str, str]] = []


class RunManifest(msgspec.Struct):
    """The parts of a run's manifest that are relied on."""

    seed: int
    models: dict[str, dict[str, Any]]
    tasks: dict[str, dict[str, Any]]
    sessions: list[dict[str, Any]] = []
    asked: list[Asked] = []


def known_parts(manifest: Mapping[str, Any]) -> RunManifest | None:
    """Return the parts of a manifest that are relied on; None if it is missing or damaged."""
    try:
        return msgspec.convert(manifest, RunManifest)
    except msgspec.ValidationError:
        return None


def misfit(
    response: Response, manifest: RunManifest | None, prompts: Mapping[tuple[str, str], str]
) -> str | None:
    """Return why a response does not belong to a run, or None.

    Args:
        manifest: The known parts of the run's manifest; if None, only the prompts are compared.
        prompts: The SHA-256 of every question's prompt, by the question's key.
    """
    prompt = prompts.get(response.question)
    if prompt is None:
        return f"question {response.question_id} of {response.task} is not in {QUESTIONS}"
    if response.prompt_sha256 not in ("", prompt):
        return f"question {response.question_id} of {response.task} has a different prompt in {QUESTIONS}"
    if manifest and response.seed:  # records need not have one
        wanted = seed_of(manifest.seed, response.task, response.question_id, response.repeat)
        if response.seed != wanted:
            return f"seed differs from that of the run's --seed ({manifest.seed})"
    return None


def methods(
    samplers: Sequence[Sampler], temperatures: Sequence[float], repeats: int, greedy: bool = True
) -> list[tuple[Sampler, float, int]]:
    """Return sampler, temperature and repeat of every response wanted for a question.

    Greedy gives the same response at every temperature and repeat, as does every sampler at temperature 0:
    all of these are (Greedy(), 0.0, 0). It is the baseline that samplers have to beat, so it is always
    included, unless `greedy` is False.
    """
    every = list(dict.fromkeys(product(samplers, map(float, temperatures), range(repeats))))
    sampled = [method for method in every if method[0] != Greedy() and method[1]]
    once: list[tuple[Sampler, float, int]] = [(Greedy(), 0.0, 0)]
    return [*(once if greedy or len(sampled) < len(every) else []), *sampled]


def prompt_sha256(prompt: str) -> str:
    """Return a prompt's SHA-256, as UTF-8."""
    return hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()


def seed_of(run_seed: int, task: str, question_id: str, repeat: int) -> int:
    """Return the seed of a response, below RANDOM_SEED.

    It depends on neither batch nor limit, and is the same for all samplers, so that they face each question
    with the same random numbers.
    """
    text = json.dumps([run_seed, task, question_id, repeat])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % RANDOM_SEED


def record_files(folder: Path) -> list[Path]:
    """Return a folder's files of responses: all `*.jsonl` but the questions, such as another machine's."""
    return sorted(set(folder.glob("*.jsonl")) - {folder / QUESTIONS})


@dataclass
class RecordedRun:
    """The questions and responses of a run.

    Attributes:
        questions: Questions by task and id.
        manifest: Settings of the run, without this machine's folders; empty if damaged.
        notes: Caveats to read before the numbers.
    """

    questions: dict[tuple[str, str], Question]
    responses: list[Response]
    manifest: dict[str, Any]
    notes: list[str]


def read_questions(folder: Path) -> Rows[Question]:
    """Return the questions in a folder, without lines that are unusable."""
    questions = Rows[Question]()
    questions.read(folder / QUESTIONS, Question)
    return questions


def read_responses(
    folder: Path, manifest: Mapping[str, Any], questions: Rows[Question] | None = None
) -> Rows[Response]:
    """Return the responses in a folder, without lines that are unusable.

    A line is unusable if it cannot be parsed, or if its prompt or seed shows that it belongs to another run.
    If two responses have the same key, the first counts. Raises RunError if a file cannot be read.
    """
    questions = questions or read_questions(folder)
    found = Rows[Response](problems=questions.problems)
    prompts = {question.key: prompt_sha256(question.prompt) for question in questions.by_key.values()}
    known = known_parts(manifest)
    for file in record_files(folder):
        found.read(file, Response, lambda response: misfit(response, known, prompts))
    return found


def read_run(folder: Path) -> RecordedRun:
    """Return the questions and responses in a folder. Raises ReportError if there are none."""
    path, manifest = folder / QUESTIONS, read_manifest(folder)
    if not path.exists():
        raise ReportError(f"{folder} contains no {QUESTIONS}: give the --out folder of a mink-eval run")
    questions = read_questions(folder)
    found = read_responses(folder, manifest, questions)
    if not found.by_key:
        why = found.problems[0] if found.problems else "repeat the mink-eval run command"
        raise ReportError(f"{folder} contains no responses: {why}")
    is_known = known_parts(manifest) is not None
    unchecked = f"{MANIFEST} is missing or damaged: the run's settings are unknown, and responses unchecked."
    notes = list(filter(None, [found.left_out, "" if is_known else unchecked]))
    described = public(manifest) if is_known else {}
    served = [name for name, model in described.get("models", {}).items() if not model.get("sha256", True)]
    if served:
        notes.append(
            f"Answered by a server: {listed(served)}. Its file and k are not recorded, nor, unless it is "
            "mink-serve, whether top-p cuts before or after temperature."
        )
    by_key = {question.key: question for question in questions.by_key.values()}
    return RecordedRun(by_key, list(found.by_key.values()), described, notes)


def scored(run: RecordedRun, scorer: str = "") -> RecordedRun:
    """Return the run with the verdicts on its responses; only those by a user's own scorer are on disk.

    These stay, unless `scorer` names it again: a report runs nothing that a folder names.
    Responses to tasks unknown to this version keep what verdicts they have.
    """
    rules = {name: settings.get("rule") for name, settings in run.manifest.get("tasks", {}).items()}
    names = sorted({response.task for response in run.responses})
    again = {name: f"scorer={scorer}" for name in names if scorer and name not in TASKS}
    tasks = {name: recorded_task(name, again.get(name, rules.get(name)), scorer) for name in names}
    responses = [
        with_verdicts(one, run.questions[one.question], task) if (task := tasks[one.task]) else one
        for one in run.responses
    ]
    return replace(run, responses=responses, notes=[*run.notes, *_kept(tasks, rules)])


def _kept(tasks: Mapping[str, Task | None], rules: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about tasks whose recorded verdicts are kept."""
    for name in (name for name, task in tasks.items() if task is None):
        function = recorded_scorer(rules.get(name))
        yield (
            f"{name}: {function} scored the responses when they were generated; --scorer scores them again."
            if is_users(function)
            else f"Task unknown to this version: {name}; its responses have the verdicts that are recorded."
        )


def with_verdicts(response: Response, question: Question, task: Task) -> Response:
    """Return a response with its verdicts, unless its task is open-ended.

    Raises ScorerError if a user's scorer fails.
    """
    if task.open_ended:
        return response
    return replace(response, **score(task, question, response.response, response.finish_reason)._asdict())
