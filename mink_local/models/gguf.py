"""The metadata and tensor infos of a GGUF file, read without loading it and without trusting it.

`gguf.GGUFReader` can loop for ever on a damaged file and takes seconds for a real vocabulary, and
llama.cpp can abort the process, so this reads the format itself
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): no count is believed before the bytes for it
were seen.
"""

import ctypes
import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from mink_local.errors import ModelError

MAGIC = b"GGUF"

_LONGEST = 64 << 20  # bytes of metadata and tensor infos; the largest vocabularies in use take 12 MiB
_ARRAY_KEPT = 4096  # longest array whose values are kept: one for every layer, and not the vocabulary
_MOST_DIMENSIONS = 4
_MOST_LAYERS = 1024  # llama.cpp takes 512
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)$", re.IGNORECASE)


class TensorType(NamedTuple):
    """A type of ggml, with the numbers and the bytes of one of its blocks."""

    name: str
    block: int
    block_bytes: int

    def n_bytes(self, count: int) -> int:
        """Return the bytes that `count` numbers take, in whole blocks."""
        return -(-count // self.block) * self.block_bytes


@cache
def tensor_types() -> dict[int, TensorType]:
    """Return the types that the installed llama.cpp knows, by their number in enum ggml_type."""
    from llama_cpp import llama_cpp as C  # here, since it takes half a second and few programs come here

    from mink_local.llama.ggml import function

    name = function("ggml_type_name", ctypes.c_char_p, ctypes.c_int)
    block = function("ggml_blck_size", ctypes.c_int64, ctypes.c_int)
    size = function("ggml_type_size", ctypes.c_size_t, ctypes.c_int)
    return {
        number: TensorType(name(number).decode().upper(), block(number), size(number))
        for number in range(C.GGML_TYPE_COUNT)
        if block(number)  # none for a number that is no longer used
    }


class Array(NamedTuple):
    """An array of `length` values; `values` is None if they were skipped as too many."""

    length: int
    values: tuple[Any, ...] | None


class Tensor(NamedTuple):
    """A tensor's name, its type's name, how many parameters it has and how many bytes they take."""

    name: str
    type: str
    n_parameters: int
    n_bytes: int

    @property
    def layer(self) -> int | None:
        """The layer that the tensor is part of; None for embeddings and output."""
        match = re.match(r"blk\.(\d{1,6})\.", self.name)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class Metadata:
    """Metadata and tensors of a model, of all files together if there are several.

    `path` is the first file, and a value an integer, float, boolean, text or `Array`.
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

    def text(self, key: str) -> str | None:
        """Return the text of a key, or None if there is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str, default: int = 0) -> int:
        """Return an integer of the architecture's own keys, the first one if there is one for each layer."""
        return self.per_layer(key, default, 1)[0]

    def per_layer(self, key: str, default: int, n_layers: int) -> list[int]:
        """Return an integer of the architecture's own keys for each layer: files give one, or a list."""
        value = self.values.get(f"{self.architecture}.{key}")
        found = value.values if isinstance(value, Array) and value.values else (value,)
        numbers = [item if isinstance(item, int) and item >= 0 else default for item in found]
        return (numbers + [numbers[-1]] * n_layers)[:n_layers]


def read_metadata(path: Path) -> Metadata:
    """Read the metadata and tensor infos of a model, given by its first file.

    Raises ModelError if the file is missing, incomplete, or deviates from the format.
    """
    files = [_read_file(shard) for shard in shards(path)]
    tensors = tuple(tensor for file in files for tensor in file.tensors)
    return Metadata(path, files[0].values, tensors, sum(file.n_bytes for file in files))


def shards(path: Path) -> list[Path]:
    """Return all files of a model, given by its only file, or by `name-00001-of-00003.gguf`.

    Raises ModelError if the file is a later one than the first.
    """
    match = _SHARD.fullmatch(path.name)
    if not match or match[3] == "00000":
        return [path]
    stem, number, count, suffix = match.groups()
    if int(number) != 1:
        raise ModelError(f"{path} is part {int(number)} of a model: name its first part")
    return [path.with_name(f"{stem}-{i:05}-of-{count}{suffix}") for i in range(1, int(count) + 1)]


def shard_stem(name: str) -> str:
    """Return a file's name without the `-00001-of-00003` of a model in several files."""
    return _SHARD.sub(r"\1\4", name)


def is_later_shard(name: str) -> bool:
    """Return whether a file is part of a model in several files, and not the first part."""
    match = _SHARD.fullmatch(name)
    return match is not None and match[2] != "00001"


def _read_file(path: Path) -> Metadata:
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            if size == 0:
                raise ModelError(f"{path} is empty")
            with mmap.mmap(stream.fileno(), min(size, _LONGEST), access=mmap.ACCESS_READ) as data:
                if data[: len(MAGIC)] != MAGIC:
                    raise ModelError(f"{path} is not a GGUF file: it does not start with {MAGIC.decode()}")
                return _Reader(data, size).read(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except _DamagedError as error:
        raise ModelError(f"{path} is damaged: {error}") from None


class _DamagedError(Exception):
    """A deviation from the format, as half a sentence."""


class _Reader:
    """The position in `data`, the beginning of a file of `size` bytes."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self._at = len(MAGIC)

    def read(self, path: Path) -> Metadata:
        version = self._scalar("I")
        if version not in (2, 3):
            raise _DamagedError(f"its format has version {version}, and 2 and 3 are known")
        n_tensors, n_keys = self._scalar("Q"), self._scalar("Q")
        values: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._string()
            if key in values:
                raise _DamagedError(f"it has the key {key[:60]!r} twice")
            values[key] = self._value(self._scalar("I"))
        tensors = tuple(self._tensors(n_tensors, values.get("general.alignment", 32)))
        metadata = Metadata(path, values, tensors, self._size)
        if metadata.n_layers > _MOST_LAYERS:
            raise _DamagedError(f"it says that it has {metadata.n_layers} layers")
        return metadata

    def _skip(self, n_bytes: int) -> int:
        """Go `n_bytes` on, and return where they start."""
        start, self._at = self._at, self._at + n_bytes
        if self._at > self._size:
            raise _DamagedError("it ends within its metadata")
        if self._at > len(self._data):
            raise _DamagedError(f"its metadata is longer than {_LONGEST >> 20} MiB")
        return start

    def _scalar(self, code: str) -> Any:
        code = "<" + code
        return struct.unpack_from(code, self._data, self._skip(struct.calcsize(code)))[0]

    def _string(self) -> str:
        start = self._skip(self._scalar("Q"))
        return self._data[start : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._scalar("I"), self._scalar("Q"))
        return self._scalar(_scalar_code(kind))

    def _array(self, kind: int, length: int) -> Array:
        if kind == _STRING:
            self._skip_strings(length)
            return Array(length, None)
        code = _scalar_code(kind)
        start = self._skip(length * struct.calcsize("<" + code))
        if length > _ARRAY_KEPT:
            return Array(length, None)
        return Array(length, struct.unpack_from(f"<{length}{code}", self._data, start))

    def _skip_strings(self, count: int) -> None:
        """Skip the tokens of a vocabulary, about 100,000 of them, in a plain loop."""
        at = self._skip(8 * count)  # no string is shorter than its length
        unpack, last = struct.Struct("<Q").unpack_from, len(self._data) - 8
        while count and at <= last:
            at += 8 + unpack(self._data, at)[0]
            count -= 1
        self._at = at
        self._skip(8 * count)

    def _tensors(self, count: int, alignment: Any) -> Iterator[Tensor]:
        """Read the tensor infos; every tensor must lie within the file."""
        ends = 0
        for _ in range(count):
            name = self._string()
            n_dimensions = self._scalar("I")
            if n_dimensions > _MOST_DIMENSIONS:
                raise _DamagedError(f"its tensor {name[:60]!r} has {n_dimensions} dimensions")
            n_parameters = math.prod(self._scalar("Q") for _ in range(n_dimensions))
            number, offset = self._scalar("I"), self._scalar("Q")
            if not (kind := tensor_types().get(number)):
                raise _DamagedError(f"its tensor {name[:60]!r} is of the unknown type {number}")
            n_bytes = kind.n_bytes(n_parameters)
            ends = max(ends, offset + n_bytes)
            yield Tensor(name, kind.name, n_parameters, n_bytes)
        if not isinstance(alignment, int) or alignment < 1:
            raise _DamagedError(f"its alignment is {alignment!r}")
        missing = -(-self._at // alignment) * alignment + ends - self._size
        if count and missing > 0:
            raise _DamagedError(f"{missing:,} bytes are missing at its end: copy or download it again")


def _scalar_code(kind: int) -> str:
    if kind not in _SCALARS:
        raise _DamagedError(f"it holds a value of the unknown type {kind}")
    return _SCALARS[kind]
