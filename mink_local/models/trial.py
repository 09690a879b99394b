"""Do with a GGUF file all that a chat has llama.cpp do, in the child process that `trust` starts."""

import os
from collections.abc import Callable
from pathlib import Path

from llama_cpp import llama_cpp as C

from mink_local.errors import MinkError
from mink_local.llama.weights import Weights
from mink_local.sandbox import serve

_N_CTX = 512
_N_TOKENS = 8  # enough for a batch of several, few enough for a large model on one thread


def _begin(_: object) -> Callable[[str], str | None]:
    os.environ["GGML_NO_BACKTRACE"] = "1"  # a crash starts no debugger
    return _complaint


def _complaint(path: str) -> str | None:
    """Return what is wrong with a model file, or None; llama.cpp may also end the process."""
    try:
        _try(Path(path))
    except MinkError as error:
        return str(error)
    return None


def _try(path: Path) -> None:
    weights = Weights(path)
    for token in range(weights.n_vocab):
        weights.piece(token)
        weights.ends_generation(token)
    few = (C.llama_token * _N_TOKENS)()
    for byte in range(256):  # llama.cpp ends the process at a text with a byte that the vocabulary lacks
        C.llama_tokenize(weights.vocab, bytes([byte]), 1, few, len(few), False, False)
    prompt = "".join((weights.bos, "Hello", weights.eos, *weights.control_tokens))
    tokens = weights.tokenize(prompt, add_special=True, parse_special=True)
    params = C.llama_context_default_params()
    params.n_ctx = min(_N_CTX, weights.n_ctx_train)
    params.n_threads = params.n_threads_batch = 1  # two would wait for each other on a busy machine
    context = C.llama_init_from_model(weights.handle, params)
    if not context or not C.llama_get_memory(context):
        return  # loading the model says why
    for part in (tokens[:_N_TOKENS], tokens[:1]):
        array = (C.llama_token * len(part))(*part)
        C.llama_decode(context, C.llama_batch_get_one(array, len(part)))
        C.llama_get_logits_ith(context, -1)


if __name__ == "__main__":
    serve(_begin)
