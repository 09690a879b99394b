"""A GGUF model that writes chosen texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

END = "<|end|>"


def write_scripted(path: Path, template: str, scripts: Mapping[str, Sequence[str]]) -> Path:
    """Write a model to `path` that answers a prompt by what the prompt ends with.

    The embedding of a token is 8 times a unit vector of its own, which the layer (all zeros) and the norms
    leave as it is, so that the last token alone decides which one comes next.

    Args:
        path: The file.
        template: The chat template; it ends prompts with a key of `scripts`.
        scripts: For the end of a prompt, the pieces of the answer. No piece may come twice.
    """
    pieces = [piece for start, script in scripts.items() for piece in (start, *script)]
    assert len(pieces) == len(set(pieces))
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", END, *pieces]
    number = {token: i for i, token in enumerate(tokens)}
    kinds = gguf.TokenType
    types = [kinds.BYTE] * 256 + [kinds.NORMAL, kinds.CONTROL] + [kinds.USER_DEFINED] * len(pieces)
    width = -(-len(tokens) // 64) * 64
    embeddings, output = np.zeros((2, len(tokens), width), np.float32)
    np.fill_diagonal(embeddings, 8)
    for start, script in scripts.items():
        for piece, following in zip((start, *script), (*script, END), strict=True):
            output[number[following], number[piece]] = 8
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(0.0)
    writer.add_rope_dimension_count(width // 2)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_eos_token_id(number[END])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", embeddings)
    writer.add_tensor("output.weight", output)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((width, width), np.float32))
    writer.add_tensor("blk.0.ffn_gate.weight", np.zeros((64, width), np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((64, width), np.float32))
    writer.add_tensor("blk.0.ffn_down.weight", np.zeros((width, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
