"""Measures quantizations: evaluates chunks of text with a base, once for all, and with other files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C

from mink_local.errors import RunError
from mink_local.evals.answering import joint_sha256
from mink_local.evals.frontier.measure import common_vocabulary
from mink_local.evals.measurement import Results, report_on
from mink_local.evals.quants.divergence import (
    CandidateSets,
    Divergence,
    Logits,
    Position,
    compare,
    most_probable,
    position_of,
)
from mink_local.evals.quants.report import N_PEAKS, report
from mink_local.evals.quants.stored import StoredBase
from mink_local.evals.quants.texts import Chunk, chunks_of, n_scored, text_files
from mink_local.evals.settings import RowMeasurement, described
from mink_local.evals.store import Store
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.slots import N_OUTPUTS
from mink_local.llama.weights import Weights
from mink_local.models import trust
from mink_local.models.catalog import ModelFile
from mink_local.models.gguf import Metadata, read_metadata
from mink_local.models.info import tensors_by_type
from mink_local.samplers import Sampler

BASE = "base"  # the folder with the base's distributions
_OTHER_SPLIT = 48  # logits rows per batch for the base against itself; all others use N_OUTPUTS
_N_BEFORE = 16  # tokens of text shown before a position
DEFAULT_KV_TYPE = "f16"
_FILE_TYPE = "LLAMA_FTYPE_MOSTLY_"


@dataclass(frozen=True)
class Peak:
    """A position with a large divergence.

    Attributes:
        before: The text before it.
        follows: The token that follows in the text.
        base: The base's most probable tokens with their probabilities.
        file: The file's most probable tokens with their probabilities.
    """

    kld: float
    before: str
    follows: str
    base: list[tuple[str, float]]
    file: list[tuple[str, float]]


@dataclass(frozen=True)
class ChunkRow:
    """A file compared with the base on one chunk of the text.

    Attributes:
        peaks: The positions with the largest divergence, in descending order.
        kind: Kind of text.
    """

    file: str
    chunk: int
    divergence: Divergence
    peaks: list[Peak]
    kind: str = "text"

    @property
    def key(self) -> tuple[str, int]:
        return self.file, self.chunk


class Quants(RowMeasurement[ChunkRow]):
    """Every file against the base, and the base against itself with a different batch split.

    The base with another type of KV cache counts as a file. The base is evaluated twice at most: what is kept
    of its distributions is in the measurement's folder.

    Args:
        base: The file that the others are compared with.
        others: Files with the same vocabulary.
        samplers: Samplers whose candidates to compare.
        text: A text file; None for the bundled texts.
        positions: Minimum number of positions to compare; a larger number adds to them. None for eight chunks
            of each kind of bundled text, or of the file.
        chunk: Tokens per chunk; the second half of each is scored, as in llama-perplexity.
        fail_above: Maximum values of figures for any of the files, by their names in the report.
        fail_below: Minimum values.
        kv_types: Types of the base's KV cache. The first is the one compared with, and that of all files.
        placement: Options of `load_model`.
    """

    measures, noun, row_type = "quants", "chunks", ChunkRow

    def __init__(
        self,
        base: ModelFile,
        others: Sequence[ModelFile],
        samplers: Sequence[Sampler],
        text: Path | None = None,
        positions: int | None = None,
        chunk: int = 256,
        fail_above: Mapping[str, float] | None = None,
        fail_below: Mapping[str, float] | None = None,
        kv_types: Sequence[str] = (DEFAULT_KV_TYPE,),
        **placement: Any,
    ) -> None:
        super().__init__()
        self._texts = text_files(text)
        self._base, self._samplers = base, samplers
        own_type, *types = kv_types
        cached = {f"{base.name} with {kv_type} KV": kv_type for kv_type in types}
        variants = [replace(base, name=name) for name in cached]
        self._files = {file.name: file for file in (base, *others, *variants)}
        self._kv_types = dict.fromkeys(self._files, own_type) | cached
        self._positions, self._chunk, self._placement = positions, chunk, placement
        self._fail_above, self._fail_below = dict(fail_above or {}), dict(fail_below or {})
        self._n_common: dict[str, int] = {}
        self._chunks: list[Chunk] = []
        self.settings = {
            "base": self._described(base),
            "files": {file.name: self._described(file) for file in (*others, *variants)},
            "text": {
                "source": text.name if text else "bundled",
                "sha256": joint_sha256(self._texts.values()),
            },
            "chunk": chunk,
            "samplers": [str(sampler) for sampler in samplers],
        }

    def _described(self, file: ModelFile) -> dict[str, Any]:
        """Return what the manifest records about a file; a KV cache of the default type is not mentioned."""
        kv_type = self._kv_types[file.name]
        return described(file) | ({} if kv_type == DEFAULT_KV_TYPE else {"kv_type": kv_type})

    def prepare(self, store: Store[ChunkRow]) -> None:
        facts = {}
        vocabulary = self._vocabulary = Weights(self._base.path, vocab_only=True)
        for name, file in self._files.items():
            trust.check(file)
            facts[name] = file_facts(read_metadata(file.path))
            self._n_common[name] = (
                vocabulary.n_vocab
                if file.path == self._base.path
                else common_vocabulary(vocabulary, Weights(file.path, vocab_only=True))
            )
        store.note(facts=store.manifest.get("facts", {}) | facts)
        self._chunks = chunks_of(self._texts, vocabulary, self._chunk, self._positions)

    def plan(self) -> list[tuple[str, int]]:
        return [(name, chunk) for name in self._files for chunk in range(len(self._chunks))]

    def measure_rows(self, keys: Sequence[tuple[str, int]], store: Store[ChunkRow]) -> Iterator[ChunkRow]:
        stored = StoredBase(store.folder / BASE, self._samplers)
        chunks = list(dict.fromkeys(chunk for _, chunk in keys))
        if unknown := [chunk for chunk in chunks if stored.read(chunk) is None]:
            self._keep_base(unknown, stored, store)
        for name, members in groupby(keys, lambda key: key[0]):
            n_outputs = _OTHER_SPLIT if name == self._base.name else N_OUTPUTS
            sets = CandidateSets(self._samplers, self._n_common[name])
            with self._opened(name, n_outputs, store) as model:
                for _, chunk in members:
                    if self.interrupted:
                        return
                    base = stored.read(chunk)
                    assert base is not None
                    yield self._row(name, chunk, base, self._evaluate(model, chunk), sets)

    def _keep_base(self, chunks: Sequence[int], stored: StoredBase, store: Store[ChunkRow]) -> None:
        """Evaluate chunks with the base, and keep its distributions."""
        name = self._base.name
        sets = CandidateSets(self._samplers, self._n_common[name])
        with self._opened(name, N_OUTPUTS, store) as model:
            for chunk in chunks:
                rows = self._evaluate(model, chunk)
                follows = self._chunks[chunk].tokens[-len(rows) :]
                store.save()  # the folder is this measurement's from now on
                kept = [position_of(row, token, sets) for row, token in zip(rows, follows, strict=True)]
                stored.write(chunk, kept)

    @contextmanager
    def _opened(self, name: str, n_outputs: int, store: Store[ChunkRow]) -> Iterator[Model]:
        """Load a file, with room for a chunk."""
        file = self._files[name]
        store.begin_session(model=name)
        with ExitStack() as opened:
            options = {"kv_type": self._kv_types[name], **self._placement}
            model = opened.enter_context(load_model(str(file.path), n_ctx=256, **options))
            self.reserve(opened, model, [(self._chunk, "a --chunk")], 1, n_outputs)
            yield model

    def _evaluate(self, model: Model, chunk: int) -> Logits:
        """Return a model's raw logits before each token of a chunk's second half, (positions, V)."""
        tokens = self._chunks[chunk].tokens
        ((_, rows),) = self.rows_of(model, [(tokens[:-1], n_scored(len(tokens)))])
        return rows

    def _row(
        self, name: str, chunk: int, base: Sequence[Position], rows: Logits, sets: CandidateSets
    ) -> ChunkRow:
        """Return a chunk's figures, and the positions at which the file differs most."""
        tokens = self._chunks[chunk].tokens
        divergence = compare(base, rows, tokens, sets)
        first = len(tokens) - len(base)
        peaks = [
            Peak(
                divergence.kld[i],
                self._text_of(tokens[max(0, first + i - _N_BEFORE) : first + i]),
                self._text_of([tokens[first + i]]),
                self._shown(base[i].most_probable),
                self._shown(most_probable(rows[i])),
            )
            for i in np.argsort(divergence.kld)[: -N_PEAKS - 1 : -1].tolist()
        ]
        return ChunkRow(name, chunk, divergence, peaks, self._chunks[chunk].kind)

    def _shown(self, distribution: Sequence[tuple[int, float]]) -> list[tuple[str, float]]:
        return [(self._text_of([token]), p) for token, p in distribution]

    def _text_of(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self._vocabulary.piece, tokens)).decode("utf-8", "replace")

    def conclude(self, results: Results) -> None:
        files = report_on(results).frames["files"]
        exceeded = [
            f"{row['file']}: {name} is {row[name]:.4g}, {side} {limit:g}"
            for row in files[files["file"].isin(list(self._files))].to_dict("records")
            for side, limits, sign in (("above", self._fail_above, 1), ("below", self._fail_below, -1))
            for name, limit in limits.items()
            if sign * row[name] > sign * limit
        ]
        if exceeded:
            raise RunError("; ".join(exceeded))

    report = staticmethod(report)


def file_facts(metadata: Metadata) -> dict[str, Any]:
    """Return a file's size, bits per weight, and the name of its type, such as "Q4_K_M"."""
    number = metadata.values.get("general.file_type")
    names = (name for name in dir(C) if name.startswith(_FILE_TYPE) and getattr(C, name) == number)
    types = tensors_by_type(metadata)
    n_parameters, n_bytes = (sum(row[key] for row in types) for key in ("parameters", "bytes"))
    return {
        "bytes": metadata.n_bytes,
        "bits_per_weight": 8 * n_bytes / n_parameters if n_parameters else 0.0,
        "nominal_type": next(names, "").removeprefix(_FILE_TYPE),
    }
