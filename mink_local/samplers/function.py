"""A plain function of the logits as a sampler: `sampler=lambda logits: np.argsort(logits)[-5:]`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mink_local.checks import shown
from mink_local.errors import GenerationError, OptionError
from mink_local.samplers import kernels
from mink_local.samplers.base import Sampler

Select = Callable[[NDArray[np.float32]], ArrayLike]


@dataclass(frozen=True)
class FunctionSampler(Sampler):
    """Keeps the tokens that a function names.

    Args:
        function: Gets a row of logits, read-only float32 (V,); returns the ids of the candidates, in any
            order, or a mask (V,). After other cuts of a chain, it sees and names what these have left.
        label: The sampler's name; the function's by default.
    """

    function: Select
    label: str = ""

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.label or getattr(self.function, "__name__", type(self.function).__name__)

    def kernel_options(self, temperature: float) -> NDArray[np.float64]:  # noqa: ARG002
        return np.empty(0)

    def kernel(self, logits: NDArray[np.float32], _: Any, __: Any, ids: NDArray[np.int32]) -> int:
        """Write the ids of the function's candidates to `ids`; return how many."""
        if np.isnan(logits).any():
            return kernels.HAS_NAN
        if not (is_candidate := logits > -np.inf).any():
            return kernels.NO_FINITE_LOGIT
        row = logits.view()
        row.flags.writeable = False
        kept = np.unique(self._ids(self.function(row), row.size))
        kept = kept[is_candidate[kept]]
        ids[: kept.size] = kept
        return int(kept.size)

    def _ids(self, found: Any, n_vocab: int) -> NDArray[np.integer[Any]]:
        """Return what the function has returned as ids."""
        ids = np.atleast_1d(found)
        if ids.dtype == bool and ids.shape == (n_vocab,):
            return np.flatnonzero(ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not ((ids >= 0) & (ids < n_vocab)).all():
            wanted = f"must return token ids below {n_vocab}, or a mask ({n_vocab},)"
            raise OptionError(f"the sampler {self.name}", f"{wanted}, not {shown(found)}")
        return ids

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionSampler, (_elsewhere, self.name)


def _elsewhere(_: Any) -> NoReturn:
    """Stand in for a function in answers that travel: many functions cannot."""
    raise GenerationError("the sampler is a function of another process")
