"""How many answers are written at a time: KV caches that fit the memory."""

import logging
from typing import Literal

from mink_local.errors import ModelError
from mink_local.llama.context import N_SEQ_MAX, Context
from mink_local.llama.weights import Weights
from mink_local.models.memory import caches_that_fit

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
        wanted = possible = max(1, min(most, caches_that_fit(weights.path, n_ctx, weights.on_gpu) // _SHARE))
    else:
        wanted = n_parallel
        possible = (
            1 if wanted == 1 else max(1, min(wanted, caches_that_fit(weights.path, n_ctx, weights.on_gpu)))
        )
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
