"""What a user names: `MinK(tau=3.0)`, `Greedy()`; frozen dataclasses that validate, describe and
parse themselves (`min-k:tau=3`) and call a kernel.

A sampler reads raw logits and says which tokens stand; temperature and the draw come after it.
"""

import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mink_local import kernels


class Scratch:
    """The arrays that selecting from `n_vocab` logits needs: one for every thread or loop.

    `ids`, int32 (V,), holds the candidates of the last selection, largest logit first.
    """

    def __init__(self, n_vocab: int) -> None:
        self.work = np.empty(kernels.work_size(n_vocab), np.uint64)
        self.ids = np.empty(n_vocab, np.int32)


class _ThreadScratch(threading.local):
    scratch: Scratch | None = None

    def fitting(self, n_vocab: int) -> Scratch:
        if self.scratch is None or self.scratch.ids.size != n_vocab:
            self.scratch = Scratch(n_vocab)
        return self.scratch


_thread = _ThreadScratch()


def _as_row(logits: ArrayLike) -> NDArray[np.float32]:
    row = np.ascontiguousarray(logits, dtype=np.float32)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"logits must be one row of shape (V,), V >= 1, not {row.shape}")
    return row


class Sampler(ABC):
    """One rule for which tokens may be drawn. Subclasses are frozen dataclasses of their options."""

    name: ClassVar[str]

    @abstractmethod
    def select(
        self,
        logits: NDArray[np.float32],
        temperature: float,
        scratch: Scratch,
        allow_nan: bool = False,
    ) -> int:
        """Leave the ids of the candidates in `scratch.ids`, largest logit first; return how many.

        logits: raw, contiguous float32 (V,). temperature: what they will be divided by, > 0, which
        only a cut of the scaled distribution looks at. Allocates nothing. Returns
        `kernels.NO_FINITE_LOGIT` or, unless `allow_nan`, `kernels.HAS_NAN` for a row that nothing can
        be drawn from.
        """

    def cutoff(self, logits: ArrayLike) -> int:
        """How many tokens stand in one row of raw logits, shape (V,).

        `-inf` (banned) and NaN logits are no candidates, `+inf` counts as the largest finite
        float32. Raises ValueError where no logit is finite or the shape is another.
        """
        return self._select(_as_row(logits))[0]

    def candidates(self, logits: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The tokens that stand, as (ids int32 (k,), logits float32 (k,)), largest logit first.

        Equal logits are ordered by token id. Raises as `cutoff` does.
        """
        row = _as_row(logits)
        k, scratch = self._select(row)
        ids = scratch.ids[:k].copy()
        return ids, np.minimum(row[ids], np.finfo(np.float32).max)

    def __call__(self, input_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:  # noqa: ARG002
        """llama-cpp-python logits processor: `scores` with -inf outside the candidates.

        scores: (V,), strided views included; the result is new, float32 (V,). llama-cpp-python
        still applies its own top_k=40, top_p=0.95, min_p=0.05 and temperature afterwards: pass
        `top_k=0, top_p=1.0, min_p=0.0` beside the processor to switch its cuts off.
        """
        ids, logits = self.candidates(scores)
        cut = np.full(np.shape(scores), -np.inf, np.float32)
        cut[ids] = logits
        return cut

    def _select(self, row: NDArray[np.float32]) -> tuple[int, Scratch]:
        scratch = _thread.fitting(row.size)
        k = self.select(row, 1.0, scratch, allow_nan=True)
        if k == kernels.NO_FINITE_LOGIT:
            raise ValueError("no logit is finite: there is no token to choose")
        return k, scratch

    def __str__(self) -> str:
        options = ",".join(f"{f.name}={getattr(self, f.name):.17g}" for f in fields(self))  # type: ignore[arg-type]
        return f"{self.name}:{options}" if options else self.name


@dataclass(frozen=True)
class MinK(Sampler):
    """Min-k sampling (arXiv 2604.11012): keep what stands before the steepest weighted drop.

    With the finite logits sorted, `l_1 >= ... >= l_n`, and range `R = l_1 - l_n`: the cliff is the
    position i with the largest `(l_i - l_{i+1}) / (R + 1e-8) / i` (section 3.1; the smallest such i
    on a tie), and at least `floor(tau / (R + 1e-8))` tokens are kept (section 3.2). The cut does not
    move with temperature, which is applied after it.

    tau: >= 0; 0 switches the fallback off. On real models R is 30 to 45, so at the default 3 the
    fallback keeps nothing that the cliff does not.
    """

    tau: float = 3.0

    name: ClassVar[str] = "min-k"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tau) and self.tau >= 0):
            raise ValueError(f"tau must be a finite number of at least 0, not {self.tau}")

    def select(
        self,
        logits: NDArray[np.float32],
        temperature: float,  # noqa: ARG002
        scratch: Scratch,
        allow_nan: bool = False,
    ) -> int:
        k: int = kernels.min_k(logits, self.tau, allow_nan, scratch.work, scratch.ids)
        return k


@dataclass(frozen=True)
class Greedy(Sampler):
    """The largest logit, the lowest token id on a tie."""

    name: ClassVar[str] = "greedy"

    def select(
        self,
        logits: NDArray[np.float32],
        temperature: float,  # noqa: ARG002
        scratch: Scratch,
        allow_nan: bool = False,
    ) -> int:
        k: int = kernels.greedy(logits, allow_nan, scratch.work, scratch.ids)
        return k


@dataclass(frozen=True)
class Mirostat(Sampler):
    """llama.cpp's mirostat, which cuts and draws in one step: every finite logit goes to it."""

    tau: float = 5.0
    eta: float = 0.1
    version: int = 2

    name: ClassVar[str] = "mirostat"

    def select(
        self,
        logits: NDArray[np.float32],
        temperature: float,  # noqa: ARG002
        scratch: Scratch,
        allow_nan: bool = False,
    ) -> int:
        if not allow_nan and np.isnan(logits).any():
            return kernels.HAS_NAN
        ids = np.flatnonzero(logits > -np.inf)
        scratch.ids[: ids.size] = ids
        return ids.size or kernels.NO_FINITE_LOGIT


SAMPLERS: dict[str, type[Sampler]] = {sampler.name: sampler for sampler in (MinK, Greedy)}


def parse(text: str) -> Sampler:
    """The sampler that `text` describes, `name` or `name:option=value,…`; `str()` is the inverse.

    >>> parse("min-k:tau=0.5")
    MinK(tau=0.5)

    Raises ValueError, naming what is known, for an unknown name or option or a value that is not a
    number or out of range.
    """
    name, _, rest = text.partition(":")
    if name not in SAMPLERS:
        raise ValueError(f"unknown sampler {name!r}: the samplers are {', '.join(SAMPLERS)}")
    sampler = SAMPLERS[name]
    known = [field.name for field in fields(sampler)]  # type: ignore[arg-type]
    options: dict[str, float] = {}
    for option in rest.split(",") if rest else []:
        key, _, value = option.partition("=")
        if key not in known:
            takes = f"its options are {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"{name} has no option {key!r}: {takes}")
        try:
            options[key] = float(value)
        except ValueError:
            raise ValueError(f"{name}: {key} must be a number, not {value!r}") from None
    return sampler(**options)
