"""Compiles the samplers' kernels in the background: once after an installation, while the person types."""

from collections.abc import Callable
from functools import lru_cache
from threading import Thread

import numpy as np

from mink_local.llama.token_sampler import TokenSampler
from mink_local.samplers import Sampler
from mink_local.samplers.compile import cached_names


@lru_cache
def compiling(*samplers: Sampler) -> Callable[[], bool]:
    """Compile samplers in a thread if the cache lacks one; return a function that says if it is at work."""
    cached = cached_names()
    missing = [one for one in samplers if not {member.kernel.__name__ for member in one.members} <= cached]

    def compile_all() -> None:
        for sampler in missing:
            TokenSampler(sampler, 1.0, 0, n_vocab=2)(np.zeros(2, np.float32), step=0)

    thread = Thread(target=compile_all, daemon=True)
    if missing:
        thread.start()
    return thread.is_alive
