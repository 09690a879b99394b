"""The cuts, each a frozen dataclass of its options.

They are registered in the order in which a request's fields apply: Min-k first, on the raw logits, then as in
llama.cpp.
"""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mink_local.samplers import kernels
from mink_local.samplers.base import Cut, Order, Sampler, choice, number

Decay = Literal["power", "log"]


@dataclass(frozen=True)
class MinK(Sampler):
    """Keep the tokens before the steepest weighted drop of the sorted logits (Min-k, arXiv 2604.11012).

    With the finite logits sorted, `l_1 >= ... >= l_n`, and range `R = l_1 - l_n`: the cliff is the
    position i with the largest `(l_i - l_{i+1}) / (R + 1e-8) / i` (section 3.1; the smallest such i
    on a tie), and at least `⌊tau / (R + 1e-8)⌋` tokens are kept (section 3.2).

    For more candidates, raise `floor`, which is not in the paper. A `tau` large enough to matter keeps extra
    tokens at every step, even where the model is certain.

    Args:
        tau: >= 0; 0 switches the fallback off. On real models R is 30 to 45, so at the default 3 the
            fallback adds no tokens to those before the cliff.
        floor: >= 0, in nats; 0 is the paper's rule. Above 0, also keeps all tokens whose logit is at least
            `l_1 - floor`: at temperature 1, those at least `exp(-floor)` times as probable as the top token.

    Only for the ablations in the paper's appendix:
        alpha: >= 0; the drop after position i is divided by `i**alpha`.
        decay: "log" divides the drop by `log(i + 1)` instead.
        normalize: False skips the division by R. That cannot move the steepest drop and only affects the
            fallback, which becomes `⌊tau⌋`.
    """

    tau: float = number(3.0, low=0)
    floor: float = number(0.0, low=0, variant=True)
    _: KW_ONLY
    alpha: float = number(1.0, low=0, variant=True)
    decay: Decay = choice("power", "log", variant=True)
    normalize: bool = choice(True, False, variant=True)

    name = "min-k"
    keeps = "the tokens before the steepest weighted drop, and those within `floor` nats of the largest logit"
    sweep = ("floor", (0, 0.3, 0.7, 1, 1.4, 1.8, 2.3, 3, 4))
    request_fields: ClassVar = {"min_k_tau": "tau", "min_k_floor": "floor"}
    kernel = staticmethod(kernels.min_k)

    @classmethod
    def is_off(cls, value: float) -> bool:
        return value < 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay == "log" and self.alpha != 1:
            raise ValueError("alpha is the exponent of decay=power: omit it with decay=log")

    def kernel_options(self, temperature: float) -> NDArray[np.float64]:  # noqa: ARG002
        options = [self.tau, self.floor, self.alpha, self.decay == "log", self.normalize]
        return np.array(options, np.float64)


@dataclass(frozen=True)
class Greedy(Sampler):
    """Keep the largest logit; the lowest token id on a tie."""

    name = "greedy"
    keeps = "the largest logit"
    kernel = staticmethod(kernels.greedy)


@dataclass(frozen=True)
class TopNSigma(Sampler):
    """Keep the logits that are at least `l_1 - n σ` (top-nσ, Tang et al. 2025, arXiv 2411.07641).

    σ is the population standard deviation of the finite logits.

    Args:
        n: > 0.
    """

    n: float = number(1.0, low=0, exclusive=True)

    name = "top-n-sigma"
    keeps = "logits of at least the largest minus n·σ"
    sweep = ("n", (0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2))
    request_fields: ClassVar = {"top_n_sigma": "n"}
    kernel = staticmethod(kernels.top_n_sigma)


@dataclass(frozen=True)
class TopK(Sampler):
    """Keep the k largest logits, ties by lower token id (Fan et al. 2018, arXiv 1805.04833).

    Args:
        k: 1 to 2^31 - 1.
    """

    k: int = number(20, low=1, high=2**31 - 1)

    name = "top-k"
    keeps = "the k largest logits"
    sweep = ("k", (2, 3, 5, 10, 20, 40))
    request_fields: ClassVar = {"top_k": "k"}
    kernel = staticmethod(kernels.top_k)


@dataclass(frozen=True)
class TopA(Sampler):
    """Keep the tokens whose probability is at least `a` times the square of the largest.

    From KoboldAI and RWKV, without a paper. The most probable token is always kept.

    Args:
        a: 0 to 1; 0 keeps every token.
    """

    a: float = number(0.2, low=0, high=1)
    order: Order = "temperature-first"

    name = "top-a"
    keeps = "probabilities of at least a·p_max²"
    sweep = ("a", (1, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02))
    request_fields: ClassVar = {"top_a": "a"}
    kernel = staticmethod(kernels.top_a)


@dataclass(frozen=True)
class Typical(Sampler):
    """Keep the tokens with surprisal nearest to the entropy until their total probability reaches p.

    Locally typical sampling (Meister et al. 2023, arXiv 2202.00666). The most probable token may be cut.
    Tokens tied with the last one kept are kept too.

    Args:
        p: 0 to 1; 1 keeps every token, as in llama.cpp.
    """

    p: float = number(0.9, low=0, high=1)
    order: Order = "temperature-first"

    name = "typical"
    keeps = "surprisal nearest to the entropy, until the total probability reaches p"
    sweep = ("p", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99))
    request_fields: ClassVar = {"typical_p": "p"}
    kernel = staticmethod(kernels.typical)

    @classmethod
    def is_off(cls, value: float) -> bool:
        return value >= 1


@dataclass(frozen=True)
class TopP(Sampler):
    """Keep the most probable tokens until their total probability reaches p (Holtzman et al. 2020).

    arXiv 1904.09751. The token that reaches p is kept too.

    Args:
        p: 0 to 1; 1 keeps every token, as in llama.cpp, however improbable.
    """

    p: float = number(0.9, low=0, high=1)
    order: Order = "temperature-first"

    name = "top-p"
    keeps = "the most probable tokens until their total probability reaches p"
    sweep = ("p", (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99))
    request_fields: ClassVar = {"top_p": "p"}
    kernel = staticmethod(kernels.top_p)

    @classmethod
    def is_off(cls, value: float) -> bool:
        return value >= 1


@dataclass(frozen=True)
class MinP(Sampler):
    """Keep the tokens at least p times as probable as the top one (Nguyen et al. 2025, arXiv 2407.01082).

    That is, those with a logit of at least `l_1 + T log(p)`.

    Args:
        p: 0 to 1; 0 keeps every token.
    """

    p: float = number(0.1, low=0, high=1)
    order: Order = "temperature-first"

    name = "min-p"
    keeps = "probabilities of at least p times the largest"
    sweep = ("p", (0.7, 0.5, 0.35, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01))
    request_fields: ClassVar = {"min_p": "p"}
    kernel = staticmethod(kernels.min_p)


@dataclass(frozen=True)
class Xtc(Sampler):
    """Drop the top choices at random steps (XTC, "exclude top choices").

    Of the tokens with a probability of at least `threshold`, all but the least probable are dropped; tokens
    below the threshold stay. See https://github.com/oobabooga/text-generation-webui/pull/6335.

    Args:
        probability: Probability of cutting at a step, 0 to 1. Drawn from a stream of the answer's seed.
        threshold: 0 to 1; above 0.5, nothing is ever dropped.
    """

    probability: float = number(0.5, low=0, high=1)
    threshold: float = number(0.1, low=0, high=1)
    order: Order = "temperature-first"

    name = "xtc"
    keeps = "all but the top choices above `threshold`, at random steps"
    request_fields: ClassVar = {"xtc_probability": "probability", "xtc_threshold": "threshold"}
    is_stateful = True
    kernel = staticmethod(kernels.xtc)

    def as_cuts(self, temperature: float) -> tuple[Cut, ...]:
        return (Cut(self.kernel, self.kernel_options(temperature), self.probability),)


@dataclass(frozen=True)
class Eta(Sampler):
    """Keep the tokens whose probability is at least `min(ε, sqrt(ε) exp(-H))`, H the entropy in nats.

    η-sampling (Hewitt et al. 2022, arXiv 2210.15191). The most probable token is always kept.

    Args:
        epsilon: above 0 and below 1.
    """

    epsilon: float = number(9e-4, low=0, high=1, exclusive=True)
    order: Order = "temperature-first"

    name = "eta"
    keeps = "probabilities of at least min(ε, √ε·exp(−H))"
    sweep = ("epsilon", (0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01, 0.003, 9e-4))
    kernel = staticmethod(kernels.eta)


@dataclass(frozen=True)
class PLess(Sampler):
    """Keep the tokens whose probability is at least `Σ p_j²` (p-less, arXiv 2509.23234).

    That sum is the probability that two samples are the same token.
    """

    order: Order = "temperature-first"

    name = "p-less"
    keeps = "probabilities of at least Σp²"
    kernel = staticmethod(kernels.p_less)


class DelegatedSampler(Sampler):
    """Base class of samplers that keep every token and leave the rest to one of llama.cpp's own samplers."""

    is_stateful = comes_last = True
    kernel = staticmethod(kernels.every_finite)


@dataclass(frozen=True)
class DynamicTemperature(DelegatedSampler):
    """Vary the temperature with the candidates' entropy, using llama.cpp's own sampler.

    The temperature is `low + (T + range - low) (H / log k)**exponent`, with `low = max(0, T - range)`, where
    H is the entropy of the k candidates. Temperature-first cuts see the probabilities at T.

    Args:
        range: >= 0; 0 leaves the temperature unchanged.
        exponent: >= 0.
    """

    range: float = number(0.5, low=0)
    exponent: float = number(1.0, low=0)

    name = "dynatemp"
    keeps = "all, at a temperature that rises with the entropy"
    request_fields: ClassVar = {"dynatemp_range": "range", "dynatemp_exponent": "exponent"}


@dataclass(frozen=True)
class AdaptiveP(DelegatedSampler):
    """Sample tokens whose probability is near a target, using llama.cpp's own sampler.

    It adapts to previously sampled tokens, so that their average probability approaches the target; see
    https://github.com/ggml-org/llama.cpp/pull/17927. Meant to follow a mild cut such as min-p.

    Args:
        target: 0 to 1.
        decay: Decay of the average, 0 to 0.99: it covers about 1 / (1 - decay) tokens.
    """

    target: float = number(0.5, low=0, high=1)
    decay: float = number(0.9, low=0, high=0.99)

    name = "adaptive-p"
    keeps = "all, and samples near the probability `target`"
    request_fields: ClassVar = {"adaptive_target": "target", "adaptive_decay": "decay"}

    @classmethod
    def is_off(cls, value: float) -> bool:
        return value < 0


@dataclass(frozen=True)
class Mirostat(DelegatedSampler):
    """Hold the surprisal of sampled tokens near a target (Mirostat, Basu et al. 2021, arXiv 2007.14966).

    The candidates depend on previously sampled tokens. llama.cpp's own sampler both cuts and samples, so it
    can only come last in a chain. In llama-cpp-python, use `mirostat_mode`.

    Args:
        tau: Target surprisal in bits, > 0.
        eta: Learning rate, >= 0.
        version: 1 or 2.
    """

    tau: float = number(5.0, low=0, exclusive=True)
    eta: float = number(0.1, low=0)
    version: int = choice(2, 1)

    name = "mirostat"
    keeps = "llama.cpp's choice, which it also samples from"
    request_fields: ClassVar = {"mirostat": "version", "mirostat_tau": "tau", "mirostat_eta": "eta"}
