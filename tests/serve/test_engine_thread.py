"""The engine's thread: events, cancelling, failures."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mink_local import SamplingParams, load_model
from mink_local.generation.answer import Answer
from mink_local.generation.model import Model
from mink_local.generation.request import Request
from mink_local.serve.engine_thread import EngineDownError, EngineThread, Event, EventStream

PROMPTS = ["One, two,", "The sun", "In a village", "Once upon a time", "She said"]


@pytest.fixture
def model(tiny_path: Path) -> Iterator[Model]:
    with load_model(str(tiny_path), n_ctx=64, n_parallel=2, trust=True) as model:
        yield model


def request(prompt: str, max_tokens: int = 10) -> Request:
    return Request(prompt, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))


def begin(thread: EngineThread, model: Model, *requests: Request) -> EventStream:
    return thread.generate([model.engine.prepare(request) for request in requests])


async def read(stream: EventStream) -> list[Event]:
    return [event async for event in stream]


def test_each_client_gets_the_events_of_its_own_answers(model: Model) -> None:
    expected = [
        answer.text for answer in sorted(model.complete(map(request, PROMPTS)), key=lambda a: a.index)
    ]

    async def run() -> list[list[Event]]:
        thread = EngineThread(model.engine)
        streams = [begin(thread, model, request(prompt)) for prompt in PROMPTS]
        events = await asyncio.gather(*map(read, streams))
        assert thread.n_answers == 0
        assert await thread.stop()
        return events

    for events, text in zip(asyncio.run(run()), expected, strict=True):
        assert "".join(event.piece for event in events) == text
        assert [event.finish_reason for event in events] == [None] * 9 + ["length"]


def test_a_client_that_leaves_frees_its_slots_and_no_others(model: Model) -> None:
    async def run() -> Answer:
        thread = EngineThread(model.engine)
        left = begin(thread, model, *(request(prompt, 50) for prompt in PROMPTS[:4]))  # two of them wait
        await anext(left)
        other = begin(thread, model, request(PROMPTS[4]))
        thread.cancel(left)
        thread.cancel(left)
        await read(other)
        assert thread.n_answers == 0
        assert model.engine.idle
        await thread.stop()
        assert {decoding.answer.finish_reason for decoding in left.decodings} == {"interrupted"}
        return other.decodings[0].answer

    answer = asyncio.run(run())
    [alone] = model.complete([request(PROMPTS[4])])
    assert answer.text == alone.text


def test_a_reader_that_is_slow_finds_everything_later(model: Model) -> None:
    async def run() -> None:
        thread = EngineThread(model.engine)
        slow = begin(thread, model, request(PROMPTS[0]))
        await read(begin(thread, model, request(PROMPTS[1]), request(PROMPTS[2])))
        while thread.n_answers:
            await asyncio.sleep(0.01)
        assert len(await read(slow)) == 10
        await thread.stop()

    asyncio.run(run())


def test_an_exception_ends_every_stream(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(3))
    step = model.engine.step

    def failing() -> object:
        if next(steps, None) is None:
            raise RuntimeError("broken")
        return step()

    monkeypatch.setattr(model.engine, "step", failing)

    async def run() -> None:
        thread = EngineThread(model.engine)
        stream = begin(thread, model, request(PROMPTS[0]))
        with pytest.raises(EngineDownError, match="RuntimeError: broken"):
            await read(stream)
        assert thread.failure is not None
        with pytest.raises(EngineDownError):
            begin(thread, model, request(PROMPTS[1]))
        assert await thread.stop()

    asyncio.run(run())


def test_an_engine_that_is_stuck_can_be_told(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(model.engine, "step", lambda: released.wait(30) and [])

    async def run() -> None:
        thread = EngineThread(model.engine)
        assert thread.seconds_without_step == 0
        stream = begin(thread, model, request(PROMPTS[0]))
        while thread.seconds_without_step < 0.2:
            await asyncio.sleep(0.05)
        thread.fail("stuck")
        with pytest.raises(EngineDownError, match="stuck"):
            await read(stream)
        assert not await thread.stop(0.1)
        released.set()
        assert await thread.stop()

    asyncio.run(run())
