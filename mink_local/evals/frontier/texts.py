"""The texts whose positions are measured: recorded answers of the reference, or paragraphs of a file."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mink_local.errors import DataError
from mink_local.evals.run.records import (
    QUESTIONS,
    RecordCheck,
    RecordedQuestion,
    Response,
    record_files,
)
from mink_local.evals.store import Rows, read_manifest
from mink_local.evals.tasks.lines import decoded_lines
from mink_local.generation.model import Model


@dataclass(frozen=True)
class MeasuredText:
    """A text whose tokens are positions.

    Attributes:
        name: What a message calls it.
        text: The text.
        prompt: The user message that it answers, or None: then its first token is no position.
        ended: True if the answer ended by itself: the token that ended it is a position too.
    """

    name: str
    text: str
    prompt: str | None = None
    ended: bool = False

    @property
    def key(self) -> str:
        """A hash of the text and what it answers."""
        content = json.dumps([self.prompt, self.text, self.ended])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def sequence(self, model: Model, reference: Model) -> tuple[list[int], int]:
        """Return the tokens that a model evaluates, and after how many of the last a position follows.

        The text's own tokens are those of the reference's tokenizer; its prompt is in the chat template of
        `model`.
        """
        if self.prompt is None:
            tokens = reference.weights.tokenize(self.text, add_special=True, parse_special=False)
            return tokens[:-1], len(tokens) - 1
        context = model.prompt_tokens([{"role": "user", "content": self.prompt}])
        tokens = reference.tokenize(self.text)
        return [*context, *(tokens if self.ended else tokens[:-1])], len(tokens) + self.ended


def read_paragraphs(path: Path) -> list[MeasuredText]:
    """Return the paragraphs of a text file, which empty lines separate. Raises DataError."""
    content = "".join(line for _, line in decoded_lines(path)).replace("\r\n", "\n")
    parts = [part.strip() for part in re.split(r"\n\s*\n", content) if part.strip()]
    if not parts:
        raise DataError(f"{path} is empty: there is no text to measure")
    return [MeasuredText(f"paragraph {i}", part) for i, part in enumerate(parts, start=1)]


def read_answers(folder: Path, reference_sha256: str) -> list[MeasuredText]:
    """Return the answers that the reference has sampled in a folder of `mink-eval run`.

    Greedy answers are left out: they hold the most probable positions only, and loops.

    Raises:
        DataError: There are none, or their prompts had examples, which are not recorded.
    """
    manifest = read_manifest(folder)
    questions: Rows[RecordedQuestion] = Rows()
    if (folder / QUESTIONS).exists():
        questions.read(folder / QUESTIONS, RecordedQuestion, lambda _: None)
    rows: Rows[Response] = Rows()
    for path in record_files(folder):
        rows.read(path, Response, RecordCheck(manifest, questions.by_key.values()))
    models = [name for name, one in manifest.get("models", {}).items() if one["sha256"] == reference_sha256]
    found = [one for one in rows.by_key.values() if one.model in models and one.temperature > 0]
    if not found:
        raise DataError(
            f"{folder} has no sampled answers of the reference: "
            f"mink-eval run TASK --model REFERENCE -s top-p:p=0.95,order=temperature-last -t 1 -o {folder}"
        )
    if any(manifest["tasks"][one.task].get("shots") for one in found):
        raise DataError(f"the prompts in {folder} had examples: run the reference without --shots")
    by_itself = not manifest.get("stop")
    return [
        MeasuredText(
            f"the answer to {one.question_id} of {one.task}",
            one.response,
            questions.by_key[one.task, one.question_id].prompt,
            one.finish_reason == "stop" and by_itself,
        )
        for one in found
    ]


def chosen(texts: Sequence[MeasuredText], limit: int) -> dict[str, MeasuredText]:
    """Return up to `limit` texts by key, chosen by their hashes; a larger limit adds to them."""
    by_key = {text.key: text for text in texts}
    return {key: by_key[key] for key in sorted(by_key)[:limit]}
