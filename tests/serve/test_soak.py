"""Clients of four endpoints, of whom a third leaves: no wrong or mixed-up answer, no slot lost, flat memory.

By default this takes 20 seconds; MINK_SOAK_SECONDS=900 MINK_SOAK_CLIENTS=200 is its full form, which needs
`-o faulthandler_timeout=1500`.
"""

import asyncio
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Question:
    """A request, and the form that its answer must have."""

    path: str
    body: Json
    answer: "re.Pattern[str]"


@dataclass
class Outcome:
    """What the clients saw."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    seconds: float = 1.0  # of an answer, a moving average


def marked_questions() -> list[Question]:
    """Return requests at a high temperature whose grammars make every answer begin with a mark of its own."""
    questions = []
    for mark, path in product(MARKS, PATHS):
        asked = [{"role": "user", "content": f"Tell me about trees and {mark}."}]
        body = {"prompt": mark} if path == "/v1/completions" else {"messages": asked, "input": asked}
        options = {"grammar": f'root ::= "{mark}" [a-z ]+', "temperature": 5.0, "max_tokens": N_TOKENS}
        questions.append(Question(path, body | options, re.compile(mark + "[a-z ]*")))
    return questions


async def ask(
    client: httpx.AsyncClient, question: Question, outcome: Outcome, is_stream: bool, n: int
) -> None:
    """Ask a question and check the answer."""
    n = n if "completions" in question.path else 1
    body = {**question.body, "stream": is_stream} | ({"n": n} if n > 1 else {})
    began = time.monotonic()
    if is_stream:
        async with client.stream("POST", question.path, json=body) as response:
            if response.status_code == 200:
                answers = await streamed_answers(response, n)
    else:
        response = await client.post(question.path, json=body)
        if response.status_code == 200:
            answers = whole_answers(response.json())
    if response.status_code == 429:
        outcome.counts["queue full"] += 1
        await asyncio.sleep(min(1.0, float(response.headers["retry-after"])))
        return
    if response.status_code != 200:
        outcome.wrong.append(f"status {response.status_code}")
        return
    outcome.seconds += 0.1 * (time.monotonic() - began - outcome.seconds)
    outcome.counts["answered, streaming" if is_stream else "answered whole"] += 1
    for index in range(n):
        text, reason = answers.get(index, ("", None))
        if not question.answer.fullmatch(text) or reason not in FINISHED:
            outcome.wrong.append(f"{question.answer.pattern!r}: {text!r}, {reason}")


def whole_answers(body: Json) -> dict[int, tuple[str, str | None]]:
    """Return text and reason of the end of every answer."""
    if "choices" not in body:
        parts = body["content"] if "content" in body else body["output"][0]["content"]
        return {0: ("".join(part["text"] for part in parts), body.get("stop_reason") or body["status"])}
    return {
        choice["index"]: (
            choice["text"] if "text" in choice else choice["message"]["content"],
            choice["finish_reason"],
        )
        for choice in body["choices"]
    }


async def streamed_answers(response: httpx.Response, n: int) -> dict[int, tuple[str, str | None]]:
    """Return text and reason of the end of every answer of a stream, whose chunks must be of one response."""
    if "completions" not in response.url.path:
        return {0: await streamed_answer(response)}
    texts, reasons, ids, done = [""] * n, [None] * n, set(), False
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        assert not done, f"{line!r} after the end"
        done = line == "data: [DONE]"
        if not done:
            chunk = json.loads(line.removeprefix("data: "))
            ids.add(chunk["id"])
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
                reasons[choice["index"]] = reasons[choice["index"]] or choice["finish_reason"]
    assert len(ids) == 1
    assert done
    return dict(enumerate(zip(texts, reasons, strict=True)))


async def streamed_answer(response: httpx.Response) -> tuple[str, str | None]:
    """Return text and reason of the end of a stream with events of several types."""
    text, reason, kind = "", None, ""
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        kind = event["type"]
        if kind == "response.output_text.delta":
            text += event["delta"]
        elif kind == "content_block_delta":
            text += event["delta"]["text"]
        elif kind == "message_delta":
            reason = event["delta"]["stop_reason"]
        elif kind in ("response.completed", "response.incomplete"):
            reason = event["response"]["status"]
    assert kind in ("message_stop", "response.completed", "response.incomplete")
    return text, reason


async def behave(
    client: httpx.AsyncClient, questions: Sequence[Question], outcome: Outcome, end: float, seed: int
) -> None:
    """Ask one question after the other until the end; leave some before the answer is there."""
    chance = random.Random(seed)
    while time.monotonic() < end:
        question, is_stream, n = chance.choice(questions), chance.random() < 0.6, chance.choice((1, 1, 1, 2))
        patience = chance.uniform(0, 1.2 * outcome.seconds) if chance.random() < LEAVING else 600
        try:
            async with asyncio.timeout(patience):
                await ask(client, question, outcome, is_stream, n)
        except TimeoutError:
            outcome.counts["left, streaming" if is_stream else "left, not streaming"] += 1
        except (httpx.HTTPError, AssertionError, ValueError, KeyError) as error:
            outcome.wrong.append(repr(error))


async def watch(server: RunningServer, outcome: Outcome, interval: float) -> None:
    """Note now and then what memory the server's process takes."""
    process = psutil.Process(server.process.pid)
    while True:
        outcome.memory.append(process.memory_info().rss)
        await asyncio.sleep(interval)


def is_idle(server: RunningServer) -> bool:
    return not any(map(server.metric, ("slots_busy", "requests_running", "requests_waiting")))


async def soak(server: RunningServer, questions: Sequence[Question]) -> Outcome:
    """Have the clients ask until time is up; return what they saw."""
    outcome = Outcome()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        # What is set up once takes its memory here.
        await asyncio.gather(*(ask(client, question, outcome, True, 1) for question in marked_questions()))
        watching = asyncio.create_task(watch(server, outcome, SECONDS / 100))
        end = time.monotonic() + SECONDS
        await asyncio.gather(*(behave(client, questions, outcome, end, seed) for seed in range(CLIENTS)))
        watching.cancel()
    return outcome


@pytest.mark.slow
def test_soak() -> None:
    options = ("--parallel", str(SLOTS), "--queue", str(CLIENTS // 2))
    with running_server(*options) as server:
        outcome = asyncio.run(soak(server, marked_questions()))
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
