"""Load-test mink-serve with many concurrent clients, and llama-server with the same requests.

\b
.venv/bin/python scripts/load.py --clients 1 --clients 16 --against ~/llama.cpp/build/bin/llama-server
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from shutil import which
from statistics import median
from typing import Any

import click
import httpx
import numpy as np

from mink_local.bench.timing import in_turn
from mink_local.llama.devices import n_cores
from mink_local.models.catalog import resolve
from mink_local.models.options import model_option

START_SECONDS, ANSWER_SECONDS = 300, 600
N_BEFORE = 3  # requests that a server answers before it is measured
N_RUNNING = 3  # answers, while prompts arrive
EVERY_SECONDS, N_ARRIVING = 6, 16  # between these; tokens of their answers
PROMPT = "Tell me a long story about a dog named Max who went to the sea. " * 16  # about 300 tokens
PROMPT_ROOM = 512  # maximum tokens of a prompt
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "is_animal": {"type": "boolean"},
        "mood": {"enum": ["happy", "sad", "angry", "calm"]},
        "friends": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["name", "age", "is_animal", "mood", "friends"],
    "additionalProperties": False,
}


@dataclass
class Load:
    """A server's results in one round; times are in seconds."""

    tokens_per_second: float
    first_token: list[float]
    between_tokens: list[float]


@contextmanager
def running(name: str, command: Sequence[object]) -> Iterator[str]:
    """Start a server on a free port and yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = [*map(str, command), "--port", str(port)]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_SECONDS
        while not healthy(url):
            if server.poll() is not None or time.monotonic() > end:
                raise click.ClickException(f"{name} does not start: run  {' '.join(words)}  to see why")
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait()


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def ask(
    client: httpx.AsyncClient, prompt: str, tokens: int, has_schema: bool
) -> tuple[float, list[float]]:
    """Return when a request was sent, and when each token of its answer arrived."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": tokens,
        "ignore_eos": True, "temperature": 1.0, "top_k": 40, "top_p": 1.0, "min_p": 0.0, "seed": 1,
    }  # fmt: skip
    if has_schema:  # that no answer of so many tokens completes
        schema = {"type": "array", "items": PERSON, "minItems": tokens}
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "people", "schema": schema},
        }
    sent, times = time.perf_counter(), []
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise click.ClickException(f"status {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise click.ClickException(f"an answer broke off: {event['error']}")
                if any(choice["delta"].get("content") for choice in event["choices"]):
                    times.append(time.perf_counter())
    if not times:
        raise click.ClickException("an answer has no text")
    return sent, times


def fresh(
    name: str, command: Sequence[object], has_schema: bool, measure: Callable[[str, int, bool], Load]
) -> Callable[[int], Load]:
    """Return a contestant that starts its server for each round, and has it answer a little before.

    One process is up to an eighth faster than the next, as long as it lives.
    """

    def measured(round_number: int) -> Load:
        with running(name, command) as url:
            before = asyncio.run(_load(url, f"Before {round_number}", 1, N_BEFORE, N_ARRIVING, has_schema))
            return measure(url, round_number, has_schema) if round_number else before

    return measured


def load(url: str, round_number: int, has_schema: bool, clients: int, requests: int, tokens: int) -> Load:
    """Return a server's results in a round: so many requests of each client, at least 8 in total."""
    # Prompts share nothing but the beginning of the chat template: a server has seen none of them.
    name = f"{'Persons' if has_schema else 'Story'} {clients}.{round_number}"
    return asyncio.run(_load(url, name, clients, max(8, requests * clients), tokens, has_schema))


async def _load(url: str, name: str, clients: int, requests: int, tokens: int, has_schema: bool) -> Load:
    """Have clients send so many requests together, each one after another."""
    numbers = iter(range(requests))
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, limits=limits) as client:

        async def one_client() -> list[tuple[float, list[float]]]:
            return [await ask(client, f"{name}.{n}. {PROMPT}", tokens, has_schema) for n in numbers]

        began = time.perf_counter()
        by_client = await asyncio.gather(*(one_client() for _ in range(clients)))
        seconds = time.perf_counter() - began
    answers = list(chain.from_iterable(by_client))
    first = [times[0] - sent for sent, times in answers]
    between = np.concatenate([np.diff(times) for _, times in answers])
    return Load(len(answers) * tokens / seconds, first, between.tolist())


def mixed(url: str, round_number: int, has_schema: bool, seconds: int, tokens: int) -> Load:
    """Return a server's results while answers run, and every few seconds a prompt arrives, twice as long.

    Times to the first token are those of what arrives, times between tokens those of what runs.
    """
    return asyncio.run(_mixed(url, f"Round {round_number}", seconds, tokens, has_schema))


async def _mixed(url: str, name: str, seconds: int, tokens: int, has_schema: bool) -> Load:
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, limits=limits) as client:
        began = time.perf_counter()

        async def run(i: int) -> list[list[float]]:
            answers: list[list[float]] = []
            while time.perf_counter() < began + seconds:
                prompt = f"{name}, {i}.{len(answers)}: tell me a long story."
                answers.append((await ask(client, prompt, tokens, has_schema))[1])
            return answers

        async def arrive(i: int) -> float:
            await asyncio.sleep(EVERY_SECONDS * i)
            sent, times = await ask(client, f"{name}.{i}. {PROMPT}{PROMPT}", N_ARRIVING, has_schema)
            return times[0] - sent

        running = asyncio.gather(*map(run, range(N_RUNNING)))
        first = await asyncio.gather(*map(arrive, range(1, -(-seconds // EVERY_SECONDS))))
        answers = [*chain.from_iterable(await running)]
        taken = time.perf_counter() - began
    n_tokens = len(answers) * tokens + len(first) * N_ARRIVING
    return Load(n_tokens / taken, first, np.concatenate([np.diff(times) for times in answers]).tolist())


def mixed_row(name: str, rounds: Sequence[Load], reference: Sequence[Load]) -> str:
    """Return a row of the table of mixed arrivals, with the ratios to the reference's."""

    def figures(rounds: Sequence[Load]) -> list[float]:
        first = np.percentile([seconds for one in rounds for seconds in one.first_token], [50, 99])
        longest = median(max(one.between_tokens) for one in rounds)
        return [median(one.tokens_per_second for one in rounds), *first, longest]

    pairs = zip(figures(rounds), figures(reference), strict=True)
    return " | ".join([f"| {name}", *(f"{own:.2f} | {own / other:.2f}" for own, other in pairs)]) + " |"


def row(name: str, clients: int, rounds: Sequence[Load], reference: Sequence[Load]) -> str:
    """Return a row of the table, with the ratios of its medians to the reference's."""
    first = 1e3 * np.percentile([seconds for one in rounds for seconds in one.first_token], [50, 99])
    between = 1e3 * np.percentile([seconds for one in rounds for seconds in one.between_tokens], [50, 99])
    speed = median(one.tokens_per_second for one in rounds)
    throughput = speed / median(one.tokens_per_second for one in reference)
    latency = first[0] / (1e3 * median(seconds for one in reference for seconds in one.first_token))
    times = f"{first[0]:.0f} / {first[1]:.0f} | {latency:.2f} | {between[0]:.0f} / {between[1]:.0f}"
    return f"| {clients} | {name} | {speed:.1f} | {throughput:.2f} | {times} |"


@click.command(help=__doc__, context_settings={"show_default": True})
@model_option
@click.option("--against", metavar="PROGRAM", help="Path of a llama-server to compare with.")
@click.option("--clients", multiple=True, type=click.IntRange(1, 256), default=[1, 4, 16, 32])
@click.option("--requests", type=click.IntRange(1), default=2, help="Requests per client.")
@click.option("--tokens", "-n", type=click.IntRange(2), default=64, help="Tokens per answer.")
@click.option("--rounds", type=click.IntRange(1), default=3)
@click.option("--schema", "has_schema", is_flag=True, help="Answers by a JSON schema, beside free text.")
@click.option(
    "--mixed",
    "mixed_seconds",
    type=click.IntRange(EVERY_SECONDS + 1),
    metavar="SECONDS",
    help=f"Instead: {N_RUNNING} answers running, and a prompt of 600 tokens every {EVERY_SECONDS} s.",
)
def main(
    model: str,
    against: str | None,
    clients: Sequence[int],
    requests: int,
    tokens: int,
    rounds: int,
    has_schema: bool,
    mixed_seconds: int | None,
) -> None:
    slots = N_RUNNING + 1 if mixed_seconds else max(clients)
    n_ctx, path = tokens + PROMPT_ROOM * (2 if mixed_seconds else 1), resolve(model).path
    common: list[object] = ["--model", path, "--parallel", slots, "--threads", n_cores()]
    commands: dict[str, list[object]] = {
        "mink-serve": [sys.executable, "-m", "mink_local.serve.cli", *common, "--ctx", n_ctx]
    }
    if against and which(against) is None:
        raise click.UsageError(f"{against} does not exist: give the path of a llama-server")
    if against:
        commands["llama-server"] = [against, *common, "--ctx-size", slots * n_ctx, "--cache-ram", 0]
    rivals = {name: (name, command, has_schema) for name, command in commands.items()}
    if has_schema:
        rivals = {"mink-serve, free text": ("mink-serve", commands["mink-serve"], False), **rivals}
    reference = list(rivals)[-1]
    if mixed_seconds:
        measure = partial(mixed, seconds=mixed_seconds, tokens=tokens)
        print("Seconds; × is the ratio to the last server.\n")
        print("| server | tokens/s | × | first token, p50 | × | p99 | × | longest gap | × |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        loads = in_turn({name: fresh(*rival, measure) for name, rival in rivals.items()}, rounds)
        for name, found in loads.items():
            print(mixed_row(name, found, loads[reference]))
        return
    print("Median / 99th percentile in ms; × is the ratio to the last server.\n")
    print("| clients | server | tokens/s | × | first token | × | between tokens |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    for n_clients in clients:
        measure = partial(load, clients=n_clients, requests=requests, tokens=tokens)
        loads = in_turn({name: fresh(*rival, measure) for name, rival in rivals.items()}, rounds)
        for name, found in loads.items():
            print(row(name, n_clients, found, loads[reference]), flush=True)


if __name__ == "__main__":
    main()
