"""Requests, tokens and times since the start, for Prometheus."""

from collections.abc import Callable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

_WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds
_STEPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
_WHO = ("model", "client")  # a model id, with its preset; the name of a key, "" without keys


class Metrics:
    """The numbers of a server, from its start; until `describe`, it loads its model."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = _WHO) -> Counter:
            return Counter(f"mink_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"mink_{name}", text, ("model",), buckets=buckets, registry=registry)

        self.responses = counter("responses", "Responses.", ("endpoint", "status"))
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts, including cached ones.")
        self.cached_tokens = counter("cached_tokens", "Tokens of prompts found in the KV cache.")
        self.generated_tokens = counter("generated_tokens", "Tokens of answers.")
        self.cancelled = counter("requests_cancelled", "Requests whose client left before the end.")
        self.queue_seconds = histogram("queue_seconds", "Time from a request to its slot.", _WAITS)
        self.first_token_seconds = histogram(
            "first_token_seconds", "Time from a request to its first token.", _WAITS
        )
        self.token_seconds = histogram(
            "token_seconds", "Time from one token of an answer to the next.", _STEPS
        )
        self._ready = Gauge("mink_ready", "1 when the model is loaded.", registry=registry)

    def describe(
        self, info: Mapping[str, str], gauges: Mapping[str, tuple[str, Callable[[], float]]]
    ) -> None:
        """Say what is served, and which numbers to look up: their texts and functions, by name."""
        Info("mink", "The server.", registry=self.registry).info(dict(info))
        for name, (text, value) in gauges.items():
            Gauge(f"mink_{name}", text, registry=self.registry).set_function(value)
        self._ready.set(1)
