"""The texts whose positions are measured: plain text, or answers to prompts that the reference writes."""

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mink_local.errors import DataError, RunError
from mink_local.evals.run.records import as_run_error
from mink_local.evals.tasks.base import Task
from mink_local.evals.tasks.lines import decoded_lines, prompt_of
from mink_local.files import write_atomic
from mink_local.generation.answer import Answer
from mink_local.generation.model import Model
from mink_local.generation.request import Message, Request, SamplingParams
from mink_local.samplers import TopP

WRITER = TopP(p=0.95, order="temperature-last")
"""The sampler of written answers, at temperature 1.

Greedy answers would hold only the most probable positions, and loops. Without a cut, each token of the tail
would put the text, and what follows it, where neither model is asked to go.
"""


@dataclass(frozen=True)
class MeasuredText:
    """A text, in the reference's tokens.

    Attributes:
        number: That of its prompt or paragraph, from 0.
        prompt: The user message that it answers; None for plain text.
        tokens: Ids of its tokens; each is a position, except the first of plain text.
        ended: The answer came to its end, and the token that ended it is a position too.
        text: The text, to be read.
    """

    number: int
    prompt: str | None
    tokens: list[int]
    ended: bool
    text: str

    @property
    def n_positions(self) -> int:
        return len(self.tokens) + (self.ended if self.prompt is not None else -1)

    @property
    def key(self) -> int:
        """A number that another text does not have: that of its prompt, and a checksum of its tokens."""
        return self.number << 32 | zlib.crc32(np.array(self.tokens, np.int32).tobytes())

    def context(self) -> list[Message] | list[int]:
        """Return the prompt, which each model gets in its own chat template, or plain text's first token."""
        return self.tokens[:1] if self.prompt is None else messages(self.prompt)

    def prefix(self) -> list[int]:
        """Return the tokens after which, one by one, a position follows; the first follows the context."""
        if self.prompt is None:
            return self.tokens[1:-1]
        return self.tokens if self.ended else self.tokens[:-1]


def messages(prompt: str) -> list[Message]:
    """Return the conversation that a prompt begins."""
    return [{"role": "user", "content": prompt}]


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file, one a line: plain, or a JSON object with one of `PROMPTS`.

    Raises DataError, which names file and line.
    """
    prompts = []
    for number, line in decoded_lines(path):
        text = line.strip()
        if text.startswith("{"):
            text = _prompt_of(text, f"{path}, line {number}")
        if text:
            prompts.append(text)
    if not prompts:
        raise DataError(f"{path} holds no prompts: write one a line")
    return prompts


def _prompt_of(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{where}: this begins with {{ and is not JSON") from None
    return prompt_of(row, where)


def task_prompts(task: Task, path: Path, seed: int) -> list[str]:
    """Return the prompts of a task's questions. Raises DataError."""
    return [question.prompt for question in task.read(path, seed)]


def sample(items: Sequence[str], limit: int | None, seed: int) -> list[tuple[int, str]]:
    """Return up to `limit` numbered items in random order; a larger limit adds to them."""
    order = np.random.default_rng(seed).permutation(len(items))[:limit]
    return [(int(i), items[i]) for i in order]


def read_paragraphs(path: Path) -> list[str]:
    """Return the paragraphs of a text file, which empty lines separate. Raises DataError."""
    text = "".join(line for _, line in decoded_lines(path)).replace("\r\n", "\n")
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    if not paragraphs:
        raise DataError(f"{path} is empty: there is no text to measure")
    return paragraphs


def plain_texts(paragraphs: Sequence[tuple[int, str]], reference: Model) -> list[MeasuredText]:
    """Return paragraphs as texts, without those that hold no position. Raises DataError if none is left."""
    texts = []
    for number, paragraph in paragraphs:
        tokens = reference.weights.tokenize(paragraph, add_special=True, parse_special=False)
        text = MeasuredText(number, None, tokens, ended=False, text=paragraph)
        if text.n_positions > 0:
            texts.append(text)
    if not texts:
        raise DataError("every paragraph is a single token: no position follows another")
    return texts


class WrittenTexts:
    """The answers that the reference has written so far, kept in a file of JSON lines.

    The first line says what they depend on. Raises RunError if the file was started with other settings.
    """

    def __init__(self, path: Path, settings: dict[str, object]) -> None:
        self._path = path
        self._texts: dict[int, MeasuredText] = {}
        if path.exists():
            self._read(settings)
        else:
            with as_run_error(path):
                write_atomic(path, json.dumps(settings) + "\n")

    def _read(self, settings: dict[str, object]) -> None:
        with as_run_error(self._path, "read"):
            data = self._path.read_bytes()
        lines = data.split(b"\n")
        try:
            before = json.loads(lines[0])
            for line in lines[1:-1]:  # what is behind the last newline is cut short
                text = MeasuredText(**json.loads(line))
                self._texts[text.number] = text
            differing = [f"{name} was {before[name]} and is {now}" for name, now in settings.items()
                         if before[name] != now]  # fmt: skip
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{self._path} is damaged: name another --out") from None
        if differing:
            raise RunError(
                f"the texts in {self._path} were written with other settings: {'; '.join(differing)}. "
                "Give the settings that they were written with, or name another --out"
            )
        if lines[-1]:
            with as_run_error(self._path):
                write_atomic(self._path, b"\n".join(lines[:-1]) + b"\n")

    def write(
        self, prompts: Sequence[tuple[int, str]], reference: Model, max_tokens: int, seed: int
    ) -> Iterator[MeasuredText]:
        """Have the reference write the answers that are missing, many at a time; yield them as they come.

        Raises DataError if a prompt does not fit the context.
        """
        missing = [(number, prompt) for number, prompt in prompts if number not in self._texts]
        for answer in reference.complete(_requests(missing, max_tokens, seed)):
            number, prompt = missing[answer.index]
            if answer.finish_reason == "interrupted":
                return
            if answer.finish_reason in ("overflow", "error"):
                raise DataError(f"prompt {number + 1} cannot be answered by {reference.name}: {_why(answer)}")
            ended = answer.finish_reason == "stop"
            text = MeasuredText(number, prompt, list(map(int, answer.tokens)), ended, answer.text)
            with as_run_error(self._path), self._path.open("ab") as stream:
                stream.write(json.dumps(asdict(text)).encode() + b"\n")
            self._texts[number] = text
            yield text

    def of(self, prompts: Sequence[tuple[int, str]]) -> list[MeasuredText]:
        """Return the texts of prompts in their order, as far as they are written."""
        return [self._texts[number] for number, _ in prompts if number in self._texts]


def _requests(prompts: Sequence[tuple[int, str]], max_tokens: int, seed: int) -> Iterator[Request]:
    for number, prompt in prompts:
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)
        params = SamplingParams(sampler=WRITER, temperature=1.0, max_tokens=max_tokens, seed=own_seed)
        yield Request(messages(prompt), params)


def _why(answer: Answer) -> str:
    return answer.error or f"it has {answer.prompt_tokens} tokens and the context holds fewer"
