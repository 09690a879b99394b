"""Loading a GGUF model: which file, whether it can be trusted, where its layers go."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from mink_local.errors import ModelError
from mink_local.generation.parallel import make_context
from mink_local.llama.context import ALL_LAYERS, N_SEQ_MAX, Context
from mink_local.llama.devices import gpu_missing
from mink_local.llama.weights import Weights
from mink_local.models import trust
from mink_local.models.catalog import resolve
from mink_local.models.gguf import read_metadata
from mink_local.models.memory import (
    USUAL_CONTEXT,
    MemoryNeed,
    Placement,
    Usage,
    choose_placement,
    memory_budget,
)

if TYPE_CHECKING:
    from mink_local.generation.model import Model, Sampling

_EVERY_LAYER = 9999  # more than any model has: llama.cpp takes as many as there are

Loader = Callable[[int], tuple[Weights, Context]]

log = logging.getLogger("mink_local")


def load_model(
    model: str,
    *,
    n_ctx: int | None = None,
    n_parallel: int | None = None,
    n_gpu_layers: int | Literal["auto"] = "auto",
    n_threads: int | None = None,
    sampling: "Sampling" = "auto",
    today: date | None = None,
    verbose: bool = False,
) -> "Model":
    """Load a GGUF model.

    model: an alias of `models.txt` or a path.
    n_ctx: tokens that prompt and answer share, all answers that are written at a time together, and at
        most what the model was trained on for each. By default it is chosen from the free memory: 4096
        for each, up to 32768 for a single one, fewer where 4096 do not fit (`fit.plan`).
    n_parallel: how many answers can be written at a time, by `Model.generate`; see also `Model.reserve`. By
        default `Model.generate` chooses, when it is called.
    n_gpu_layers: "auto" puts as many layers on the GPU as its free memory holds, none where there is no
        GPU; a number asks for so many, as llama.cpp counts them (the output is one more), -1 for all.
        Where even those turn out not to fit it is tried with fewer, down to none. `Model.placement` says
        what came of it.
    n_threads: CPU threads, one for every physical core by default.
    sampling: "graph" draws tokens inside llama.cpp's compute graph, so that no logits leave the GPU, "host"
        outside of it; "auto" takes the graph where the output layer is on a GPU, which it is as soon as
        one layer is. What has no graph form is drawn on the host, with a warning.
    today: what a chat template that writes the date (LLaMA-3.1's does) is told, by default the truth.
    verbose: llama.cpp's log on standard error.

    Raises ModelNotFoundError, or ModelError for a file that cannot be loaded. A file that is not yet known
    is first tried in a child process (`models.trust`).
    """
    if n_ctx is not None and n_ctx < 1:
        raise ValueError(f"n_ctx must be at least 1, not {n_ctx}")
    if n_parallel is not None and not 1 <= n_parallel <= N_SEQ_MAX:
        raise ValueError(f"n_parallel must be from 1 to {N_SEQ_MAX}, not {n_parallel}")
    if n_threads is not None and n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, not {n_threads}")
    if n_gpu_layers != "auto" and n_gpu_layers < ALL_LAYERS:
        raise ValueError(f"n_gpu_layers must be auto, -1 for all, or more, not {n_gpu_layers}")
    if sampling not in ("auto", "host", "graph"):
        raise ValueError(f"sampling must be auto, host or graph, not {sampling!r}")
    file = resolve(model)
    trust.check(file)
    threads = n_threads or _physical_cores()
    n_seq = n_parallel or 1
    plan = _plan(file.path, n_ctx and n_ctx // n_seq, n_gpu_layers, n_seq)
    if plan.warning:
        log.warning("%s: %s", file.name, plan.warning)

    def load(layers: int) -> tuple[Weights, Context]:
        weights = Weights(file.path, layers, verbose)
        if n_ctx is not None and n_ctx // n_seq > weights.n_ctx_train:
            log.warning("%s was trained on %d tokens: the context is that", file.name, weights.n_ctx_train)
        return weights, make_context(weights, plan.n_ctx, threads, n_seq)

    # In another thread, which Ctrl-C cannot reach inside llama.cpp's log callback, and which leaves
    # this one free to import Numba meanwhile: each takes about a third of a second.
    with ThreadPoolExecutor(max_workers=1) as pool:
        loading = pool.submit(_place, load, plan.n_gpu_layers, n_gpu_layers, threads)
        from mink_local.generation.model import Model

        weights, context, placement = loading.result()
    log.info("%s is %s", file.name, placement)
    return Model(file.name, weights, context, placement, sampling, n_parallel is None, today)


def _plan(path: Path, n_ctx: int | None, n_gpu_layers: int | Literal["auto"], n_parallel: int) -> Placement:
    """What of the model goes where."""
    free = memory_budget()
    try:
        header = read_metadata(path)
        return choose_placement(header, free, n_ctx=n_ctx, n_gpu_layers=n_gpu_layers, n_parallel=n_parallel)
    except ModelError as error:  # llama.cpp may know of formats and types that are unknown here
        log.info("%s", error)
    if n_gpu_layers == "auto":
        n_gpu_layers = ALL_LAYERS if free.vram else 0
    layers = _EVERY_LAYER if n_gpu_layers == ALL_LAYERS else n_gpu_layers
    return Placement(n_ctx or USUAL_CONTEXT, layers, MemoryNeed(Usage(), Usage()))


def _place(
    load: Loader, n_gpu_layers: int, asked_for: int | Literal["auto"], threads: int
) -> tuple[Weights, Context, str]:
    """Load with so many layers on the GPU, or as many as it takes; says where they are."""
    missing = gpu_missing()
    if missing:
        if asked_for not in ("auto", 0):
            log.warning("no layer goes to a GPU: %s", missing)
        weights, context = load(0)
        placement = f"on the CPU, {threads} threads ({missing})"
    else:
        layers, weights, context = _load_what_fits(load, n_gpu_layers)
        placement = _placement(layers, weights.n_layers)
    return weights, context, f"{placement}, with a context of {context.n_ctx} tokens"


def _load_what_fits(load: Loader, n_gpu_layers: int) -> tuple[int, Weights, Context]:
    """Load with `n_gpu_layers` on the GPU or, where llama.cpp cannot allocate that, with three quarters of
    them, half, a quarter, none. Returns how many it took."""
    tries = [n_gpu_layers * quarters // 4 for quarters in (4, 3, 2, 1)]
    for layers, fewer in pairwise([*sorted({*tries} - {0}, reverse=True), 0]):
        try:
            return layers, *load(layers)
        except ModelError as error:
            reason = str(error)  # its traceback would keep what it has loaded so far in memory
        log.warning("%d layers do not fit the GPU (%s): trying %d", layers, reason, fewer)
    return 0, *load(0)


def _placement(layers: int, n_layers: int) -> str:
    if layers == 0:
        return "on the CPU"
    if layers > n_layers:
        return "on the GPU, every layer"
    return f"on the GPU with {layers} of {n_layers + 1} layers, on the CPU with the rest"


def _physical_cores() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 1, available or 1))
