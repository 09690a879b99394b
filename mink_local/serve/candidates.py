"""One step of an answer for the playground: its candidates, the cliff, and each sampler's cut."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.sampling_step import sampling_step
from mink_local.generation.text_stream import TextStream
from mink_local.llama.weights import Weights
from mink_local.samplers import Greedy, Sampler, parse
from mink_local.serve.api_errors import ApiError
from mink_local.serve.engine_thread import EngineDownError
from mink_local.serve.protocol import CandidatesRequest
from mink_local.serve.protocol import parse as parse_request
from mink_local.serve.respond import check_event, json_response, while_connected
from mink_local.serve.service import Service, down

_TOP = 50  # candidates, if the client does not say
_CURVE_POINTS = 256  # over the whole vocabulary


class Candidate(Struct):
    """A token that the model might have written, with its rank, which counts from 1."""

    rank: int
    id: int
    text: str  # that it adds to the answer: none, if it is the beginning of a character
    logit: float
    p: float  # at temperature 1, of the whole vocabulary
    ends: bool  # whether it ends the answer


class Cut(Struct):
    """A sampler with what it keeps of a step, at each temperature asked for."""

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
    entropy: float  # of the probabilities at temperature 1, in bits
    cuts: list[Cut]


async def find_candidates(http: HttpRequest) -> Response:
    """Return the candidates of an answer's next token, and the cuts of samplers."""
    service: Service = http.app.state.service
    asked, _ = parse_request(await http.body(), CandidatesRequest)
    service.presets.find(asked.model)
    samplers = _samplers(asked.samplers or ())
    return await while_connected(http.receive, _answer(service, asked, samplers))


async def _answer(service: Service, asked: CandidatesRequest, samplers: list[Sampler]) -> Response:
    """Return the response to a request: its logits are copied in the engine's thread and read in another."""
    rows: list[NDArray[np.float32]] = []
    request = Request(
        asked.template_messages(),
        SamplingParams(sampler=Greedy(), max_tokens=1),
        asked.enable_thinking if service.model.has_thinking_switch else None,
        asked.prefix_tokens or (),
        watch=lambda logits: rows.append(logits.copy()),
    )
    events = await service.begin([request])
    try:
        async for event in events:
            check_event(event)
    except EngineDownError as error:
        raise down(str(error)) from None
    finally:
        service.cancel(events)
    try:
        step = await service.off_loop(
            lambda: step_candidates(
                rows[0],
                service.model.weights,
                samplers,
                asked.temperatures or [1.0],
                top=_TOP if asked.top is None else asked.top,
                sampled=asked.sampled,
                prefix=asked.prefix_tokens or (),
                prompt_tokens=events.decodings[0].answer.prompt_tokens,
            )
        )
    except ValueError as error:
        raise ApiError(400, str(error), param="sampled") from None
    return json_response(step)


def _samplers(texts: Sequence[str]) -> list[Sampler]:
    try:
        return [parse(text) for text in texts]
    except ValueError as error:
        raise ApiError(400, str(error), param="samplers") from None


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
        samplers: The samplers whose cuts are wanted.
        temperatures: The temperatures > 0 that the cuts are wanted for.
        top: Number of candidates in the answer.
        sampled: A token to be described beside the first ones.
        prefix: The answer's tokens before the step.
        prompt_tokens: Number of tokens before the step.

    Raises:
        ValueError: No logit is finite, or that of `sampled` is not.
    """
    if not np.isfinite(logits).any():
        raise ValueError("no logit is finite: there is no token to choose")
    if sampled is not None and not (0 <= sampled < logits.size and np.isfinite(logits[sampled])):
        raise ValueError(f"sampled must be a token that can be chosen, not {sampled}")
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
