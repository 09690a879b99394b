"""Load of a server by many clients at a time, beside another server, for `mink-bench serve`."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import httpx
import numpy as np

from mink_local.bench.measuring import in_turn, median_ratio
from mink_local.bench.sampler import PROMPT
from mink_local.bench.server_process import ServerProcess
from mink_local.errors import MinkError
from mink_local.samplers import Greedy, MinP, Sampler, TopK, TopNSigma, TopP

_LEAST_ANSWERS = 8  # in a round, however few the clients
_TRIES = 3  # of a request, as OpenAI's libraries have
_PATIENCE = 600  # seconds without a sign of life from a server
_REPEATS = 8  # of the same sentence in a prompt
PROMPT_ROOM = 512  # tokens that a prompt takes at most

NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
"""Fields of a request that switch llama-server's default cuts off."""

FIELDS: dict[type[Sampler], Any] = {
    Greedy: lambda _: {"temperature": 0},
    TopK: lambda sampler: {"top_k": sampler.k},
    TopP: lambda sampler: {"top_p": sampler.p},
    MinP: lambda sampler: {"min_p": sampler.p},
    TopNSigma: lambda sampler: {"top_n_sigma": sampler.n},
}
"""Fields of a request, as llama-server names them, for the methods that it has."""


@dataclass
class ServerSpeed:
    """Speed of a server with so many clients at a time.

    Tokens a second and processor time are medians over rounds, percentiles are over all answers. The ratios
    are medians over rounds of the ratio to the last server of the comparison within a round.
    """

    server: str
    clients: int
    tokens_per_second: float
    cpu_ms_per_token: float
    first_token_ms_p50: float
    first_token_ms_p99: float
    between_tokens_ms_p50: float
    between_tokens_ms_p99: float
    throughput_ratio: float
    first_token_ratio: float


@dataclass
class Arrivals:
    """When a request was sent, and when which bytes of its answer arrived."""

    sent: float
    chunks: list[tuple[float, bytes]] = field(default_factory=list)

    def events(self) -> Iterator[tuple[float, Any]]:
        """Yield the server-sent events, each with the time when it was complete."""
        held = b""
        for arrived, chunk in self.chunks:
            *events, held = (held + chunk).split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    yield arrived, json.loads(event.removeprefix(b"data: "))


@dataclass
class Load:
    """Counts tokens and seconds of one round of a server."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    n_tokens: int = 0
    first_token: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)

    def add(self, answer: Arrivals, tokens: int) -> None:
        """Add an answer; raise MinkError if it has another number of tokens, or no text."""
        times, n_tokens = [], 0
        for arrived, event in answer.events():
            if "error" in event:
                raise MinkError(f"an answer was broken off: {event['error'].get('message')}")
            if any(choice["delta"].get("content") for choice in event["choices"]):
                times.append(arrived)
            if event.get("usage"):
                n_tokens = event["usage"]["completion_tokens"]
        if n_tokens != tokens or not times:
            raise MinkError(
                f"an answer has {n_tokens} tokens in {len(times)} events with text, not {tokens} tokens"
            )
        self.n_tokens += n_tokens
        self.first_token.append(times[0] - answer.sent)
        self.between_tokens += np.diff(times).tolist()


def request_fields(sampler: Sampler, temperature: float) -> dict[str, Any]:
    """Return the fields of a request that sample with a method, as llama-server and mink-serve name them."""
    if type(sampler) not in FIELDS:
        return {"sampler": str(sampler), "temperature": temperature}
    return {**NEUTRAL, "temperature": temperature, **FIELDS[type(sampler)](sampler)}


def time_servers(
    servers: Sequence[ServerProcess],
    clients: Sequence[int],
    fields: Mapping[str, Any],
    tokens: int,
    rounds: int,
) -> list[ServerSpeed]:
    """Send the same requests to every server in turn, from several numbers of clients at a time.

    Args:
        servers: The servers; ratios are to the last of them.
        clients: Numbers of clients. Each sends a request, reads the answer to its end and sends the next.
        fields: Fields of every request besides the prompt; see `request_fields`.
        tokens: Length of every answer.
        rounds: Rounds for each number of clients.

    Raises:
        MinkError: A server refuses a request, or gives an answer of another length, or none.
    """
    speeds = []
    for n_clients in clients:
        requests = {**fields, "max_tokens": tokens}
        contestants = {server.name: partial(_load, server, n_clients, requests) for server in servers}
        speeds += compare(n_clients, in_turn(contestants, rounds))
    return speeds


def compare(clients: int, loads: Mapping[str, Sequence[Load]]) -> list[ServerSpeed]:
    """Return the speeds of servers from their loads, one a round."""
    *_, reference = loads.values()
    speeds = []
    for server, rounds in loads.items():
        first = [seconds for load in rounds for seconds in load.first_token]
        between = [seconds for load in rounds for seconds in load.between_tokens]
        speeds.append(
            ServerSpeed(
                server=server,
                clients=clients,
                tokens_per_second=round(median(_throughputs(rounds)), 1),
                cpu_ms_per_token=round(median(1e3 * load.cpu_seconds / load.n_tokens for load in rounds), 3),
                first_token_ms_p50=_milliseconds(first, 50),
                first_token_ms_p99=_milliseconds(first, 99),
                between_tokens_ms_p50=_milliseconds(between, 50),
                between_tokens_ms_p99=_milliseconds(between, 99),
                throughput_ratio=round(median_ratio(_throughputs(rounds), _throughputs(reference)), 3),
                first_token_ratio=round(median_ratio(_first_tokens(rounds), _first_tokens(reference)), 3),
            )
        )
    return speeds


def _milliseconds(seconds: Sequence[float], percent: float) -> float:
    return round(1e3 * float(np.percentile(seconds, percent)), 2)


def _throughputs(rounds: Sequence[Load]) -> list[float]:
    return [load.n_tokens / load.seconds for load in rounds]


def _first_tokens(rounds: Sequence[Load]) -> list[float]:
    return [median(load.first_token) for load in rounds]


def _load(server: ServerProcess, n_clients: int, fields: Mapping[str, Any], number: int) -> Load:
    """Have so many clients send the requests of one round; return what the server did."""
    n_answers = max(_LEAST_ANSWERS, 2 * n_clients)
    bodies = [_body(f"{number}-{n_clients}-{i}", fields) for i in range(n_answers)]
    load = Load()
    before, began = server.cpu_seconds(), time.perf_counter()
    answers = asyncio.run(_answers(server, n_clients, bodies))
    load.seconds, load.cpu_seconds = time.perf_counter() - began, server.cpu_seconds() - before
    for answer in answers:
        try:
            load.add(answer, fields["max_tokens"])
        except MinkError as error:
            raise MinkError(f"{server.name}: {error}") from None
    return load


def _body(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request whose prompt shares only the chat template's beginning with those of other names."""
    prompt = " ".join([f"This is story {name}.", *[PROMPT] * _REPEATS])
    return {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "seed": 1,
        **fields,
    }


async def _answers(
    server: ServerProcess, n_clients: int, bodies: Sequence[Mapping[str, Any]]
) -> list[Arrivals]:
    """Send every request, from so many clients at a time; return the answers as they came.

    What came is read later: the clients share the processor with the servers.
    """
    # A connection for each request: a server may close an idle one just as it is used again.
    limits = httpx.Limits(max_connections=n_clients, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=_PATIENCE, limits=limits) as client:
        waiting = iter(bodies)

        async def ask_all() -> list[Arrivals]:
            return [await _ask(client, server.name, body) for body in waiting]

        answers = await asyncio.gather(*(ask_all() for _ in range(n_clients)))
    return [answer for of_client in answers for answer in of_client]


async def _ask(client: httpx.AsyncClient, name: str, body: Mapping[str, Any]) -> Arrivals:
    """Send a request, again if it gets no response at all: llama-server drops one in some hundreds."""
    arrivals = Arrivals(time.perf_counter())
    for tries_left in reversed(range(_TRIES)):
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                async for chunk in response.aiter_raw():
                    arrivals.chunks.append((time.perf_counter(), chunk))
            break
        except httpx.HTTPError as error:
            if arrivals.chunks or not tries_left:
                raise MinkError(f"{name} broke off an answer: {error!r}") from None
    if response.status_code != httpx.codes.OK:
        text = b"".join(chunk for _, chunk in arrivals.chunks).decode(errors="replace")
        raise MinkError(f"{name} refused a request with status {response.status_code}: {text}")
    return arrivals
