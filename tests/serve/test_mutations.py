"""Mutated schemas, expressions and grammars to a real mink-serve: each is answered or refused, in time."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.effort import NIGHTLY
from tests.support.schemas import GRAMMARS, PATTERNS, mutated, mutated_schema, suite
from tests.support.server import running_server

COUNT = 20_000 if NIGHTLY else 300
CLIENTS = 4
PATIENCE = 120  # seconds: compiling is given up after ten, and what a step may cost is limited
USER = [{"role": "user", "content": "Hi"}]


def bodies(rng: random.Random) -> Iterator[dict[str, Any]]:
    schemas = [schema for _, schema, _ in suite()]
    texts = {"json": list(map(json.dumps, schemas)), "regex": PATTERNS, "grammar": GRAMMARS}
    while True:
        name = rng.choice([*texts, "json_schema", "tools"])
        if name in texts:
            yield {"structured_outputs": {name: mutated(rng.choice(texts[name]), "".join(texts[name]), rng)}}
            continue
        schema = mutated_schema(rng.choice(schemas), schemas, rng)
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        yield {"tools": [tool], "tool_choice": "required"} if name == "tools" else {name: schema}


@pytest.mark.slow
def test_nothing_that_is_sent_kills_the_server(tiny_path: Path) -> None:
    """With random weights, so that every way to go on is tried: 20,000 in the nightly tests."""
    common = {"messages": USER, "max_tokens": 8, "temperature": 5, "sampler": "top-k:k=400"}
    with (
        running_server("--model", str(tiny_path), "--parallel", str(CLIENTS)) as server,
        httpx.Client(timeout=PATIENCE, headers={"Content-Type": "application/json"}) as client,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):

        def status(body: dict[str, Any]) -> int:
            content = json.dumps(common | body)
            try:
                response = client.post(f"{server.url}/v1/chat/completions", content=content)
            except httpx.TransportError as error:
                raise AssertionError(f"{error!r}: {content}") from None
            assert response.status_code in (200, 400), content
            if response.status_code == 400:
                assert 0 < len(response.json()["error"]["message"]) < 1000, content
            return response.status_code

        seen: Counter[int] = Counter()
        source = bodies(random.Random(None if NIGHTLY else 1))
        while seen.total() < COUNT:
            seen.update(threads.map(status, islice(source, 100)))
        assert min(seen[200], seen[400]) > COUNT / 20
        assert server.process.poll() is None
        assert "Traceback" not in "".join(server.said)
