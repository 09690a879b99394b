"""Measure quantizations: stream the logits of a base file and of another one over the same chunks of text."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as C

from mink_local.errors import DataError, GenerationError, RunError
from mink_local.evals.frontier.measure import common_vocabulary
from mink_local.evals.measurement import Measurement, Results, carry_out
from mink_local.evals.quants.divergence import CandidateSets, Divergence
from mink_local.evals.quants.report import RUN, report
from mink_local.evals.run.evaluation import Run
from mink_local.evals.run.workers import DATE
from mink_local.evals.store import Store, file_sha256
from mink_local.evals.tasks.base import Task, decoded_lines
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.slots import N_OUTPUTS, Row, RowReader
from mink_local.models.catalog import ModelFile
from mink_local.models.gguf import Metadata, read_metadata, tensor_types
from mink_local.models.info import tensors_by_type
from mink_local.models.memory import USUAL_CONTEXT, choose_placement, memory_budget
from mink_local.samplers import Greedy, Sampler

BUNDLED = Path(__file__).with_name("text.txt")  # written for mink-local, under its license

_OTHER_SPLIT = 48  # logits rows of a batch of the base against itself, where all others have N_OUTPUTS
_N_ANSWER = 16  # tokens by which the speed of an answer is timed, after each chunk
_FEWEST = 2  # chunks, without which there is no interval
_SMALL_BLOCK = 32  # numbers in a block of the types that llama.cpp falls back to
_FILE_TYPE = "LLAMA_FTYPE_MOSTLY_"


@dataclass(frozen=True)
class ChunkRow:
    """A file on one chunk of the text, beside the base.

    Attributes:
        seconds: Of the prompt and of the answer, in the base and in the file, measured in turns.
        n_prompt: Tokens of the prompt.
        before: The text before each of the peaks, and the token that follows.
        tops: The texts of the most probable tokens of each peak by token.
    """

    file: str
    chunk: int
    divergence: Divergence
    n_prompt: int
    prompt_seconds: tuple[float, float]
    answer_seconds: tuple[float, float]
    before: dict[str, tuple[str, str]]
    tokens: dict[str, str]

    @property
    def key(self) -> tuple[str, int]:
        return self.file, self.chunk


class Quants(Measurement[ChunkRow]):
    """Every file against the base, and the base against itself in another batch split.

    Args:
        base: The file that the others are compared with.
        others: Files with the same vocabulary.
        samplers: Whose candidates are compared.
        text: A text file; None is the bundled text.
        positions: How many positions to compare, at least; a larger number adds to them.
        chunk: Tokens of a chunk; the second half of them is scored, as llama-perplexity does.
        task: Also run by greedy decoding, in a folder of `mink-eval run`.
        limit: Most questions of the task.
        data: Files with questions, by task, that replace a task's own.
        fail_above: Most that a figure of any file may be, by its name in the report.
        quiet: Show no progress of the task.
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
        task: Task | None = None,
        limit: int | None = None,
        data: Mapping[str, Path] | None = None,
        fail_above: Mapping[str, float] | None = None,
        quiet: bool = False,
        **placement: Any,
    ) -> None:
        super().__init__()
        self._quiet = quiet
        path = text or BUNDLED
        self._text = "".join(line for _, line in decoded_lines(path)).replace("\r\n", "\n")
        self._base, self._others, self._samplers = base, others, samplers
        self._chunk, self._placement = chunk, placement
        self._n_chunks = max(_FEWEST, -(-positions // (chunk - 1 - chunk // 2)))
        self._fail_above = dict(fail_above or {})
        self._run = None if task is None else Run(
            [task], [base, *others], [Greedy()], [0.0],
            data=data or {}, shots_from={}, limit=limit, **placement,
        )  # fmt: skip
        self._readers: list[RowReader] = []
        self._chunks: list[list[int]] = []
        self.settings = {
            "base": _described(base),
            "files": {file.name: _described(file) for file in others},
            "text": {"source": "bundled" if text is None else path.name, "sha256": file_sha256(path)},
            "chunk": chunk,
            "samplers": [str(sampler) for sampler in samplers],
        }

    def prepare(self, store: Store[ChunkRow]) -> None:
        super().prepare(store)
        facts = {file.name: file_facts(read_metadata(file.path)) for file in (self._base, *self._others)}
        store.note(facts=store.manifest.get("facts", {}) | facts)
        # On the CPU, because nothing is evaluated.
        options = self._placement | {"n_gpu_layers": 0}
        with load_model(str(self._base.path), n_ctx=256, date=DATE, **options) as model:
            longest = model.weights.n_ctx_train - _N_ANSWER
            if self._chunk > longest:
                raise DataError(
                    f"{self._base.name} takes chunks of {longest:,} tokens: give a smaller --chunk"
                )
            self._chunks = chunks_of(model, self._text, self._chunk)[: self._n_chunks]

    def plan(self) -> list[tuple[str, int]]:
        return [
            (file.name, chunk) for file in (self._base, *self._others) for chunk in range(len(self._chunks))
        ]

    def interrupt(self) -> None:
        super().interrupt()
        for reader in self._readers:
            reader.interrupt()

    def measure(self, keys: Sequence[tuple[str, int]], store: Store[ChunkRow]) -> Iterator[ChunkRow]:
        files = {file.name: file for file in (self._base, *self._others)}
        with load_model(str(self._base.path), n_ctx=256, date=DATE, **self._placement) as base:
            for name, members in groupby(keys, lambda key: key[0]):
                with ExitStack() as opened:
                    opened.callback(self._readers.clear)
                    path = str(files[name].path)
                    model = opened.enter_context(load_model(path, n_ctx=256, date=DATE, **self._placement))
                    n_outputs = _OTHER_SPLIT if name == self._base.name else N_OUTPUTS
                    store.begin_session(model=name, placement=[base.placement, model.placement])
                    sets = CandidateSets(self._samplers, common_vocabulary(base, model))
                    for one, outputs in ((base, N_OUTPUTS), (model, n_outputs)):
                        reader = one.rows(self._chunk + _N_ANSWER, 1, outputs)
                        self._readers.append(opened.enter_context(reader))
                    try:
                        for _, chunk in members:
                            if self.interrupted:
                                return
                            tokens = self._chunks[chunk]
                            yield measure_chunk(name, chunk, tokens, base, self._readers, sets)
                    except GenerationError:
                        if not self.interrupted:
                            raise

    def conclude(self, results: Results) -> None:
        if self._run is not None:
            carry_out(self._run, results.folder / RUN, quiet=self._quiet)
        figures = report(results)
        exceeded = [
            f"{row.file}: {name} is {getattr(row, name):.4g}, above {most:g}"
            for row in figures.itertuples()
            for name, most in self._fail_above.items()
            if getattr(row, name) > most
        ]
        if exceeded:
            raise RunError("; ".join(exceeded))

    @classmethod
    def report(cls, results: Results) -> None:
        report(results)


def _described(file: ModelFile) -> dict[str, Any]:
    return {"name": file.name, "path": str(file.path), "sha256": file_sha256(file.path)}


def chunks_of(model: Model, text: str, length: int) -> list[list[int]]:
    """Return the whole chunks of a text, each beginning with the token that begins every text, if any.

    Raises DataError if there are too few for intervals.
    """
    special = model.weights.tokenize("", add_special=True, parse_special=False)[:1]
    tokens = model.weights.tokenize(text, add_special=True, parse_special=False)
    starts = range(0, len(tokens) - length + 1, length)
    chunks = [[*special, *tokens[start + len(special) : start + length]] for start in starts]
    if len(chunks) < _FEWEST:
        raise DataError(
            f"the text has {len(tokens):,} tokens, and {_FEWEST} chunks need {_FEWEST * length:,}: "
            "give a longer --text or a smaller --chunk"
        )
    return chunks


def measure_chunk(
    file: str,
    chunk: int,
    tokens: Sequence[int],
    base: Model,
    readers: Sequence[RowReader],
    sets: CandidateSets,
) -> ChunkRow:
    """Return the figures of a chunk, whose second half is scored.

    Args:
        readers: Of the base and of the file, with room for the chunk and a short answer.
    """
    first = len(tokens) // 2
    divergence, prompt_seconds = Divergence(), [0.0, 0.0]
    streams = [reader([(tokens[:-1], len(tokens) - 1 - first)]) for reader in readers]
    for position in range(first + 1, len(tokens)):
        rows: list[Row] = []
        for i, stream in enumerate(streams):
            began = time.perf_counter()
            rows.append(next(stream))
            prompt_seconds[i] += time.perf_counter() - began
        divergence.add(rows[0].logits, rows[1].logits, tokens[position], position, sets)
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    peaks = divergence.peaks
    shown = {token for peak in peaks for token, _ in (*peak.base, *peak.file)}
    return ChunkRow(
        file,
        chunk,
        divergence,
        len(tokens) - 1,
        (prompt_seconds[0], prompt_seconds[1]),
        _time_answer(readers, tokens),
        {
            str(peak.position): (
                _text(base, tokens[max(0, peak.position - 16) : peak.position]),
                _text(base, [tokens[peak.position]]),
            )
            for peak in peaks
        },
        {str(token): _text(base, [token]) for token in shown},
    )


def _time_answer(readers: Sequence[RowReader], tokens: Sequence[int]) -> tuple[float, float]:
    """Return the seconds that both models take for tokens one at a time, behind a chunk."""
    seconds = [0.0, 0.0]
    for n in range(_N_ANSWER):
        sequence = [*tokens, *tokens[1 : n + 1]]
        for i, reader in enumerate(readers):
            began = time.perf_counter()
            for _ in reader([(sequence, 1)]):
                seconds[i] += time.perf_counter() - began
    return seconds[0], seconds[1]


def _text(model: Model, tokens: Sequence[int]) -> str:
    return b"".join(map(model.weights.piece, tokens)).decode("utf-8", "replace")


def file_facts(metadata: Metadata) -> dict[str, Any]:
    """Return size, bits a weight, and the tensors by type of a file.

    A tensor "fell back" if the file's type has blocks of 256 numbers and its own rows are no multiple of it:
    llama.cpp then takes a larger type, of blocks of 32.
    """
    blocks = {kind.name: kind.block for kind in tensor_types().values()}
    number = metadata.values.get("general.file_type")
    nominal = next(
        (name for name in dir(C) if name.startswith(_FILE_TYPE) and getattr(C, name) == number), ""
    )
    wants_large = "_K" in nominal or ("IQ" in nominal and "IQ4_NL" not in nominal)
    types = tensors_by_type(metadata)
    n_parameters, n_bytes = (sum(row[key] for row in types) for key in ("parameters", "bytes"))
    need = choose_placement(metadata, memory_budget(), n_ctx=USUAL_CONTEXT).need
    return {
        "bytes": metadata.n_bytes,
        "bits_per_weight": 8 * n_bytes / n_parameters if n_parameters else 0.0,
        "nominal_type": nominal.removeprefix(_FILE_TYPE),
        "types": types,
        "memory": need.gpu.total + need.cpu.total,
        "n_answer": _N_ANSWER,
        "tensors": len(metadata.tensors),
        "fell_back": sum(wants_large and blocks[tensor.type] == _SMALL_BLOCK for tensor in metadata.tensors),
    }
