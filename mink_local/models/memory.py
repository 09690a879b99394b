"""How much memory a model takes, and how much of it a machine has room for: from its header alone.

Weights and KV cache are what llama.cpp allocates, to the byte. Its compute buffer is estimated, by an
upper bound of what llama.cpp 0.3.36 logs with flash attention for LLaMA-3 and Qwen3 models of 0.1 to 70
billion weights (at most 25 MiB above). The state of recurrent layers is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import psutil

from mink_local.llama.devices import gpus
from mink_local.models.gguf import Metadata

ALL_LAYERS = -1
USUAL_CONTEXT = 4096  # tokens for one sequence
_LONGER = (32768, 16384, 8192)
_SHORTER = (2048, 1024, 512)
_KV_SHARE = 16  # a longer context's KV cache may take one part in 16 of the memory left by the weights
_BATCH = 512  # tokens that llama.cpp evaluates at a time
_LEFT_ALONE = 1 << 30  # bytes of each GPU, for its driver, other programs, what llama.cpp borrows
_F16, _F32 = 2, 4  # bytes


@dataclass(frozen=True)
class Budget:
    """Free bytes: of memory, and of GPU memory without the part that is to be left alone."""

    ram: int
    vram: int = 0


def memory_budget() -> Budget:
    """Return the memory that a model may take on this machine."""
    vram = sum(max(0, gpu.free - _LEFT_ALONE) for gpu in gpus())
    return Budget(psutil.virtual_memory().available, vram)


@dataclass(frozen=True)
class Usage:
    """Bytes that a model takes in one kind of memory."""

    weights: int = 0
    kv: int = 0
    compute: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a model takes on the GPU and in memory."""

    gpu: Usage
    cpu: Usage


@dataclass(frozen=True)
class Placement:
    """How a model is to be loaded.

    n_ctx: tokens of all sequences together. n_gpu_layers: as llama.cpp counts them, from 0 to one more
    than there are layers, the output being the first to go there. warning: what to say before.
    """

    n_ctx: int
    n_gpu_layers: int
    need: MemoryNeed
    warning: str | None = None


class Footprint:
    """The sizes in a header that decide how much memory a model takes."""

    def __init__(self, header: Metadata) -> None:
        self.n_layers = header.n_layers
        self._embeddings = self._output = 0
        self._layers = [0] * header.n_layers
        for tensor in header.tensors:
            if tensor.name.startswith("token_embd"):
                self._embeddings += tensor.n_bytes
            elif tensor.layer is not None and tensor.layer < header.n_layers:
                self._layers[tensor.layer] += tensor.n_bytes
            else:
                self._output += tensor.n_bytes
        # Where the embeddings are the output matrix too, a GPU gets a copy of them.
        is_tied = all(tensor.name != "output.weight" for tensor in header.tensors)
        self._copy = self._embeddings if is_tied else 0
        self._kv = kv_bytes_per_layer(header)
        attention = header.number("attention.head_count") * header.number("attention.key_length")
        experts = header.number("expert_used_count") * header.number("expert_feed_forward_length")
        self._width = max(header.number("embedding_length"), attention)
        self._hidden = max(header.number("feed_forward_length"), experts)
        self._n_vocab = header.n_vocab

    def need(self, n_ctx: int, n_parallel: int = 1, n_gpu_layers: int = 0) -> MemoryNeed:
        """Bytes for `n_ctx` tokens of `n_parallel` sequences together, with `n_gpu_layers` of the layers
        on the GPU: llama.cpp puts the output there first, then the last layers, and the embeddings never.
        """
        each = -(-n_ctx // n_parallel // 256) * 256  # llama.cpp rounds up to a multiple of 256
        kv = [each * n_parallel * layer for layer in self._kv]
        compute = self._compute(each, n_parallel)
        if n_gpu_layers == 0:
            weights = self._embeddings + sum(self._layers) + self._output
            return MemoryNeed(Usage(), Usage(weights, sum(kv), compute))
        first = max(self.n_layers + 1 - n_gpu_layers, 0)
        return MemoryNeed(
            gpu=Usage(sum(self._layers[first:]) + self._output + self._copy, sum(kv[first:]), compute),
            cpu=Usage(self._embeddings + sum(self._layers[:first]), sum(kv[:first]), compute if first else 0),
        )

    def _compute(self, n_ctx_each: int, n_parallel: int) -> int:
        """What the activations of a batch take at a time, the attention mask, and the logits."""
        activations = _BATCH * (2 * self._hidden + 8 * self._width) * _F32
        mask = _BATCH * n_ctx_each * _F16
        logits = 2 * n_parallel * self._n_vocab * _F32
        return activations + mask + logits


def kv_bytes_per_token(header: Metadata) -> int:
    """Bytes of the KV cache, in float16, for one token of one sequence, over all layers."""
    return sum(kv_bytes_per_layer(header))


def kv_bytes_per_layer(header: Metadata) -> list[int]:
    """Bytes for one token in each layer: keys and values of its KV heads (llama.cpp's `llama_hparams`).

    Layers with a sliding window count like the others: llama-cpp-python keeps their whole context.
    """
    n_heads = header.number("attention.head_count")
    heads = header.per_layer("attention.head_count_kv", n_heads, header.n_layers)
    default = header.number("embedding_length") // n_heads if n_heads else 0
    keys = header.number("attention.key_length", default)
    values = header.number("attention.value_length", default)
    if header.number("attention.key_length_mla"):  # DeepSeek's latent attention keeps keys alone
        values = 0
    # The last layers may use the caches of others.
    has_own = header.n_layers - header.number("attention.shared_kv_layers")
    recurrent = _recurrent_layers(header)
    return [
        heads[layer] * (keys + values) * _F16 if layer < has_own and layer not in recurrent else 0
        for layer in range(header.n_layers)
    ]


def _recurrent_layers(header: Metadata) -> set[int | None]:
    """The layers that keep a state of fixed size in place of keys and values."""

    def layers_with(*names: str) -> set[int | None]:
        return {tensor.layer for tensor in header.tensors if any(name in tensor.name for name in names)}

    return layers_with(".ssm_", ".time_mix_", ".shortconv.") - layers_with(".attn_k.", ".attn_kv_a_mqa.")


def choose_placement(
    header: Metadata,
    room: Budget,
    *,
    n_ctx: int | None = None,
    n_gpu_layers: int | Literal["auto"] = "auto",
    n_parallel: int = 1,
) -> Placement:
    """Choose what was not asked for.

    Layers: as many as the GPU has room for. Context: 4096 tokens for each sequence, and never more than
    the model was trained on. A single sequence gets up to 32768, as long as no layer leaves the GPU for
    them and the part of the KV cache in memory takes at most a sixteenth of what the weights leave there;
    and fewer than 4096 where that makes it fit.
    """
    footprint = Footprint(header)

    def with_context(n_ctx_each: int) -> Placement:
        total = min(n_ctx_each, header.n_ctx_train or n_ctx_each) * n_parallel
        layers = n_gpu_layers
        if layers == "auto":
            layers = _layers_that_fit(footprint, room.vram, total, n_parallel)
        if layers == ALL_LAYERS or layers > header.n_layers:
            layers = header.n_layers + 1
        return Placement(total, layers, footprint.need(total, n_parallel, layers))

    if n_ctx is not None:
        chosen = with_context(max(1, n_ctx // n_parallel))
    else:
        chosen = _with_best_context(room, with_context, may_be_longer=n_parallel == 1)
    return replace(chosen, warning=_warning(chosen.need.cpu.total, room.ram))


def _with_best_context(
    room: Budget, with_context: Callable[[int], Placement], may_be_longer: bool
) -> Placement:
    usual = with_context(USUAL_CONTEXT)
    if usual.need.cpu.total > room.ram:
        shorter = (with_context(n_ctx) for n_ctx in _SHORTER)
        return next((placement for placement in shorter if placement.need.cpu.total <= room.ram), usual)
    for n_ctx in _LONGER if may_be_longer else ():
        longer = with_context(n_ctx)
        spare = (room.ram - longer.need.cpu.weights) // _KV_SHARE
        if longer.n_gpu_layers == usual.n_gpu_layers and longer.need.cpu.kv <= spare:
            return longer
    return usual


def _layers_that_fit(footprint: Footprint, vram: int, n_ctx: int, n_parallel: int) -> int:
    """The most layers whose weights, KV cache and compute buffer `vram` bytes hold."""
    most = footprint.n_layers + 1
    fits = (n for n in range(most, 0, -1) if footprint.need(n_ctx, n_parallel, n).gpu.total <= vram)
    return next(fits, 0)


def _warning(needed: int, free: int) -> str | None:
    if needed <= free:
        return None
    return (
        f"it takes about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free: it will be very "
        "slow, or the system will end it; a smaller quantization or a shorter context takes less"
    )
