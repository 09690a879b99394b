"""`mink-eval` with two more samplers, which cut at the steepest drop as Min-k does, and came before it.

    python -m scripts.lab.rivals run gsm8k --sampler min-k --sampler diff-sampling:p=0.5 --sampler p-step

Each is a kernel of the logits sorted by value, a dataclass of its options, and nothing else.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mink_local.evals.cli import main as mink_eval
from mink_local.samplers import SAMPLERS, Sampler, number
from mink_local.samplers.compile import compiled, helper
from mink_local.samplers.kernels import keep_from, survey


@helper
def _descending(logits: Any, largest: Any) -> Any:
    """Return the finite logits, largest first; +inf counts as the largest float32."""
    found = np.minimum(logits[logits > -np.inf], np.float32(largest))
    found.sort()
    return found[::-1]


@compiled
def diff_sampling(logits: Any, options: Any, work: Any, ids: Any) -> Any:
    """Keep the tokens before the largest drop of the sorted probabilities. Options: p, min_p.

    That is the largest one after tokens whose probability reaches p, and after all tokens with more than
    min_p times the largest, if it is not 0. The last one is that to 0.
    """
    n, smallest, largest = survey(logits, work)
    if n <= 0:
        return n
    p, min_p = options[0], options[1]
    ranked = _descending(logits, largest)
    weights = np.exp(ranked.astype(np.float64) - largest)
    needed = p * weights.sum()
    cut, steepest, mass = smallest, -1.0, 0.0
    for i in range(ranked.size):
        following = weights[i + 1] if i + 1 < ranked.size else 0.0
        mass += weights[i]
        is_far_enough = (mass >= needed and following <= (min_p or 1.0)) or i + 1 == ranked.size
        if is_far_enough and weights[i] - following > steepest:
            cut, steepest = np.float64(ranked[i]), weights[i] - following
    return keep_from(-math.inf if p == 1.0 else cut, largest, logits, work, ids)


@compiled
def p_step(logits: Any, options: Any, work: Any, ids: Any) -> Any:
    """Keep the tokens before the first one with `p_{i+1} < step * p_i`, sorted; all if there is none."""
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    gap = -math.log(options[0]) if options[0] > 0.0 else math.inf
    ranked = _descending(logits, largest)
    for i in range(ranked.size - 1):
        if np.float64(ranked[i]) - np.float64(ranked[i + 1]) > gap:
            return keep_from(np.float64(ranked[i]), largest, logits, work, ids)
    return keep_from(-math.inf, largest, logits, work, ids)


@dataclass(frozen=True)
class DiffSampling(Sampler):
    """Keep the tokens before the largest drop of the sorted probabilities (DiffSampling, arXiv 2502.14037).

    The probabilities are those at temperature 1: the paper applies temperature afterwards. With neither
    option, it is the paper's DiffSampling-cut.

    Args:
        p: 0 to 1; only drops after tokens whose probability together reaches p count (DiffSampling-lb).
        min_p: 0 to 1; only drops after all tokens more than min_p times as probable as the top one count
            (DiffSampling-minp).
    """

    p: float = number(0.0, low=0, high=1)
    min_p: float = number(0.0, low=0, high=1, variant=True)

    name = "diff-sampling"
    sweep = ("p", (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99))
    kernel = staticmethod(diff_sampling)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p and self.min_p:
            raise ValueError("p and min_p are two variants of diff-sampling: give one of them")


@dataclass(frozen=True)
class PStep(Sampler):
    """Keep the tokens before the first one less than `step` times as probable as the one before it (P-Step).

    Proposed for llama.cpp (https://github.com/ggml-org/llama.cpp/pull/5675), where temperature comes last.
    All tokens are kept if there is no such step.

    Args:
        step: 0 to 1; 0 keeps every token.
    """

    step: float = number(0.5, low=0, high=1)

    name = "p-step"
    sweep = ("step", (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1))
    kernel = staticmethod(p_step)


def main() -> None:
    """Run `mink-eval`, which finds the samplers by name."""
    for kind in (DiffSampling, PStep):
        SAMPLERS[kind.name] = kind
    mink_eval()


if __name__ == "__main__":
    main()
