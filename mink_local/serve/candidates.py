"""One step of an answer for the playground: its candidates, the cliff, and each sampler's cut."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mink_local.generation.sampling_step import sampling_step
from mink_local.llama.weights import Weights
from mink_local.samplers import Sampler

_CURVE_POINTS = 256  # over the whole vocabulary


class Candidate(Struct):
    """A token that the model might have written, with its rank, which counts from 1."""

    rank: int
    id: int
    text: str
    logit: float
    p: float  # at temperature 1, of the whole vocabulary
    ends: bool  # whether it ends the answer


class Cut(Struct):
    """What a sampler keeps of a step, at each of the temperatures asked for."""

    sampler: str
    k: list[int]
    weight: list[float]  # the sum of `exp((logit - largest) / temperature)` over what is kept


class StepCandidates(Struct):
    """The answer of `POST /candidates`."""

    n_vocab: int
    prompt_tokens: int
    temperatures: list[float]
    candidates: list[Candidate]
    sampled: Candidate | None
    curve: list[tuple[int, float]]  # ranks from 1 on, evenly spaced on a logarithmic axis, and their logits
    cliff: int  # the number of candidates before the largest weighted drop
    cuts: list[Cut]


def step_candidates(
    logits: NDArray[np.float32],
    weights: Weights,
    samplers: list[Sampler],
    temperatures: list[float],
    *,
    top: int,
    sampled: int | None = None,
    prompt_tokens: int = 0,
) -> StepCandidates:
    """Return the first candidates of a step and the cuts of samplers.

    Args:
        logits: Raw logits of the step, (V,).
        weights: The vocabulary, for the texts of tokens.
        samplers: The samplers whose cuts are wanted.
        temperatures: The temperatures > 0 that the cuts are wanted for.
        top: Number of candidates in the answer.
        sampled: A token to be described beside the first ones.
        prompt_tokens: Number of tokens before the step.

    Raises:
        ValueError: No logit is finite, or that of `sampled` is not.
    """
    if not np.isfinite(logits).any():
        raise ValueError("no logit is finite: there is no token to choose")
    if sampled is not None and not (0 <= sampled < logits.size and np.isfinite(logits[sampled])):
        raise ValueError(f"sampled must be a token that can be chosen, not {sampled}")
    step = sampling_step(logits, int(np.nanargmax(logits)) if sampled is None else sampled, 1.0, ())

    def candidate(rank: int) -> Candidate:
        token = int(step.ids[rank])
        return Candidate(
            rank=rank + 1,
            id=token,
            text=weights.piece(token).decode("utf-8", "replace") or weights.token_text(token),
            logit=float(step.logits[rank]),
            p=float(step.p[rank]),
            ends=weights.ends_generation(token),
        )

    n = len(step.ids)
    ranks = np.unique(np.geomspace(1, n, _CURVE_POINTS).round().astype(int)).tolist()
    return StepCandidates(
        n_vocab=logits.size,
        prompt_tokens=prompt_tokens,
        temperatures=temperatures,
        candidates=[candidate(rank) for rank in range(min(top, n))],
        sampled=None if sampled is None else candidate(step.sampled),
        curve=[(rank, float(step.logits[rank - 1])) for rank in ranks],
        cliff=step.cliff,
        cuts=[_cut(sampler, logits, step.logits, temperatures) for sampler in samplers],
    )


def _cut(
    sampler: Sampler, logits: NDArray[np.float32], ordered: NDArray[np.float64], temperatures: list[float]
) -> Cut:
    k: list[int] = []
    weight = []
    for temperature in temperatures:
        if sampler.order == "temperature-first" or not k:
            kept = sampler.cutoff(logits, temperature)
        k.append(kept)
        with np.errstate(over="ignore"):  # at temperatures near 0
            weight.append(float(np.exp((ordered[:kept] - ordered[0]) / temperature).sum()))
    return Cut(str(sampler), k, weight)
