"""The paths of the server, and what answers each."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from mink_local.serve.candidates import find_candidates
from mink_local.serve.chat import create_chat_completion
from mink_local.serve.completions import create_completion
from mink_local.serve.guard import EXCEPTION_HANDLERS
from mink_local.serve.metrics import CONTENT_TYPE
from mink_local.serve.models import list_models, retrieve_model
from mink_local.serve.openapi import openapi
from mink_local.serve.playground import playground_response
from mink_local.serve.respond import json_response
from mink_local.serve.service import Service, down
from mink_local.serve.tokens import count_input_tokens, detokenize, tokenize, tokenizer_info


def make_app(service: Service, on_failure: Callable[[], None]) -> Starlette:
    """Return the application, which starts and stops the service.

    Args:
        service: What answers requests; it is not started yet.
        on_failure: Called if the engine ends or is stuck.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await service.start(on_failure)
        try:
            yield
        finally:
            await service.stop()

    app = Starlette(
        routes=_ROUTES,
        exception_handlers={**EXCEPTION_HANDLERS, ClientDisconnect: _nobody},
        lifespan=lifespan,
    )
    app.state.service = service
    return app


async def _nobody(_: HttpRequest, __: Exception) -> Response:
    """Return the response that nobody reads, because the client has left."""
    return Response(status_code=499)


async def _playground(_: HttpRequest) -> Response:
    return playground_response()


async def _health(http: HttpRequest) -> Response:
    service: Service = http.app.state.service
    if service.failure is not None:
        raise down(service.failure)
    return json_response({"status": "ok"})


async def _metrics(http: HttpRequest) -> Response:
    service: Service = http.app.state.service
    return Response(service.metrics_text(), media_type=CONTENT_TYPE)


# OpenAI's paths are there without /v1 as well: clients differ in what they call the base address.
_ROUTES = [
    Route(f"{prefix}{path}", endpoint, methods=[method])
    for prefix in ("/v1", "")
    for method, path, endpoint in (
        ("GET", "/models", list_models),
        ("GET", "/models/{model_id:path}", retrieve_model),
        ("POST", "/chat/completions", create_chat_completion),
        ("POST", "/chat/completions/input_tokens", count_input_tokens),
        ("POST", "/completions", create_completion),
        ("GET", "/health", _health),
    )
]
_ROUTES += [
    Route(path, endpoint, methods=[method])
    for method, path, endpoint in (
        ("GET", "/", _playground),
        ("POST", "/candidates", find_candidates),
        ("POST", "/tokenize", tokenize),
        ("POST", "/detokenize", detokenize),
        ("GET", "/tokenizer_info", tokenizer_info),
        ("GET", "/metrics", _metrics),
        ("GET", "/openapi.json", openapi),
    )
]
PATHS = [route.path for route in _ROUTES]
