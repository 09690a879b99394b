"""Numbers about the server in Prometheus's text format, without `prometheus_client`'s global state."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """Counts requests, tokens and times since the start; for one thread, the event loop's.

    Args:
        info: Labels that say which server this is, as the model and the version.
        endpoints: The paths that are counted each by its own name; others are counted together.
    """

    def __init__(self, info: Mapping[str, str], endpoints: Collection[str]) -> None:
        self._info = info
        self._endpoints = frozenset(endpoints)
        self._responses: Counter[tuple[str, int]] = Counter()
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = self._cancelled = 0
        self._first_token = _Histogram(_FIRST_TOKEN_SECONDS)
        self._token = _Histogram(_TOKEN_SECONDS)

    def count_response(self, path: str, status: int) -> None:
        """Count a response of any kind."""
        self._responses[path if path in self._endpoints else "other", status] += 1

    def count_prompt(self, n_tokens: int, n_cached: int) -> None:
        """Count the tokens of a prompt, and those among them that were in the KV cache already."""
        self._prompt_tokens += n_tokens
        self._cached_tokens += n_cached

    def count_first_token(self, seconds: float) -> None:
        """Count the first token of an answer, which took `seconds` since its request arrived."""
        self._generated_tokens += 1
        self._first_token.add(seconds)

    def count_token(self, seconds: float) -> None:
        """Count a later token of an answer, which took `seconds` since the one before."""
        self._generated_tokens += 1
        self._token.add(seconds)

    def count_cancelled(self) -> None:
        """Count a request that its client left before the answer ended."""
        self._cancelled += 1

    def text(self, *, running: int, waiting: int, slots: int, busy_slots: int, steps: int) -> str:
        """Return all numbers, as a response to GET /metrics.

        Args:
            running: Requests that have a slot.
            waiting: Requests that wait for a slot.
            slots: Slots of the engine.
            busy_slots: Slots in use.
            steps: Batches that the engine has evaluated.
        """
        rows = [
            ("requests_running", "gauge", "Requests that have a slot.", running),
            ("requests_waiting", "gauge", "Requests that wait for a slot.", waiting),
            ("slots", "gauge", "Slots of the engine.", slots),
            ("slots_busy", "gauge", "Slots in use.", busy_slots),
            ("engine_steps_total", "counter", "Batches that the engine has evaluated.", steps),
            (
                "prompt_tokens_total",
                "counter",
                "Tokens of prompts, with the cached ones.",
                self._prompt_tokens,
            ),
            (
                "cached_tokens_total",
                "counter",
                "Tokens of prompts found in the KV cache.",
                self._cached_tokens,
            ),
            ("generated_tokens_total", "counter", "Tokens of answers.", self._generated_tokens),
            ("requests_cancelled_total", "counter", "Requests that their clients left.", self._cancelled),
        ]
        responses = [
            ("", {"endpoint": endpoint, "status": str(status)}, count)
            for (endpoint, status), count in sorted(self._responses.items())
        ]
        first, later = self._first_token.samples(), self._token.samples()
        lines = [
            *_family("info", "gauge", "Which server this is.", [("", self._info, 1)]),
            *_family("responses_total", "counter", "Responses.", responses),
            *(line for name, kind, words, n in rows for line in _family(name, kind, words, [("", {}, n)])),
            *_family("first_token_seconds", "histogram", "Time from a request to its first token.", first),
            *_family("token_seconds", "histogram", "Time from one token of an answer to the next.", later),
        ]
        return "\n".join(lines) + "\n"


_Sample = tuple[str, Mapping[str, str], float]  # the end of the name, the labels, the value


class _Histogram:
    """Counts values by upper bounds, and adds them up."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[_Sample]:
        for bound, count in zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True):
            yield "_bucket", {"le": _number(bound)}, count
        yield "_sum", {}, self._sum
        yield "_count", {}, sum(self._counts)


def _family(name: str, kind: str, description: str, samples: Iterable[_Sample]) -> Iterator[str]:
    """Yield the lines of one metric."""
    yield f"# HELP mink_{name} {description}"
    yield f"# TYPE mink_{name} {kind}"
    for end, labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        braces = f"{{{inside}}}" if inside else ""
        yield f"mink_{name}{end}{braces} {_number(value)}"


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
