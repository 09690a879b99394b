"""What the server says of itself: models, tokenizer, health, metrics, playground, OpenAPI document."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mink_local.generation.request import SamplingParams
from mink_local.samplers import default_samplers
from mink_local.serve.endpoints.completions import json_response
from mink_local.serve.guard import read_body
from mink_local.serve.protocol.fields import (
    CandidatesRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    SamplingFields,
    TokenizeRequest,
    parse,
    sampler_options_type,
)
from mink_local.serve.protocol.messages import prepare_chat
from mink_local.serve.protocol.responses import (
    ApiError,
    ChatCompletion,
    ChatCompletionChunk,
    DetokenizedText,
    ErrorBody,
    Health,
    InputTokens,
    ModelEntry,
    ModelList,
    ModelMeta,
    StepCandidates,
    TextCompletion,
    TokenizedText,
    TokenizerInfo,
    TokenPiece,
)
from mink_local.serve.protocol.sampling import Preset
from mink_local.serve.service import Service
from mink_local.version import __version__

Json = dict[str, Any]

MAX_CONTROL_TOKENS = 10_000  # in a text; llama.cpp's time grows with the square of their number
PLAYGROUND = Path(__file__).parents[1] / "playground.html"


async def list_models(http: HttpRequest) -> Response:
    """Return the model ids."""
    service: Service = http.app.state.service
    return json_response(ModelList(data=[_entry(service, p) for p in service.presets.by_id.values()]))


async def retrieve_model(http: HttpRequest) -> Response:
    """Return one model id."""
    service: Service = http.app.state.service
    return json_response(_entry(service, service.presets.find(http.path_params["model_id"])))


def _entry(service: Service, preset: Preset) -> ModelEntry:
    model = service.model
    meta = ModelMeta(
        n_ctx=model.n_ctx,
        n_ctx_train=model.weights.n_ctx_train,
        n_vocab=model.weights.n_vocab,
        sampler=str(preset.sampler),
        temperature=preset.temperature,
        ignores_client_sampling=preset.is_fixed,
    )
    return ModelEntry(id=preset.model_id, created=service.created, max_model_len=model.n_ctx, meta=meta)


async def tokenize(http: HttpRequest) -> Response:
    """Return the token ids of a text, by llama-server's or vLLM's names."""
    service: Service = http.app.state.service
    request, _, _ = parse(await read_body(http), TokenizeRequest)
    return json_response(await service.off_loop(_tokenized, service, request))


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


async def detokenize(http: HttpRequest) -> Response:
    """Return the text of token ids, by llama-server's and vLLM's names."""
    service: Service = http.app.state.service
    request, _, _ = parse(await read_body(http), DetokenizeRequest)
    n_vocab = service.model.weights.n_vocab
    if any(token >= n_vocab for token in request.tokens):
        raise ApiError(400, f"tokens must be from 0 to {n_vocab - 1}", param="tokens")
    text = "".join(await service.off_loop(service.model.token_texts, request.tokens))
    return json_response(DetokenizedText(content=text, prompt=text))


async def tokenizer_info(http: HttpRequest) -> Response:
    """Return the special tokens and the chat template."""
    weights = http.app.state.service.model.weights
    return json_response(
        TokenizerInfo(bos_token=weights.bos, eos_token=weights.eos, chat_template=weights.chat_template)
    )


async def count_input_tokens(http: HttpRequest) -> Response:
    """Return the number of tokens of a conversation's prompt."""
    service: Service = http.app.state.service
    chat, _, _ = parse(await read_body(http), ChatRequest)
    request, _ = await service.off_loop(prepare_chat, service.model, chat, SamplingParams())
    return json_response(InputTokens(input_tokens=len(await service.off_loop(service.tokens, request))))


async def health(http: HttpRequest) -> Response:
    """Return that the server works. Raises EngineDownError if it does not."""
    failure = http.app.state.service.failure
    if failure is not None:
        raise failure
    return json_response(Health())


async def metrics(http: HttpRequest) -> Response:
    """Return the server's numbers for Prometheus."""
    return Response(http.app.state.service.metrics_text(), media_type=CONTENT_TYPE_LATEST)


async def playground(_: HttpRequest) -> Response:
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


ENDPOINTS: dict[str, tuple[type | None, type, str]] = {
    "/v1/chat/completions": (ChatRequest, ChatCompletion, "Answer a conversation."),
    "/v1/completions": (CompletionRequest, TextCompletion, "Continue texts."),
    "/v1/chat/completions/input_tokens": (
        ChatRequest,
        InputTokens,
        "Count the tokens of a conversation's prompt.",
    ),
    "/candidates": (
        CandidatesRequest,
        StepCandidates,
        "Return the candidates of an answer's next token, and samplers' cuts.",
    ),
    "/tokenize": (TokenizeRequest, TokenizedText, "Return the token ids of a text."),
    "/detokenize": (DetokenizeRequest, DetokenizedText, "Return the text of token ids."),
    "/v1/models": (None, ModelList, "List the model ids: the model, and its presets."),
    "/v1/models/{model_id}": (None, ModelEntry, "Describe a model id."),
    "/tokenizer_info": (None, TokenizerInfo, "Return the special tokens and the chat template."),
    "/health": (None, Health, "Return whether the server can answer."),
    "/metrics": (None, str, "Return the server's numbers in Prometheus's text format."),
}
"""For each path the types of its request, if it is a POST, and of its response, and a summary."""

CHUNKS = {"/v1/chat/completions": ChatCompletionChunk}
"""The types of streams' chunks that differ from those of whole responses."""


async def openapi(_: HttpRequest) -> Response:
    """Return the OpenAPI document."""
    return json_response(document())


def document() -> Json:
    """Return the OpenAPI document."""
    paths = {path: {"post" if kind else "get": _operation(path)} for path, (kind, *_) in ENDPOINTS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mink-serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas()},
    }


def _types() -> list[type]:
    """Return the types of all requests and responses, each once."""
    kinds = [kind for *both, _ in ENDPOINTS.values() for kind in both if kind not in (None, str)]
    return list(dict.fromkeys([*kinds, *CHUNKS.values(), ErrorBody]))


def schemas() -> Json:
    """Return the JSON schemas of all types by name, with the samplers' own fields in requests."""
    _, schemas = msgspec.json.schema_components(_types(), ref_template="#/components/schemas/{name}")
    _, options = msgspec.json.schema_components([sampler_options_type()], ref_template="{name}")
    for kind in _types():
        if issubclass(kind, SamplingFields):
            schemas[kind.__name__]["properties"] |= options["SamplerOptions"]["properties"]
    return schemas


def _operation(path: str) -> Json:
    request, response, summary = ENDPOINTS[path]
    kinds = {"application/json": response}
    if path in ("/v1/chat/completions", "/v1/completions"):
        kinds["text/event-stream"] = CHUNKS.get(path, response)
    if response is str:
        kinds = {"text/plain": response}
    result = {"description": "The result.", "content": {name: _content(kind) for name, kind in kinds.items()}}
    error = {"description": "An error.", "content": {"application/json": _content(ErrorBody)}}
    operation: Json = {"summary": summary, "responses": {"200": result, "default": error}}
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": _content(request)}}
    if path.endswith("{model_id}"):
        model_id = {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [model_id]
    return operation


def _content(kind: type) -> Json:
    if kind is str:
        return {"schema": {"type": "string"}}
    return {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}
