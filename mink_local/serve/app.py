"""The application and its process: paths, socket, model, start and end."""

import asyncio
import gc
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mink_local.errors import MinkError
from mink_local.generation.kept import KeptCaches
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.interrupts import interrupt_ends_program, on_interrupt
from mink_local.models.catalog import read_catalog
from mink_local.models.placement import PlacementOptions
from mink_local.models.recommended import recommended_by
from mink_local.samplers import Sampler
from mink_local.serve import request_log
from mink_local.serve.bodies import ApiError
from mink_local.serve.connections import READ_SIZE, UVICORN, raise_file_limit
from mink_local.serve.endpoints.state import as_text, playground
from mink_local.serve.guard import EXCEPTION_HANDLERS, Guard, allowed_hosts, read_body, while_connected
from mink_local.serve.history import SIZE
from mink_local.serve.keys import Keys
from mink_local.serve.metrics import Metrics
from mink_local.serve.request.parsing import parse
from mink_local.serve.request.presets import Preset, Presets
from mink_local.serve.request.sampling import unread
from mink_local.serve.service import Service
from mink_local.serve.table import ENDPOINTS, Endpoint, openapi

N_OUTPUTS = 64  # logits rows of a batch: with `echo` and `logprobs` a prompt needs one for each of its tokens


def _route(path: str, endpoint: Endpoint) -> Route:
    """Return the route of an endpoint, which cancels the handler if the client disconnects."""

    async def respond(http: HttpRequest) -> Response:
        service, client = http.app.state.service, http.state.client
        if endpoint.request is None:
            return _as_response(await endpoint.handler(service, client, **http.path_params))
        body = await read_body(http)
        if len(body) > READ_SIZE:
            parsed = await service.off_loop(client, parse, body, endpoint.request)
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
    path.removeprefix("/v1"): endpoint for path, endpoint in ENDPOINTS.items() if path.startswith("/v1")
}
_ROUTES = [_route(path, endpoint) for path, endpoint in _PATHS.items()]


def route_of(path: str) -> str:
    """Return the path of the endpoint that answers a request's path, with its parameters' names."""
    return next((route.path_format for route in _ROUTES if route.path_regex.match(path)), "other")


def make_app(service: Service) -> Starlette:
    """Return the application of a service."""
    app = Starlette(routes=_ROUTES, exception_handlers=EXCEPTION_HANDLERS)
    app.state.service = service
    return app


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        MinkError: The address is in use, or is not one of this machine's.
    """
    try:
        [family, *_, address], *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, dualstack_ipv6=is_dual)
        # For its connections too: asyncio sets it only on sockets with an explicit protocol, and without it
        # the end of a response waits up to 40 ms for the client's delayed acknowledgement of the start.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # which repeats the address
        raise MinkError(
            f"cannot listen on {host}, port {port}: {reason}: choose another with "
            f"{'--host' if isinstance(error, socket.gaierror) else '--port'}"
        ) from None


def serve(
    bound: socket.socket,
    *,
    model: str,
    alias: str | None,
    host: str,
    default: Preset,
    presets: Mapping[str, Preset],
    any_model: bool,
    ctx: int | None,
    parallel: int,
    max_tokens: int | None,
    queue: int,
    key_slots: int | None,
    kv_type: str,
    cache: Path | None,
    cache_size: float,
    chat_template: str | None,
    template_kwargs: Mapping[str, Any] | None,
    keys: Keys,
    allowed_host: Sequence[str],
    allowed_origin: Sequence[str],
    drain: float,
    watchdog: float,
    no_history: bool,
    log_format: str,
    log_llama: bool,
    placement: PlacementOptions,
) -> None:
    """Load a model and serve it until Ctrl-C or SIGTERM.

    The arguments are the options of `mink-serve`.

    Raises:
        MinkError: The model cannot be loaded, or its engine has ended.
    """
    sys.setswitchinterval(0.0005)  # or the event loop holds up the model's thread for 5 ms at a time
    raise_file_limit()
    request_log.set_up(log_format)
    metrics = Metrics()
    guarded = partial(
        Guard,
        hosts=allowed_hosts(host, allowed_host),
        origins=allowed_origin,
        keys=keys,
        on_response=lambda path, status: metrics.responses.labels(route_of(path), status).inc(),
    )
    request_log.say(f"loading {model}")
    # Ctrl-C ends it at once: nothing is to be saved, and llama.cpp may allocate a large KV cache for seconds.
    with refusing(bound, guarded(partial(refuse, metrics))), interrupt_ends_program():
        loaded = load_model(
            model,
            n_ctx=ctx,
            n_parallel=parallel,
            kv_type=kv_type,
            chat_template=chat_template,
            template_kwargs=template_kwargs,
            verbose=log_llama,
            placement=placement,
        )
        loaded.reserve(loaded.n_ctx, loaded.n_parallel, max(N_OUTPUTS, loaded.n_parallel))
        _warm_up(loaded, default.sampler)
        if cache is not None:
            loaded.core.engine.kept = KeptCaches(cache, int(cache_size * 1e9), loaded.core.engine.context)
    name = alias or (model if model in read_catalog() else loaded.name.removesuffix(".gguf"))
    if (found := recommended_by(loaded.weights.path)) and found.sampler != default.sampler:
        request_log.say(f"this file recommends {found}: --sampler model")
    service = Service(
        loaded,
        Presets(replace(default, model_id=name), presets, any_model=any_model),
        metrics,
        keys,
        max_waiting=queue,
        key_slots=key_slots,
        max_tokens=max_tokens,
        stall_seconds=watchdog,
        n_kept=0 if no_history else SIZE,
    )
    server = _Server(guarded(make_app(service)), service, keys, drain, _ready(service, bound))
    gc.freeze()  # without this a full collection takes 70 ms, in which no client gets a token
    server.run(sockets=[bound])
    if service.failure is not None:
        sys.stderr.flush()
        os._exit(1)  # the engine's thread may be stuck inside llama.cpp, which no exit of Python's survives


@contextmanager
def refusing(bound: socket.socket, app: Guard) -> Iterator[None]:
    """Have an app answer the requests that arrive during this block."""
    server = uvicorn.Server(uvicorn.Config(app, **UVICORN))

    def run() -> None:
        # Windows' default loop, the proactor, would keep the socket for good: no other proactor can serve it.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(server.serve(sockets=[bound.dup()]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


async def refuse(metrics: Metrics, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer any request while the model is being loaded."""
    if scope["path"] == "/metrics":
        await as_text(metrics)(scope, receive, send)
        return
    raise ApiError(
        503,
        "the model is being loaded: try again soon",
        kind="unavailable_error",
        code="loading",
        headers={"retry-after": "2"},
    )


def _warm_up(model: Model, sampler: Sampler) -> None:
    """Generate a few tokens, so that no client waits for child processes and compiled kernels."""
    try:
        model.chat([{"role": "user", "content": "Hello"}], sampler=sampler, max_tokens=2).read()
    except MinkError as error:  # completions of text need no chat template
        request_log.log.warning("%s", error)
    model.forget()


class _Server(uvicorn.Server):
    """A uvicorn server that starts and ends its service, says when it is ready, drains, and ends with 0.

    Args:
        app: The application.
        service: Its service.
        keys: Its API keys.
        drain: Time for running answers to end, in seconds.
        ready: What it says.
    """

    def __init__(
        self, app: Guard, service: Service, keys: Keys, drain: float, ready: Mapping[str, object]
    ) -> None:
        # The seconds are for clients to read the end of their answers.
        super().__init__(uvicorn.Config(app, **UVICORN, timeout_graceful_shutdown=5))
        self._service = service
        self._drain = drain
        self._ready = ready
        self._drained_at = math.inf
        self._keys = keys

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.start()
        await super().startup(sockets)
        if self.started:
            request_log.say("ready: press Ctrl-C to stop the server", **self._ready)

    async def on_tick(self, counter: int) -> bool:
        self._keys.look(self.stop)
        service = self._service
        is_drained = service.is_draining and service.n_present == 0
        is_over = is_drained or time.monotonic() >= self._drained_at or service.failure is not None
        return await super().on_tick(counter) or is_over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.interrupt()
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._service.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with on_interrupt(self.stop, terminate=True):
            yield

    def stop(self) -> None:
        """Let running answers end, for at most --drain seconds; the second time, end at once.

        Meanwhile the server still listens: it says that it is not ready, and refuses other requests.
        """
        self.should_exit = self.force_exit = self._service.is_draining
        self._service.is_draining = True
        self._drained_at = time.monotonic() + self._drain


def _ready(service: Service, bound: socket.socket) -> dict[str, object]:
    """Return what the program says when it is ready."""
    host, port = bound.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    model = service.model
    return {
        "model": f"{model.name} {model.placement}",
        "playground": url,
        "API": f"{url}/v1",
        "models": ", ".join(service.presets.by_id),
        "context": f"{model.n_ctx} tokens for each of {model.n_parallel} answers at a time",
    }
