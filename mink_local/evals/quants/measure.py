"""Measures quantizations: evaluates the same chunks of text with a base file and with other files."""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
from llama_cpp import llama_cpp as C

from mink_local.errors import DataError, RunError
from mink_local.evals.frontier.measure import common_vocabulary
from mink_local.evals.inputs import file_sha256
from mink_local.evals.measurement import Results, report_on
from mink_local.evals.quants.divergence import CandidateSets, Divergence, Logits, compare, most_probable
from mink_local.evals.quants.report import N_PEAKS, report
from mink_local.evals.settings import RowMeasurement, described
from mink_local.evals.store import Store
from mink_local.evals.tasks.base import decoded_lines
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.slots import N_OUTPUTS
from mink_local.llama.devices import gpus
from mink_local.llama.weights import Weights
from mink_local.models import trust
from mink_local.models.catalog import ModelFile
from mink_local.models.gguf import Metadata, read_metadata, tensor_types
from mink_local.models.info import tensors_by_type
from mink_local.models.memory import Budget, choose_placement, memory_budget
from mink_local.models.placement import PlacementOptions
from mink_local.samplers import Sampler

BUNDLED = Path(__file__).with_name("text.txt")  # written for mink-local, under its license

_OTHER_SPLIT = 48  # logits rows per batch for the base against itself; all others use N_OUTPUTS
_N_ANSWER = 16  # tokens used to time the speed of an answer, after each chunk
_N_WARM = 32  # tokens evaluated first, so that all weights have been read
_N_BEFORE = 16  # tokens of text shown before a position
_N_TOP = 3  # tokens of a distribution shown
_FEWEST = 2  # chunks needed for an interval
_LARGE_BLOCK, _SMALL_BLOCK = 256, 32  # numbers per block of K-quants, and of the types they fall back to
DEFAULT_KV_TYPE = "f16"
_FILE_TYPE = "LLAMA_FTYPE_MOSTLY_"

log = logging.getLogger("mink_local")


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
        n_prompt: Number of prompt tokens.
        prompt_seconds: Prefill time of the base and of the file; the other times are pairs as well.
        answer_seconds: Time for a short answer after the chunk.
        load_seconds: Loading time; 0 if the model was loaded for an earlier chunk.
        memory: Bytes by which the process grew when it loaded the file.
        peaks: The positions with the largest divergence, in descending order.
    """

    file: str
    chunk: int
    divergence: Divergence
    n_prompt: int
    prompt_seconds: tuple[float, float]
    answer_seconds: tuple[float, float]
    load_seconds: tuple[float, float]
    memory: int
    peaks: list[Peak]

    @property
    def key(self) -> tuple[str, int]:
        return self.file, self.chunk


class Quants(RowMeasurement[ChunkRow]):
    """Every file against the base, and the base against itself with a different batch split.

    The base with another type of KV cache counts as a file.

    Args:
        base: The file that the others are compared with.
        others: Files with the same vocabulary.
        samplers: Samplers whose candidates to compare.
        text: A text file; None for the bundled text.
        positions: Minimum number of positions to compare; a larger number adds to them.
        chunk: Tokens per chunk; the second half of each is scored, as in llama-perplexity.
        fail_above: Maximum values of figures for any file, by their names in the report.
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
        positions: int = 2040,
        chunk: int = 512,
        fail_above: Mapping[str, float] | None = None,
        fail_below: Mapping[str, float] | None = None,
        kv_types: Sequence[str] = (DEFAULT_KV_TYPE,),
        **placement: Any,
    ) -> None:
        super().__init__()
        path = text or BUNDLED
        self._text = "".join(line for _, line in decoded_lines(path)).replace("\r\n", "\n")
        self._base, self._samplers = base, samplers
        own_type, *types = kv_types
        cached = {f"{base.name} with {kv_type} KV": kv_type for kv_type in types}
        variants = [replace(base, name=name) for name in cached]
        self._files = {file.name: file for file in (base, *others, *variants)}
        self._kv_types = dict.fromkeys(self._files, own_type) | cached
        self._positions, self._chunk, self._placement = positions, chunk, placement
        self._fail_above, self._fail_below = dict(fail_above or {}), dict(fail_below or {})
        self._metadata: dict[str, Metadata] = {}
        self._vocabularies: dict[str, Weights] = {}
        self._n_common: dict[str, int] = {}
        self._chunks: list[list[int]] = []
        self.settings = {
            "base": self._described(base),
            "files": {file.name: self._described(file) for file in (*others, *variants)},
            "text": {"source": "bundled" if text is None else path.name, "sha256": file_sha256(path)},
            "chunk": chunk,
            "samplers": [str(sampler) for sampler in samplers],
        }

    def _described(self, file: ModelFile) -> dict[str, Any]:
        """Return what the manifest records about a file; a KV cache of the default type is not mentioned."""
        kv_type = self._kv_types[file.name]
        return described(file) | ({} if kv_type == DEFAULT_KV_TYPE else {"kv_type": kv_type})

    def prepare(self, store: Store[ChunkRow]) -> None:
        for name, file in self._files.items():
            trust.check(file)
            self._metadata[name] = read_metadata(file.path)
            self._vocabularies[name] = Weights(file.path, vocab_only=True)
            self._n_common[name] = common_vocabulary(
                self._vocabularies[self._base.name], self._vocabularies[name]
            )
        facts = {name: file_facts(metadata) for name, metadata in self._metadata.items()}
        store.note(facts=store.manifest.get("facts", {}) | facts)
        chunks = chunks_of(self._vocabularies[self._base.name], self._text, self._chunk)
        each = n_scored(self._chunk)
        if self._positions > len(chunks) * each:
            log.warning(
                "the text has %d positions, fewer than --positions %d: give a longer --text",
                len(chunks) * each,
                self._positions,
            )
        self._chunks = chunks[: max(_FEWEST, -(-self._positions // each))]

    def plan(self) -> list[tuple[str, int]]:
        return [(name, chunk) for name in self._files for chunk in range(len(self._chunks))]

    def measure_rows(self, keys: Sequence[tuple[str, int]], store: Store[ChunkRow]) -> Iterator[ChunkRow]:
        for name, members in groupby(keys, lambda key: key[0]):
            chunks = [chunk for _, chunk in members]
            n_held = chunks_to_hold(
                self._metadata[self._base.name],
                self._metadata[name],
                memory_budget(),
                n_bytes=4 * n_scored(self._chunk) * self._n_common[name],
                n_ctx=self._chunk + _N_ANSWER,
                n_gpu_layers=self._placement.get("placement", PlacementOptions()).n_gpu_layers,
                n_cpu_moe=self._placement.get("placement", PlacementOptions()).n_cpu_moe,
            )
            each = n_held or len(chunks)
            if n_held:
                log.warning(
                    "%s and %s do not fit into memory together: loading them in turns, %d times each",
                    self._base.name,
                    name,
                    -(-len(chunks) // each),
                )
            for first in range(0, len(chunks), each):
                yield from self._measure_batch(name, chunks[first : first + each], n_held is not None, store)

    def _measure_batch(
        self, name: str, chunks: Sequence[int], in_turns: bool, store: Store[ChunkRow]
    ) -> Iterator[ChunkRow]:
        """Yield a file's rows; with `in_turns`, the base is unloaded before the file is loaded."""
        sets = CandidateSets(self._samplers, self._n_common[name])
        n_outputs = _OTHER_SPLIT if name == self._base.name else N_OUTPUTS
        store.begin_session(model=name, in_turns=in_turns)
        with ExitStack() as opened:
            by_base = self._evaluated(opened, self._base, chunks, N_OUTPUTS)
            if in_turns:
                by_base = iter(list(by_base))
                opened.close()
            by_file = self._evaluated(opened, self._files[name], chunks, n_outputs)
            for chunk, base, file in zip(chunks, by_base, by_file, strict=True):
                if self.interrupted:
                    return
                yield self._row(name, chunk, base, file, sets)

    def _evaluated(
        self, opened: ExitStack, file: ModelFile, chunks: Sequence[int], n_outputs: int
    ) -> "Iterator[Evaluated]":
        """Load a model, which is closed with `opened`, read all its weights, and yield its chunks."""
        before, began = memory_in_use(), time.perf_counter()
        kv_type = self._kv_types[file.name]
        model = opened.enter_context(
            load_model(str(file.path), n_ctx=256, kv_type=kv_type, **self._placement)
        )
        length = self._chunk + _N_ANSWER, "a --chunk with a short answer"
        self.reserve(opened, model, [length], 1, n_outputs)
        list(model.rows([(self._chunks[0][:_N_WARM], 1)]))
        memory, load_seconds = memory_in_use() - before, time.perf_counter() - began
        for chunk in chunks:
            yield evaluate(model, self._chunks[chunk], load_seconds, memory)
            load_seconds = 0.0

    def _row(
        self, name: str, chunk: int, base: "Evaluated", file: "Evaluated", sets: CandidateSets
    ) -> ChunkRow:
        """Return a chunk's figures, and the positions at which the file differs most."""
        tokens = self._chunks[chunk]
        divergence = compare(base.rows, file.rows, tokens, sets)
        first = len(tokens) - len(base.rows)
        return ChunkRow(
            name,
            chunk,
            divergence,
            len(tokens) - 1,
            (base.prompt_seconds, file.prompt_seconds),
            (base.answer_seconds, file.answer_seconds),
            (base.load_seconds, file.load_seconds),
            file.memory,
            [
                Peak(
                    divergence.kld[i],
                    self._text_of(tokens[max(0, first + i - _N_BEFORE) : first + i]),
                    self._text_of([tokens[first + i]]),
                    self._most_probable(base.rows[i]),
                    self._most_probable(file.rows[i]),
                )
                for i in np.argsort(divergence.kld)[: -N_PEAKS - 1 : -1].tolist()
            ],
        )

    def _most_probable(self, logits: Logits) -> list[tuple[str, float]]:
        return [(self._text_of([token]), p) for token, p in most_probable(logits, _N_TOP)]

    def _text_of(self, tokens: Sequence[int]) -> str:
        pieces = map(self._vocabularies[self._base.name].piece, tokens)
        return b"".join(pieces).decode("utf-8", "replace")

    def conclude(self, results: Results) -> None:
        files = report_on(results).frames["files"]
        exceeded = [
            f"{row['file']}: {name} is {row[name]:.4g}, {side} {limit:g}"
            for row in files.to_dict("records")
            for side, limits, sign in (("above", self._fail_above, 1), ("below", self._fail_below, -1))
            for name, limit in limits.items()
            if sign * row[name] > sign * limit
        ]
        if exceeded:
            raise RunError("; ".join(exceeded))

    report = staticmethod(report)


def n_scored(chunk: int) -> int:
    """Return how many positions of a chunk are scored, given its tokens: those in its second half."""
    return chunk - 1 - chunk // 2


def chunks_of(vocabulary: Weights, text: str, length: int) -> list[list[int]]:
    """Return the full chunks of a text, each starting with the BOS token, if there is one.

    Raises DataError if there are too few for intervals.
    """
    special = vocabulary.tokenize("", add_special=True, parse_special=False)[:1]
    tokens = vocabulary.tokenize(text, add_special=True, parse_special=False)
    starts = range(0, len(tokens) - length + 1, length)
    chunks = [[*special, *tokens[start + len(special) : start + length]] for start in starts]
    if len(chunks) < _FEWEST:
        raise DataError(
            f"the text has {len(tokens):,} tokens, but {_FEWEST} chunks need {_FEWEST * length:,}: "
            "give a longer --text or a smaller --chunk"
        )
    return chunks


def chunks_to_hold(
    base: Metadata,
    file: Metadata,
    budget: Budget,
    *,
    n_bytes: int,
    n_ctx: int,
    n_gpu_layers: int | Literal["auto"],
    n_cpu_moe: int | None = None,
) -> int | None:
    """Return for how many chunks to hold the base's logits while the file is loaded in its place.

    None if both fit into memory together, with as many layers on the GPU as each has on its own.

    Args:
        n_bytes: Bytes of a chunk's logits.
        n_ctx: Tokens of the context.
    """
    place = partial(choose_placement, n_ctx=n_ctx, n_gpu_layers=n_gpu_layers, n_cpu_moe=n_cpu_moe)
    of_base, alone = place(base, budget), place(file, budget)
    left = replace(
        budget,
        ram=budget.ram - budget.usage(of_base.need).total - 2 * n_bytes,
        vram=budget.vram - of_base.need.gpu.total,
    )
    beside = place(file, left)
    if beside.warning is None and beside.split == alone.split:
        return None
    larger = max(budget.usage(one.need).total for one in (of_base, alone))
    return max(1, (budget.ram - larger) // n_bytes - 1)  # one is the file's


def memory_in_use() -> int:
    """Return a number that grows with the bytes used by this process in system memory and on GPUs."""
    on_gpus: int = psutil.Process().memory_info().rss
    return on_gpus - sum(gpu.free for gpu in gpus() if not gpu.shares_ram)


@dataclass(frozen=True)
class Evaluated:
    """A chunk evaluated by a model.

    Attributes:
        rows: Raw logits before each token of the second half, (positions, V).
        prompt_seconds: Time for these rows.
        answer_seconds: Time for a short answer after them.
        load_seconds: Loading time; 0 if the model was loaded for an earlier chunk.
        memory: Bytes taken by the model.
    """

    rows: Logits
    prompt_seconds: float
    answer_seconds: float
    load_seconds: float
    memory: int


def evaluate(model: Model, tokens: Sequence[int], load_seconds: float = 0.0, memory: int = 0) -> Evaluated:
    """Evaluate a chunk's second half and a short answer after it.

    Args:
        model: Has room for a chunk and a short answer.
        tokens: The chunk.
        load_seconds: Time it took to load the model for this chunk.
        memory: Bytes taken by the model.
    """
    began = time.perf_counter()
    ((_, rows),) = model.rows([(tokens[:-1], n_scored(len(tokens)))])
    prompt_seconds, began = time.perf_counter() - began, time.perf_counter()
    for n in range(_N_ANSWER):
        list(model.rows([([*tokens, *tokens[1 : n + 1]], 1)]))
    return Evaluated(rows, prompt_seconds, time.perf_counter() - began, load_seconds, memory)


def file_facts(metadata: Metadata) -> dict[str, Any]:
    """Return a file's size, bits per weight, and tensors by type, with how many of them fell back.

    llama.cpp gives tensors whose rows are not a multiple of a large block a type with small blocks, which is
    larger than the file's own.
    """
    blocks = {kind.name: kind.block for kind in tensor_types().values()}
    number = metadata.values.get("general.file_type")
    nominal = next(
        (name for name in dir(C) if name.startswith(_FILE_TYPE) and getattr(C, name) == number), ""
    )
    wants_large = "_K" in nominal or ("IQ" in nominal and "IQ4_NL" not in nominal)
    fell_back = Counter(
        tensor.type
        for tensor in metadata.tensors
        if wants_large and tensor.row % _LARGE_BLOCK and blocks[tensor.type] == _SMALL_BLOCK
    )
    types = [{**row, "fell_back": fell_back[row["type"]]} for row in tensors_by_type(metadata)]
    n_parameters, n_bytes = (sum(row[key] for row in types) for key in ("parameters", "bytes"))
    return {
        "bytes": metadata.n_bytes,
        "bits_per_weight": 8 * n_bytes / n_parameters if n_parameters else 0.0,
        "nominal_type": nominal.removeprefix(_FILE_TYPE),
        "types": types,
        "n_answer": _N_ANSWER,
    }
