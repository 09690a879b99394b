"""GET /openapi.json: the endpoints and their requests, for tools that read OpenAPI."""

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mink_local.serve.protocol import (
    CandidatesRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from mink_local.version import __version__

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_POSTS: dict[str, tuple[type, str]] = {
    "/v1/chat/completions": (ChatRequest, "Answer a conversation."),
    "/v1/chat/completions/input_tokens": (ChatRequest, "Count the tokens of a conversation's prompt."),
    "/v1/completions": (CompletionRequest, "Continue texts."),
    "/candidates": (CandidatesRequest, "Tell the candidates of an answer's next token, and samplers' cuts."),
    "/tokenize": (TokenizeRequest, "Give the token ids of a text."),
    "/detokenize": (DetokenizeRequest, "Give the text of token ids."),
}
_GETS = {
    "/v1/models": "List the model ids: the model, and its presets.",
    "/v1/models/{model_id}": "Describe a model id.",
    "/tokenizer_info": "Tell the tokens that begin and end texts.",
    "/health": "Tell whether the server can answer.",
    "/metrics": "Give the server's numbers in Prometheus's text format.",
}


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    kinds = list(dict.fromkeys(kind for kind, _ in _POSTS.values()))
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {path: {"get": _operation(summary, path)} for path, summary in _GETS.items()}
    for path, (kind, summary) in _POSTS.items():
        schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": {**_operation(summary, path), "requestBody": body}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mink-serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": {**schemas, "Error": _ERROR}},
    }


def _operation(summary: str, path: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses = {"200": {"description": "Done."}, "default": {"description": "An error.", "content": error}}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if path.endswith("{model_id}"):
        operation["parameters"] = [
            {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return operation


async def openapi(_: HttpRequest) -> Response:
    """Answer with the OpenAPI document."""
    return Response(msgspec.json.encode(document()), media_type="application/json")
