"""A GGUF model that writes chosen texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

from tests.support.tiny import write_table_model

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
    tokenizer = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.eos_token_id": number[END],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": template,
    }
    return write_table_model(path, embeddings, output, tokenizer)
