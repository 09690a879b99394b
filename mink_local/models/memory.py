"""How much memory a model needs, how much is free, and how many layers go on the GPU.

Weights and KV cache are exactly what llama.cpp allocates. The compute buffer is an upper bound on what
llama.cpp 0.3.36 logs with flash attention for LLaMA-3 and Qwen3 models of 0.1 to 70 billion weights (at most
25 MiB too high). The states of DeepSeek V4's and MiniMax-01's layers are not counted.
"""

import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from importlib import import_module
from itertools import compress
from typing import TYPE_CHECKING, Literal

from mink_local.container import free_memory
from mink_local.errors import MinkError
from mink_local.llama.constants import ALL_LAYERS, EXPERTS, N_BATCH, kv_type_number
from mink_local.models.gguf import Metadata, tensor_types

if TYPE_CHECKING:
    from mink_local.llama.devices import Gpu

log = logging.getLogger("mink_local")

USUAL_CONTEXT = 4096  # tokens of a prompt and its answer
_LONGER = (32768, 16384, 8192)
_SHORTER = (2048, 1024, 512)
_KV_DIVISOR = 16  # a longer KV cache may take 1/16 of the memory left by the weights,
_MOST_SHARES = 4  # and those of several answers together at most 4/16
_F16, _F32 = 2, 4  # bytes
_OF_STATES = (".ssm_", ".time_mix_", ".shortconv.")  # in the names of tensors
_RESERVE = 1 << 30  # bytes per GPU left free for its driver and other programs
_CHECKPOINT_DIVISOR = 20  # checkpoints may take 1/20 of the free memory,
_MOST_CHECKPOINTS = 512 * 10**6  # and at most so many bytes


@dataclass(frozen=True)
class Usage:
    """Bytes that a model needs of one kind of memory."""

    weights: int = 0
    kv: int = 0
    compute: int = 0
    checkpoints: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute + self.checkpoints

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(sum(pair) for pair in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a model needs on the GPU and in system memory."""

    gpu: Usage = Usage()
    cpu: Usage = Usage()


@dataclass(frozen=True)
class Budget:
    """Bytes available to a model: system memory, and the memory of all GPUs less 1 GiB each.

    If `unified`, the GPU uses system memory: what it takes of `vram` it takes of `ram`.
    """

    ram: int
    vram: int = 0
    unified: bool = False
    n_gpus: int = 1

    @property
    def checkpoint_memory(self) -> int:
        """Bytes that checkpoints may take unless a user says otherwise."""
        return min(_MOST_CHECKPOINTS, self.ram // _CHECKPOINT_DIVISOR)

    def usage(self, need: MemoryNeed) -> Usage:
        """Return how much of `ram` a model needs."""
        return need.cpu + need.gpu if self.unified else need.cpu

    def holds(self, gpu: Usage) -> bool:
        """Return whether the GPUs hold what a model needs of them: llama.cpp gives each a compute buffer."""
        return gpu.total + (self.n_gpus - 1) * gpu.compute <= self.vram


def gpus() -> "list[Gpu]":
    """Return the GPUs that llama.cpp can use; none where it does not load."""
    if not llama_loads():
        return []
    from mink_local.llama import devices

    return devices.gpus()


@cache
def llama_loads() -> bool:
    """Return whether llama.cpp can be loaded; warn why not. Models are listed in either case."""
    try:
        import_module("mink_local.llama.library")
    except MinkError as error:
        log.warning("%s", error)
        return False
    return True


def memory_budget(with_gpus: bool = True, shares: Sequence[float] = ()) -> Budget:
    """Return how much of this machine's free memory a model may use.

    Args:
        with_gpus: Whether to query the GPUs.
        shares: The proportions of layers that the GPUs get: the GPU that fills first is the limit. By default
            those of their free memory.
    """
    devices = gpus() if with_gpus else []
    ram = free_memory()
    free = [max(0, gpu.free - _RESERVE) for gpu in devices]
    vram = sum(free)
    if devices and shares:
        vram = min(int(n * sum(shares) / share) for n, share in zip(free, shares, strict=False) if share)
        devices = list(compress(devices, shares))
    return Budget(ram, vram, any(gpu.shares_ram for gpu in devices), max(1, len(devices)))


@dataclass(frozen=True)
class Placement:
    """How to load a model: context per answer, layers on the GPU, and the memory needed.

    Attributes:
        n_gpu_layers: From 0 to one more than the model has, since the output layer counts and goes first.
        n_cpu_moe: Number of layers, from the first, whose experts are on the CPU.
        warning: Warning for the user.
        n_mixed: The most that `n_cpu_moe` can be: 0 unless the model is a mixture of experts.
        kv_per_token: Bytes of a KV cache per token; 0 if they are unknown.
        checkpoint: Bytes of a checkpoint; 0 if the model needs none, or they are unknown.
    """

    n_ctx: int
    n_gpu_layers: int
    n_cpu_moe: int
    need: MemoryNeed
    warning: str | None = None
    n_mixed: int = 0
    kv_per_token: int = 0
    checkpoint: int = 0

    @property
    def split(self) -> tuple[int, int]:
        """The layers on the GPU, and those whose experts are not there."""
        return self.n_gpu_layers, self.n_cpu_moe


class Footprint:
    """The sizes in a model's metadata that determine how much memory it needs."""

    def __init__(self, metadata: Metadata, kv_type: str = "f16", checkpoint_memory: int = 0) -> None:
        self.n_layers = metadata.n_layers
        stateful = _layers_with(metadata, *_OF_STATES)
        self._states = [state_bytes(metadata) * (layer in stateful) for layer in range(metadata.n_layers)]
        self._checkpoints = checkpoint_memory if stateful else 0
        self._embeddings = self._output = self._largest_expert = 0
        self._layers, self._experts = [0] * metadata.n_layers, [0] * metadata.n_layers
        for tensor in metadata.tensors:
            if tensor.name.startswith("token_embd"):
                self._embeddings += tensor.n_bytes
            elif tensor.layer is not None and tensor.layer < metadata.n_layers:
                self._layers[tensor.layer] += tensor.n_bytes
                if re.search(EXPERTS, tensor.name):
                    self._experts[tensor.layer] += tensor.n_bytes
                    self._largest_expert = max(self._largest_expert, tensor.n_bytes)
            else:
                self._output += tensor.n_bytes
        # A GPU gets its own copy of embeddings that double as the output matrix.
        is_tied = all(tensor.name != "output.weight" for tensor in metadata.tensors)
        self._copy = self._embeddings if is_tied else 0
        self._kv = kv_bytes_per_layer(metadata, kv_type)
        attention = metadata.number("attention.head_count") * metadata.number("attention.key_length")
        experts = metadata.number("expert_used_count") * metadata.number("expert_feed_forward_length")
        self._width = max(metadata.number("embedding_length"), attention)
        self._hidden = max(metadata.number("feed_forward_length"), experts)
        self._n_vocab = metadata.n_vocab

    @property
    def n_mixed(self) -> int:
        """Number of layers of a mixture of experts; 0 for other models."""
        return self.n_layers if self._largest_expert else 0

    @property
    def kv_per_token(self) -> int:
        """Bytes of a KV cache per token."""
        return sum(self._kv)

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint."""
        return sum(self._states)

    def need(self, n_ctx: int, n_parallel: int = 1, n_gpu_layers: int = 0, n_cpu_moe: int = 0) -> MemoryNeed:
        """Return the bytes that the model needs with a KV cache of `n_ctx` tokens per answer.

        llama.cpp puts the output layer on the GPU first, then the last layers, and never the embeddings. To
        read a prompt, it copies experts that are on the CPU to the GPU, one tensor at a time.
        """
        each = -(-n_ctx // 256) * 256  # llama.cpp rounds up to a multiple of 256
        kv = [n_parallel * (each * n + state) for n, state in zip(self._kv, self._states, strict=True)]
        activations = N_BATCH * (2 * self._hidden + 8 * self._width) * _F32
        mask = N_BATCH * each * _F16
        logits = 2 * n_parallel * self._n_vocab * _F32
        compute = activations + mask + logits
        if n_gpu_layers == 0:
            weights = self._embeddings + sum(self._layers) + self._output
            return MemoryNeed(cpu=Usage(weights, sum(kv), compute, self._checkpoints))
        first = max(self.n_layers + 1 - n_gpu_layers, 0)
        experts = sum(self._experts[first:n_cpu_moe])
        gpu, cpu = sum(self._layers[first:]) - experts, sum(self._layers[:first]) + experts
        copied = self._largest_expert if experts else 0
        return MemoryNeed(
            gpu=Usage(gpu + self._output + self._copy, sum(kv[first:]), compute + copied),
            cpu=Usage(
                self._embeddings + cpu,
                sum(kv[:first]),
                compute if first or experts else 0,
                self._checkpoints,
            ),
        )


def kv_bytes_per_layer(metadata: Metadata, kv_type: str = "f16") -> list[int]:
    """Return the KV cache's bytes per token in each layer (llama.cpp's `llama_hparams`).

    Layers with a sliding window count like the others: llama-cpp-python keeps their full context.

    Raises:
        ValueError: Unknown `kv_type`.
    """
    n_heads = metadata.number("attention.head_count")
    heads = metadata.per_layer("attention.head_count_kv", n_heads, metadata.n_layers)
    default = metadata.number("embedding_length") // n_heads if n_heads else 0
    keys = metadata.number("attention.key_length", default)
    values = metadata.number("attention.value_length", default)
    if metadata.number("attention.key_length_mla"):  # DeepSeek's latent attention caches only keys
        values = 0
    # The last layers may share the caches of others.
    has_own = metadata.n_layers - metadata.number("attention.shared_kv_layers")
    recurrent = _recurrent_layers(metadata)
    kind = tensor_types()[kv_type_number(kv_type)]
    return [
        kind.n_bytes(heads[layer] * keys) + kind.n_bytes(heads[layer] * values)
        if layer < has_own and layer not in recurrent
        else 0
        for layer in range(metadata.n_layers)
    ]


def state_bytes(metadata: Metadata) -> int:
    """Return the bytes of a layer's state (llama.cpp's `n_embd_r` and `n_embd_s`, float32)."""
    number = metadata.number
    width, heads, kernel = (
        number("embedding_length"),
        number("attention.head_count"),
        number("ssm.conv_kernel"),
    )
    if head_size := number("wkv.head_size"):
        size = width * (number("token_shift_count", 2) + head_size)
    elif kernel_of_short := number("shortconv.l_cache"):
        size = width * (kernel_of_short - 1)
    elif head_size := number("kda.head_dim"):
        size = heads * head_size * (3 * (kernel - 1) + head_size)
    else:
        inner, state = number("ssm.inner_size"), number("ssm.state_size")
        size = (kernel - 1) * (inner + 2 * number("ssm.group_count") * state) + inner * state
    return max(0, size) * _F32


def keeps_states(metadata: Metadata) -> bool:
    """Return whether some layers keep a state of fixed size, in place of keys and values or beside them."""
    return bool(_layers_with(metadata, *_OF_STATES))


def _recurrent_layers(metadata: Metadata) -> set[int | None]:
    """Return the layers that keep a fixed-size state instead of keys and values."""
    return _layers_with(metadata, *_OF_STATES) - _layers_with(metadata, ".attn_k.", ".attn_kv_a_mqa.")


def _layers_with(metadata: Metadata, *names: str) -> set[int | None]:
    return {tensor.layer for tensor in metadata.tensors if any(name in tensor.name for name in names)}


def caches_that_fit(n_bytes: int, on_gpu: bool, shares: Sequence[float] = ()) -> int:
    """Return how many KV caches of so many bytes fit in free memory; no limit if that is 0: unknown.

    Args:
        shares: As for `memory_budget`.
    """
    budget = memory_budget(with_gpus=on_gpu, shares=shares)
    free = [budget.vram] * on_gpu + [budget.ram] * (budget.unified or not on_gpu)
    return min(free) // n_bytes if n_bytes else sys.maxsize


def choose_placement(
    metadata: Metadata,
    budget: Budget,
    *,
    n_ctx: int | None = None,
    n_gpu_layers: int | Literal["auto"] = "auto",
    n_cpu_moe: int | None = None,
    n_parallel: int = 1,
    kv_type: str = "f16",
    checkpoint_memory: int | None = None,
) -> Placement:
    """Choose the context and the number of layers on the GPU, unless given.

    As many layers go on the GPU as fit; of a mixture, the experts of the first layers stay on the CPU before
    whole layers do. The context is 4096 tokens, but never more than the model was trained
    on, and less if only that fits. It grows up to 32768 if all layers stay on the GPU and the KV caches in
    system memory take at most a sixteenth of what the weights leave there, or a quarter for four or more
    answers.

    Args:
        n_ctx: Tokens of a prompt and its answer.
        n_gpu_layers: -1 for all.
        n_cpu_moe: Number of layers, from the first, whose experts are on the CPU; -1 for all.
        n_parallel: Number of answers generated at a time.
        checkpoint_memory: Bytes that checkpoints may take; None for `Budget.checkpoint_memory`.

    Raises:
        ValueError: Unknown `kv_type`.
    """
    if checkpoint_memory is None:
        checkpoint_memory = budget.checkpoint_memory
    footprint = Footprint(metadata, kv_type, checkpoint_memory)
    most, mixed = metadata.n_layers + 1, footprint.n_mixed
    if n_cpu_moe is not None:
        experts = [mixed if n_cpu_moe == ALL_LAYERS else min(n_cpu_moe, mixed)]
    else:
        experts = [*range(mixed + 1)] if n_gpu_layers == "auto" else [0]
    if n_gpu_layers == "auto":
        ways = [*((most, n) for n in experts), *((n, experts[-1]) for n in range(most - 1, 0, -1)), (0, 0)]
    else:
        ways = [(n_gpu_layers if 0 <= n_gpu_layers <= most else most, experts[0])]

    def with_context(wanted: int) -> Placement:
        context = max(1, min(wanted, metadata.n_ctx_train or wanted))
        needs = [(way, footprint.need(context, n_parallel, *way)) for way in ways]
        way, need = next((found for found in needs if budget.holds(found[1].gpu)), needs[-1])
        warning = _warning(budget.usage(need).total, budget.ram)
        return Placement(context, *way, need, warning, mixed, footprint.kv_per_token, footprint.checkpoint)

    chosen = with_context(n_ctx or USUAL_CONTEXT)
    if n_ctx is None and chosen.warning:
        chosen = next((shorter for shorter in map(with_context, _SHORTER) if not shorter.warning), chosen)
    elif n_ctx is None:
        for longer in map(with_context, _LONGER):
            usage = budget.usage(longer.need)
            spare = budget.ram - usage.weights
            allowed = spare // _KV_DIVISOR * min(n_parallel, _MOST_SHARES)
            if longer.split == chosen.split and usage.kv <= allowed:
                return longer
    return chosen


def _warning(taken: int, free: int) -> str | None:
    if taken <= free:
        return None
    return (
        f"it needs about {taken / 1e9:.1f} GB of memory, but only {free / 1e9:.1f} GB are free: it will be "
        "very slow, or the OS will kill it; use a smaller quantization or context"
    )
