"""What the header of a GGUF file says, read without llama.cpp and without trusting the file.

`gguf.GGUFReader` can loop for ever on a damaged file and takes seconds for a real vocabulary, and
llama.cpp can abort the process, so this reads the format itself
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) under three rules: nothing is read beyond
`_LONGEST` bytes, no count is believed before the bytes for it were seen, and whatever is not as the
format says raises ModelError.
"""

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from mink_local.errors import ModelError

_MAGIC = b"GGUF"
_LONGEST = 64 << 20  # bytes of a header; the largest vocabularies in use take 12 MiB
_BLOCK = 1 << 20
_ARRAY_KEPT = 4096  # longest array whose values are kept: one for every layer, and not the vocabulary
_MOST_DIMENSIONS = 4
_MOST_LAYERS = 1024  # llama.cpp takes 512
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SHARD = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)

# Name, weights in a block and bytes of a block, by the number in enum ggml_type (ggml.h, ggml-common.h).
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}  # fmt: skip


@dataclass(frozen=True)
class Array:
    """An array of `length` values; `values` is None where they were passed over as too many."""

    length: int
    values: tuple[Any, ...] | None


@dataclass(frozen=True)
class Tensor:
    """A tensor's name, its type's name, how many parameters it has and how many bytes they take."""

    name: str
    type: str
    n_parameters: int
    n_bytes: int

    @property
    def layer(self) -> int | None:
        """The block that it is part of; None for embeddings and output."""
        match = re.match(r"blk\.(\d{1,6})\.", self.name)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class Metadata:
    """Metadata and tensors of a model, those of all its parts where it is split in several files.

    n_bytes: of all its files.
    """

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    n_bytes: int

    @property
    def architecture(self) -> str:
        return self.text("general.architecture") or "unknown"

    @cached_property
    def n_layers(self) -> int:
        return self.number("block_count")

    @property
    def n_parameters(self) -> int:
        return sum(tensor.n_parameters for tensor in self.tensors)

    @property
    def n_ctx_train(self) -> int:
        return self.number("context_length")

    @property
    def n_vocab(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.length if isinstance(tokens, Array) else self.number("vocab_size")

    @property
    def chat_template(self) -> str | None:
        return self.text("tokenizer.chat_template")

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str, default: int = 0) -> int:
        """An integer of the architecture's own keys; the first where there is one for every layer."""
        return self.per_layer(key, default, 1)[0]

    def per_layer(self, key: str, default: int, n_layers: int) -> list[int]:
        """An integer of the architecture's own keys for each layer: files give one for all, or a list."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        found = value.values if isinstance(value, Array) and value.values else (value,)
        values = [item if isinstance(item, int) and item >= 0 else default for item in found]
        return (values + [values[-1]] * n_layers)[:n_layers]


def read_metadata(path: Path) -> Metadata:
    """The header of a GGUF file, and of the other parts where it is the first of several.

    Raises ModelError for a file that is missing, cut short, or not as the format says.
    """
    headers = [_read_file(part) for part in shards(path)]
    return Metadata(
        path,
        headers[0].version,
        headers[0].metadata,
        tuple(tensor for header in headers for tensor in header.tensors),
        sum(header.n_bytes for header in headers),
    )


def shards(path: Path) -> list[Path]:
    """The files of a model split as `name-00001-of-00003.gguf`, of which `path` is the first; else `path`."""
    match = _SHARD.match(path.name)
    if not match:
        return [path]
    if int(match["number"]) != 1:
        raise ModelError(f"{path} is part {int(match['number'])} of a model: name its first part")
    count = int(match["count"])
    if count < 1:
        return [path]
    names = (f"{match['stem']}-{n:05}-of-{count:05}{path.suffix}" for n in range(1, count + 1))
    return [path.with_name(name) for name in names]


def shard_stem(name: str) -> str:
    """Return a file's name without the -00001-of-00003 of a model in several files."""
    match = _SHARD.match(name)
    return f"{match['stem']}.gguf" if match else name


def _read_file(path: Path) -> Metadata:
    try:
        with path.open("rb") as stream:
            return _Reader(path, stream).header()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except _DamagedError as error:
        raise ModelError(f"{path} is damaged: {error}") from None


class _DamagedError(Exception):
    """What is wrong with a file, as half a sentence."""


class _Reader:
    """Walks through the header of one file, reading it block by block."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self._size = path.stat().st_size
        self._data = bytearray()
        self._at = 0

    def header(self) -> Metadata:
        if self._size == 0:
            raise ModelError(f"{self._path} is empty")
        if self._stream.read(len(_MAGIC)) != _MAGIC:
            raise ModelError(f"{self._path} is not a GGUF file: it does not start with {_MAGIC.decode()}")
        self._data += _MAGIC
        self._at = len(_MAGIC)
        version = self._scalar("I")
        if version not in (2, 3):
            raise _DamagedError(f"its format has version {version}, and 2 and 3 are known")
        n_tensors, n_keys = self._scalar("Q"), self._scalar("Q")
        metadata = {}
        for _ in range(n_keys):
            key = self._string()
            if key in metadata:
                raise _DamagedError(f"it has the key {key[:60]!r} twice")
            metadata[key] = self._value(self._scalar("I"))
        tensors = tuple(self._tensors(n_tensors, metadata))
        header = Metadata(self._path, version, metadata, tensors, self._size)
        if header.n_layers > _MOST_LAYERS:
            raise _DamagedError(f"it says that it has {header.n_layers} layers")
        return header

    def _need(self, n_bytes: int) -> None:
        """Have `n_bytes` from here on in memory."""
        end = self._at + n_bytes
        if end > self._size:
            raise _DamagedError("it ends within its header")
        if end > _LONGEST:
            raise _DamagedError(f"its header is longer than {_LONGEST >> 20} MiB")
        while len(self._data) < end:
            block = self._stream.read(max(_BLOCK, end - len(self._data)))
            if not block:
                raise _DamagedError("it ends within its header")
            self._data += block

    def _scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        self._need(size)
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += size
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        self._need(length)
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        raise _DamagedError(f"it holds a value of the unknown type {kind}")

    def _array(self) -> Array:
        kind, length = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            self._skip_strings(length)
            return Array(length, None)
        if kind not in _SCALARS:
            raise _DamagedError(f"it holds an array of the unknown type {kind}")
        n_bytes = length * struct.calcsize("<" + _SCALARS[kind])
        self._need(n_bytes)
        start, self._at = self._at, self._at + n_bytes
        if length > _ARRAY_KEPT:
            return Array(length, None)
        return Array(length, struct.unpack_from(f"<{length}{_SCALARS[kind]}", self._data, start))

    def _skip_strings(self, count: int) -> None:
        """Pass over the tokens of a vocabulary: some 100,000 of them, hence the plain loop."""
        self._need(8 * count)  # no string is shorter than its length
        unpack, at = struct.Struct("<Q").unpack_from, self._at
        for _ in range(count):
            if at + 8 > len(self._data):
                self._at = at
                self._need(8)
            at += 8 + unpack(self._data, at)[0]
        self._at = at
        self._need(0)

    def _tensors(self, count: int, metadata: dict[str, Any]) -> Iterator[Tensor]:
        """The tensors, each of which must lie within the file."""
        ends = 0
        for _ in range(count):
            name = self._string()
            n_dimensions = self._scalar("I")
            if n_dimensions > _MOST_DIMENSIONS:
                raise _DamagedError(f"its tensor {name[:60]!r} has {n_dimensions} dimensions")
            n_parameters = math.prod(self._scalar("Q") for _ in range(n_dimensions))
            number, offset = self._scalar("I"), self._scalar("Q")
            if number not in _TYPES:
                raise _DamagedError(f"its tensor {name[:60]!r} is of the unknown type {number}")
            kind, block, block_bytes = _TYPES[number]
            n_bytes = n_parameters // block * block_bytes
            ends = max(ends, offset + n_bytes)
            yield Tensor(name, kind, n_parameters, n_bytes)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise _DamagedError(f"its alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        if count and start + ends > self._size:
            missing = start + ends - self._size
            raise _DamagedError(f"{missing:,} bytes are missing at its end: it was not copied whole")
