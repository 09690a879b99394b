"""The methods a user names: `MinK(tau=3.0)`, `TopP(p=0.9)`, …: frozen dataclasses that check their options.

A sampler reads raw logits and decides which tokens remain candidates; temperature and sampling come after
it. Some methods look at probabilities, which depend on temperature: their `order` says if they see
`softmax(logits / T)`, "temperature-first", as in the papers and in Hugging Face's transformers, or
`softmax(logits)`, "temperature-last", as by default in llama.cpp.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mink_local.samplers import kernels
from mink_local.samplers.select import VARIANT, LogitsProcessor, Order, Sampler, Workspace, require

__all__ = [
    "SAMPLERS", "Eta", "Greedy", "LlamaDefault", "LogitsProcessor", "MinK", "MinP", "Mirostat", "Order",
    "PLess", "Sampler", "TopK", "TopNSigma", "TopP", "Workspace", "label", "parse",
]  # fmt: skip

Decay = Literal["power", "log"]


@dataclass(frozen=True)
class MinK(Sampler):
    """Keep the tokens before the steepest weighted drop of the sorted logits (Min-k, arXiv 2604.11012).

    With the finite logits sorted, `l_1 >= ... >= l_n`, and range `R = l_1 - l_n`: the cliff is the
    position i with the largest `(l_i - l_{i+1}) / (R + 1e-8) / i` (section 3.1; the smallest such i
    on a tie), and at least `⌊tau / (R + 1e-8)⌋` tokens are kept (section 3.2).

    For more candidates raise `floor`, which is not in the paper. A `tau` large enough to change anything
    keeps some tokens at every step, also if the model is certain of one.

    Args:
        tau: >= 0; 0 switches the fallback off. On real models R is 30 to 45, so at the default 3 the
            fallback keeps no token that the cliff does not.
        floor: >= 0, in nats; 0 is the paper's rule. Above 0, all tokens with a logit of at least
            `l_1 - floor` are kept, that is with at least `exp(-floor)` times the largest probability at
            temperature 1.
        alpha: >= 0; the drop after position i is divided by `i**alpha`. This and the following options
            are for the ablations of the paper's appendix.
        decay: "log" divides the drop by `log(i + 1)` instead.
        normalize: False leaves the range out. Dividing by R cannot move the largest weight of a step, so
            this acts through the fallback alone, which becomes `⌊tau⌋` at every step.
    """

    tau: float = 3.0
    floor: float = field(default=0.0, metadata=VARIANT)
    alpha: float = field(default=1.0, metadata=VARIANT)
    decay: Decay = field(default="power", metadata=VARIANT)
    normalize: bool = field(default=True, metadata=VARIANT)

    name = "min-k"
    kernel = staticmethod(kernels.min_k)

    def __post_init__(self) -> None:
        require(0 <= self.tau < math.inf, "tau", "a finite number of at least 0", self.tau)
        require(0 <= self.floor < math.inf, "floor", "a finite number of at least 0", self.floor)
        require(0 <= self.alpha < math.inf, "alpha", "a finite number of at least 0", self.alpha)
        require(self.decay in get_args(Decay), "decay", " or ".join(get_args(Decay)), self.decay)
        require(isinstance(self.normalize, bool), "normalize", "true or false", self.normalize)
        if self.decay == "log" and self.alpha != 1:
            raise ValueError("alpha is the exponent of decay=power: decay=log has none")

    def kernel_options(self, temperature: float) -> NDArray[np.float64]:  # noqa: ARG002
        options = [self.tau, self.floor, self.alpha, self.decay == "log", self.normalize]
        return np.array(options, np.float64)


@dataclass(frozen=True)
class Greedy(Sampler):
    """Keep the largest logit, the lowest token id on a tie."""

    name = "greedy"
    kernel = staticmethod(kernels.greedy)


def _require_k(k: int) -> None:
    whole = isinstance(k, int | np.integer) and not isinstance(k, bool)
    require(whole and 1 <= k < 2**31, "k", "a whole number from 1 to 2^31 - 1", k)


@dataclass(frozen=True)
class TopK(Sampler):
    """Keep the k largest logits (Fan et al. 2018, arXiv 1805.04833), of equal ones the lower token ids.

    Args:
        k: 1 to 2^31 - 1.
    """

    k: int = 20

    name = "top-k"
    kernel = staticmethod(kernels.top_k)

    def __post_init__(self) -> None:
        _require_k(self.k)


@dataclass(frozen=True)
class TopP(Sampler):
    """Keep the most probable tokens until their probability reaches p (Holtzman et al. 2020).

    arXiv 1904.09751. The token that reaches p is kept too.

    Args:
        p: 0 to 1; at 1 every token is kept, as in llama.cpp, however small its probability.
    """

    p: float = 0.9
    order: Order = "temperature-first"

    name = "top-p"
    kernel = staticmethod(kernels.top_p)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.p <= 1, "p", "a number from 0 to 1", self.p)


@dataclass(frozen=True)
class MinP(Sampler):
    """Keep the tokens with at least p times the largest probability (Nguyen et al. 2025, arXiv 2407.01082).

    Their logit is at least `l_1 + T log(p)`.

    Args:
        p: 0 to 1; at 0 every token is kept.
    """

    p: float = 0.1
    order: Order = "temperature-first"

    name = "min-p"
    kernel = staticmethod(kernels.min_p)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.p <= 1, "p", "a number from 0 to 1", self.p)


@dataclass(frozen=True)
class TopNSigma(Sampler):
    """Keep the logits of at least `l_1 - n σ` (top-nσ, Tang et al. 2025, arXiv 2411.07641).

    σ is the population standard deviation of the finite logits.

    Args:
        n: > 0.
    """

    n: float = 1.0

    name = "top-n-sigma"
    kernel = staticmethod(kernels.top_n_sigma)

    def __post_init__(self) -> None:
        require(0 < self.n < math.inf, "n", "a finite number above 0", self.n)


@dataclass(frozen=True)
class Eta(Sampler):
    """Keep the tokens with a probability of at least `min(ε, sqrt(ε) exp(-H))`, H the entropy in nats.

    η-sampling (Hewitt et al. 2022, arXiv 2210.15191). The most probable token is always kept.

    Args:
        epsilon: above 0 and below 1.
    """

    epsilon: float = 9e-4
    order: Order = "temperature-first"

    name = "eta"
    kernel = staticmethod(kernels.eta)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.epsilon < 1, "epsilon", "a number above 0 and below 1", self.epsilon)


@dataclass(frozen=True)
class PLess(Sampler):
    """Keep the tokens with a probability of at least `Σ p_j²` (p-less, arXiv 2509.23234).

    That is the probability that two samples are the same token.
    """

    order: Order = "temperature-first"

    name = "p-less"
    kernel = staticmethod(kernels.p_less)


@dataclass(frozen=True)
class LlamaDefault(Sampler):
    """Keep what llama.cpp's samplers keep if no option is given: top-k, then top-p, then min-p.

    Temperature acts after them: they see the probabilities at temperature 1.

    Args:
        k: 1 to 2^31 - 1, of top-k.
        p: 0 to 1, of top-p among the k tokens.
        min_p: 0 to 1, of min-p.
    """

    k: int = 40
    p: float = 0.95
    min_p: float = 0.05

    name = "llama-default"
    kernel = staticmethod(kernels.llama_default)

    def __post_init__(self) -> None:
        _require_k(self.k)
        require(0 <= self.p <= 1, "p", "a number from 0 to 1", self.p)
        require(0 <= self.min_p <= 1, "min_p", "a number from 0 to 1", self.min_p)


@dataclass(frozen=True)
class Mirostat(Sampler):
    """Keep the surprise of the sampled tokens near a target (Mirostat, Basu et al. 2021, arXiv 2007.14966).

    Its candidates depend on the tokens sampled before, and llama.cpp's own sampler finds and samples them:
    here every finite logit is a candidate. In llama-cpp-python use `mirostat_mode`.

    Args:
        tau: Target surprise in bits, > 0.
        eta: Learning rate, >= 0.
        version: 1 or 2.
    """

    tau: float = 5.0
    eta: float = 0.1
    version: int = 2

    name = "mirostat"
    kernel = staticmethod(kernels.every_finite)

    def __post_init__(self) -> None:
        require(0 < self.tau < math.inf, "tau", "a finite number above 0", self.tau)
        require(0 <= self.eta < math.inf, "eta", "a finite number of at least 0", self.eta)
        require(self.version in (1, 2), "version", "1 or 2", self.version)


SAMPLERS: dict[str, type[Sampler]] = {sampler.name: sampler for sampler in Sampler.__subclasses__()}
"""The methods above by name, which `parse` knows."""


_KINDS: dict[type, tuple[Callable[[str], Any], str]] = {
    float: (float, "a number"),
    int: (int, "a whole number"),
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    str: (str, "a text"),
}


def parse(text: str) -> Sampler:
    """Return the sampler that a text describes; `str()` is the inverse.

    >>> parse("min-k:tau=0.5")
    MinK(tau=0.5, floor=0.0, alpha=1.0, decay='power', normalize=True)

    Args:
        text: `name` or `name:option=value,…`.

    Raises:
        ValueError: A name or value is wrong, or an option is given twice.
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
        read, kind = _KINDS[kinds[key]]
        try:
            options[key] = read(value)
        except (KeyError, ValueError):
            raise ValueError(f"{name}: {key} must be {kind}, not {value!r}") from None
    return sampler(**options)


def label(text: str) -> str:
    """Return a sampler's text in short, for a table.

    >>> label("top-p:p=0.9,order=temperature-first")
    'top-p:p=0.9 (T first)'
    """
    short, _, order = text.partition("order=temperature-")
    return f"{short.rstrip(':,')} (T {order})" if order else text
