"""Writes GGUF models with random weights and the vocabulary of another GGUF file: small ones for the
tests, full-size ones for benchmarks, where the weights' values change nothing."""

import math
import mmap
import struct
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder. `tied`: the output matrix is the token embeddings."""

    arch: str = "llama"
    layers: int = 1
    width: int = 64
    feed_forward: int = 64
    heads: int = 2
    heads_kv: int = 2
    head_width: int = 32
    tied: bool = True


SHAPES = {
    "llama-3-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, tied=False),
    "qwen3-4b": Shape("qwen3", 36, 2560, 9728, 32, 8, 128),
}


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of GGUF's value types
_STRING, _ARRAY = 8, 9


class _Packed(bytes):
    """A value's type and bytes as they are in a GGUF file."""


class _Writer(gguf.GGUFWriter):  # type: ignore[misc]
    """A writer that also takes packed values: packing and unpacking a vocabulary takes gguf seconds."""

    def _pack_val(self, val: Any, *arguments: Any, **options: Any) -> bytes | bytearray:
        return val if isinstance(val, _Packed) else super()._pack_val(val, *arguments, **options)


@dataclass(frozen=True)
class _Tokenizer:
    """The entries of a GGUF file that make up its tokenizer, without the chat template."""

    entries: dict[str, _Packed]
    n_vocab: int
    template: str


@cache
def _tokenizer(path: Path) -> _Tokenizer:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:

        def end_of(kind: int, at: int) -> int:
            if kind == _STRING:
                return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
            if kind != _ARRAY:
                return at + _SIZES[kind]
            item, count = struct.unpack_from("<IQ", data, at)
            at += 12
            if item in _SIZES:
                return at + int(count) * _SIZES[item]
            for _ in range(count):
                at = end_of(item, at)
            return at

        entries: dict[str, _Packed] = {}
        at = 24  # behind magic, version and two counts
        for _ in range(struct.unpack_from("<Q", data, 16)[0]):
            begin, at = at + 8, end_of(_STRING, at)
            key, begin = data[begin:at].decode(), at
            at = end_of(struct.unpack_from("<I", data, at)[0], at + 4)
            if key.startswith("tokenizer."):
                entries[key] = _Packed(data[begin:at])
    n_vocab = struct.unpack_from("<Q", entries["tokenizer.ggml.tokens"], 8)[0]
    return _Tokenizer(entries, n_vocab, entries.pop("tokenizer.chat_template", b"")[12:].decode())


def write_model(
    path: Path,
    vocabulary: Path,
    arch: str = "llama",
    template: str | None = "",
    scale: float = 1.0,
    n_ctx_train: int = 2048,
    shape: Shape | None = None,
    padding: int = 0,
) -> Path:
    """Write a model to `path`, by default of one small layer.

    vocabulary: the GGUF file whose tokenizer it takes. template: a chat template, None for none, ""
    for that of `vocabulary`. scale: of the weights of the output norm; NaN makes every logit NaN. padding:
    so many tokens more, named as llama.cpp's converter does.
    """
    shape = shape or Shape(arch)
    tokenizer = _padded(_tokenizer(vocabulary), padding)
    writer = _Writer(path, shape.arch)
    writer.add_block_count(shape.layers)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads_kv)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_vocab_size(tokenizer.n_vocab)
    _add_tokenizer(writer, tokenizer)
    template = tokenizer.template if template == "" else template
    if template:
        writer.add_chat_template(template)
    return _finish(writer, path, _tensors(shape, tokenizer.n_vocab, scale))


def _padded(tokenizer: _Tokenizer, n: int) -> _Tokenizer:
    names = [f"[PAD{tokenizer.n_vocab + i}]".encode() for i in range(n)]
    more = {
        "tokenizer.ggml.tokens": b"".join(struct.pack("<Q", len(name)) + name for name in names),
        "tokenizer.ggml.token_type": struct.pack("<i", gguf.TokenType.UNUSED) * n,
    }
    entries = dict(tokenizer.entries)
    for key in more.keys() & entries.keys():
        count = struct.pack("<Q", tokenizer.n_vocab + n)
        entries[key] = _Packed(entries[key][:8] + count + entries[key][16:] + more[key])
    return _Tokenizer(entries, tokenizer.n_vocab + n, tokenizer.template)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: _Tokenizer) -> None:
    for key, value in tokenizer.entries.items():
        writer.add_key_value(key, value, gguf.GGUFValueType(struct.unpack_from("<I", value)[0]))


def _tensors(shape: Shape, n_vocab: int, scale: float) -> dict[str, tuple[tuple[int, ...], float]]:
    """Shape of every tensor, and its value where it is a norm, NaN excepted: 0 for a random matrix."""
    queries, keys = shape.heads * shape.head_width, shape.heads_kv * shape.head_width
    tensors: dict[str, tuple[tuple[int, ...], float]] = {
        "token_embd.weight": ((n_vocab, shape.width), 0),
        "output_norm.weight": ((shape.width,), scale),
    }
    if not shape.tied:
        tensors["output.weight"] = ((n_vocab, shape.width), 0)
    for i in range(shape.layers):
        block = {
            "attn_norm": ((shape.width,), 0.3),  # so that a token attends to all others, not to one
            "ffn_norm": ((shape.width,), 1),
            "attn_q": ((queries, shape.width), 0),
            "attn_k": ((keys, shape.width), 0),
            "attn_v": ((keys, shape.width), 0),
            "attn_output": ((shape.width, queries), 0),
            "ffn_gate": ((shape.feed_forward, shape.width), 0),
            "ffn_up": ((shape.feed_forward, shape.width), 0),
            "ffn_down": ((shape.width, shape.feed_forward), 0),
        }
        if shape.arch == "qwen3":
            block |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), ((shape.head_width,), 1))
        tensors |= {f"blk.{i}.{name}.weight": tensor for name, tensor in block.items()}
    return tensors


def _fill(number: int, shape: tuple[int, ...], value: float) -> NDArray[Any]:
    if len(shape) == 1:
        return np.full(shape, value, np.float32)
    noise = _noise()[100_003 * number :]  # if keys were queries, a token would attend to nothing but itself
    return np.resize(noise, math.prod(shape)).reshape(shape)


@cache
def _noise() -> NDArray[np.float16]:
    return np.random.default_rng(0).normal(0, 0.3, 4_000_037).astype(np.float16)


def write_recurrent_model(path: Path, vocabulary: Path) -> Path:
    """Write a Mamba of two layers, which cannot forget just the end of a sequence, to `path`."""
    width, inner, state, rank, kernel = 64, 128, 16, 4, 4
    tokenizer = _tokenizer(vocabulary)
    writer = _Writer(path, "mamba")
    writer.add_block_count(2)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    _add_tokenizer(writer, tokenizer)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0, 0.3, shape).astype(np.float32))

    add("token_embd.weight", tokenizer.n_vocab, width)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(2):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(width, np.float32))
        add(f"blk.{i}.ssm_in.weight", 2 * inner, width)
        add(f"blk.{i}.ssm_conv1d.weight", inner, kernel)
        add(f"blk.{i}.ssm_conv1d.bias", inner)
        add(f"blk.{i}.ssm_x.weight", rank + 2 * state, inner)
        add(f"blk.{i}.ssm_dt.weight", inner, rank)
        add(f"blk.{i}.ssm_dt.bias", inner)
        writer.add_tensor(f"blk.{i}.ssm_a", -random.uniform(0.1, 1, (inner, state)).astype(np.float32))
        add(f"blk.{i}.ssm_d", inner)
        add(f"blk.{i}.ssm_out.weight", width, inner)
    return _finish(writer, path)


def write_embedding_model(path: Path) -> Path:
    """Write a one-layer BERT, which embeds text and writes none, to `path`."""
    width = 64
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581hello"]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(words)
    writer.add_token_types([3] * 5 + [1])
    writer.add_token_type_count(2)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_pad_token_id(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, np.full(shape, 0.1, np.float32))

    add("token_embd.weight", len(words), width)
    add("token_types.weight", 2, width)
    add("position_embd.weight", 512, width)
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        add(f"{name}.weight", width)
        add(f"{name}.bias", width)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        add(f"blk.0.{name}.weight", width, width)
        add(f"blk.0.{name}.bias", width)
    return _finish(writer, path)


def _finish(
    writer: gguf.GGUFWriter, path: Path, tensors: dict[str, tuple[tuple[int, ...], float]] | None = None
) -> Path:
    """Write the file; `tensors` one by one, since those of a full-size model do not fit memory."""
    for name, (shape, _) in (tensors or {}).items():
        kind = np.dtype(np.float16 if len(shape) > 1 else np.float32)
        writer.add_tensor_info(name, shape, kind, math.prod(shape) * kind.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    if tensors is None:
        writer.write_tensors_to_file()
    else:
        writer.write_ti_data_to_file()
        for number, (shape, value) in enumerate(tensors.values()):
            writer.write_tensor_data(_fill(number % 30, shape, value))
    writer.close()
    return path


def quantize(source: Path, target: Path) -> None:
    """Write `target`, the model in `source` with Q4_K_M weights."""
    from llama_cpp import llama_cpp as C

    params = C.llama_model_quantize_default_params()
    params.ftype = C.LLAMA_FTYPE_MOSTLY_Q4_K_M
    unfinished = target.with_suffix(".part")
    if C.llama_model_quantize(bytes(source), bytes(unfinished), params):
        raise RuntimeError(f"llama.cpp could not quantize {source}")
    unfinished.replace(target)


if __name__ == "__main__":  # SHAPE VOCABULARY.gguf TARGET.gguf: a full-size model, quantized
    shape_name, vocabulary_path, target_path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    whole = write_model(target_path.with_suffix(".f16"), vocabulary_path, shape=SHAPES[shape_name])
    quantize(whole, target_path)
    whole.unlink()
