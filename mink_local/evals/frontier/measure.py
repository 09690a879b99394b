"""Measures tail mass against variety: streams the logits of a model and its reference over the same texts."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from mink_local.errors import DataError, ModelError
from mink_local.evals.answering import file_sha256
from mink_local.evals.frontier.report import report
from mink_local.evals.frontier.sums import PositionFigures
from mink_local.evals.run.records import read_run
from mink_local.evals.settings import SamplerSetting, SettingsMeasurement, sweep
from mink_local.evals.store import Store
from mink_local.evals.tasks.base import decoded_lines
from mink_local.generation.engine.slots import N_OUTPUTS
from mink_local.generation.model import Model
from mink_local.llama.weights import Weights
from mink_local.models.catalog import resolve
from mink_local.samplers import Greedy, MinK, MinP, Sampler


@dataclass(frozen=True)
class MeasuredText:
    """A text whose tokens are the positions to measure.

    Attributes:
        name: Name used in messages.
        text: The text.
        prompt: The user message that it answers; None if there is none, and then its first token is not a
            position.
        ended: Whether the answer ended on its own; the token that ended it is then a position too.
    """

    name: str
    text: str
    prompt: str | None = None
    ended: bool = False

    @property
    def key(self) -> str:
        """Hash of the text and its prompt."""
        content = json.dumps([self.prompt, self.text, self.ended])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def sequence(self, model: Model, reference: Model) -> tuple[list[int], int]:
        """Return the tokens for a model to evaluate, and how many at the end are followed by a position.

        The text is tokenized by `reference`; its prompt uses the chat template of `model`.
        """
        if self.prompt is None:
            tokens = reference.weights.tokenize(self.text, add_special=True, parse_special=False)
            return tokens[:-1], len(tokens) - 1
        context = model.prompt_tokens([{"role": "user", "content": self.prompt}])
        tokens = reference.tokenize(self.text)
        return [*context, *(tokens if self.ended else tokens[:-1])], len(tokens) + self.ended


def read_paragraphs(path: Path) -> list[MeasuredText]:
    """Return the paragraphs of a text file, separated by blank lines. Raises DataError."""
    content = "".join(line for _, line in decoded_lines(path)).replace("\r\n", "\n")
    parts = [part.strip() for part in re.split(r"\n\s*\n", content) if part.strip()]
    if not parts:
        raise DataError(f"{path} is empty: give a file with text")
    return [MeasuredText(f"paragraph {i}", part) for i, part in enumerate(parts, start=1)]


def read_answers(folder: Path, reference_sha256: str) -> list[MeasuredText]:
    """Return the answers sampled by the reference in a folder of `mink-eval run`.

    Greedy answers are excluded: they contain only the likeliest positions, and loops.

    Raises:
        MinkError: There are none, or their prompts had examples, which are not recorded.
    """
    run = read_run(folder)
    models = run.manifest.get("models", {})
    found = [
        one
        for one in run.responses
        if one.temperature > 0 and models.get(one.model, {}).get("sha256") == reference_sha256
    ]
    if not found:
        raise DataError(
            f"{folder} has no sampled answers by the reference: create some with  "
            f"mink-eval run TASK --model REFERENCE -s top-p:p=0.95,order=temperature-last -t 1 -o {folder}"
        )
    for name in ("shots", "system"):
        if any(run.manifest["tasks"][one.task].get(name) for one in found):
            raise DataError(f"{folder} does not record whole prompts: run the reference without --{name}")
    by_itself = not run.manifest.get("stop")
    return [
        MeasuredText(
            f"the answer to {one.question_id} of {one.task}",
            one.response,
            run.questions[one.task, one.question_id].prompt,
            one.finish_reason == "stop" and by_itself,
        )
        for one in found
    ]


@dataclass(frozen=True)
class TextSums:
    """A text measured with one setting.

    Attributes:
        text: The text's key.
        temperature: The temperature as text, because JSON has no infinity.
        sums: Sums of FIGURES over the positions.
    """

    text: str
    sampler: str
    temperature: str
    positions: int
    sums: list[float]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.text, self.sampler, self.temperature


class Frontier(SettingsMeasurement[TextSums, MeasuredText]):
    """The sums for every text with every setting of the sweep.

    Args:
        model: Name or path of the model.
        reference: Name or path of a larger model with the same vocabulary.
        texts: A folder of `mink-eval run` with answers by the reference; None if `text` is given.
        text: A file whose paragraphs, separated by blank lines, are the texts.
        limit: Maximum number of texts, chosen at random; a larger number adds to them.
        samplers: Samplers to sweep, beside greedy and what others are compared with, in place of all, and
            each with its own options, too; must not be stateful.
        temperatures: Temperatures for every sampler.
        wanted: Levels of tail mass at which to compare samplers, in percentage points above greedy's.
        placement: Options of `load_model`, for both models.

    Raises:
        MinkError: A model or the texts do not exist.
    """

    measures, noun, row_type = "frontier", "settings of texts", TextSums

    def __init__(
        self,
        model: str,
        reference: str,
        texts: Path | None,
        text: Path | None,
        limit: int = 100,
        samplers: Sequence[Sampler] = (),
        temperatures: Sequence[float] = (1.0, 2.0, 5.0, float("inf")),
        wanted: Sequence[float] = (0.5, 1.0, 2.0, 5.0),
        **placement: Any,
    ) -> None:
        files = {"model": resolve(model), "reference": resolve(reference)}
        if text is not None:
            found = read_paragraphs(text)
            source: dict[str, Any] = {"source": text.name, "path": str(text), "sha256": file_sha256(text)}
        else:
            assert texts is not None
            found = read_answers(texts, file_sha256(files["reference"].path))
            source = {"source": texts.resolve().name, "path": str(texts), "sha256": None}
        by_key = {one.key: one for one in found}
        chosen = {key: by_key[key] for key in sorted(by_key)[:limit]}  # the keys are hashes
        more = (SamplerSetting(sampler, t) for sampler in samplers for t in temperatures)
        names = {Greedy.name, MinK.name, MinP.name, *(sampler.name for sampler in samplers)}
        swept = [one for one in sweep(temperatures) if one.sampler.name in names or not samplers]
        super().__init__(chosen, [*swept, *more], files, placement)
        self.settings["texts"] = source
        self._wanted = list(wanted)

    def prepare(self, store: Store[TextSums]) -> None:
        store.note(wanted=self._wanted)

    def measure_units(
        self,
        units: Sequence[tuple[MeasuredText, list[SamplerSetting]]],
        models: Sequence[Model],
        opened: ExitStack,
    ) -> Iterator[TextSums]:
        model, reference = models
        n_vocab = common_vocabulary(model.weights, reference.weights)
        streams = []
        for one in models:
            sequences = [text.sequence(one, reference) for text, _ in units]
            lengths = [
                (len(tokens), text.name) for (text, _), (tokens, _) in zip(units, sequences, strict=True)
            ]
            self.reserve(opened, one, lengths, 1, N_OUTPUTS)
            streams.append(chain.from_iterable(self.logits_of(one, *sequence) for sequence in sequences))
        for (text, settings), (_, n_positions) in zip(units, sequences, strict=True):
            figures = PositionFigures(settings, n_vocab)
            for _ in range(n_positions):
                row, reference_row = (next(stream) for stream in streams)
                figures.add(row, reference_row)
                if self.interrupted:
                    return
            for setting, sums in zip(settings, figures.sums.tolist(), strict=True):
                yield TextSums(text.key, *setting.as_text, n_positions, sums)

    report = staticmethod(report)


def common_vocabulary(model: Weights, reference: Weights) -> int:
    """Return the number of tokens shared by two models: all but the padding of the longer vocabulary.

    The texts of all tokens are compared. Padding is what llama.cpp's converter creates for rows without a
    token: "[PAD151643]" and the like.

    Raises:
        ModelError: The vocabularies differ; the message names the first difference.
    """
    for token, texts in enumerate(zip_longest(model.token_texts(), reference.token_texts())):
        ours, theirs = (f"[PAD{token}]" if text is None else text for text in texts)
        if ours != theirs:
            raise ModelError(
                f"{reference.path} and {model.path} have different vocabularies: token {token} is "
                f"{theirs!r} and {ours!r}; use a model of the same family"
            )
    return min(model.n_vocab, reference.n_vocab)
