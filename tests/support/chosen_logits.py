"""A GGUF model whose logits are chosen: after token i, it gives row i, exactly."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.tiny import write_table_model

WIDTH = 64  # and the maximum number of rows


def write_chosen_logits(path: Path, rows: NDArray[np.float32]) -> Path:
    """Write a model to `path` that answers token i with `rows[i]`.

    A row with a NaN or an infinity must be the only row: 0 times that is not 0.

    Args:
        rows: Logits, (at most WIDTH, at least as many as rows).
    """
    n, n_vocab = rows.shape
    embeddings, output = np.zeros((2, n_vocab, WIDTH), np.float32)
    embeddings[range(n), range(n)] = 8
    output[:, :n] = rows.T / 8
    tokenizer = {
        "tokenizer.ggml.tokens": ["<0x0A>", *(f"t{i}" for i in range(1, n_vocab))],
        "tokenizer.ggml.token_type": [6] + [1] * (n_vocab - 1),  # a byte, normal tokens
    }
    return write_table_model(path, embeddings, output, tokenizer)
