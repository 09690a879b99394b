"""Where the layers of a model go: as users ask for it, and as it was done."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from mink_local.checks import Range, as_texts
from mink_local.errors import OptionError
from mink_local.llama.constants import ALL_LAYERS, MAX_THREADS, check_split

_RANGES = {
    "n_gpu_layers": Range(ALL_LAYERS, whole=True),
    "n_cpu_moe": Range(ALL_LAYERS, whole=True),
    "main_gpu": Range(0, whole=True),
    "n_threads": Range(1, MAX_THREADS, whole=True),
}


@dataclass(frozen=True, kw_only=True)
class PlacementOptions:
    """Where the layers of a model go.

    Args:
        n_gpu_layers: Layers on the GPU, as llama.cpp counts them (the output is one more): "auto" for as many
            as fit into its free memory, -1 for all. If llama.cpp cannot allocate them, fewer are tried, down
            to none. `Model.placement` says where they ended up.
        n_cpu_moe: Layers of a mixture of experts, from the first, whose experts stay on the CPU; -1 for all,
            None for as many as needed if `n_gpu_layers` is "auto".
        tensor_split: Proportions of layers that several GPUs get; None for those of their free memory.
        main_gpu: Use only this GPU, counted from 0.
        n_threads: CPU threads; None for one per physical core, without efficiency cores.
        rpc: Addresses ("HOST:PORT") of llama.cpp RPC servers, whose devices take layers like a GPU, for this
            and all later models in the process. If a server goes away, the process exits.

    Raises:
        ValueError: An option is out of range.
    """

    n_gpu_layers: int | Literal["auto"] = "auto"
    n_cpu_moe: int | None = None
    tensor_split: Sequence[float] | None = None
    main_gpu: int | None = None
    n_threads: int | None = None
    rpc: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n_gpu_layers, str | None) and self.n_gpu_layers != "auto":
            raise OptionError(
                "n_gpu_layers", f'must be "auto" or a number (-1: all), not {self.n_gpu_layers!r}'
            )
        for name, limits in _RANGES.items():
            if (value := getattr(self, name)) not in (None, "auto"):
                object.__setattr__(self, name, limits.check(name, value))
        if self.tensor_split is not None:
            object.__setattr__(self, "tensor_split", check_split(self.tensor_split))
        if self.rpc is not None:
            servers = as_texts("rpc", [self.rpc] if isinstance(self.rpc, str) else self.rpc)
            object.__setattr__(self, "rpc", servers)

    @property
    def wants_gpu(self) -> bool:
        """Whether a GPU is asked for."""
        return (
            self.n_gpu_layers not in ("auto", 0) or self.tensor_split is not None or self.main_gpu is not None
        )


class PlacementKeywords(TypedDict, total=False):
    """The fields of `PlacementOptions` as keyword arguments."""

    n_gpu_layers: int | Literal["auto"]
    n_cpu_moe: int | None
    tensor_split: Sequence[float] | None
    main_gpu: int | None
    n_threads: int | None
    rpc: Sequence[str] | None


@dataclass(frozen=True)
class Placed:
    """Where the layers of a loaded model are; `str()` says it in words.

    Attributes:
        n_gpu_layers: Number of layers on a GPU, of `n_layers` and the output layer.
        n_cpu_moe: Number of layers, from the first, whose experts are on the CPU.
        n_ctx: Maximum tokens of a prompt plus its answer, as loaded.
        where: The same in words, and why, without the context.
        checkpoints: In words, how many checkpoints the model can go back to; "" if it needs none.
    """

    n_gpu_layers: int
    n_cpu_moe: int
    n_ctx: int
    where: str
    checkpoints: str = ""

    def __str__(self) -> str:
        beside = f" and {self.checkpoints}" if self.checkpoints else ""
        return f"{self.where}, with a context of {self.n_ctx} tokens{beside}"
