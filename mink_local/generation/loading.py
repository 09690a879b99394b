"""Loading a GGUF model: finding and checking its file, placing layers, allocating KV caches."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date as Date
from functools import partial
from importlib import import_module
from itertools import pairwise
from os import PathLike, fsdecode
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, Unpack

from mink_local.checks import Range, check_types, spelled_out
from mink_local.errors import MinkError, ModelError
from mink_local.files import size_in_words
from mink_local.generation.format.rendering import check_template
from mink_local.llama.constants import ALL_LAYERS, N_BATCH, N_SEQ_MAX, check_template_kwargs
from mink_local.llama.context import Context
from mink_local.llama.devices import gpu_missing, gpu_pointers, gpus_in_words, n_cores, nvidia_is_unused
from mink_local.llama.weights import Cancel, Weights
from mink_local.models import trust as trust_in
from mink_local.models.catalog import ModelFile, resolve
from mink_local.models.gguf import DamagedFileError, read_metadata
from mink_local.models.memory import (
    USUAL_CONTEXT,
    Budget,
    MemoryNeed,
    Placement,
    Usage,
    caches_that_fit,
    choose_placement,
    memory_budget,
)
from mink_local.models.placement import Placed, PlacementKeywords, PlacementOptions
from mink_local.samplers import MinK
from mink_local.threads import LOADING, in_background, result_of

if TYPE_CHECKING:
    from mink_local.generation.model import Model

ON_CPU, ON_GPU = 32, 64  # answers at a time; more bring little
_AUTO_DIVISOR = 4  # KV caches may take 1/4 of the free memory if their number is "auto"
_EVERY_LAYER = 9999  # more than any model has; llama.cpp takes all there are
_N_OUTPUTS = Range(0, N_BATCH * N_SEQ_MAX, whole=True)
_N_CTX, _N_PARALLEL = Range(1, whole=True), Range(1, N_SEQ_MAX, whole=True)
_AT_LEAST_0 = Range(0)

Loader = Callable[[int, int], tuple[Weights, Context]]
"""Loads with so many layers on the GPU, and the experts of so many on the CPU. Raises ModelError."""

log = logging.getLogger("mink_local")


@spelled_out(PlacementOptions)
def load_model(
    model: str | PathLike[str],
    *,
    n_ctx: int | None = None,
    n_parallel: int = 1,
    placement: PlacementOptions | None = None,
    kv_type: str = "f16",
    flash_attn: bool | None = None,
    checkpoint_memory: float | None = None,
    date: Date | None = None,
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    call_style: str | Mapping[str, Any] | None = None,
    reasoning_marks: Sequence[str] | None = None,
    trust: bool = False,
    verbose: bool = False,
    **options: Unpack[PlacementKeywords],
) -> "Model":
    """Load a GGUF model.

    Args:
        model: A name from `models.txt`, or a path; see `mink-models --help`.
        n_ctx: Maximum tokens of a prompt plus its answer, rounded up to a multiple of 256, and at most what
            the model was trained on. None chooses by free memory: 4096, or up to 32768 if there is plenty, or
            fewer if 4096 do not fit.
        n_parallel: Number of answers that are generated at a time; each has a KV cache of `n_ctx` tokens.
        placement: Where the layers go; None for as many on the GPU as fit.
        kv_type: Type of the KV cache: f16, q8_0, which takes half the memory, or another of llama.cpp's.
        flash_attn: Whether to use flash attention; None lets llama.cpp decide. It changes the last digits of
            the logits, and so may change texts.
        checkpoint_memory: MB for checkpoints, from which a hybrid or recurrent model goes on where others
            forget the end of a conversation; at 0 it reads all of it again. None for 512, or a twentieth of
            the free memory if that is less. The last checkpoint is kept in any case.
        date: The date for chat templates that use it (LLaMA-3.1's does); None for today.
        chat_template: Jinja source to use in place of the file's chat template.
        template_kwargs: Variables for the chat template, JSON values, such as `reasoning_effort`; see
            `Request`, which overrides them.
        call_style: How the model writes tool calls if its chat template does not tell, or wrongly: hermes,
            gpt-oss, lfm2, granite-3.3, or fields as `mink-models info --json` prints them under
            `conventions.calls`.
        reasoning_marks: What stands before and after reasoning if the template does not tell, or wrongly.
        trust: Start no child process to test an unknown file or an RPC server, or to render the chat
            template. Use it for trusted files, or where child processes cannot be started.
        verbose: Write llama.cpp's log to standard error.
        **options: Fields of `PlacementOptions`, overriding those of `placement`: n_gpu_layers, n_threads, ….

    Raises:
        ValueError: An option is out of range.
        ModelNotFoundError: There is no such file.
        ModelError: The file cannot be loaded.
        MinkError: An RPC server cannot be used, or a GPU is named that does not exist.
    """
    n_ctx = n_ctx if n_ctx is None else _N_CTX.check("n_ctx", n_ctx)
    n_parallel = _N_PARALLEL.check("n_parallel", n_parallel)
    if checkpoint_memory is not None:
        checkpoint_memory = _AT_LEAST_0.check("checkpoint_memory", checkpoint_memory)
    check_types(
        model=(model, str | bytes | PathLike),
        placement=(placement, PlacementOptions | None),
        flash_attn=(flash_attn, bool | None),
        date=(date, Date | None),
        trust=(trust, bool),
        verbose=(verbose, bool),
    )
    check_template_kwargs(template_kwargs or {})
    if chat_template is not None:
        check_template(chat_template)
    style, marks = None, None
    if call_style is not None or reasoning_marks is not None:
        from mink_local.generation.format.conventions import marks_of, style_of

        style = None if call_style is None else style_of(call_style)
        marks = None if reasoning_marks is None else marks_of(reasoning_marks)
    asked = replace(placement or PlacementOptions(), **options)
    file = resolve(fsdecode(model))
    if asked.rpc:
        from mink_local.llama.rpc import use_servers

        use_servers(asked.rpc, trust)
    shares = _gpu_shares(asked)
    budget = memory_budget(with_gpus=asked.n_gpu_layers != 0, shares=shares)
    memory = budget.checkpoint_memory if checkpoint_memory is None else int(checkpoint_memory * 1e6)
    plan = _choose(file, budget, n_ctx, asked, n_parallel, kv_type, memory)
    if not trust:
        trust_in.check(file, n_parallel)
    threads, cancel = asked.n_threads or n_cores(), Cancel()
    allocate = partial(
        make_context,
        kv_per_token=plan.kv_per_token,
        n_threads=threads,
        kv_type=kv_type,
        flash_attn=flash_attn,
        checkpoint_memory=memory,
        vet=None if trust else partial(trust_in.check, file),
    )

    def load(layers: int, n_cpu_moe: int) -> tuple[Weights, Context]:
        weights = Weights(
            file.path, layers, verbose, trust, n_cpu_moe=n_cpu_moe, gpu_shares=shares, cancel=cancel
        )
        if chat_template is not None:
            weights.chat_template, weights.tool_template = str(chat_template), None
        if n_ctx is not None and n_ctx > weights.n_ctx_train:
            log.warning(
                "%s was trained on %d tokens: limiting the context to that", file.name, weights.n_ctx_train
            )
        return weights, allocate(weights, plan.n_ctx, n_parallel)

    # Importing Numba takes longer than loading a small model: start now.
    Thread(target=MinK().cutoff, args=([0.0, 1.0],)).start()
    # In other threads: a Ctrl-C inside llama.cpp's log callback would be lost, and one while this thread
    # waits to import something beside Numba may leave CPython 3.11's import lock locked: the program would
    # never end.
    loading = in_background(partial(_load, load, file, plan, asked, threads), LOADING)
    importing = in_background(partial(import_module, "mink_local.generation.model"), "importing")
    try:
        result_of(importing)
        from mink_local.generation.format.template import ChatTemplate
        from mink_local.generation.model import Model

        weights, context, placed = result_of(loading)
    except BaseException:
        cancel()
        raise
    if plan.checkpoint and memory:
        number = max(1, memory // plan.checkpoint)
        placed = replace(placed, checkpoints=f"{number} checkpoints of {size_in_words(plan.checkpoint)}")
    log.info("%s is %s", file.name, placed)
    return Model(
        file.name,
        weights,
        context,
        partial(allocate, weights),
        placed,
        ChatTemplate(weights, date, template_kwargs, style, marks),
    )


def make_context(
    weights: Weights,
    n_ctx: int,
    n_parallel: int | Literal["auto"],
    n_outputs: int = 0,
    *,
    n_threads: int,
    kv_per_token: int = 0,
    kv_type: str = "f16",
    flash_attn: bool | None = None,
    checkpoint_memory: int = 0,
    vet: Callable[[int], object] | None = None,
) -> Context:
    """Allocate KV caches for several answers at a time, no longer than the model was trained on.

    Args:
        n_parallel: Number of answers; see `Model.reserve`.
        n_outputs: Maximum number of logits rows in a batch, at least one per answer.
        kv_per_token: Bytes of a KV cache per token; 0 if they are unknown.
        vet: Is called with the number of answers before llama.cpp is asked for so many; may raise ModelError.

    Other arguments as for `load_model`, errors as for `Model.reserve`.
    """
    n_ctx = min(_N_CTX.check("n_ctx", n_ctx), weights.n_ctx_train)
    n_outputs = _N_OUTPUTS.check("n_outputs", n_outputs)
    on_gpu, shares = weights.on_gpu, weights.gpu_shares
    fitting = 1 if n_parallel == 1 else caches_that_fit(n_ctx * kv_per_token, on_gpu, shares)
    if n_parallel == "auto":
        most = ON_GPU if on_gpu else ON_CPU
        wanted = possible = max(1, min(most, fitting // _AUTO_DIVISOR))
    else:
        wanted = _N_PARALLEL.check("n_parallel", n_parallel)
        possible = max(1, min(wanted, fitting))
    if possible < wanted:
        log.warning("low memory: generating %d answers at a time instead of %d", possible, wanted)
    if vet and possible > 1:
        vet(possible)
    return Context(weights, n_ctx, n_threads, possible, n_outputs, kv_type, flash_attn, checkpoint_memory)


def _gpu_shares(asked: PlacementOptions) -> tuple[float, ...]:
    """Return the proportions of layers that the GPUs get; none for those of their free memory.

    Raises MinkError if there are fewer GPUs.
    """
    split, main = asked.tensor_split, asked.main_gpu
    if split and main is not None:
        raise MinkError("main_gpu puts all layers on one GPU: leave out tensor_split")
    last = len(split or ()) - 1 if main is None else main
    if last < 0 or not (n_gpus := len(gpu_pointers())):
        return ()
    if last >= n_gpus:
        raise MinkError(f"there is no GPU {last}: llama.cpp finds {n_gpus}, counted from 0")
    return tuple(split or (0.0,) * last + (1.0,))


def _choose(
    file: ModelFile,
    budget: Budget,
    n_ctx: int | None,
    asked: PlacementOptions,
    n_parallel: int,
    kv_type: str,
    checkpoint_memory: int,
) -> Placement:
    """Choose context and layers on the GPU from the file's metadata and the free memory."""
    layers, experts = asked.n_gpu_layers, asked.n_cpu_moe
    try:
        metadata = read_metadata(file.path)
    except DamagedFileError:
        raise
    except ModelError as error:  # llama.cpp may know formats and types unknown here
        log.info("%s", error)
        if layers == "auto":
            layers = ALL_LAYERS if budget.vram else 0
        layers = _EVERY_LAYER if layers == ALL_LAYERS else layers
        need = MemoryNeed(Usage(), Usage())
        return Placement(
            n_ctx or USUAL_CONTEXT, layers, min(experts or 0, _EVERY_LAYER), need, n_mixed=ALL_LAYERS
        )
    metadata.require_model()
    if metadata.text("tokenizer.ggml.model") == "gpt2" and not metadata.text("tokenizer.ggml.pre"):
        log.warning(
            "%s does not say how to split text (tokenizer.ggml.pre): llama.cpp guesses, and answers may be "
            "worse; a file that was converted later says it",
            file.name,
        )
    plan = choose_placement(
        metadata,
        budget,
        n_ctx=n_ctx,
        n_gpu_layers=layers,
        n_cpu_moe=experts,
        n_parallel=n_parallel,
        kv_type=kv_type,
        checkpoint_memory=checkpoint_memory,
    )
    if plan.warning:
        log.warning("%s: %s", file.name, plan.warning)
    if experts and not plan.n_mixed:
        log.warning("%s is not a mixture of experts: it has no experts to keep on the CPU", file.name)
    return plan


def _load(
    load: Loader, file: ModelFile, plan: Placement, asked: PlacementOptions, threads: int
) -> tuple[Weights, Context, Placed]:
    """Load what a placement puts on the GPU, or as much as fits."""
    if missing := gpu_missing():
        if asked.wants_gpu:
            log.warning("no layers are on a GPU: %s", missing)
        elif asked.n_gpu_layers != 0 and nvidia_is_unused():
            log.warning(
                "an NVIDIA GPU is here, but this llama-cpp-python was built without CUDA: "
                "docs/install.md says how to get one with it (or give --gpu-layers 0, n_gpu_layers=0)"
            )
        weights, context = load(0, 0)
        where = f"on the CPU, {threads} thread{'s' * (threads > 1)} ({missing})"
        return weights, context, Placed(0, 0, context.n_ctx, where)
    most = plan.n_mixed if asked.n_cpu_moe is None else plan.n_cpu_moe
    experts = [*dict.fromkeys((plan.n_cpu_moe, most))]
    known = partial(Weights, file.path, trust=True, vocab_only=True)
    layers, n_cpu_moe, weights, context = load_what_fits(load, plan.n_gpu_layers, experts, known)
    # Asking a server that is gone for its devices would end the process.
    gpus = gpus_in_words(weights.gpu_shares) if layers else ""
    where = describe_layers(layers, weights.n_layers, gpus, n_cpu_moe) if layers else "on the CPU"
    return weights, context, Placed(layers, n_cpu_moe, context.n_ctx, where)


def load_what_fits(
    load: Loader,
    n_gpu_layers: int,
    experts: Sequence[int] = (0,),
    require_known: Callable[[], object] = lambda: None,
) -> tuple[int, int, Weights, Context]:
    """Load with `n_gpu_layers` on the GPU, or with ever less, down to nothing, if that cannot be allocated.

    Also returns the number of layers, and of those whose experts are on the CPU.

    Args:
        experts: The numbers of layers whose experts to keep on the CPU, before there are fewer layers.
        require_known: Raises ModelError if llama.cpp cannot load the file however much memory there is.
    """
    fewer = {n_gpu_layers * quarters // 4 for quarters in (3, 2, 1)} - {0, n_gpu_layers}
    tries = [(n_gpu_layers, n) for n in experts if n_gpu_layers]
    tries += [*((n, experts[-1]) for n in sorted(fewer, reverse=True)), (0, 0)]
    for this, following in pairwise(tries):
        try:
            return *this, *load(*this)
        except ModelError as error:
            reason = str(error)  # keeping the traceback would keep what was loaded in memory
        if this == tries[0]:
            require_known()
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
