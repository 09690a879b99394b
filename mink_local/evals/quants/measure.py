"""Measures quantizations: evaluates chunks of text with a base, once for all, and with other files.

The bundled texts were written for mink-local, under its license. Conversations are rendered by the base's
chat template, since a quantization is used through it.
"""

import json
import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import Any

from mink_local.errors import DataError, MinkError, RunError
from mink_local.evals.answering import DATE, joint_sha256
from mink_local.evals.frontier.measure import common_vocabulary
from mink_local.evals.measurement import Results, report_on
from mink_local.evals.quants.divergence import (
    Divergence,
    Logits,
    compare,
    position_of,
    read_positions,
    write_positions,
)
from mink_local.evals.quants.report import ENOUGH, FEWEST, report
from mink_local.evals.settings import RowMeasurement, described
from mink_local.evals.store import Store
from mink_local.evals.tasks.base import decoded_lines
from mink_local.generation.engine.slots import N_OUTPUTS
from mink_local.generation.format.template import ChatTemplate
from mink_local.generation.loading import load_model
from mink_local.llama.library import C
from mink_local.llama.weights import Weights
from mink_local.models import trust
from mink_local.models.catalog import ModelFile
from mink_local.models.gguf import Metadata, read_metadata

BASE = "base"  # the folder with the base's distributions
_OTHER_SPLIT = 48  # logits rows per batch for the base against itself; all others use N_OUTPUTS
DEFAULT_KV_TYPE = "f16"
_FILE_TYPE = "LLAMA_FTYPE_MOSTLY_"
_FOLDER = Path(__file__).parent / "texts"
KINDS = ("prose", "code", "chat", "tools", "non-latin")
"""Kinds of the bundled texts: chats and calls of tools are conversations."""

log = logging.getLogger("mink_local")


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of a text."""

    kind: str
    tokens: list[int]


def text_files(path: Path | None) -> dict[str, Path]:
    """Return the user's text file, or the bundled ones if there is none, by kind."""
    return {"text": path} if path else {kind: next(_FOLDER.glob(f"{kind}.*")) for kind in KINDS}


def chunks_of(
    files: Mapping[str, Path], vocabulary: Weights, length: int, positions: int | None
) -> list[Chunk]:
    """Return the chunks to compare, one of each kind after the other.

    Args:
        files: Text files by kind.
        vocabulary: The base's, with its chat template.
        length: Tokens per chunk.
        positions: Minimum number of positions; None for `ENOUGH` chunks of each kind.

    Raises:
        DataError: A file cannot be read, or there are too few chunks for intervals.
    """
    with closing(ChatTemplate(vocabulary, DATE)) as template:
        tokens = {kind: _tokens(file, vocabulary, template) for kind, file in files.items()}
    special = vocabulary.tokenize("", add_special=True, parse_special=False)[:1]
    every = [_cut(kind, ids, length, special) for kind, ids in tokens.items()]
    chunks = [chunk for chunk in chain.from_iterable(zip_longest(*every)) if chunk]
    each = n_scored(length)
    n = ENOUGH * len(files) if positions is None else max(FEWEST, -(-positions // each))
    if len(chunks) < FEWEST:
        raise DataError(
            f"the text fills {len(chunks)} chunks of {length:,} tokens, and intervals need {FEWEST}: "
            "give a longer --text or a smaller --chunk"
        )
    if len(chunks) < n:
        wanted = positions or each * n
        log.warning(
            "the text has %d positions, fewer than %d: give a longer --text", each * len(chunks), wanted
        )
    return chunks[:n]


def _tokens(file: Path, vocabulary: Weights, template: ChatTemplate) -> list[int]:
    """Return the tokens of a text file; of conversations, as the model sees them, if it is a bundled one."""
    lines = [line.replace("\r\n", "\n") for _, line in decoded_lines(file)]
    is_chat = file.parent == _FOLDER and file.suffix == ".jsonl"
    text = "\n".join(_rendered(json.loads(line), template) for line in lines) if is_chat else "".join(lines)
    return vocabulary.tokenize(text, add_special=not is_chat, parse_special=is_chat)


def _rendered(conversation: Mapping[str, Any], template: ChatTemplate) -> str:
    """Return a conversation as the model sees it; as JSON if the template has no tools, or refuses it."""
    try:
        return template.text(conversation["messages"], None, conversation.get("tools", []))
    except (MinkError, ValueError):
        return json.dumps(conversation, ensure_ascii=False)


def n_scored(length: int) -> int:
    """Return how many positions of a chunk are scored, given its tokens: those in its second half."""
    return length - 1 - length // 2


def _cut(kind: str, tokens: Sequence[int], length: int, special: Sequence[int]) -> Iterator[Chunk]:
    """Yield the full chunks of a text, each starting with the BOS token, if there is one."""
    for start in range(0, len(tokens) - length + 1, length):
        yield Chunk(kind, [*special, *tokens[start + len(special) : start + length]])


@dataclass(frozen=True)
class ChunkRow:
    """A file compared with the base on one chunk of the text, which is of a `kind`."""

    file: str
    chunk: int
    divergence: Divergence
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
        self._base = base
        own_type, *types = kv_types
        cached = {f"{base.name} with {kv_type} KV": kv_type for kv_type in types}
        variants = [replace(base, name=name) for name in cached]
        self._files = {file.name: file for file in (base, *others, *variants)}
        self._kv_types = dict.fromkeys(self._files, own_type) | cached
        self._positions, self._chunk, self._placement = positions, chunk, placement
        self._fail_above, self._fail_below = dict(fail_above or {}), dict(fail_below or {})
        self._n_common: dict[str, int] = {}
        self._chunks: list[Chunk] = []
        self._n_evaluated = self._n_to_evaluate = 0.0
        self.settings = {
            "base": self._described(base),
            "files": {file.name: self._described(file) for file in (*others, *variants)},
            "text": {
                "source": text.name if text else "bundled",
                "sha256": joint_sha256(self._texts.values()),
            },
            "chunk": chunk,
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

    def measure(
        self, keys: Sequence[tuple[str, int]], store: Store[ChunkRow]
    ) -> Generator[ChunkRow, None, None]:
        kept = {chunk: store.folder / BASE / f"{chunk:05}.npz" for _, chunk in keys}
        unknown = {chunk: path for chunk, path in kept.items() if read_positions(path) is None}
        self._n_to_evaluate = len(unknown) + len(keys)
        if unknown:
            self._keep_base(unknown, store)
        for name, members in groupby(keys, lambda key: key[0]):
            n_outputs = _OTHER_SPLIT if name == self._base.name else N_OUTPUTS
            n_vocab = self._n_common[name]
            numbers = [number for _, number in members]
            for number, rows, follows in self._evaluated(name, n_outputs, numbers, store):
                base = read_positions(kept[number])
                assert base is not None
                yield ChunkRow(name, number, compare(base, rows, follows, n_vocab), self._chunks[number].kind)

    def _keep_base(self, chunks: Mapping[int, Path], store: Store[ChunkRow]) -> None:
        """Evaluate chunks with the base, and keep its distributions in their files."""
        for number, rows, follows in self._evaluated(self._base.name, N_OUTPUTS, chunks, store):
            store.save()  # the folder is this measurement's from now on
            positions = list(map(position_of, rows, follows))
            write_positions(chunks[number], positions)

    def _evaluated(
        self, name: str, n_outputs: int, chunks: Iterable[int], store: Store[ChunkRow]
    ) -> Iterator[tuple[int, Iterator[Logits], list[int]]]:
        """Yield chunks' raw logits, each (V,), before the tokens of their second half, and these."""
        store.begin_session(model=name)
        with ExitStack() as opened:
            options = {"kv_type": self._kv_types[name], **self._placement}
            model = opened.enter_context(load_model(str(self._files[name].path), n_ctx=256, **options))
            self.reserve(opened, model, [(self._chunk, "a --chunk")], 1, n_outputs)
            for number in chunks:
                tokens = self._chunks[number].tokens
                n = n_scored(len(tokens))
                yield (
                    number,
                    self._counted(self.logits_of(model, tokens[:-1], n), len(tokens), n),
                    tokens[-n:],
                )

    def _counted(self, rows: Iterable[Logits], length: int, n: int) -> Iterator[Logits]:
        """Yield a chunk's `n` rows, and count its tokens: those of the first half come with the first row."""
        share = (length - n + 1) / length
        for row in rows:
            yield row
            self._n_evaluated += share
            share = 1 / length

    def status(self) -> str:
        return f"{self._n_evaluated:,.1f} of {self._n_to_evaluate:,.0f} evaluated"

    def seconds_left(self, n_new: int, n_left: int, seconds: float) -> float | None:  # noqa: ARG002
        """Return the expected time, counting what is evaluated with the base before the first row."""
        per_chunk = seconds / self._n_evaluated if self._n_evaluated else None
        return per_chunk and per_chunk * (self._n_to_evaluate - self._n_evaluated)

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
    types = metadata.tensors_by_type()
    n_parameters, n_bytes = (sum(row[key] for row in types) for key in ("parameters", "bytes"))
    return {
        "bytes": metadata.n_bytes,
        "bits_per_weight": 8 * n_bytes / n_parameters if n_parameters else 0.0,
        "nominal_type": next(names, "").removeprefix(_FILE_TYPE),
        "imatrix": str(metadata.values.get("quantize.imatrix.dataset", "")),
    }
