"""The process of a server: its options, socket, model, start and end."""

import asyncio
import gc
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from starlette.datastructures import State

from mink_local.errors import MinkError
from mink_local.generation.engine.kept import KeptCaches
from mink_local.generation.model import Model
from mink_local.interrupts import interrupt_ends_program, on_interrupt
from mink_local.models.catalog import read_catalog
from mink_local.models.recommended import recommended_by
from mink_local.samplers import Sampler
from mink_local.serve import request_log
from mink_local.serve.app import make_app, route_of
from mink_local.serve.connections import UVICORN, raise_file_limit
from mink_local.serve.guard import Guard, allowed_hosts
from mink_local.serve.history import SIZE
from mink_local.serve.keys import Keys
from mink_local.serve.metrics import Metrics
from mink_local.serve.request.presets import Preset, Presets
from mink_local.serve.service import Service

N_OUTPUTS = 64  # logits rows of a batch: with `echo` and `logprobs` a prompt needs one for each of its tokens


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `mink-serve`, by their names there.

    Attributes:
        load: Loads the model.
    """

    model: str
    load: Callable[[], Model]
    alias: str | None
    host: str
    default: Preset
    presets: Mapping[str, Preset]
    any_model: bool
    max_tokens: int | None
    queue: int
    key_slots: int | None
    cache: Path | None
    cache_size: float
    cache_days: float
    keys: Keys
    allowed_host: Sequence[str]
    allowed_origin: Sequence[str]
    drain: float
    watchdog: float
    no_history: bool
    log_format: str


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        MinkError: The address is in use, or is not one of this machine's.
    """
    try:
        [family, *_, address], *_ = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
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


def serve(bound: socket.socket, options: Options) -> None:
    """Load a model and serve it until Ctrl-C or SIGTERM.

    Raises:
        MinkError: The model cannot be loaded, or its engine has ended.
    """
    sys.setswitchinterval(0.0005)  # or the event loop holds up the model's thread for 5 ms at a time
    raise_file_limit()
    request_log.set_up(options.log_format)
    metrics = Metrics()
    app = make_app(metrics)
    guard = Guard(
        app,
        hosts=allowed_hosts(options.host, options.allowed_host),
        origins=options.allowed_origin,
        keys=options.keys,
        on_response=lambda path, status: metrics.responses.labels(route_of(path), status).inc(),
    )
    request_log.say(f"loading {options.model}")
    server = _Server(guard, options, lambda: _load(options, metrics), app.state)
    server.run(sockets=[bound])
    if server.error is not None:
        raise server.error
    if server.service is not None and server.service.failure is not None:
        sys.stderr.flush()
        os._exit(1)  # the engine's thread may be stuck inside llama.cpp, which no exit of Python's survives


def _load(options: Options, metrics: Metrics) -> Service:
    """Load the model, and return its service."""
    loaded = options.load()
    loaded.reserve(loaded.n_ctx, loaded.n_parallel, max(N_OUTPUTS, loaded.n_parallel))
    for sampler in filter(None, (options.default.sampler, options.default.reasoning_sampler)):
        _warm_up(loaded, sampler)
    engine = loaded.core.engine
    if options.cache is not None:
        n_bytes = int(options.cache_size * 1e9)
        engine.kept = KeptCaches(options.cache, n_bytes, engine.context, options.cache_days)
    is_catalogued = options.model in read_catalog()
    name = options.alias or (options.model if is_catalogued else loaded.name.removesuffix(".gguf"))
    default = replace(options.default, model_id=name)
    if (found := recommended_by(loaded.weights.path)) and found.sampler != default.sampler:
        request_log.say(f"this file recommends {found}: --sampler model")
    if (default.reasoning_sampler, default.reasoning_temperature) != (None, None) and not loaded.can_reason:
        request_log.say(f"{name} does not reason: --reasoning-sampler and --reasoning-temp change nothing")
    request_log.say(str(loaded.conventions))
    gc.freeze()  # without this a full collection takes 70 ms, in which no client gets a token
    return Service(
        loaded,
        Presets(default, options.presets, any_model=options.any_model),
        metrics,
        options.keys,
        max_waiting=options.queue,
        key_slots=options.key_slots,
        max_tokens=options.max_tokens,
        stall_seconds=options.watchdog,
        n_kept=0 if options.no_history else SIZE,
    )


def _warm_up(model: Model, sampler: Sampler) -> None:
    """Generate a few tokens, so that no client waits for child processes and compiled kernels."""
    try:
        model.chat([{"role": "user", "content": "Hello"}], sampler=sampler, max_tokens=2).read()
    except MinkError as error:  # completions of text need no chat template
        request_log.log.warning("%s", error)
    model.forget()


class _Server(uvicorn.Server):
    """A uvicorn server that loads its service, says when it is ready, drains, and ends with 0.

    Args:
        guard: The application.
        options: The program's.
        load: Loads the service; called in a thread, while requests are refused.
        state: The application's, which gets the service.

    Attributes:
        service: The service, when it is loaded.
        error: Why it could not be loaded.
    """

    def __init__(self, guard: Guard, options: Options, load: Callable[[], Service], state: State) -> None:
        # The seconds are for clients to read the end of their answers.
        super().__init__(uvicorn.Config(guard, **UVICORN, timeout_graceful_shutdown=5))
        self.service: Service | None = None
        self.error: BaseException | None = None
        self._options = options
        self._load = load
        self._state = state
        self._drained_at = math.inf
        self._signals = ExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self._loading = asyncio.create_task(self._start(sockets[0]))

    async def _start(self, bound: socket.socket) -> None:
        try:
            service = await asyncio.to_thread(self._load)
            await service.start()
        except BaseException as error:
            self.error, self.should_exit = error, True
            return
        self.service = self._state.service = service
        self._drop_caches()
        self._signals.enter_context(on_interrupt(self.stop, terminate=True))
        request_log.say("ready: press Ctrl-C to stop the server", **_ready(service, bound, self._options))

    def _drop_caches(self) -> None:
        """Delete the caches of those who have no key any more."""
        kept = self.service and self.service.model.core.engine.kept
        if kept and self._options.keys:
            kept.keep_only(self._options.keys.names)

    async def on_tick(self, counter: int) -> bool:
        if self._options.keys.look():
            self._drop_caches()
        is_over = await super().on_tick(counter)
        if (service := self.service) is None:
            return is_over
        is_drained = service.is_draining and service.n_present == 0
        return is_over or is_drained or time.monotonic() >= self._drained_at or service.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.service is not None:
            self.service.interrupt()
        await super().shutdown(sockets)
        if self.service is not None and not self.force_exit:
            await self.service.stop()
            request_log.say("stopped")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # While it loads, Ctrl-C ends the program at once: nothing is to be saved, and a KV cache may take
        # llama.cpp seconds to allocate.
        with interrupt_ends_program(), self._signals:
            if sys.platform != "win32":
                signal.signal(signal.SIGHUP, lambda *_: setattr(self._options.keys, "changed", None))
            yield

    def stop(self) -> None:
        """Let running answers end, for at most --drain seconds; the second time, end at once.

        Meanwhile the server still listens: it says that it is not ready, and refuses other requests.
        """
        assert self.service is not None
        self.should_exit = self.force_exit = self.service.is_draining
        self.service.is_draining = True
        self._drained_at = time.monotonic() + self._options.drain
        n, seconds = self.service.n_present, self._options.drain
        request_log.say(f"stopping: {n} answers have {seconds:g} s" if n else "stopping")


def _ready(service: Service, bound: socket.socket, options: Options) -> dict[str, object]:
    """Return what the program says when it is ready."""
    host, port = bound.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    model = service.model
    more = {"keys": ", ".join(options.keys.names)} if options.keys else {}
    if kept := model.core.engine.kept:
        more["caches"] = f"conversations are kept in {options.cache} for {options.cache_days:g} days"
        if kept.n_other:
            more["caches"] += f"; {kept.n_other} there are for other settings or another model"
    return {
        "model": f"{model.name} {model.placement}",
        "playground": url,
        "API": f"{url}/v1",
        "models": ", ".join(service.presets.by_id),
        "context": f"{model.n_ctx} tokens for each of {model.n_parallel} answers at a time",
        **more,
    }
