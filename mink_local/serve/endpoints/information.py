"""What the server tells about its model (ids, tokenizer, candidates) and itself (health, OpenAPI, …)."""

import base64
import hashlib
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from mink_local.generation.decoding import Decoding
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.sampling_step import SamplingStep, sampling_step
from mink_local.generation.slots import Slot
from mink_local.generation.text import TextStream
from mink_local.llama.weights import Weights
from mink_local.samplers import Greedy, Sampler, default_samplers, parse
from mink_local.serve.endpoints.completions import create_chat_completion, create_completion
from mink_local.serve.history import AnswerRecord
from mink_local.serve.protocol.fields import (
    CandidatesRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Fields,
    SamplingFields,
    TokenizeRequest,
    sampler_fields,
    with_fields,
)
from mink_local.serve.protocol.messages import prepare_chat
from mink_local.serve.protocol.responses import (
    ApiError,
    Candidate,
    ChatCompletion,
    ChatCompletionChunk,
    Cut,
    DetokenizedText,
    ErrorBody,
    Health,
    InputTokens,
    ModelEntry,
    ModelList,
    ModelMeta,
    RecordedAnswer,
    RecordedRequest,
    RecordedToken,
    SlotState,
    StepCandidates,
    TextCompletion,
    TokenizedText,
    TokenizerInfo,
    TokenPiece,
)
from mink_local.serve.service import Service
from mink_local.version import __version__

Json = dict[str, Any]

MAX_CONTROL_TOKENS = 10_000  # in a text; llama.cpp's time grows with the square of their number
_CURVE_POINTS = 256  # of the candidates' logits, over the whole vocabulary
PLAYGROUND = Path(__file__).parents[1] / "playground.html"


async def list_models(service: Service) -> ModelList:
    """List the model ids: the model, and its presets."""
    return ModelList(data=[await retrieve_model(service, model_id) for model_id in service.presets.by_id])


async def retrieve_model(service: Service, model_id: str) -> ModelEntry:
    """Describe a model id."""
    model, preset = service.model, service.presets.find(model_id)
    meta = ModelMeta(
        n_ctx=model.n_ctx,
        n_ctx_train=model.weights.n_ctx_train,
        n_vocab=model.weights.n_vocab,
        sampler=str(preset.sampler),
        temperature=preset.temperature,
        ignores_client_sampling=preset.is_fixed,
    )
    return ModelEntry(id=preset.model_id, created=service.created, max_model_len=model.n_ctx, meta=meta)


async def tokenize(service: Service, request: TokenizeRequest) -> TokenizedText:
    """Return the token ids of a text."""
    return await service.off_loop(_tokenized, service, request)


def _tokenized(service: Service, request: TokenizeRequest) -> TokenizedText:
    is_content, weights = request.content is not None, service.model.weights
    text = (request.content if is_content else request.prompt) or ""
    if request.parse_special and service.n_control_tokens(text) > MAX_CONTROL_TOKENS:
        message = f"more than {MAX_CONTROL_TOKENS} control tokens: send parse_special: false"
        raise ApiError(400, message, param="content" if is_content else "prompt")
    # vLLM adds the beginning of a text by default, llama-server does not.
    default = request.add_special_tokens is not False and not is_content
    add_special = default if request.add_special is None else request.add_special
    tokens = weights.tokenize(text, add_special=add_special, parse_special=request.parse_special)
    listed: list[int | TokenPiece] = [*tokens]
    if request.with_pieces:
        listed = [TokenPiece(id=token, piece=_text_or_bytes(weights.piece(token))) for token in tokens]
    return TokenizedText(tokens=listed, count=len(tokens), max_model_len=service.model.n_ctx)


def _text_or_bytes(piece: bytes) -> str | list[int]:
    """Return the text of a token, or its bytes if they are no whole character, as llama-server does."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(service: Service, request: DetokenizeRequest) -> DetokenizedText:
    """Return the text of token ids."""
    n_vocab = service.model.weights.n_vocab
    if max(request.tokens, default=0) >= n_vocab:
        raise ApiError(400, f"tokens must be from 0 to {n_vocab - 1}", param="tokens")
    text = "".join(await service.off_loop(service.model.token_texts, request.tokens))
    return DetokenizedText(content=text, prompt=text)


async def tokenizer_info(service: Service) -> TokenizerInfo:
    """Return the special tokens and the chat template."""
    weights = service.model.weights
    return TokenizerInfo(bos_token=weights.bos, eos_token=weights.eos, chat_template=weights.chat_template)


async def count_input_tokens(service: Service, chat: ChatRequest) -> InputTokens:
    """Count the tokens of a conversation's prompt."""
    request = await service.off_loop(prepare_chat, service.model, chat, SamplingParams())
    return InputTokens(input_tokens=len(await service.off_loop(service.tokens, request)))


async def find_candidates(service: Service, chat: CandidatesRequest) -> StepCandidates:
    """Return the candidates of an answer's next token, and samplers' cuts."""
    service.presets.find(chat.model)
    try:
        samplers = [parse(text) for text in chat.samplers]
    except ValueError as error:
        raise ApiError(400, str(error), param="samplers") from None
    rows: list[NDArray[np.float32]] = []

    def make_requests() -> list[Request]:
        params = SamplingParams(sampler=Greedy(), max_tokens=1)
        if chat.prompt:
            request = Request(chat.prompt, prefix=chat.prefix_tokens or ())
        else:
            request = prepare_chat(service.model, chat, params)
        # Not with the grammar of a forced call: the logits are the model's own.
        return [replace(request, params=params, watch=lambda logits: rows.append(logits.copy()))]

    events = await service.begin(1, make_requests)
    try:
        async for _ in events:
            pass
    finally:
        service.cancel(events)
    try:
        return await service.off_loop(
            lambda: step_candidates(
                rows[0],
                service.model.weights,
                samplers,
                chat.temperatures or [1.0],
                top=chat.top,
                sampled=chat.sampled,
                prefix=chat.prefix_tokens or (),
                prompt_tokens=events.answers[0].prompt_tokens,
            )
        )
    except ValueError as error:
        raise ApiError(400, str(error), param="sampled") from None


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
        raise ValueError(f"sampled must be a token with a finite logit, not {sampled}")
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


async def health(service: Service) -> Health:
    """Return whether the engine works, also while the server drains."""
    if service.failure is not None:
        raise service.failure
    return Health()


async def ready(service: Service) -> Health:
    """Return whether the server takes requests: not while it loads its model, drains, or has failed."""
    service.check_ready()
    return Health()


async def recorded_request(service: Service, request_id: str) -> RecordedRequest:
    """Return one of the last requests with its answers, by the id in X-Request-Id or in the answer."""
    record = service.history.find(request_id)
    answers = [await service.off_loop(_recorded, service.model, answer) for answer in record.answers]
    return RecordedRequest(model=record.model, created=record.created, answers=answers)


def _recorded(model: Model, answer: AnswerRecord) -> RecordedAnswer:
    weights = model.weights
    prompt = b"".join(weights.piece(token) or weights.token_text(token).encode() for token in answer.prompt)
    steps = zip(answer.tokens, model.token_texts(answer.tokens), answer.k, strict=True)
    return RecordedAnswer(
        prompt=list(answer.prompt),
        prompt_text=prompt.decode("utf-8", "replace"),
        sampler=answer.sampler,
        temperature=answer.temperature,
        tokens=[RecordedToken(id=token, text=text, k=k) for token, text, k in steps],
        finish_reason=answer.finish_reason,
    )


async def slots(service: Service) -> list[SlotState]:
    """Return what each slot of the engine is doing."""
    return [_slot_state(slot) for slot in service.model.engine.slots]


def _slot_state(slot: Slot[list[Decoding]]) -> SlotState:
    answers = [decoding.answer for decoding in slot.job or ()]  # the engine's thread may change the slot now
    return SlotState(
        id=slot.seq_id,
        is_processing=bool(answers),
        n_answers=len(answers),
        n_cached=len(slot.tokens),
        n_pending=len(slot.pending) if answers else 0,
        n_generated=max((answer.n_tokens for answer in answers), default=0),
    )


async def metrics(service: Service) -> Response:
    """Return the server's numbers in Prometheus's text format."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def playground(_: Service) -> Response:
    """Return the playground, one page of HTML, CSS and JavaScript, with its Content-Security-Policy."""
    content, policy = playground_page(tuple(map(str, default_samplers())))
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
    return Response(content, media_type="text/html", headers=headers)


@cache
def playground_page(samplers: tuple[str, ...]) -> tuple[str, str]:
    """Return the page and a policy that allows its script and style, by their hashes, and its own server.

    Args:
        samplers: The samplers that it suggests.
    """
    options = "".join(f'<option value="{sampler}">' for sampler in samplers)
    content = PLAYGROUND.read_text(encoding="utf-8").replace("<!-- samplers -->", options)
    script, style = (_hash(content, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return content, policy


def _hash(content: str, tag: str) -> str:
    [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"


@dataclass(frozen=True)
class Endpoint:
    """What answers the requests to a path; the first line of its docstring is the summary.

    Args:
        handler: Returns the response, or the value that becomes its JSON, for the service and the request.
        response: The type of the response; None if it is not documented.
        request: The type of the request, for a POST.
        chunk: The type of a stream's chunks.
    """

    handler: Callable[..., Coroutine[Any, Any, Any]]
    response: type | None = None
    request: type[Fields] | None = None
    chunk: type | None = None

    @property
    def method(self) -> str:
        """The HTTP method."""
        return "GET" if self.request is None else "POST"

    @property
    def summary(self) -> str:
        """What it does."""
        return str(self.handler.__doc__).partition("\n")[0]


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(
        create_chat_completion, ChatCompletion, ChatRequest, ChatCompletionChunk
    ),
    "/v1/completions": Endpoint(create_completion, TextCompletion, CompletionRequest, TextCompletion),
    "/v1/chat/completions/input_tokens": Endpoint(count_input_tokens, InputTokens, ChatRequest),
    "/candidates": Endpoint(find_candidates, StepCandidates, CandidatesRequest),
    "/tokenize": Endpoint(tokenize, TokenizedText, TokenizeRequest),
    "/detokenize": Endpoint(detokenize, DetokenizedText, DetokenizeRequest),
    "/v1/models": Endpoint(list_models, ModelList),
    "/v1/models/{model_id}": Endpoint(retrieve_model, ModelEntry),
    "/tokenizer_info": Endpoint(tokenizer_info, TokenizerInfo),
    "/health": Endpoint(health, Health),
    "/ready": Endpoint(ready, Health),
    "/slots": Endpoint(slots, list[SlotState]),
    "/history/{request_id}": Endpoint(recorded_request, RecordedRequest),
    "/metrics": Endpoint(metrics, str),
}
"""The documented endpoints by their paths; they exist with and without /v1."""


async def openapi(_: Service) -> Json:
    """Return the OpenAPI document."""
    return document()


def document() -> Json:
    """Return the OpenAPI document."""
    paths = {path: {one.method.lower(): _operation(path, one)} for path, one in ENDPOINTS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mink-serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas()},
    }


def schemas() -> Json:
    """Return the JSON schemas of all types by name, with the samplers' own fields in requests."""
    kinds: list[type] = [ErrorBody]
    for one in ENDPOINTS.values():
        if one.request is not None:
            names = sampler_fields() if issubclass(one.request, SamplingFields) else ()
            kinds.append(with_fields(one.request, tuple(names)))
        kinds += [kind for kind in (one.response, one.chunk) if kind not in (None, str)]
    _, schemas = msgspec.json.schema_components(set(kinds), ref_template="#/components/schemas/{name}")
    return schemas


def _operation(path: str, endpoint: Endpoint) -> Json:
    kinds = {"application/json": endpoint.response, "text/event-stream": endpoint.chunk}
    if endpoint.response is str:
        kinds = {"text/plain": str}
    content = {name: _content(kind) for name, kind in kinds.items() if kind is not None}
    error = {"description": "An error.", "content": {"application/json": _content(ErrorBody)}}
    responses = {"200": {"description": "The result.", "content": content}, "default": error}
    operation: Json = {"summary": endpoint.summary, "responses": responses}
    if endpoint.request is not None:
        body = {"application/json": _content(endpoint.request)}
        operation["requestBody"] = {"required": True, "content": body}
    if names := re.findall(r"{(\w+)}", path):
        common = {"in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [{"name": name, **common} for name in names]
    return operation


def _content(kind: type) -> Json:
    [schema], _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return {"schema": schema}
