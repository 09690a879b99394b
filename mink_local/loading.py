"""Loading a GGUF model: which file, whether it can be trusted, where its layers go."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import psutil

from mink_local.catalog import resolve
from mink_local.errors import ModelError
from mink_local.llamacpp import ALL_LAYERS, N_SEQ_MAX, Context, Weights, gpu_missing
from mink_local.parallel import make_context
from mink_local.vetting import vet

if TYPE_CHECKING:
    from mink_local.model import Model, Sampling

DEFAULT_N_CTX = 4096

Loader = Callable[[int], tuple[Weights, Context]]

log = logging.getLogger("mink_local")


def load_model(
    model: str,
    *,
    n_ctx: int | None = None,
    n_parallel: int = 1,
    n_gpu_layers: int | Literal["auto"] = "auto",
    n_threads: int | None = None,
    sampling: "Sampling" = "auto",
    verbose: bool = False,
) -> "Model":
    """Load a GGUF model.

    model: an alias of `models.txt` or a path.
    n_ctx: tokens that prompt and answer share, all answers that are written at a time together; by
        default 4096 for each, and at most what the model was trained on.
    n_parallel: how many answers can be written at a time (`Model.generate`); see also `Model.reserve`.
    n_gpu_layers: "auto" puts every layer on the GPU where there is one, fewer where they do not fit,
        none where there is no GPU; a number asks for just so many. `Model.placement` says what came
        of it.
    n_threads: CPU threads, one for every physical core by default.
    sampling: "graph" draws tokens inside llama.cpp's compute graph, so that no logits leave the GPU, "host"
        outside of it; "auto" takes the graph where the output layer is on a GPU, which it is as soon as
        one layer is. What has no graph form is drawn on the host, with a warning.
    verbose: llama.cpp's log on standard error.

    Raises ModelNotFoundError, or ModelError for a file that cannot be loaded. A file that is not yet known
    is first tried in a child process (`vetting`).
    """
    if n_ctx is not None and n_ctx < 1:
        raise ValueError(f"n_ctx must be at least 1, not {n_ctx}")
    if not 1 <= n_parallel <= N_SEQ_MAX:
        raise ValueError(f"n_parallel must be from 1 to {N_SEQ_MAX}, not {n_parallel}")
    if n_threads is not None and n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, not {n_threads}")
    if n_gpu_layers != "auto" and n_gpu_layers < ALL_LAYERS:
        raise ValueError(f"n_gpu_layers must be auto, -1 for all, or more, not {n_gpu_layers}")
    if sampling not in ("auto", "host", "graph"):
        raise ValueError(f"sampling must be auto, host or graph, not {sampling!r}")
    file = resolve(model)
    vet(file)
    threads = n_threads or _physical_cores()
    n_ctx_each = DEFAULT_N_CTX if n_ctx is None else max(1, n_ctx // n_parallel)

    def load(layers: int) -> tuple[Weights, Context]:
        weights = Weights(file.path, layers, verbose)
        if n_ctx is not None and n_ctx_each > weights.n_ctx_train:
            log.warning("%s was trained on %d tokens: the context is that", file.name, weights.n_ctx_train)
        return weights, make_context(weights, n_ctx_each, threads, n_parallel)

    # In another thread, which Ctrl-C cannot reach inside llama.cpp's log callback, and which leaves
    # this one free to import Numba meanwhile: each takes about a third of a second.
    with ThreadPoolExecutor(max_workers=1) as pool:
        loading = pool.submit(_place, load, n_gpu_layers, threads)
        from mink_local.model import Model

        weights, context, placement = loading.result()
    log.info("%s is %s", file.name, placement)
    return Model(file.name, weights, context, placement, sampling)


def _place(load: Loader, n_gpu_layers: int | Literal["auto"], threads: int) -> tuple[Weights, Context, str]:
    """Load with the layers where they were asked for, or where they can be; says where that is."""
    missing = gpu_missing()
    if missing:
        if n_gpu_layers not in ("auto", 0):
            log.warning("no layer goes to a GPU: %s", missing)
        return *load(0), f"on the CPU, {threads} threads ({missing})"
    if n_gpu_layers == "auto":
        return _load_what_fits(load)
    weights, context = load(n_gpu_layers)
    return weights, context, _placement(n_gpu_layers, weights.n_layers)


def _load_what_fits(load: Loader) -> tuple[Weights, Context, str]:
    """Load with as many layers on the GPU as it takes: all, three quarters, half, a quarter, none."""
    try:
        weights, context = load(ALL_LAYERS)
        return weights, context, _placement(ALL_LAYERS, weights.n_layers)
    except ModelError as error:
        reason = error
    weights, context = load(0)  # what fails here does not fail for want of GPU memory
    for quarters in (3, 2, 1):
        layers = weights.n_layers * quarters // 4
        try:
            weights, context = load(layers)
            break
        except ModelError:
            layers = 0
    placement = f"{_placement(layers, weights.n_layers)} (all of it does not fit the GPU)"
    log.warning("%s: %s", placement, reason)
    return weights, context, placement


def _placement(layers: int, n_layers: int) -> str:
    if layers == 0:
        return "on the CPU"
    if layers == ALL_LAYERS or layers > n_layers:
        return "on the GPU, every layer"
    return f"on the GPU with {layers} of {n_layers} layers, on the CPU with the rest"


def _physical_cores() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 1, available or 1))
