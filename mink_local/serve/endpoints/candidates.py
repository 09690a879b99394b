"""The candidates of an answer's next token, and what samplers keep of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import OptionError
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.sampling_step import SamplingStep, sampling_step
from mink_local.generation.text import TextStream
from mink_local.llama.weights import Weights
from mink_local.samplers import Greedy, Sampler, parse
from mink_local.serve.protocol.fields import CandidatesRequest, naming
from mink_local.serve.protocol.messages import prepare_chat
from mink_local.serve.protocol.responses import ApiError, Candidate, Cut, StepCandidates
from mink_local.serve.service import Service, api_errors

_CURVE_POINTS = 256  # of the candidates' logits, over the whole vocabulary


async def find_candidates(service: Service, asked: CandidatesRequest) -> StepCandidates:
    """Return the candidates of an answer's next token, and samplers' cuts."""
    service.presets.find(asked.model)
    try:
        samplers = [parse(text) for text in asked.samplers]
    except ValueError as error:
        raise ApiError(400, str(error), param="samplers") from None
    rows: list[NDArray[np.float32]] = []

    def make_requests() -> list[Request]:
        params = SamplingParams(sampler=Greedy(), max_tokens=1)
        if asked.prompt:
            request = Request(asked.prompt, prefix=asked.prefix_tokens or ())
        else:
            request = prepare_chat(service.model, asked.chat(), params)
        # Not with the grammar of a forced call: the logits are the model's own.
        return [replace(request, params=params, watch=lambda logits: rows.append(logits.copy()))]

    with naming({"prefix": "prefix_tokens"}):
        events = await service.begin(1, make_requests)
    try:
        async for _ in events:
            pass
    finally:
        service.cancel(events)
    with api_errors():
        return await service.off_loop(
            lambda: step_candidates(
                rows[0],
                service.model.weights,
                samplers,
                asked.temperatures or [1.0],
                top=asked.top,
                sampled=asked.sampled,
                prefix=asked.prefix_tokens or (),
                prompt_tokens=events.answers[0].prompt_tokens,
            )
        )


def step_candidates(
    logits: NDArray[np.float32],
    weights: Weights,
    samplers: list[Sampler],
    temperatures: list[float],
    *,
    top: int,
    sampled: int | None = None,
    prefix: Sequence[int] = (),
    prompt_tokens: int = 0,
) -> StepCandidates:
    """Return the first candidates of a step and the cuts of samplers.

    Args:
        logits: Raw logits of the step, (V,).
        weights: The vocabulary, for the texts of tokens.
        samplers: The samplers whose cuts to return.
        temperatures: The temperatures > 0 of the cuts.
        top: Number of candidates to return.
        sampled: A token to describe, whatever its rank.
        prefix: The answer's tokens before the step.
        prompt_tokens: Number of tokens before the step.

    Raises:
        ValueError: No logit is finite, or that of `sampled` is not.
    """
    if not np.isfinite(logits).any():
        raise ValueError("no logit is finite: there is no token to choose")
    if sampled is not None and not (0 <= sampled < logits.size and np.isfinite(logits[sampled])):
        raise OptionError("sampled", f"must be a token with a finite logit, not {sampled}")
    step = sampling_step(logits, int(np.nanargmax(logits)) if sampled is None else sampled, 1.0, ())
    before = b"".join(map(weights.piece, prefix))

    def candidate(rank: int) -> Candidate:
        token = int(step.ids[rank])
        piece = weights.piece(token)
        return Candidate(
            rank=rank + 1,
            id=token,
            text=TextStream(before=before).push(piece) if piece else weights.token_text(token),
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
        entropy=step.entropy,
        cuts=[_cut(step.of(sampler), temperatures) for sampler in samplers],
    )


def _cut(step: SamplingStep, temperatures: list[float]) -> Cut:
    """Return the cut of a step's sampler at each temperature."""
    steps = [step.at(temperature) for temperature in temperatures]
    weights = []
    for one in steps:
        kept = one.logits[one.first : one.first + one.k]
        with np.errstate(over="ignore"):  # at temperatures near 0
            weights.append(float(np.exp((kept - one.logits[0]) / one.temperature).sum()))
    return Cut(
        sampler=str(step.sampler),
        first=[one.first + 1 for one in steps],
        k=[one.k for one in steps],
        members=[one.left for one in steps],
        weight=weights,
    )
