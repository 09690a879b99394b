"""Writes small GGUF models with random weights and the vocabulary of another GGUF file."""

from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

WIDTH = 64
HEADS = 2


@cache
def _tokenizer(path: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(path).fields
    return {key: field for key, field in fields.items() if key.startswith("tokenizer.")}


def write_model(
    path: Path,
    vocabulary: Path,
    arch: str = "llama",
    template: str | None = "",
    scale: float = 1.0,
    n_ctx_train: int = 2048,
    seed: int = 0,
) -> Path:
    """Write a one-layer model to `path`.

    vocabulary: the GGUF file whose tokenizer it takes. template: a chat template, None for none, ""
    for that of `vocabulary`. scale: of the weights of the output norm; NaN makes every logit NaN.
    """
    tokenizer = _tokenizer(vocabulary)
    n_vocab = len(tokenizer["tokenizer.ggml.tokens"].data)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(n_vocab)
    for key, field in tokenizer.items():
        if key != "tokenizer.chat_template":
            kind = field.types[0]
            sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type)
    if template == "" and "tokenizer.chat_template" in tokenizer:
        template = tokenizer["tokenizer.chat_template"].contents()
    if template:
        writer.add_chat_template(template)

    random = np.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0, 0.3, shape).astype(np.float16))

    def add_norm(name: str, size: int, value: float = 1.0) -> None:
        writer.add_tensor(name, np.full(size, value, np.float32))

    add("token_embd.weight", n_vocab, WIDTH)
    add_norm("output_norm.weight", WIDTH, scale)
    add_norm("blk.0.attn_norm.weight", WIDTH)
    add_norm("blk.0.ffn_norm.weight", WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        add(f"blk.0.{name}.weight", WIDTH, WIDTH)
    if arch == "qwen3":
        add_norm("blk.0.attn_q_norm.weight", WIDTH // HEADS)
        add_norm("blk.0.attn_k_norm.weight", WIDTH // HEADS)
    return _finish(writer, path)


def write_embedding_model(path: Path) -> Path:
    """Write a one-layer BERT, which embeds text and writes none, to `path`."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
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

    add("token_embd.weight", len(words), WIDTH)
    add("token_types.weight", 2, WIDTH)
    add("position_embd.weight", 512, WIDTH)
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        add(f"{name}.weight", WIDTH)
        add(f"{name}.bias", WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        add(f"blk.0.{name}.weight", WIDTH, WIDTH)
        add(f"blk.0.{name}.bias", WIDTH)
    return _finish(writer, path)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
