"""Reads the metadata and tensor infos of a GGUF file, without loading or trusting it.

`gguf.GGUFReader` can loop forever on a damaged file and takes seconds for a real vocabulary, and llama.cpp
can abort the process. So this parses the format itself
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and trusts no count beyond the end of the file.
"""

import math
import mmap
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from mink_local.errors import ModelError

MAGIC = b"GGUF"
_BEGINNING = 64  # bytes that tell what another file is
_LONGEST = 64 << 20  # bytes of metadata and tensor infos; today's largest vocabularies take 12 MiB
_ARRAY_KEPT = 4096  # longest array whose values are kept: enough for one per layer, not for the vocabulary
_MOST_DIMENSIONS = 4
_MOST_LAYERS = 1024  # llama.cpp allows 512
_U32, _STRING, _ARRAY, _U64 = 4, 8, 9, 10
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TYPES = {  # by general.type
    "adapter": "a LoRA adapter, which changes a model",
    "imatrix": "an importance matrix, with which models are quantized",
    "mmproj": "a projector, with which a model sees or hears",
}
_NO_GENERATORS = {  # by architecture
    "clip": _TYPES["mmproj"],
    **dict.fromkeys(("gemma4-assistant", "eagle3", "dflash"), "a drafter, which drafts for a larger model"),
}
_POOLED = {**dict.fromkeys((1, 2, 3), "an embedding model"), 4: "a reranker"}  # by llama.cpp's pooling type
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)$", re.IGNORECASE)


class TensorType(NamedTuple):
    """A ggml type: its name, and the numbers and bytes per block."""

    name: str
    block: int
    block_bytes: int

    def n_bytes(self, count: int) -> int:
        """Return the bytes taken by `count` numbers, in whole blocks."""
        return -(-count // self.block) * self.block_bytes


@cache
def tensor_types() -> dict[int, TensorType]:
    """Return the installed llama.cpp's types by their number in enum ggml_type."""
    from mink_local.llama import ggml
    from mink_local.llama.library import C  # imported here because it takes half a second

    return {
        number: TensorType(ggml.type_name(number).decode().upper(), block, ggml.type_size(number))
        for number in range(C.GGML_TYPE_COUNT)
        if (block := ggml.blck_size(number))  # 0 for a number no longer used
    }


class Array(NamedTuple):
    """An array of `length` values; `values` is empty for strings and long arrays, which are skipped."""

    length: int
    values: tuple[Any, ...] = ()


class Tensor(NamedTuple):
    """A tensor's name, type, number of parameters, and their bytes."""

    name: str
    type: str
    n_parameters: int
    n_bytes: int

    @property
    def layer(self) -> int | None:
        """The layer that the tensor belongs to; None for embeddings and output."""
        match = re.match(r"blk\.(\d{1,6})\.", self.name)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class Metadata:
    """Metadata and tensors of a model, across all its files.

    Attributes:
        path: The first file.
        values: Integers, floats, booleans, strings or `Array`s by key.
        n_bytes: Total size of all files.
    """

    path: Path
    values: dict[str, Any]
    tensors: tuple[Tensor, ...]
    n_bytes: int

    @property
    def architecture(self) -> str:
        return self.text("general.architecture") or "unknown"

    @cached_property
    def n_layers(self) -> int:
        return self.number("block_count")

    @property
    def n_ctx_train(self) -> int:
        return self.number("context_length")

    @property
    def n_vocab(self) -> int:
        tokens = self.values.get("tokenizer.ggml.tokens")
        return tokens.length if isinstance(tokens, Array) else self.number("vocab_size")

    @property
    def kind(self) -> str | None:
        """What the file is if no text can be generated with it, such as `an embedding model`, or None."""
        if (kind := self.text("general.type")) not in (None, "model"):
            return _TYPES.get(kind, f"of type {kind[:40]}, and no model")
        if self.architecture in _NO_GENERATORS:
            return _NO_GENERATORS[self.architecture]
        if pooled := _POOLED.get(self.number("pooling_type")):
            return pooled
        if any(tensor.name.startswith("v.") for tensor in self.tensors):
            return "made for Ollama's own engine, with a projector inside"
        return None

    def require_model(self) -> None:
        """Raise ModelError if no text can be generated with the file."""
        if self.kind:
            raise ModelError(f"{self.path.name} is {self.kind}: load a model that generates text")

    def tensors_by_type(self) -> list[dict[str, Any]]:
        """Return the number of tensors, parameters and bytes per type, largest first."""
        totals: dict[str, Counter[str]] = defaultdict(Counter)
        for tensor in self.tensors:
            totals[tensor.type].update(tensors=1, parameters=tensor.n_parameters, bytes=tensor.n_bytes)
        return sorted(({"type": name, **row} for name, row in totals.items()), key=lambda row: -row["bytes"])

    def text(self, key: str) -> str | None:
        """Return the string under a key, or None if there is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str, default: int = 0) -> int:
        """Return an integer under one of the architecture's keys; if there is one per layer, the first."""
        return self.per_layer(key, default, 1)[0]

    def per_layer(self, key: str, default: int, n_layers: int) -> list[int]:
        """Return an integer per layer under one of the architecture's keys, which holds one or a list."""
        value = self.values.get(f"{self.architecture}.{key}")
        found = value.values if isinstance(value, Array) and value.values else (value,)
        numbers = [item if isinstance(item, int) and item >= 0 else default for item in found]
        return (numbers + [numbers[-1]] * n_layers)[:n_layers]


def read_metadata(path: Path) -> Metadata:
    """Read the metadata and tensor infos of a model, given its first file.

    Raises:
        ModelError: The file is missing, incomplete or malformed.
        DamagedFileError: It is of no use to any llama.cpp either: cut off, or no GGUF file.
    """
    files = [_read_file(shard) for shard in shards(path)]
    tensors = tuple(tensor for file in files for tensor in file.tensors)
    return Metadata(path, files[0].values, tensors, sum(file.n_bytes for file in files))


def shards(path: Path) -> list[Path]:
    """Return all files of a model, given its only file or `name-00001-of-00003.gguf`.

    Raises:
        ModelError: The file is not the first one.
    """
    match = _SHARD.fullmatch(path.name)
    if not match or match[3] == "00000":
        return [path]
    stem, number, count, suffix = match.groups()
    if int(number) != 1:
        raise ModelError(f"{path} is part {int(number)} of a split model: name the first part")
    return [path.with_name(f"{stem}-{i:05}-of-{count}{suffix}") for i in range(1, int(count) + 1)]


def shard_stem(name: str) -> str:
    """Return a file name without the `-00001-of-00003` of a split model."""
    return _SHARD.sub(r"\1\4", name)


def is_later_shard(name: str) -> bool:
    """Return whether a file is a part of a split model, but not the first."""
    match = _SHARD.fullmatch(name)
    return match is not None and match[2] != "00001"


def _read_file(path: Path) -> Metadata:
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            if (start := stream.read(_BEGINNING))[: len(MAGIC)] != MAGIC:
                raise DamagedFileError(f"{path} is not a GGUF file: {_beginning(start)}")
            with mmap.mmap(stream.fileno(), min(size, _LONGEST), access=mmap.ACCESS_READ) as data:
                return MetadataReader(data, size).read(path)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except _CutError as error:
        raise DamagedFileError(f"{path} is cut off: {error}") from None
    except _DamagedError as error:
        raise ModelError(f"{path} is not a GGUF file, or damaged: {error}") from None


def _beginning(start: bytes) -> str:
    """Return what a file is that does not start as a GGUF file does, and what to do."""
    text = start.lstrip().lower()
    if not start:
        return "it is empty; download it again"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page; download the file itself"
    if text.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; git lfs pull fetches the file"
    return "it does not start with GGUF"


class DamagedFileError(ModelError):
    """A file that is cut off, or no GGUF file."""


class _DamagedError(Exception):
    """A violation of the format; the text completes a sentence."""


class _CutError(_DamagedError):
    """The file is cut off."""


class MetadataReader:
    """The position `at` in `data`, the beginning of a file of `size` bytes."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self.at = len(MAGIC)

    def read(self, path: Path) -> Metadata:
        version = self.number(_U32)
        if version not in (2, 3):
            big_endian = " (big-endian)" if version in (2 << 24, 3 << 24) else ""
            raise _DamagedError(f"unsupported GGUF version {version}{big_endian}")
        n_tensors, n_keys = self._numbers(_U64, 2)
        values: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.string()
            if key in values:
                raise _DamagedError(f"duplicate key {key[:60]!r}")
            values[key] = self.value(self.number(_U32))
        tensors = tuple(self._tensors(n_tensors, values.get("general.alignment", 32)))
        metadata = Metadata(path, values, tensors, self._size)
        if metadata.n_layers > _MOST_LAYERS:
            raise _DamagedError(f"implausible number of layers: {metadata.n_layers}")
        return metadata

    def _skip(self, n_bytes: int) -> int:
        """Advance by `n_bytes` and return where they start."""
        start, self.at = self.at, self.at + n_bytes
        if self.at > self._size:
            raise _CutError("its metadata is incomplete; download it again")
        if self.at > len(self._data):
            raise _DamagedError(f"its metadata exceeds {_LONGEST >> 20} MiB")
        return start

    def _numbers(self, kind: int, count: int) -> tuple[Any, ...]:
        """Read `count` numbers of a type; return none if there are too many to keep."""
        if kind not in _SCALARS:
            raise _DamagedError(f"a value has unknown type {kind}")
        code = _SCALARS[kind]
        start = self._skip(count * struct.calcsize("<" + code))
        return struct.unpack_from(f"<{count}{code}", self._data, start) if count <= _ARRAY_KEPT else ()

    def number(self, kind: int) -> Any:
        """Read a number of a type."""
        return self._numbers(kind, 1)[0]

    def string(self) -> str:
        """Read a string."""
        start = self._skip(self.number(_U64))
        return self._data[start : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Read a value of a type; an array without its values if they are strings or too many to keep."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(kind)
        kind, length = self.number(_U32), self.number(_U64)
        if kind != _STRING:
            return Array(length, self._numbers(kind, length))
        self._skip_strings(length)
        return Array(length)

    def _skip_strings(self, count: int) -> None:
        """Skip the strings of an array, such as a vocabulary of 100,000 tokens."""
        at = self._skip(8 * count)  # every string takes at least its length field
        unpack, last = struct.Struct("<Q").unpack_from, len(self._data) - 8
        while count and at <= last:
            at += 8 + unpack(self._data, at)[0]
            count -= 1
        self.at = at
        self._skip(8 * count)

    def _tensors(self, count: int, alignment: Any) -> Iterator[Tensor]:
        """Read the tensor infos and check that every tensor lies within the file."""
        ends = 0
        for _ in range(count):
            name = self.string()
            n_dimensions = self.number(_U32)
            if n_dimensions > _MOST_DIMENSIONS:
                raise _DamagedError(f"tensor {name[:60]!r} has {n_dimensions} dimensions")
            n_parameters = math.prod(self._numbers(_U64, n_dimensions))
            number, offset = self.number(_U32), self.number(_U64)
            if not (kind := tensor_types().get(number)):
                raise _DamagedError(f"tensor {name[:60]!r} has unknown type {number}")
            n_bytes = kind.n_bytes(n_parameters)
            ends = max(ends, offset + n_bytes)
            yield Tensor(name, kind.name, n_parameters, n_bytes)
        if not isinstance(alignment, int) or alignment < 1:
            raise _DamagedError(f"invalid alignment {alignment!r}")
        missing = -(-self.at // alignment) * alignment + ends - self._size
        if count and missing > 0:
            raise _CutError(f"{missing:,} bytes are missing at the end; download it again")
