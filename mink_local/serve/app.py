"""The application: what answers the requests to each path, while the model is loaded too."""

from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from mink_local.serve import request_log
from mink_local.serve.bodies import ApiError
from mink_local.serve.connections import READ_SIZE
from mink_local.serve.endpoints.state import as_text, openapi, playground
from mink_local.serve.guard import EXCEPTION_HANDLERS, read_body, while_connected
from mink_local.serve.metrics import Metrics
from mink_local.serve.request.parsing import parse
from mink_local.serve.request.sampling import unread
from mink_local.serve.table import ENDPOINTS, Endpoint


def _route(path: str, endpoint: Endpoint) -> Route:
    """Return the route of an endpoint, which cancels the handler if the client disconnects."""

    async def respond(http: HttpRequest) -> Response:
        service, client = http.app.state.service, http.state.client
        if service is None:
            return _while_loading(http)
        if endpoint.request is None:
            return _as_response(await endpoint.handler(service, client, **http.path_params))
        body = await read_body(http)
        if len(body) > READ_SIZE:
            parsed = await service.threads.run(client, parse, body, endpoint.request)
        else:
            parsed = parse(body, endpoint.request)
        try:
            result = await while_connected(http.receive, endpoint.handler(service, client, parsed))
        except ApiError as error:
            raise parsed.about_field(error) from None
        response = _as_response(result)
        parsed.ignored.update(unread(parsed.request, service.model))
        if named := ",".join(parsed.listed):
            response.headers["x-mink-ignored"] = named
            request_log.note(ignored=named)
        return response

    # Model ids may have slashes.
    return Route(path.replace("{model_id}", "{model_id:path}"), respond, methods=[endpoint.method])


def _as_response(result: Any) -> Response:
    if isinstance(result, Response):
        return result
    return Response(msgspec.json.encode(result), media_type="application/json")


_PATHS = {"/": Endpoint(playground), "/openapi.json": Endpoint(openapi)} | ENDPOINTS
# Clients differ in what they call the base address.
_PATHS |= {
    path.removeprefix("/v1") if path.startswith("/v1") else f"/v1{path}": endpoint
    for path, endpoint in ENDPOINTS.items()
}
# By which front ends list models and count tokens: TabbyAPI's, text-generation-webui's and koboldcpp's.
_OTHER_NAMES = {
    "/v1/model/list": "/v1/models",
    "/v1/token/encode": "/tokenize",
    "/v1/internal/encode": "/tokenize",
    "/api/extra/tokencount": "/tokenize",
}
_PATHS |= {name: ENDPOINTS[path] for name, path in _OTHER_NAMES.items()}
_ROUTES = [_route(path, endpoint) for path, endpoint in _PATHS.items()]


def route_of(path: str) -> str:
    """Return the path of the endpoint that answers a request's path, with its parameters' names."""
    return next((route.path_format for route in _ROUTES if route.path_regex.match(path)), "other")


def make_app(metrics: Metrics) -> Starlette:
    """Return the application, which refuses requests until its `state.service` is there.

    Args:
        metrics: The server's numbers, which it tells meanwhile too.
    """
    app = Starlette(routes=_ROUTES, exception_handlers=EXCEPTION_HANDLERS)
    app.state.service, app.state.metrics = None, metrics
    return app


def _while_loading(http: HttpRequest) -> Response:
    """Return the response to a request while the model is being loaded. Raises ApiError."""
    if http.url.path == "/metrics":
        return as_text(http.app.state.metrics)
    raise ApiError(
        503,
        "the model is being loaded: try again soon",
        kind="unavailable_error",
        code="loading",
        headers={"retry-after": "2"},
    )
