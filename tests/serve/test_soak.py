"""Clients of four endpoints, of whom a third leaves: no wrong or mixed-up answer, no slot lost, flat memory.

By default this takes 20 seconds; MINK_SOAK_SECONDS=900 MINK_SOAK_CLIENTS=200 is its full form, which needs
`-o faulthandler_timeout=1500`.
"""

import asyncio
import os
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import httpx
import psutil
import pytest

from tests.support.http import until
from tests.support.server import RunningServer, running_server

SECONDS = float(os.environ.get("MINK_SOAK_SECONDS", "20"))
CLIENTS = int(os.environ.get("MINK_SOAK_CLIENTS", "40"))
SLOTS = 8
LEAVING = 1 / 3
N_TOKENS = 14
MARKS = [
    f"mark {name} " for name in ("alder", "birch", "cedar", "elder", "hazel", "maple", "poplar", "rowan")
]
PATHS = [f"/v1/{name}" for name in ("chat/completions", "completions", "messages", "responses")]
MEBIBYTE = 1 << 20
GROWTH = 32 * MEBIBYTE  # that is still flat

FINISHED = ("stop", "length", "completed", "incomplete", "end_turn", "max_tokens")

Json = dict[str, Any]


@dataclass
class Outcome:
    """What the clients saw."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # that the server takes, after each answer


def body_of(path: str, mark: str) -> Json:
    """Return a request to an endpoint whose grammar makes the answer begin with a mark."""
    asked = [{"role": "user", "content": "Tell me about trees."}]
    body: Json = {"prompt": "Trees"} if path == "/v1/completions" else {"messages": asked, "input": asked}
    return body | {"grammar": f'root ::= "{mark}" [a-z ]+', "temperature": 5.0, "max_tokens": N_TOKENS}


async def ask(client: httpx.AsyncClient, path: str, mark: str, outcome: Outcome, is_stream: bool) -> None:
    """Have a mark written, and check that it is, and no other."""
    response = await client.post(path, json=body_of(path, mark) | {"stream": is_stream})
    if response.status_code == 429:
        outcome.counts["queue full"] += 1
        await asyncio.sleep(min(1.0, float(response.headers["retry-after"])))
        return
    outcome.counts["answered, streaming" if is_stream else "answered whole"] += 1
    written = "".join(re.findall(r'"(?:text|content|delta)":"([^"]*)"', response.text))
    is_whole = any(f'"{reason}"' in response.text for reason in FINISHED)
    if response.status_code != 200 or not is_whole or {one for one in MARKS if one in written} != {mark}:
        outcome.wrong.append(f"{response.status_code}, {mark!r}: {written!r}")


async def behave(
    client: httpx.AsyncClient, process: psutil.Process, outcome: Outcome, end: float, seed: int
) -> None:
    """Ask for one mark after the other until the end; leave some before the answer is there."""
    chance = random.Random(seed)
    while time.monotonic() < end:
        path, mark, is_stream = chance.choice(PATHS), chance.choice(MARKS), chance.random() < 0.6
        patience = chance.uniform(0, 2) if chance.random() < LEAVING else 600
        try:
            async with asyncio.timeout(patience):
                await ask(client, path, mark, outcome, is_stream)
        except TimeoutError:
            outcome.counts["left, streaming" if is_stream else "left, not streaming"] += 1
        except httpx.HTTPError as error:
            outcome.wrong.append(repr(error))
        outcome.memory.append(process.memory_info().rss)


def is_idle(server: RunningServer) -> bool:
    return not any(map(server.metric, ("slots_busy", "requests_running", "requests_waiting")))


async def soak(server: RunningServer) -> Outcome:
    """Have the clients ask until time is up; return what they saw."""
    outcome = Outcome()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        # What is set up once takes its memory here.
        await asyncio.gather(*(ask(client, *pair, outcome, True) for pair in product(PATHS, MARKS)))
        process, end = psutil.Process(server.process.pid), time.monotonic() + SECONDS
        await asyncio.gather(*(behave(client, process, outcome, end, seed) for seed in range(CLIENTS)))
    return outcome


@pytest.mark.slow
def test_soak() -> None:
    options = ("--parallel", str(SLOTS), "--queue", str(CLIENTS // 2))
    with running_server(*options) as server:
        outcome = asyncio.run(soak(server))
        until(lambda: is_idle(server))
        server.process.terminate()
        assert server.process.wait(60) == 0
    middle = len(outcome.memory) // 2
    growth = max(outcome.memory[middle:]) - max(outcome.memory[:middle])
    print(f"\n{CLIENTS} clients, {SECONDS:g} s: {dict(outcome.counts)}; {growth / MEBIBYTE:+.1f} MiB")
    assert outcome.wrong == []
    answered = sum(count for name, count in outcome.counts.items() if name.startswith("answered"))
    assert answered >= CLIENTS / 2
    assert outcome.counts["left, streaming"] > 0
    assert outcome.counts["left, not streaming"] > 0
    assert growth < GROWTH
