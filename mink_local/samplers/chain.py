"""Chains of cuts: `Chain(TopK(40), MinK())`, written `top-k:k=40+min-k:tau=3`."""

from dataclasses import dataclass
from inspect import isfunction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mink_local.samplers.base import Order, Sampler, number
from mink_local.samplers.cuts import MinP, TopK, TopP
from mink_local.samplers.function import FunctionSampler, Select


@dataclass(frozen=True, init=False)
class Chain(Sampler):
    """Applies cuts in turn: each sees only what the previous one left, renormalized, as in llama.cpp.

    Only the first cut reads the whole row, so a chain costs little more than its first cut, unless that one
    keeps most of the vocabulary. After other cuts, Min-k computes its range R from the remaining candidates.

    Args:
        cuts: Samplers or functions, at least one. Chains among them are flattened. Mirostat, adaptive-p and
            dynatemp can only come last.
    """

    cuts: tuple[Sampler, ...]

    def __init__(self, *cuts: Sampler | Select) -> None:
        made: list[Any] = [FunctionSampler(cut) if isfunction(cut) else cut for cut in cuts]
        flat = tuple(part for cut in made for part in (cut.cuts if isinstance(cut, Chain) else (cut,)))
        if not flat or not all(isinstance(cut, Sampler) for cut in flat):
            raise ValueError(f"a chain takes cuts: Chain(TopK(40), MinK()), not {cuts!r}")
        for cut in flat[:-1]:
            if cut.comes_last:
                raise ValueError(f"{cut.name} can only come last in a chain")
        object.__setattr__(self, "cuts", flat)

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.cuts))})"

    @property
    def name(self) -> str:  # type: ignore[override]
        return "+".join(cut.name for cut in self.cuts)

    @property
    def order(self) -> Order | None:  # type: ignore[override]
        """ "temperature-first" if any cut is, else "temperature-last" if any is, else None."""
        orders = sorted(cut.order for cut in self.cuts if cut.order is not None)
        return orders[0] if orders else None

    def kernel_options(self, temperature: float) -> NDArray[np.float64]:
        return np.concatenate([cut.kernel_options(temperature) for cut in self.cuts])

    @property
    def is_stateful(self) -> bool:  # type: ignore[override]
        return any(cut.is_stateful for cut in self.cuts)

    @property
    def comes_last(self) -> bool:  # type: ignore[override]
        return self.cuts[-1].comes_last

    @property
    def members(self) -> tuple[Sampler, ...]:
        return self.cuts

    def __str__(self) -> str:
        return "+".join(map(str, self.cuts))


@dataclass(frozen=True)
class LlamaDefault(Sampler):
    """llama.cpp's default cuts: the chain of top-k, top-p and min-p.

    Temperature is applied afterwards, so they see the probabilities at temperature 1.

    Args:
        k: k of top-k, 1 to 2^31 - 1.
        p: p of top-p among those k tokens, 0 to 1.
        min_p: p of min-p, 0 to 1.
    """

    k: int = number(40, low=1, high=2**31 - 1)
    p: float = number(0.95, low=0, high=1)
    min_p: float = number(0.05, low=0, high=1)

    name = "llama-default"
    keeps: ClassVar = "top-k, then top-p, then min-p: llama.cpp's default cuts"

    @property
    def members(self) -> tuple[Sampler, ...]:
        last: Order = "temperature-last"
        return TopK(self.k), TopP(self.p, last), MinP(self.min_p, last)
