"""The base class `Sampler`: selecting candidates with a kernel, and the arrays that the kernel works in."""

import math
import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mink_local.samplers import kernels

Kernel = Callable[..., int]
Selector = Callable[[NDArray[np.float32]], int]
LogitsProcessor = Callable[[Any, NDArray[np.float32]], NDArray[np.float32]]
Order = Literal["temperature-first", "temperature-last"]

VARIANT = {"variant": True}
"""Metadata of an option that `str()` leaves out at its default."""

_LARGEST = np.finfo(np.float32).max


class Workspace:
    """The arrays that selecting from `n_vocab` logits needs; not for several threads at once."""

    def __init__(self, n_vocab: int) -> None:
        self.work = np.empty(kernels.work_size(n_vocab), np.uint64)  # the kernel's scratch
        self.ids = np.empty(n_vocab, np.int32)  # first the candidates of the last selection, in any order


class _OfThread(threading.local):
    workspace = Workspace(0)


_of_thread = _OfThread()


def _as_row(logits: ArrayLike) -> NDArray[np.float32]:
    row = np.asarray(logits, np.float32)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"logits must be one row of shape (V,), V >= 1, not {row.shape}")
    return np.require(row, requirements=["C_CONTIGUOUS", "WRITEABLE"])  # the one type to compile for


def require(condition: bool, name: str, needed: str, value: object) -> None:
    """Raise ValueError unless the condition holds."""
    if not condition:
        raise ValueError(f"{name} must be {needed}, not {value}")


class Sampler:
    """A truncation method: which tokens of a row of logits remain candidates.

    Your own sampler is a compiled kernel (`mink_local.samplers.kernels` says what it is given) and a
    frozen dataclass of its options that derives from this class:

        from mink_local.samplers.compile import compiled
        from mink_local.samplers.kernels import keep_from, survey

        @compiled
        def near(logits, options, work, ids):
            n, _, largest = survey(logits, work)
            return keep_from(largest - options[0], largest, logits, work, ids) if n > 0 else n

        @dataclass(frozen=True)
        class Near(Sampler):
            distance: float = 1.0

            name = "near"
            kernel = staticmethod(near)

    Attributes:
        name: The method's name, which `str()` begins with.
        order: Which distribution the method sees: that of `logits / temperature` ("temperature-first"), that
            of `logits` ("temperature-last"), or None if its candidates do not depend on temperature.
    """

    name: ClassVar[str]
    kernel: ClassVar[Kernel]
    order: Order | None = None

    def __post_init__(self) -> None:
        if type(self).order is not None:
            require(self.order in get_args(Order), "order", " or ".join(get_args(Order)), self.order)

    def kernel_options(self, temperature: float) -> NDArray[np.float64]:
        """Return the numbers that the kernel gets as its `options`.

        They are the fields in their order, except `order`; if there is an order, the temperature of the
        distribution that the method sees comes last. Override it for a field that is no number.
        """
        options = [getattr(self, f.name) for f in fields(self) if f.name != "order"]  # type: ignore[arg-type]
        return np.array(options + [self.seen(temperature)] * (self.order is not None), np.float64)

    def selector(self, temperature: float, workspace: Workspace) -> Selector:
        """Return the function that selects the candidates of a row and allocates nothing.

        Args:
            temperature: What the logits are divided by later, > 0.
            workspace: Receives the ids of the candidates; its size is that of the rows.

        Returns:
            A function of a row of raw logits, contiguous float32 (V,), that returns k or the kernel's error.
        """
        kernel, options = self.kernel, self.kernel_options(temperature)
        work, ids = workspace.work, workspace.ids
        return lambda row: kernel(row, options, work, ids)

    def cutoff(self, logits: ArrayLike, temperature: float = 1.0) -> int:
        """Return how many tokens of a row of logits remain candidates.

        Args:
            logits: Raw logits of shape (V,). -inf (banned) and NaN are no candidates; +inf counts as the
                largest finite float32.
            temperature: What the logits are divided by later, > 0. Only a method of order
                "temperature-first" depends on it.

        Raises:
            ValueError: No logit is finite, the shape is another, or the temperature is not above 0.
        """
        return self._select(_as_row(logits), temperature).size

    def candidates(
        self, logits: ArrayLike, temperature: float = 1.0
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the candidates of a row of logits, largest logit first, equal logits by token id.

        Arguments and errors are those of `cutoff`.

        Returns:
            The token ids, int32 (k,), and their logits, float32 (k,), not divided by the temperature.
        """
        row = _as_row(logits)
        ids = self._select(row, temperature)
        kept = np.minimum(row[ids], _LARGEST)
        descending = np.lexsort((ids, -kept))
        return ids[descending], kept[descending]

    def __call__(self, input_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `scores` with -inf outside the candidates: a logits processor for llama-cpp-python.

        llama-cpp-python still applies its own top_k=40, top_p=0.95, min_p=0.05 and temperature afterwards:
        pass `top_k=0, top_p=1.0, min_p=0.0` beside the processor to switch them off.

        Args:
            scores: Raw logits, float32 (V,), also in a strided view. They are not changed.

        Raises:
            ValueError: The order is "temperature-first", and a logits processor is not told the temperature:
                pass `sampler.at(temperature)` instead. An error inside a processor reaches llama.cpp's C
                code, which loses it and goes on with all tokens: look at the order before you generate.
        """
        if self.order == "temperature-first":
            raise ValueError(
                f"{self} truncates softmax(logits / temperature), and a logits processor is not told the "
                "temperature: use .at(temperature), or order=temperature-last"
            )
        return self.at(1.0)(input_ids, scores)

    def at(self, temperature: float) -> LogitsProcessor:
        """Return the logits processor for a generation at `temperature`, > 0, which is applied after it."""
        _require_temperature(temperature)

        def process(input_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:  # noqa: ARG001
            row = _as_row(scores)
            ids = self._select(row, temperature)
            kept = np.full_like(row, -np.inf)
            kept[ids] = np.minimum(row[ids], _LARGEST)
            return kept

        return process

    def _select(self, row: NDArray[np.float32], temperature: float) -> NDArray[np.int32]:
        """Return the ids of the candidates, in any order, in an array that the next call overwrites."""
        _require_temperature(temperature)
        if _of_thread.workspace.ids.size != row.size:
            _of_thread.workspace = Workspace(row.size)
        workspace = _of_thread.workspace
        select = self.selector(temperature, workspace)
        k = select(row)
        if k == kernels.HAS_NAN:
            k = select(np.where(np.isnan(row), np.float32(-np.inf), row))
        if k == kernels.NO_FINITE_LOGIT:
            raise ValueError("no logit is finite: there is no token to choose")
        return workspace.ids[:k]

    def seen(self, temperature: float) -> float:
        """Return the temperature of the distribution that the method sees, 1 for "temperature-last"."""
        return float(temperature) if self.order == "temperature-first" else 1.0

    def __str__(self) -> str:
        options = ",".join(
            f"{f.name}={_text(getattr(self, f.name))}"
            for f in fields(self)  # type: ignore[arg-type]
            if f.metadata != VARIANT or getattr(self, f.name) != f.default
        )
        return f"{self.name}:{options}" if options else self.name


def _require_temperature(temperature: float) -> None:
    require(0 < temperature < math.inf, "temperature", "a finite number above 0", temperature)


def _text(value: object) -> str:
    """Return an option as `parse` reads it back; numbers in the shortest form that does."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)
