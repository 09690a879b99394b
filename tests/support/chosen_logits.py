"""A GGUF model whose logits are chosen: after token i, it gives row i, exactly."""

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

WIDTH = 64  # and the most rows


def write_chosen_logits(path: Path, rows: NDArray[np.float32]) -> Path:
    """Write a model to `path` that answers token i with `rows[i]`.

    The embedding of token i is 8 times the unit vector i, which the layer (all zeros) and the norms leave
    as it is, so a logit is 8 times one element of the output matrix. A row with a NaN or an infinity must be
    the only row: 0 times that is not 0.

    Args:
        path: The file.
        rows: Logits, (at most WIDTH, at least as many as rows).
    """
    n, n_vocab = rows.shape
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(0.0)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_vocab_size(n_vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<0x0A>", *(f"t{i}" for i in range(1, n_vocab))])
    writer.add_token_scores([0.0] * n_vocab)
    writer.add_token_types([6] + [1] * (n_vocab - 1))  # a byte, normal tokens
    embeddings, output = np.zeros((2, n_vocab, WIDTH), np.float32)
    embeddings[range(n), range(n)] = 8
    output[:, :n] = rows.T / 8
    writer.add_tensor("token_embd.weight", embeddings)
    writer.add_tensor("output.weight", output)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((WIDTH, WIDTH), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
