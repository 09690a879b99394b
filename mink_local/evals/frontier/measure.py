"""Measure texts with two models: stream the logits of both, and keep the sums of every text."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import DataError, GenerationError, ModelError
from mink_local.evals.frontier.settings import MeasuredSetting
from mink_local.evals.frontier.sums import FIGURES, PositionFigures
from mink_local.evals.frontier.texts import MeasuredText
from mink_local.evals.run.records import as_run_error
from mink_local.generation.logprobs import N_OUTPUTS
from mink_local.generation.model import Model
from mink_local.generation.rows import RowReader


def common_vocabulary(model: Model, reference: Model) -> int:
    """Return how many tokens two models have in common: all but what pads the longer vocabulary.

    The texts of all tokens are compared. Padding is "[PAD151643]" and the like, which llama.cpp's converter
    makes of rows without a token.

    Raises:
        ModelError: The vocabularies differ; the text says where first.
    """
    a, b = model.weights, reference.weights
    common = min(a.n_vocab, b.n_vocab)
    for token in range(common):
        if a.token_text(token) != b.token_text(token):
            raise ModelError(
                f"{reference.name} has another vocabulary than {model.name}: token {token} is "
                f"{b.token_text(token)!r} there and {a.token_text(token)!r} here. "
                "Name a reference of the same family"
            )
    longer = a if a.n_vocab > b.n_vocab else b
    for token in range(common, longer.n_vocab):
        if longer.token_text(token) != f"[PAD{token}]":
            raise ModelError(
                f"{reference.name} has {b.n_vocab:,} tokens and {model.name} {a.n_vocab:,}: token {token}, "
                f"{longer.token_text(token)!r}, is in one of them only. Name a reference of the same family"
            )
    return common


class TextSums:
    """The sums of the texts measured so far, kept in a file that grows by one record a text.

    Attributes:
        records: By the text's key: its number of positions, and float64 (settings, FIGURES).
    """

    def __init__(self, path: Path, n_settings: int) -> None:
        self._path = path
        shape = (n_settings, len(FIGURES))
        self._type = np.dtype([("key", np.int64), ("positions", np.int64), ("sums", np.float64, shape)])
        self.records: dict[int, tuple[int, NDArray[np.float64]]] = {}
        with as_run_error(path):
            data = path.read_bytes() if path.exists() else b""
            whole = len(data) // self._type.itemsize
            if len(data) % self._type.itemsize:
                with path.open("r+b") as stream:
                    stream.truncate(whole * self._type.itemsize)
        for record in np.frombuffer(data, self._type, whole):
            self.records[int(record["key"])] = int(record["positions"]), record["sums"]

    def add(self, key: int, n_positions: int, sums: NDArray[np.float64]) -> None:
        """Keep a text's sums, also in the file."""
        record = np.array([(key, n_positions, sums)], self._type)
        with as_run_error(self._path), self._path.open("ab") as stream:
            stream.write(record.tobytes())
        self.records[key] = n_positions, sums


def sums_file(folder: Path, asked: Mapping[str, object]) -> Path:
    """Return the file of the sums that depend on what is asked for: other settings have another file."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return folder / f"sums-{digest[:12]}.bin"


class TwoModels:
    """A model and its reference, which get the same texts."""

    def __init__(self, model: Model, reference: Model, settings: Sequence[MeasuredSetting]) -> None:
        self._models = model, reference
        self._figures = PositionFigures(settings, common_vocabulary(model, reference))
        self._readers: list[RowReader] = []
        self._stopped = False

    def interrupt(self) -> None:
        """End `measure` soon, without an error; may be called from another thread."""
        self._stopped = True
        for reader in self._readers:
            reader.interrupt()

    def measure(self, texts: Sequence[MeasuredText]) -> Iterator[tuple[MeasuredText, NDArray[np.float64]]]:
        """Yield each text with its sums, float64 (settings, FIGURES), until `interrupt`.

        Raises:
            DataError: A text is longer than a model's context.
            GenerationError: Logits are broken.
        """
        with ExitStack() as opened:
            rows = []
            for model in self._models:
                sequences = [_sequence(model, text) for text in texts]
                longest = _longest(model, texts, sequences)
                reader = opened.enter_context(model.rows(longest, 1, N_OUTPUTS))
                self._readers.append(reader)
                rows.append(reader(sequences))
            opened.callback(self._readers.clear)
            try:
                for text in texts:
                    self._figures.reset()
                    for _ in range(text.n_positions):
                        row, reference_row = (next(one) for one in rows)
                        self._figures.add(row.logits, reference_row.logits)
                        if self._stopped:
                            return
                    yield text, self._figures.sums
            except GenerationError:
                if not self._stopped:
                    raise


def _sequence(model: Model, text: MeasuredText) -> tuple[list[int], int]:
    """Return the tokens of a text with its prompt, and the number of its positions."""
    return [*model.tokens(text.context()), *text.prefix()], text.n_positions


def _longest(model: Model, texts: Sequence[MeasuredText], sequences: Sequence[tuple[list[int], int]]) -> int:
    """Return the length of the longest sequence. Raises DataError if the context cannot hold it."""
    longest, number = max(
        (len(tokens), text.number) for text, (tokens, _) in zip(texts, sequences, strict=True)
    )
    most = model.weights.n_ctx_train
    if longest > most:
        raise DataError(
            f"text {number + 1} has {longest:,} tokens and the context of {model.name} holds {most:,}: "
            "make paragraphs of it, or leave it out"
        )
    return longest
