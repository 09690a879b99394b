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

from mink_local.errors import MinkError, ModelError
from mink_local.generation.rendering import start_child
from mink_local.llama.constants import (
    ALL_LAYERS,
    N_SEQ_MAX,
    check_range,
    check_split,
    check_template_kwargs,
)
from mink_local.llama.context import Context
from mink_local.llama.devices import gpu_missing, gpu_pointers, gpus_in_words, n_cores
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

Loader = Callable[[int, int], tuple[Weights, Context]]

log = logging.getLogger("mink_local")


def load_model(
    model: str | PathLike[str],
    *,
    n_ctx: int | None = None,
    n_parallel: int = 1,
    n_gpu_layers: int | Literal["auto"] = "auto",
    n_cpu_moe: int | None = None,
    tensor_split: Sequence[float] | None = None,
    main_gpu: int | None = None,
    n_threads: int | None = None,
    kv_type: str = "f16",
    flash_attn: bool | None = None,
    rpc: Sequence[str] | None = None,
    date: Date | None = None,
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
    verbose: bool = False,
) -> "Model":
    """Load a GGUF model.

    Args:
        model: A name from `models.txt`, or a path; see `mink-models --help`.
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
        rpc: Addresses ("HOST:PORT") of llama.cpp RPC servers, whose devices take layers like a GPU, for this
            and all later models in the process. If a server goes away, the process exits.
        date: The date for chat templates that use it (LLaMA-3.1's does); None for today.
        chat_template: Jinja source to use in place of the file's chat template.
        template_kwargs: Variables for the chat template, JSON values, such as `reasoning_effort`; see
            `Request`, which overrides them.
        trust: Start no child process to test an unknown file or an RPC server, or to render the chat
            template. For files that you trust, and for programs that cannot start child processes.
        verbose: Write llama.cpp's log to standard error.

    Raises:
        ValueError: An option is out of range.
        ModelNotFoundError: There is no such file.
        ModelError: The file cannot be loaded.
        MinkError: An RPC server cannot be used, or a GPU is named that does not exist.
    """
    check_range("n_ctx", n_ctx, 1)
    check_range("n_parallel", n_parallel, 1, N_SEQ_MAX)
    check_range("n_threads", n_threads, 1)
    check_template_kwargs(template_kwargs or {})
    if n_gpu_layers != "auto" and n_gpu_layers < ALL_LAYERS:
        raise ValueError(f"n_gpu_layers must be auto, -1 (all), or at least 0, not {n_gpu_layers}")
    check_range("n_cpu_moe", n_cpu_moe, ALL_LAYERS)
    check_range("main_gpu", main_gpu, 0)
    check_split(tensor_split or (1,))
    file = resolve(fspath(model))
    if rpc:
        from mink_local.llama.rpc import use_servers

        use_servers(rpc, trust)
    if not trust:
        trust_in.check(file)
    threads = n_threads or n_cores()
    shares = _gpu_shares(tensor_split, main_gpu)
    placement = _choose(file.path, n_ctx, n_gpu_layers, n_cpu_moe, shares, n_parallel, kv_type)
    if placement.warning:
        log.warning("%s: %s", file.name, placement.warning)
    if n_cpu_moe and not placement.n_mixed:
        log.warning("%s is not a mixture of experts: it has no experts to keep on the CPU", file.name)
    most_experts = placement.n_mixed if n_cpu_moe is None else placement.n_cpu_moe
    wants_gpu = n_gpu_layers not in ("auto", 0) or tensor_split is not None or main_gpu is not None
    allocate = partial(make_context, n_threads=threads, kv_type=kv_type, flash_attn=flash_attn)

    def load(layers: int, n_cpu_moe: int) -> tuple[Weights, Context]:
        weights = Weights(file.path, layers, verbose, trust, n_cpu_moe=n_cpu_moe, gpu_shares=shares)
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
        loading = pool.submit(_load, load, placement, most_experts, wants_gpu, threads)
        from mink_local.generation.model import Model  # meanwhile
        from mink_local.generation.template import ChatTemplate
    weights, context, where = loading.result()
    log.info("%s is %s", file.name, where)
    return Model(
        file.name,
        weights,
        context,
        partial(allocate, weights),
        where,
        ChatTemplate(weights, date, template_kwargs),
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
    on_gpu, shares = weights.on_gpu, weights.gpu_shares
    fitting = 1 if n_parallel == 1 else caches_that_fit(weights.path, n_ctx, on_gpu, kv_type, shares)
    if n_parallel == "auto":
        most = ON_GPU if on_gpu else ON_CPU
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


def _gpu_shares(tensor_split: Sequence[float] | None, main_gpu: int | None) -> tuple[float, ...]:
    """Return the proportions of layers that the GPUs get; none for those of their free memory.

    Raises MinkError if there are fewer GPUs.
    """
    if tensor_split and main_gpu is not None:
        raise MinkError("main_gpu puts all layers on one GPU: leave out tensor_split")
    last = len(tensor_split or ()) - 1 if main_gpu is None else main_gpu
    if last < 0 or not (n_gpus := len(gpu_pointers())):
        return ()
    if last >= n_gpus:
        raise MinkError(f"there is no GPU {last}: llama.cpp finds {n_gpus}, counted from 0")
    return tuple(tensor_split or (0.0,) * last + (1.0,))


def _choose(
    path: Path,
    n_ctx: int | None,
    n_gpu_layers: int | Literal["auto"],
    n_cpu_moe: int | None,
    shares: Sequence[float],
    n_parallel: int,
    kv_type: str,
) -> Placement:
    """Choose context and layers on the GPU from the file's metadata and the free memory."""
    budget = memory_budget(with_gpus=n_gpu_layers != 0, shares=shares)
    try:
        return choose_placement(
            read_metadata(path),
            budget,
            n_ctx=n_ctx,
            n_gpu_layers=n_gpu_layers,
            n_cpu_moe=n_cpu_moe,
            n_parallel=n_parallel,
            kv_type=kv_type,
        )
    except ModelError as error:  # llama.cpp may know formats and types unknown here
        log.info("%s", error)
    if n_gpu_layers == "auto":
        n_gpu_layers = ALL_LAYERS if budget.vram else 0
    layers = _EVERY_LAYER if n_gpu_layers == ALL_LAYERS else n_gpu_layers
    experts, need = min(n_cpu_moe or 0, _EVERY_LAYER), MemoryNeed(Usage(), Usage())
    return Placement(n_ctx or USUAL_CONTEXT, layers, experts, need, n_mixed=ALL_LAYERS)


def _load(
    load: Loader, placement: Placement, most_experts: int, wants_gpu: bool, threads: int
) -> tuple[Weights, Context, str]:
    """Load what a placement puts on the GPU, or as much as fits; also return where it is, as text."""
    missing = gpu_missing()
    if missing:
        if wants_gpu:
            log.warning("no layers are on a GPU: %s", missing)
        weights, context = load(0, 0)
        where = f"on the CPU, {threads} thread{'s' * (threads > 1)} ({missing})"
    else:
        experts = dict.fromkeys((placement.n_cpu_moe, most_experts))
        layers, n_cpu_moe, weights, context = load_what_fits(load, placement.n_gpu_layers, [*experts])
        # Asking a server that is gone for its devices would end the process.
        gpus = gpus_in_words(weights.gpu_shares) if layers else ""
        where = describe_layers(layers, weights.n_layers, gpus, n_cpu_moe) if layers else "on the CPU"
    return weights, context, f"{where}, with a context of {context.n_ctx} tokens"


def load_what_fits(
    load: Loader, n_gpu_layers: int, experts: Sequence[int] = (0,)
) -> tuple[int, int, Weights, Context]:
    """Load with `n_gpu_layers` on the GPU, or with ever less, down to nothing, if that cannot be allocated.

    Also returns the number of layers, and of those whose experts are on the CPU.

    Args:
        experts: The numbers of layers whose experts to keep on the CPU, before there are fewer layers.
    """
    fewer = {n_gpu_layers * quarters // 4 for quarters in (3, 2, 1)} - {0, n_gpu_layers}
    tries = [(n_gpu_layers, n) for n in experts if n_gpu_layers]
    tries += [*((n, experts[-1]) for n in sorted(fewer, reverse=True)), (0, 0)]
    for this, following in pairwise(tries):
        try:
            return *this, *load(*this)
        except ModelError as error:
            reason = str(error)  # keeping the traceback would keep what was loaded in memory
        layers, (n, _) = this[0], following
        instead = n if n < layers else "all but experts"
        log.warning("%d layers do not fit on the GPU (%s): trying %s", layers, reason, instead)
    return 0, 0, *load(0, 0)


def describe_layers(layers: int, n_layers: int, gpus: str = "the GPU", n_cpu_moe: int = 0) -> str:
    """Return as text where a model's layers are if `layers` of them, at least 1, are on `gpus`.

    Args:
        n_cpu_moe: Number of layers, from the first, whose experts are on the CPU.
    """
    every = n_cpu_moe == ALL_LAYERS or n_cpu_moe >= n_layers
    count = "layer" if n_cpu_moe == 1 else f"{n_cpu_moe} layers"
    experts = "all experts" if every else f"the experts of the first {count}"
    first = max(n_layers + 1 - layers, 0)  # on a GPU
    has_moved = every or n_cpu_moe > first
    if first == 0:
        return f"on {gpus}, {f'{experts} on the CPU' if has_moved else 'all layers'}"
    rest = f"the rest and {experts}" if has_moved else "the rest"
    return f"on {gpus} with {layers} of {n_layers + 1} layers, on the CPU with {rest}"
