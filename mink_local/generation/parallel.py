"""How many answers are written at a time: KV caches that fit the memory."""

import logging
from typing import Literal

import psutil

from mink_local.errors import ModelError
from mink_local.llama.context import N_SEQ_MAX, Context
from mink_local.llama.devices import gpus
from mink_local.llama.weights import Weights
from mink_local.models.gguf import read_metadata
from mink_local.models.memory import kv_bytes_per_token

ON_CPU, ON_GPU = 32, 64  # answers at a time, from where on more of them gain little
_SHARE = 4  # of the free memory, the part that is taken unasked

log = logging.getLogger("mink_local")


def make_context(
    weights: Weights,
    n_ctx: int,
    n_threads: int,
    n_parallel: int | Literal["auto"],
    n_outputs: int = 0,
) -> Context:
    """KV caches for `n_parallel` answers at a time that share `n_ctx` tokens each with their prompts, but
    no more tokens than the model was trained on.

    n_parallel: "auto" is 32 on a CPU and 64 on a GPU, or as many as fit a quarter of the free memory. Where
        there is no memory for as many as were asked for, there are fewer, with a warning.
    n_outputs: see `Context`.

    Raises ValueError for a number out of range, ModelError where there is no memory for one answer.
    """
    if n_ctx < 1:
        raise ValueError(f"n_ctx must be at least 1, not {n_ctx}")
    if n_parallel != "auto" and not 1 <= n_parallel <= N_SEQ_MAX:
        raise ValueError(f"n_parallel must be from 1 to {N_SEQ_MAX}, not {n_parallel}")
    n_ctx = min(n_ctx, weights.n_ctx_train)
    if n_parallel == "auto":
        most = ON_GPU if weights.on_gpu else ON_CPU
        wanted = possible = max(1, min(most, _fitting(weights, n_ctx) // _SHARE))
    else:
        wanted = n_parallel
        possible = 1 if wanted == 1 else max(1, min(wanted, _fitting(weights, n_ctx)))
    while True:
        try:
            context = Context(weights, n_ctx, n_threads, possible, n_outputs)
        except ModelError:
            if possible == 1:
                raise
            possible //= 2
        else:
            break
    if possible < wanted:
        log.warning("memory is short: %d answers at a time instead of %d", possible, wanted)
    return context


def _fitting(weights: Weights, n_ctx: int) -> int:
    """How many caches of `n_ctx` tokens the free memory holds."""
    try:
        each = n_ctx * kv_bytes_per_token(read_metadata(weights.path))
    except ModelError:  # llama.cpp may know of formats that are unknown here
        each = 0
    return _free_memory(weights) // each if each else N_SEQ_MAX


def _free_memory(weights: Weights) -> int:
    """Bytes that are free where the KV cache goes."""
    return sum(gpu.free for gpu in gpus()) if weights.on_gpu else psutil.virtual_memory().available
