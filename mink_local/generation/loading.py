"""Loading a GGUF model: finding and checking its file, placing layers, allocating KV caches."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date as Date
from functools import partial
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal

from mink_local.errors import ModelError
from mink_local.generation.rendering import start_child
from mink_local.llama.constants import ALL_LAYERS, N_SEQ_MAX, check_range, check_template_kwargs
from mink_local.llama.context import Context
from mink_local.llama.devices import gpu_missing, gpus_in_words, n_cores, servers_in_use
from mink_local.llama.weights import Weights
from mink_local.models import trust as trust_in
from mink_local.models.catalog import resolve
from mink_local.models.gguf import read_metadata
from mink_local.models.memory import (
    USUAL_CONTEXT,
    MemoryNeed,
    Placement,
    Usage,
    caches_that_fit,
    choose_placement,
    memory_budget,
)
from mink_local.samplers import MinK

if TYPE_CHECKING:
    from mink_local.generation.model import Model

ON_CPU, ON_GPU = 32, 64  # answers at a time; more bring little
_AUTO_SHARE = 4  # KV caches may take 1/4 of the free memory if their number is "auto"
_EVERY_LAYER = 9999  # more than any model has; llama.cpp takes all there are

Loader = Callable[[int], tuple[Weights, Context]]

log = logging.getLogger("mink_local")


def load_model(
    model: str | PathLike[str],
    *,
    n_ctx: int | None = None,
    n_parallel: int = 1,
    n_gpu_layers: int | Literal["auto"] = "auto",
    n_threads: int | None = None,
    kv_type: str = "f16",
    flash_attn: bool | None = None,
    backend_sampling: bool | None = None,
    rpc: Sequence[str] | None = None,
    date: Date | None = None,
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
    verbose: bool = False,
) -> "Model":
    """Load a GGUF model.

    Args:
        model: A name from `models.toml`, or a path; see `mink-models --help`.
        n_ctx: Maximum tokens of a prompt plus its answer, at most what the model was trained on. None chooses
            by free memory: 4096, or up to 32768 if there is plenty, or fewer if 4096 do not fit.
        n_parallel: Number of answers that `Model.generate` generates at a time; each has a KV cache of
            `n_ctx` tokens.
        n_gpu_layers: Layers on the GPU, as llama.cpp counts them (the output is one more): "auto" for as many
            as fit into its free memory, -1 for all. If llama.cpp cannot allocate them, fewer are tried, down
            to none. `Model.placement` says where they ended up.
        n_threads: CPU threads; None for one per physical core, without efficiency cores.
        kv_type: Type of the KV cache: f16, q8_0, which takes half the memory, or another of llama.cpp's.
        flash_attn: Whether to use flash attention; None lets llama.cpp decide.
        backend_sampling: Sample tokens inside llama.cpp's compute graph, so that no logits leave the GPU.
            None does so in `chat` if the output layer is on a GPU, no RPC server is in use, and it is
            faster. Before its first use on a model and device, it is compared with sampling on the CPU; if
            they differ, tokens are sampled on the CPU, with a warning. Some samplers, constraints and
            `logprobs` cannot run on the backend; they run on the CPU, with a warning if this is True. The
            same seed gives a different text with backend sampling than on the CPU.
        rpc: Addresses ("HOST:PORT") of llama.cpp RPC servers, whose devices take layers like a GPU, for this
            and all later models in the process. If a server goes away, the process exits.
        date: The date for chat templates that use it (LLaMA-3.1's does); None for today.
        chat_template: Jinja source to use in place of the file's chat template.
        template_kwargs: Variables for the chat template, JSON values, such as `reasoning_effort`; see
            `Request`, which overrides them.
        trust: Start no child process to test an unknown file, an RPC server or a grammar, or to render the
            chat template. For files and grammars that you trust, and for programs that cannot start
            child processes.
        verbose: Write llama.cpp's log to standard error.

    Raises:
        ValueError: An option is out of range.
        ModelNotFoundError: There is no such file.
        ModelError: The file cannot be loaded.
        MinkError: An RPC server cannot be used.
    """
    check_range("n_ctx", n_ctx, 1)
    check_range("n_parallel", n_parallel, 1, N_SEQ_MAX)
    check_range("n_threads", n_threads, 1)
    check_template_kwargs(template_kwargs or {})
    if n_gpu_layers != "auto" and n_gpu_layers < ALL_LAYERS:
        raise ValueError(f"n_gpu_layers must be auto, -1 (all), or at least 0, not {n_gpu_layers}")
    file = resolve(fspath(model))
    if rpc:
        from mink_local.llama.rpc import use_servers

        use_servers(rpc, trust)
    if backend_sampling is None and servers_in_use:  # a server claims to support every operation
        backend_sampling = False
    if not trust:
        trust_in.check(file)
    threads = n_threads or n_cores()
    placement = _choose(file.path, n_ctx, n_gpu_layers, n_parallel, kv_type)
    if placement.warning:
        log.warning("%s: %s", file.name, placement.warning)
    allocate = partial(make_context, n_threads=threads, kv_type=kv_type, flash_attn=flash_attn)

    def load(layers: int) -> tuple[Weights, Context]:
        weights = Weights(file.path, layers, verbose, trust)
        if chat_template is not None:
            weights.chat_template = str(chat_template)
        if n_ctx is not None and n_ctx > weights.n_ctx_train:
            log.warning(
                "%s was trained on %d tokens: limiting the context to that", file.name, weights.n_ctx_train
            )
        return weights, allocate(weights, placement.n_ctx, n_parallel)

    if not trust:
        start_child()
    # Importing Numba takes longer than loading a small model: start now.
    Thread(target=MinK().cutoff, args=([0.0, 1.0],)).start()
    # In another thread, since a Ctrl-C inside llama.cpp's log callback would be lost.
    with ThreadPoolExecutor(max_workers=1) as pool:
        loading = pool.submit(_load, load, placement.n_gpu_layers, n_gpu_layers, threads)
        from mink_local.generation.model import Model  # meanwhile
        from mink_local.generation.template import ChatTemplate
    weights, context, where = loading.result()
    log.info("%s is %s", file.name, where)
    chat_backend = None
    if weights.on_gpu if backend_sampling is None else backend_sampling:
        from mink_local.generation.backend import BackendSampling

        chat_backend = BackendSampling(weights, context.n_threads, is_requested=bool(backend_sampling))
    return Model(
        file.name,
        weights,
        context,
        partial(allocate, weights),
        where,
        ChatTemplate(weights, date, template_kwargs),
        chat_backend=chat_backend,
        # With attached samplers, llama.cpp rebuilds its graph whenever answers come and go, so batches are
        # sampled on the host unless backend sampling is requested.
        batch_backend=chat_backend if backend_sampling else None,
    )


def make_context(
    weights: Weights,
    n_ctx: int,
    n_parallel: int | Literal["auto"],
    n_outputs: int = 0,
    *,
    n_threads: int,
    kv_type: str = "f16",
    flash_attn: bool | None = None,
) -> Context:
    """Allocate KV caches for several answers at a time, no longer than the model was trained on.

    Args:
        n_parallel: Number of answers; see `Model.reserve`.
        n_outputs: Maximum number of logits rows in a batch, at least one per answer.

    Other arguments as for `load_model`, errors as for `Model.reserve`.
    """
    check_range("n_ctx", n_ctx, 1)
    if n_parallel != "auto":
        check_range("n_parallel", n_parallel, 1, N_SEQ_MAX)
    n_ctx = min(n_ctx, weights.n_ctx_train)
    fitting = 1 if n_parallel == 1 else caches_that_fit(weights.path, n_ctx, weights.on_gpu, kv_type)
    if n_parallel == "auto":
        most = ON_GPU if weights.on_gpu else ON_CPU
        wanted = possible = max(1, min(most, fitting // _AUTO_SHARE))
    else:
        wanted, possible = n_parallel, max(1, min(n_parallel, fitting))
    while True:
        try:
            context = Context(
                weights, n_ctx, n_threads, possible, n_outputs, kv_type=kv_type, flash_attn=flash_attn
            )
        except ModelError:
            if possible == 1:
                raise
            possible //= 2
        else:
            break
    if possible < wanted:
        log.warning("low memory: generating %d answers at a time instead of %d", possible, wanted)
    return context


def _choose(
    path: Path,
    n_ctx: int | None,
    n_gpu_layers: int | Literal["auto"],
    n_parallel: int,
    kv_type: str,
) -> Placement:
    """Choose context and layers on the GPU from the file's metadata and the free memory."""
    budget = memory_budget(with_gpus=n_gpu_layers != 0)
    try:
        return choose_placement(
            read_metadata(path),
            budget,
            n_ctx=n_ctx,
            n_gpu_layers=n_gpu_layers,
            n_parallel=n_parallel,
            kv_type=kv_type,
        )
    except ModelError as error:  # llama.cpp may know formats and types unknown here
        log.info("%s", error)
    if n_gpu_layers == "auto":
        n_gpu_layers = ALL_LAYERS if budget.vram else 0
    layers = _EVERY_LAYER if n_gpu_layers == ALL_LAYERS else n_gpu_layers
    return Placement(n_ctx or USUAL_CONTEXT, layers, MemoryNeed(Usage(), Usage()))


def _load(
    load: Loader, n_gpu_layers: int, requested: int | Literal["auto"], threads: int
) -> tuple[Weights, Context, str]:
    """Load with so many layers on the GPU, or as many as fit; also return where they are, as text."""
    missing = gpu_missing()
    if missing:
        if requested not in ("auto", 0):
            log.warning("no layers are on a GPU: %s", missing)
        weights, context = load(0)
        where = f"on the CPU, {threads} thread{'s' * (threads > 1)} ({missing})"
    else:
        layers, weights, context = load_what_fits(load, n_gpu_layers)
        # Asking a server that is gone for its devices would end the process.
        where = describe_layers(layers, weights.n_layers, gpus_in_words()) if layers else "on the CPU"
    return weights, context, f"{where}, with a context of {context.n_ctx} tokens"


def load_what_fits(load: Loader, n_gpu_layers: int) -> tuple[int, Weights, Context]:
    """Load with `n_gpu_layers` on the GPU, or with ever fewer, down to none, if they cannot be allocated.

    Also returns the number of layers.
    """
    tries = [n_gpu_layers * quarters // 4 for quarters in (4, 3, 2, 1)]
    for layers, fewer in pairwise([*sorted({*tries} - {0}, reverse=True), 0]):
        try:
            return layers, *load(layers)
        except ModelError as error:
            reason = str(error)  # keeping the traceback would keep what was loaded in memory
        log.warning("%d layers do not fit on the GPU (%s): trying %d", layers, reason, fewer)
    return 0, *load(0)


def describe_layers(layers: int, n_layers: int, gpus: str = "the GPU") -> str:
    """Return as text where a model's layers are if `layers` of them, at least 1, are on `gpus`."""
    if layers > n_layers:
        return f"on {gpus}, all layers"
    return f"on {gpus} with {layers} of {n_layers + 1} layers, on the CPU with the rest"
