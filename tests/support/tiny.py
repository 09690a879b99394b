"""Writes small GGUF models: with random weights and another file's vocabulary, of chosen logits or texts."""

import mmap
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from mink_local.models.gguf import MetadataReader

Tensors = dict[str, NDArray[Any]]

END = "<|end|>"  # of a scripted model's answers


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder. `tied`: the output matrix is the token embeddings.

    With `experts`, each layer has so many (arch qwen3moe), of which a token uses two.
    """

    arch: str = "llama"
    layers: int = 1
    width: int = 64
    feed_forward: int = 64
    heads: int = 2
    heads_kv: int = 2
    head_width: int = 32
    tied: bool = True
    experts: int = 0


_U32, _U64 = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.UINT64


class _Packed(bytes):
    """A value's type and bytes as they are in a GGUF file."""


class _Writer(gguf.GGUFWriter):  # type: ignore[misc]
    """A writer that also takes packed values: packing and unpacking a vocabulary takes gguf seconds."""

    def _pack_val(self, val: Any, *arguments: Any, **options: Any) -> bytes | bytearray:
        return val if isinstance(val, _Packed) else super()._pack_val(val, *arguments, **options)


def write_gguf(path: Path, arch: str, keys: Mapping[str, Any], tensors: Tensors, **options: Any) -> Path:
    """Write a GGUF file.

    Args:
        keys: Metadata; a key that does not begin with `tokenizer.` or `general.` is of the architecture.
        tensors: By name.
        options: Of `gguf.GGUFWriter`.
    """
    types = gguf.GGUFValueType
    writer = _Writer(path, arch, **options)
    for key, value in keys.items():
        name = key if key.startswith(("tokenizer.", "general.")) else f"{arch}.{key}"
        if isinstance(value, _Packed):
            kind = types(struct.unpack_from("<I", value)[0])
        else:
            is_count = type(value) is int and value >= 0
            kind = types.UINT32 if is_count else types.get_type(value)
        writer.add_key_value(name, value, kind)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@cache
def _tokenizer(path: Path) -> dict[str, _Packed]:
    """Return the entries of a GGUF file that make up its tokenizer."""
    entries = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = MetadataReader(data, len(data))
        _, _, n_keys = reader.number(_U32), reader.number(_U64), reader.number(_U64)
        for _ in range(n_keys):
            key, begin = reader.string(), reader.at
            reader.value(reader.number(_U32))
            if key.startswith("tokenizer."):
                entries[key] = _Packed(data[begin : reader.at])
    return entries


def _padded(entries: dict[str, _Packed], n: int) -> tuple[dict[str, Any], int]:
    """Return a tokenizer with n more tokens, named as llama.cpp's converter does, and their new number."""
    n_vocab = struct.unpack_from("<Q", entries["tokenizer.ggml.tokens"], 8)[0]
    names = [f"[PAD{n_vocab + i}]".encode() for i in range(n)]
    more = {
        "tokenizer.ggml.tokens": b"".join(struct.pack("<Q", len(name)) + name for name in names),
        "tokenizer.ggml.token_type": struct.pack("<i", gguf.TokenType.UNUSED) * n,
    }
    count = struct.pack("<Q", n_vocab + n)
    padded = {
        key: _Packed(entries[key][:8] + count + entries[key][16:] + more[key])
        for key in more.keys() & entries.keys()
    }
    return {**entries, **padded}, n_vocab + n


def tokenizer_of(path: Path) -> tuple[dict[str, Any], int]:
    """Return the entries of a GGUF file that make up its tokenizer, and its number of tokens."""
    return _padded(_tokenizer(path), 0)


def write_model(
    path: Path,
    vocabulary: Path,
    arch: str = "llama",
    template: str | None = "",
    scale: float = 1.0,
    n_ctx_train: int = 2048,
    shape: Shape | None = None,
    padding: int = 0,
    more_keys: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model with random weights to `path`, by default of one small layer.

    Args:
        vocabulary: The GGUF file whose tokenizer it takes.
        template: A chat template, None for none, "" for that of `vocabulary`.
        scale: Of the weights of the output norm; NaN makes every logit NaN.
        padding: Number of unused tokens to add.
        more_keys: More metadata.
    """
    shape = shape or Shape(arch)
    tokenizer, n_vocab = _padded(_tokenizer(vocabulary), padding)
    if template != "":
        tokenizer.pop("tokenizer.chat_template", None)
    keys: dict[str, Any] = {
        "block_count": shape.layers,
        "context_length": n_ctx_train,
        "embedding_length": shape.width,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.heads_kv,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.head_width,
        "vocab_size": n_vocab,
        **tokenizer,
        **({"tokenizer.chat_template": template} if template else {}),
        **(more_keys or {}),
    }
    if shape.experts:
        sizes = {"count": shape.experts, "used_count": 2, "feed_forward_length": shape.feed_forward}
        keys |= {f"expert_{name}": size for name, size in sizes.items()}
    return write_gguf(path, shape.arch, keys, _decoder(shape, n_vocab, scale))


def _decoder(shape: Shape, n_vocab: int, scale: float) -> Tensors:
    queries, keys = shape.heads * shape.head_width, shape.heads_kv * shape.head_width
    tensors: Tensors = {
        "token_embd.weight": _noise(n_vocab, shape.width),
        "output_norm.weight": np.full(shape.width, scale, np.float32),
    }
    if not shape.tied:
        tensors["output.weight"] = _noise(n_vocab, shape.width, part=len(tensors))
    for i in range(shape.layers):
        matrices: dict[str, tuple[int, ...]] = {
            "attn_q": (queries, shape.width),
            "attn_k": (keys, shape.width),
            "attn_v": (keys, shape.width),
            "attn_output": (shape.width, queries),
        }
        wide, tall = (shape.feed_forward, shape.width), (shape.width, shape.feed_forward)
        feed_forward: dict[str, tuple[int, ...]] = {"ffn_gate": wide, "ffn_up": wide, "ffn_down": tall}
        if shape.experts:
            matrices["ffn_gate_inp"] = (shape.experts, shape.width)
            feed_forward = {f"{name}_exps": (shape.experts, *size) for name, size in feed_forward.items()}
        matrices |= feed_forward
        norms = {"attn_norm": 0.3, "ffn_norm": 1.0}  # 0.3: a token attends to all others, not to one
        for name, value in norms.items():
            tensors[f"blk.{i}.{name}.weight"] = np.full(shape.width, value, np.float32)
        for name, sizes in matrices.items():
            tensors[f"blk.{i}.{name}.weight"] = _noise(*sizes, part=len(tensors))
        if shape.arch in ("qwen3", "qwen3moe"):
            for name in ("attn_q_norm", "attn_k_norm"):
                tensors[f"blk.{i}.{name}.weight"] = np.ones(shape.head_width, np.float32)
    return tensors


def _noise(*sizes: int, part: int = 0) -> NDArray[np.float16]:
    """Return a random matrix; were keys equal to queries, a token would attend to nothing but itself."""
    return np.resize(_random_numbers()[100_003 * (part % 30) :], sizes)


@cache
def _random_numbers() -> NDArray[np.float16]:
    return np.random.default_rng(0).normal(0, 0.3, 4_000_037).astype(np.float16)


def write_table_model(
    path: Path,
    embeddings: NDArray[Any],
    output: NDArray[Any],
    tokenizer: Mapping[str, Any],
    n_ctx_train: int = 4096,
) -> Path:
    """Write a model to `path` whose layer and norms do nothing: the logits are `output @ embedding`.

    Args:
        embeddings: (V, width): 8 times unit vectors, which the norms leave as they are.
        output: (V, width).
        tokenizer: Metadata, from `tokens`, `scores` and `token_type` on.
    """
    n_vocab, width = embeddings.shape
    keys = {
        "block_count": 1,
        "context_length": n_ctx_train,
        "embedding_length": width,
        "feed_forward_length": 64,
        "attention.head_count": 2,
        "attention.layer_norm_rms_epsilon": 0.0,
        "rope.dimension_count": width // 2,
        "vocab_size": n_vocab,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [0.0] * n_vocab,
        **tokenizer,
    }
    square, wide, tall = (np.zeros(sizes, np.float32) for sizes in ((width, width), (64, width), (width, 64)))
    layer = {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), square),
        **dict.fromkeys(("ffn_gate", "ffn_up"), wide),
        "ffn_down": tall,
        **dict.fromkeys(("attn_norm", "ffn_norm"), np.ones(width, np.float32)),
    }
    tensors = {f"blk.0.{name}.weight": tensor for name, tensor in layer.items()}
    ends = {"token_embd": embeddings, "output": output, "output_norm": np.ones(width, np.float32)}
    tensors |= {f"{name}.weight": tensor for name, tensor in ends.items()}
    return write_gguf(path, "llama", keys, tensors)


def write_scripted(
    path: Path,
    template: str,
    scripts: Mapping[str, Sequence[str]],
    control: Collection[str] = (),
    again: Mapping[str, str] = MappingProxyType({}),
    tokenizer: Mapping[str, str] = MappingProxyType({}),
    n_ctx_train: int = 4096,
) -> Path:
    """Write a model to `path` that answers a prompt by what the prompt ends with.

    The last token alone decides which one comes next.

    Args:
        path: The file.
        template: The chat template; it ends prompts with a key of `scripts`.
        scripts: For the end of a prompt, the pieces of the answer. No piece may come twice.
        control: The pieces that are control tokens.
        again: What follows the last piece of a script, if it is not the end.
        tokenizer: More of the file's keys that begin with `tokenizer.`.
        n_ctx_train: The greatest context.
    """
    pieces = [piece for start, script in scripts.items() for piece in (start, *script)]
    assert len(pieces) == len(set(pieces))
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", END, *pieces]
    number = {token: i for i, token in enumerate(tokens)}
    kinds = gguf.TokenType
    types = [kinds.BYTE] * 256 + [kinds.NORMAL, kinds.CONTROL]
    types += [kinds.CONTROL if piece in control else kinds.USER_DEFINED for piece in pieces]
    place = np.maximum(np.arange(len(tokens)) - 255, 0)  # of bytes, one: nothing follows from them
    width = -(-(place[-1] + 1) // 64) * 64
    embeddings, output = np.zeros((2, len(tokens), width), np.float32)
    embeddings[range(len(tokens)), place] = 8
    for start, script in scripts.items():
        for piece, following in zip((start, *script), (*script, again.get(script[-1], END)), strict=True):
            output[number[following], place[number[piece]]] = 8
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.eos_token_id": number[END],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": template,
        **{f"tokenizer.{name}": value for name, value in tokenizer.items()},
    }
    return write_table_model(path, embeddings, output, metadata, n_ctx_train)


def write_recurrent_model(path: Path, vocabulary: Path) -> Path:
    """Write a Mamba of two layers, which cannot forget just the end of a sequence, to `path`."""
    width, inner, state, rank, kernel = 64, 128, 16, 4, 4
    tokenizer, n_vocab = _padded(_tokenizer(vocabulary), 0)
    del tokenizer["tokenizer.chat_template"]
    keys = {
        "block_count": 2,
        "context_length": 2048,
        "embedding_length": width,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
        **tokenizer,
    }
    random = np.random.default_rng(0)
    tensors = {
        "token_embd.weight": random.normal(0, 0.3, (n_vocab, width)).astype(np.float32),
        "output_norm.weight": np.ones(width, np.float32),
    }
    sizes: dict[str, tuple[int, ...]] = {
        "ssm_in.weight": (2 * inner, width),
        "ssm_conv1d.weight": (inner, kernel),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (rank + 2 * state, inner),
        "ssm_dt.weight": (inner, rank),
        "ssm_dt.bias": (inner,),
        "ssm_d": (inner,),
        "ssm_out.weight": (width, inner),
    }
    for block in ("blk.0", "blk.1"):
        for name, size in sizes.items():
            tensors[f"{block}.{name}"] = random.normal(0, 0.3, size).astype(np.float32)
        tensors[f"{block}.ssm_a"] = -random.uniform(0.1, 1, (inner, state)).astype(np.float32)
        tensors[f"{block}.attn_norm.weight"] = np.ones(width, np.float32)
    return write_gguf(path, "mamba", keys, tensors)


def write_embedding_model(path: Path) -> Path:
    """Write a one-layer BERT, which embeds text and generates none, to `path`."""
    width = 64
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581hello"]
    keys = {
        "block_count": 1,
        "context_length": 512,
        "embedding_length": width,
        "feed_forward_length": width,
        "attention.head_count": 2,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.causal": False,
        "pooling_type": int(gguf.PoolingType.MEAN),
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3] * 5 + [1],
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }
    norms = ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm")
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
    sizes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(words), width),
        "token_types.weight": (2, width),
        "position_embd.weight": (512, width),
    }
    sizes |= {f"{name}.{part}": (width,) for name in norms for part in ("weight", "bias")}
    sizes |= {f"blk.0.{name}.bias": (width,) for name in matrices}
    sizes |= {f"blk.0.{name}.weight": (width, width) for name in matrices}
    tensors = {name: np.full(size, 0.1, np.float32) for name, size in sizes.items()}
    return write_gguf(path, "bert", keys, tensors)
