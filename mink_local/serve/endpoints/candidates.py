"""The candidates of an answer's next token, and what samplers keep of them."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mink_local.errors import OptionError
from mink_local.generation.format.text import text_decoder
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.sampling_step import SamplingStep, sampling_step
from mink_local.llama.weights import Weights
from mink_local.samplers import Greedy, Sampler, parse
from mink_local.serve.bodies import ApiError, Output, api_errors
from mink_local.serve.clients import Client
from mink_local.serve.request.chat import ChatMessage, ChatRequest, FunctionTool, NamedToolChoice
from mink_local.serve.request.fields import (
    MAX_TOOLS,
    Fields,
    Name,
    ReasoningOptions,
    TemplateVariables,
    TokenId,
    TokenIds,
)
from mink_local.serve.request.parsing import Parsed
from mink_local.serve.request.sampling import chat_for_engine
from mink_local.serve.service import Service

_CURVE_POINTS = 256  # of the candidates' logits, over the whole vocabulary

Temperature = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


class CandidatesRequest(Fields, frozen=True, kw_only=True):
    """Body of `POST /candidates`: a conversation, and what to return about the next token of its answer.

    Attributes:
        model: A model id.
        messages: The conversation; if the last message is the assistant's, the answer continues it.
        prompt: Token ids, in place of `messages`.
        prefix_tokens: Token ids with which the answer begins.
        tools: Functions that the model may call.
        tool_choice: With `none` the model does not see them.
        reasoning_effort: `none` switches reasoning off, anything else on.
        reasoning: Its `effort` is the same.
        chat_template_kwargs: Variables of the chat template.
        samplers: Samplers such as `min-k:tau=3`, whose cuts to return.
        temperatures: The temperatures for which to return cuts; by default 1.
        top: Number of candidates to return.
        sampled: Id of a token to describe, whatever its rank.
    """

    model: Name | None = None
    messages: Annotated[list[ChatMessage], Meta(max_length=2048)] | None = None
    prompt: TokenIds | None = None
    prefix_tokens: TokenIds | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: TemplateVariables | None = None
    samplers: Annotated[list[Name], Meta(max_length=8)] | None = None
    temperatures: Annotated[list[Temperature], Meta(min_length=1, max_length=32)] | None = None
    top: Annotated[int, Meta(ge=0, le=200)] = 50
    sampled: TokenId | None = None

    def __post_init__(self) -> None:
        if bool(self.messages) == bool(self.prompt):
            raise ApiError(400, "give messages or prompt, not both", param="messages")

    def chat(self) -> ChatRequest:
        """Return the conversation as a request to chat completions. Raises ApiError."""
        return ChatRequest(
            messages=self.messages or [],
            prefix_tokens=self.prefix_tokens,
            tools=self.tools,
            tool_choice=self.tool_choice,
            reasoning_effort=self.reasoning_effort,
            reasoning=self.reasoning,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class Candidate(Output, kw_only=True):
    """A token that the model might have sampled.

    Attributes:
        rank: Counts from 1.
        text: What it adds to the answer: nothing, if it is the beginning of a character.
        p: At temperature 1, of the whole vocabulary.
        ends: Whether it ends the answer.
    """

    rank: int
    id: int
    text: str
    logit: float
    p: float
    ends: bool


class SamplerCut(Output, kw_only=True):
    """The cut of a sampler at each temperature.

    Attributes:
        first: Rank of the first candidate that it keeps, from 1; above 1 with `typical` and `xtc` only.
        k: Number of candidates that it keeps, from that rank on.
        members: For a chain, the number of candidates left after each of its cuts.
        weight: Sum of `exp((logit - largest) / temperature)` over the candidates.
    """

    sampler: str
    first: list[int]
    k: list[int]
    members: list[list[int]]
    weight: list[float]


class StepCandidates(Output, kw_only=True):
    """The answer of `POST /candidates`.

    Attributes:
        prompt_tokens: Number of tokens before the step.
        sampled: The token that the request names.
        curve: Ranks, evenly spaced on a logarithmic axis over the whole vocabulary, and their logits.
        cliff: Number of candidates before the largest weighted drop.
        entropy: Of the probabilities at temperature 1, in bits.
    """

    n_vocab: int
    prompt_tokens: int
    temperatures: list[float]
    candidates: list[Candidate]
    sampled: Candidate | None
    curve: list[tuple[int, float]]
    cliff: int
    entropy: float
    cuts: list[SamplerCut]


async def find_candidates(
    service: Service, client: Client, parsed: Parsed[CandidatesRequest]
) -> StepCandidates:
    """Return the candidates of an answer's next token, and samplers' cuts."""
    asked = parsed.request
    model_id = service.presets.find(asked.model).model_id
    with api_errors("samplers"):
        samplers = [parse(text, "temperature-last") for text in asked.samplers or ()]
    rows: list[NDArray[np.float32]] = []

    def make_requests() -> list[Request]:
        params = SamplingParams(sampler=Greedy(), max_tokens=1)
        if asked.prompt:
            request = Request(asked.prompt, prefix=asked.prefix_tokens or ())
        else:
            request = chat_for_engine(service.model, asked.chat(), params)
        # Not with the grammar of a forced call: the logits are the model's own.
        return [replace(request, params=params, watch=rows.append)]

    events = await service.begin(client, 1, make_requests, model_id)
    try:
        async for _ in events:
            pass
    finally:
        service.close(events)
    with api_errors():
        return await service.threads.run(
            client,
            lambda: step_candidates(
                rows[0],
                service.model.weights,
                samplers,
                asked.temperatures or [1.0],
                top=asked.top,
                sampled=asked.sampled,
                prefix=asked.prefix_tokens or (),
                prompt_tokens=events.answers[0].prompt_tokens,
            ),
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
        OptionError: The logit of `sampled` is not finite.
    """
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
            text=text_decoder(before).decode(piece) if piece else weights.token_text(token),
            logit=float(step.logits[rank]),
            p=float(step.p[rank]),
            ends=token in weights.end_tokens,
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


def _cut(step: SamplingStep, temperatures: list[float]) -> SamplerCut:
    """Return the cut of a step's sampler at each temperature."""
    steps = [step.at(temperature) for temperature in temperatures]
    weights = []
    for one in steps:
        kept = one.logits[one.first : one.first + one.k]
        with np.errstate(over="ignore"):  # at temperatures near 0
            weights.append(float(np.exp((kept - one.logits[0]) / one.temperature).sum()))
    return SamplerCut(
        sampler=str(step.sampler),
        first=[one.first + 1 for one in steps],
        k=[one.k for one in steps],
        members=[one.left for one in steps],
        weight=weights,
    )
