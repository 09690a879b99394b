"""What a user names: `MinK(tau=3.0)`, `TopP(p=0.9)`, …: frozen dataclasses that validate, describe
and parse themselves (`min-k:tau=3`) and call a kernel.

A sampler reads raw logits and says which tokens stand; temperature and the draw come after it. Some
cuts look at probabilities, and those move with temperature: their `order` says whether they see
`softmax(logits / T)`, "temperature-first", as in the paper and in Hugging Face's transformers, or
`softmax(logits)`, "temperature-last", as llama.cpp has it by default.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mink_local.samplers import kernels

LogitsProcessor = Callable[[Any, NDArray[np.float32]], NDArray[np.float32]]
Order = Literal["temperature-first", "temperature-last"]
Decay = Literal["power", "log"]
Cut = tuple[Callable[..., int], tuple[float, ...]]  # a kernel, and the options it is called with


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
    row = np.asarray(logits, np.float32)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"logits must be one row of shape (V,), V >= 1, not {row.shape}")
    return np.require(row, requirements=["C_CONTIGUOUS", "WRITEABLE"])  # as the kernels' types ask for


def _require(condition: bool, name: str, needed: str, value: object) -> None:
    if not condition:
        raise ValueError(f"{name} must be {needed}, not {value}")


def _require_temperature(temperature: float) -> None:
    _require(0 < temperature < math.inf, "temperature", "a finite number above 0", temperature)


class Sampler(ABC):
    """One rule for which tokens may be drawn. Subclasses are frozen dataclasses of their options."""

    name: ClassVar[str]
    order: Order | None = None  # None: the cut does not move with temperature

    @abstractmethod
    def cut(self, temperature: float) -> Cut:
        """The kernel that makes the cut and its options, which stand behind the logits in a call.

        Options have exactly the types (float, int or bool) that the kernel was compiled for.
        """

    def select(
        self,
        logits: NDArray[np.float32],
        temperature: float,
        scratch: Scratch,
        allow_nan: bool = False,
    ) -> int:
        """Leave the ids of the candidates in `scratch.ids`, largest logit first; return how many.

        logits: raw, contiguous float32 (V,). temperature: what they will be divided by, > 0, which
        only a cut of the scaled distribution looks at. Equal logits are ordered by token id; `-inf`
        and NaN logits are no candidates, and the largest logit always is one. Allocates nothing.
        Returns `kernels.NO_FINITE_LOGIT` or, unless `allow_nan`, `kernels.HAS_NAN` for a row that
        nothing can be drawn from.
        """
        kernel, options = self.cut(temperature)
        return kernel(logits, *options, allow_nan, scratch.work, scratch.ids)

    def cutoff(self, logits: ArrayLike, temperature: float = 1.0) -> int:
        """How many tokens stand in one row of raw logits, shape (V,), of which some cuts see
        `softmax(logits / temperature)`.

        `-inf` (banned) and NaN logits are no candidates, `+inf` counts as the largest finite
        float32. Raises ValueError where no logit is finite, the shape is another or the temperature
        is not above 0.
        """
        return self._select(_as_row(logits), temperature)[0]

    def candidates(
        self, logits: ArrayLike, temperature: float = 1.0
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The tokens that stand, as (ids int32 (k,), logits float32 (k,)), largest logit first.

        The logits are as they were, not divided. Equal ones are ordered by token id. Raises as
        `cutoff` does.
        """
        row = _as_row(logits)
        k, scratch = self._select(row, temperature)
        ids = scratch.ids[:k].copy()
        return ids, np.minimum(row[ids], np.finfo(np.float32).max)

    def __call__(self, input_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """llama-cpp-python logits processor: `scores` with -inf outside the candidates.

        scores: (V,), strided views included; the result is new, float32 (V,). llama-cpp-python
        still applies its own top_k=40, top_p=0.95, min_p=0.05 and temperature afterwards: pass
        `top_k=0, top_p=1.0, min_p=0.0` beside the processor to switch its cuts off.

        A processor is not told the temperature. Where the cut has order "temperature-first", ValueError
        says so: pass `sampler.at(temperature)` instead, and see to it before you generate, because an
        error inside a processor reaches llama.cpp's C code, which loses it and goes on uncut.
        """
        if self.order == "temperature-first":
            raise ValueError(
                f"{self} cuts softmax(logits / temperature), and a logits processor is not told the "
                "temperature: use .at(temperature), or order=temperature-last"
            )
        return self.at(1.0)(input_ids, scores)

    def at(self, temperature: float) -> LogitsProcessor:
        """The logits processor of a generation at `temperature`, which is still to be applied after
        it. Raises ValueError for a temperature that is not above 0."""
        _require_temperature(temperature)

        def process(input_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:  # noqa: ARG001
            ids, logits = self.candidates(scores, temperature)
            cut = np.full(np.shape(scores), -np.inf, np.float32)
            cut[ids] = logits
            return cut

        return process

    def _select(self, row: NDArray[np.float32], temperature: float) -> tuple[int, Scratch]:
        _require_temperature(temperature)
        scratch = _thread.fitting(row.size)
        k = self.select(row, temperature, scratch, allow_nan=True)
        if k == kernels.NO_FINITE_LOGIT:
            raise ValueError("no logit is finite: there is no token to choose")
        return k, scratch

    def seen(self, temperature: float) -> float:
        """The temperature of the distribution that the cut sees."""
        return float(temperature) if self.order == "temperature-first" else 1.0

    def _require_order(self) -> None:
        _require(self.order in get_args(Order), "order", " or ".join(get_args(Order)), self.order)

    def __str__(self) -> str:
        options = ",".join(
            f"{f.name}={_text(getattr(self, f.name))}"
            for f in fields(self)  # type: ignore[arg-type]
            if f.metadata != _VARIANT or getattr(self, f.name) != f.default
        )
        return f"{self.name}:{options}" if options else self.name


def _text(value: object) -> str:
    """An option as `parse` reads it back; numbers in the shortest form that does."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)


_VARIANT = {"variant": True}  # metadata of a field that `str()` leaves out at its default


@dataclass(frozen=True)
class MinK(Sampler):
    """Min-k sampling (arXiv 2604.11012): keep what stands before the steepest weighted drop.

    With the finite logits sorted, `l_1 >= ... >= l_n`, and range `R = l_1 - l_n`: the cliff is the
    position i with the largest `(l_i - l_{i+1}) / (R + 1e-8) / i` (section 3.1; the smallest such i
    on a tie), and at least `floor(tau / (R + 1e-8))` tokens are kept (section 3.2). The cut does not
    move with temperature, which is applied after it.

    tau: >= 0; 0 switches the fallback off. On real models R is 30 to 45, so at the default 3 the
    fallback keeps nothing that the cliff does not.

    The others are for the ablations of the paper's appendix and take longer:
    alpha: >= 0; the drop after position i is divided by `i**alpha`.
    decay: "log" divides it by `log(i + 1)` instead.
    normalize: False leaves the range out. Dividing by R cannot move the largest weight of a step, so
        this acts through the fallback alone, which becomes `floor(tau)` at every step.
    """

    tau: float = 3.0
    alpha: float = field(default=1.0, metadata=_VARIANT)
    decay: Decay = field(default="power", metadata=_VARIANT)
    normalize: bool = field(default=True, metadata=_VARIANT)

    name: ClassVar[str] = "min-k"

    def __post_init__(self) -> None:
        _require(0 <= self.tau < math.inf, "tau", "a finite number of at least 0", self.tau)
        _require(0 <= self.alpha < math.inf, "alpha", "a finite number of at least 0", self.alpha)
        _require(self.decay in get_args(Decay), "decay", " or ".join(get_args(Decay)), self.decay)
        _require(isinstance(self.normalize, bool), "normalize", "true or false", self.normalize)
        if self.decay == "log" and self.alpha != 1:
            raise ValueError("alpha is the exponent of decay=power: decay=log has none")

    def cut(self, temperature: float) -> Cut:  # noqa: ARG002
        if self.alpha == 1 and self.decay == "power" and self.normalize:
            return kernels.min_k, (self.tau,)
        options = (float(self.tau), float(self.alpha), self.decay == "log", self.normalize)
        return kernels.min_k_variant, options


@dataclass(frozen=True)
class Greedy(Sampler):
    """The largest logit, the lowest token id on a tie."""

    name: ClassVar[str] = "greedy"

    def cut(self, temperature: float) -> Cut:  # noqa: ARG002
        return kernels.greedy, ()


@dataclass(frozen=True)
class TopK(Sampler):
    """The k largest logits (Fan et al. 2018, arXiv 1805.04833), of equal ones the lower token ids.

    k: 1 to 2^31 - 1.
    """

    k: int = 20

    name: ClassVar[str] = "top-k"

    def __post_init__(self) -> None:
        whole = isinstance(self.k, int | np.integer) and not isinstance(self.k, bool)
        _require(whole and 1 <= self.k < 2**31, "k", "a whole number from 1 to 2^31 - 1", self.k)

    def cut(self, temperature: float) -> Cut:  # noqa: ARG002
        return kernels.top_k, (int(self.k),)


@dataclass(frozen=True)
class TopP(Sampler):
    """The shortest prefix of the sorted tokens whose probability reaches p (Holtzman et al. 2020, arXiv
    1904.09751), the token that reaches it included.

    p: 0 to 1; at 1 every token stands, as in llama.cpp, however small its probability.
    """

    p: float = 0.9
    order: Order = "temperature-first"

    name: ClassVar[str] = "top-p"

    def __post_init__(self) -> None:
        _require(0 <= self.p <= 1, "p", "a number from 0 to 1", self.p)
        self._require_order()

    def cut(self, temperature: float) -> Cut:
        return kernels.top_p, (float(self.p), self.seen(temperature))


@dataclass(frozen=True)
class MinP(Sampler):
    """The tokens with at least p times the probability of the likeliest (Nguyen et al. 2025, arXiv
    2407.01082): those whose logit is at least `l_1 + T log(p)`.

    p: 0 to 1; at 0 every token stands.
    """

    p: float = 0.1
    order: Order = "temperature-first"

    name: ClassVar[str] = "min-p"

    def __post_init__(self) -> None:
        _require(0 <= self.p <= 1, "p", "a number from 0 to 1", self.p)
        self._require_order()

    def cut(self, temperature: float) -> Cut:
        return kernels.min_p, (float(self.p), self.seen(temperature))


@dataclass(frozen=True)
class TopNSigma(Sampler):
    """The logits of at least `l_1 - n σ`, σ the population standard deviation of the finite ones
    (Tang et al. 2025, arXiv 2411.07641). The cut does not move with temperature.

    n: > 0.
    """

    n: float = 1.0

    name: ClassVar[str] = "top-n-sigma"

    def __post_init__(self) -> None:
        _require(0 < self.n < math.inf, "n", "a finite number above 0", self.n)

    def cut(self, temperature: float) -> Cut:  # noqa: ARG002
        return kernels.top_n_sigma, (float(self.n),)


@dataclass(frozen=True)
class Eta(Sampler):
    """η-sampling (Hewitt et al. 2022, arXiv 2210.15191): the tokens with a probability of at least
    `min(ε, sqrt(ε) exp(-H))`, H the entropy in nats, and always the likeliest.

    epsilon: above 0 and below 1.
    """

    epsilon: float = 9e-4
    order: Order = "temperature-first"

    name: ClassVar[str] = "eta"

    def __post_init__(self) -> None:
        _require(0 < self.epsilon < 1, "epsilon", "a number above 0 and below 1", self.epsilon)
        self._require_order()

    def cut(self, temperature: float) -> Cut:
        return kernels.eta, (float(self.epsilon), self.seen(temperature))


@dataclass(frozen=True)
class PLess(Sampler):
    """p-less (arXiv 2509.23234): the tokens with a probability of at least `Σ p_j²`, the chance that
    two draws agree. It has no option but the order."""

    order: Order = "temperature-first"

    name: ClassVar[str] = "p-less"

    def __post_init__(self) -> None:
        self._require_order()

    def cut(self, temperature: float) -> Cut:
        return kernels.p_less, (self.seen(temperature),)


@dataclass(frozen=True)
class Mirostat(Sampler):
    """Mirostat (Basu et al. 2021, arXiv 2007.14966), which is no cut of one step: it follows the
    surprise of the tokens it drew, so it is llama.cpp's own sampler that cuts and draws.

    Here every finite logit stands, and, as there is nothing to put first, in the order of the token
    ids. As a logits processor it changes nothing: llama-cpp-python has `mirostat_mode`.

    tau: target surprise in bits, > 0. eta: learning rate, >= 0. version: 1 or 2.
    """

    tau: float = 5.0
    eta: float = 0.1
    version: int = 2

    name: ClassVar[str] = "mirostat"

    def __post_init__(self) -> None:
        _require(0 < self.tau < math.inf, "tau", "a finite number above 0", self.tau)
        _require(0 <= self.eta < math.inf, "eta", "a finite number of at least 0", self.eta)
        _require(self.version in (1, 2), "version", "1 or 2", self.version)

    def cut(self, temperature: float) -> Cut:  # noqa: ARG002
        return kernels.every_finite, ()


SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler for sampler in (MinK, Greedy, TopK, TopP, MinP, TopNSigma, Eta, PLess, Mirostat)
}


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


_READERS: dict[type, Callable[[str], Any]] = {float: float, int: int, bool: _flag, str: str}
_KINDS = {float: "a number", int: "a whole number", bool: "true or false"}


def parse(text: str) -> Sampler:
    """The sampler that `text` describes, `name` or `name:option=value,…`; `str()` is the inverse.

    >>> parse("min-k:tau=0.5")
    MinK(tau=0.5)

    Raises ValueError, naming what is known, for an unknown name or option, an option given twice or a
    value that is of another kind or out of range.
    """
    name, _, rest = text.partition(":")
    if name not in SAMPLERS:
        raise ValueError(f"unknown sampler {name!r}: the samplers are {', '.join(SAMPLERS)}")
    sampler = SAMPLERS[name]
    kinds = {f.name: type(f.default) for f in fields(sampler)}  # type: ignore[arg-type]
    options: dict[str, Any] = {}
    for option in rest.split(",") if rest else []:
        key, _, value = option.partition("=")
        if key not in kinds:
            takes = f"its options are {', '.join(kinds)}" if kinds else "it takes none"
            raise ValueError(f"{name} has no option {key!r}: {takes}")
        if key in options:
            raise ValueError(f"{name}: {key} is given twice")
        try:
            options[key] = _READERS[kinds[key]](value)
        except ValueError:
            raise ValueError(f"{name}: {key} must be {_KINDS[kinds[key]]}, not {value!r}") from None
    return sampler(**options)
