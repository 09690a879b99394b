"""Random programs of calls, cancels, drops, breaks and closes, on threads and an event loop, never hang."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from mink_local import Constraints, Model, load_model
from mink_local.errors import MinkError, ModelError
from mink_local.generation.model import read_rows
from tests.support.effort import NIGHTLY
from tests.support.tiny import write_scripted

PROGRAMS = 100_000 if NIGHTLY else 50
SECONDS = 120  # after which a program hangs
PROMPTS: list[Any] = ["Hi", "Why? " * 9, [1, 2, 3], [{"role": "user", "content": "One, two,"}]]
LENGTHS = [*[1, 2, 3, 4, 6] * 6, None]  # of answers, in tokens; None for as many as there is room for
Use = Callable[[Model, random.Random], object]


def options(choose: random.Random) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 0.0}, {"stop": ["e"]}, {"logprobs": 1},
        {"constraints": Constraints(regex="[a-z ]+")},
        {"watch": lambda row: row.sum()}, {"watch": lambda _: 1 / 0}, {"prefix": [5, 6]},
    ]  # fmt: skip
    return {"ignore_eos": True, "max_tokens": choose.choice(LENGTHS), **choose.choice(kinds)}


def many(model: Model, choose: random.Random) -> Any:
    given = {**options(choose), "max_tokens": choose.randint(1, 4)}
    given.pop("watch", None), given.pop("prefix", None)
    prompts = [choose.choice(PROMPTS) for _ in range(choose.randint(0, 6))]
    return model.generate(prompts, ordered=choose.random() < 0.5, **given)


def read_some(model: Model, choose: random.Random) -> None:
    stream = choose.choice([many, one])(model, choose)
    for _ in zip(range(choose.randint(0, 6)), stream, strict=False):
        pass
    choose.choice([lambda: None, stream.close, lambda: list(stream)])()


def one(model: Model, choose: random.Random) -> Any:
    return model.chat(choose.choice(PROMPTS[:2] + PROMPTS[3:]), **options(choose))


async def read_some_in_a_task(model: Model, choose: random.Random) -> None:
    n, n_read = choose.randint(0, 6), 0
    async for _ in choose.choice([many, one])(model, choose):
        if (n_read := n_read + 1) > n:
            break


async def cancelled(model: Model, choose: random.Random) -> None:
    reply = one(model, choose)
    readers = [asyncio.ensure_future(reply) for _ in range(choose.randint(1, 3))]
    await asyncio.sleep(choose.random() / 200)
    choose.choice(readers).cancel()
    if choose.random() < 0.5:
        reply.close()
    await asyncio.gather(*readers, return_exceptions=True)


async def timed_out(model: Model, choose: random.Random) -> None:
    await asyncio.wait_for(anext(many(model, choose)), choose.random() / 200)


IN_THREADS: list[Use] = [
    *[read_some] * 6,
    one,  # and dropped
    many,
    lambda model, choose: one(model, choose).read(),
    lambda model, choose: with_block(model, choose),
    lambda model, _: model.logits("Hi"),
    lambda model, _: model.logprobs([([1, 2], [3]), ([1], [2, 3])]),
    lambda model, choose: next(read_rows(model, [([1, 2], 1)] * choose.randint(1, 5))),
    lambda model, _: model.forget(),
    lambda model, choose: model.reserve(256, choose.randint(1, 4)),
    lambda model, choose: [model.interrupt, model.close][choose.random() < 0.2](),
]
IN_TASKS: list[Callable[[Model, random.Random], Awaitable[object]]] = [
    read_some_in_a_task,
    cancelled,
    timed_out,
    lambda model, _: asyncio.to_thread(model.forget),
]


def with_block(model: Model, choose: random.Random) -> None:
    with one(model, choose) as reply:
        next(reply)


def in_a_thread(model: Model, choose: random.Random) -> None:
    for _ in range(choose.randint(1, 5)):
        with suppress(MinkError, ZeroDivisionError, StopIteration):
            choose.choice(IN_THREADS)(model, choose)


def in_an_event_loop(model: Model, choose: random.Random) -> None:
    async def use() -> None:
        with suppress(MinkError, TimeoutError, StopAsyncIteration):
            await choose.choice(IN_TASKS)(model, choose)

    async def main() -> None:
        await asyncio.gather(*(use() for _ in range(choose.randint(1, 5))))

    asyncio.run(main())


def test_no_program_hangs(tmp_path: Path) -> None:
    """Each ends within its time, by itself or with an error of the package; the model works afterwards."""
    turns = "{% for m in messages %}{{ m.content }}{% endfor %}<assistant>"
    path = write_scripted(tmp_path / "x.gguf", turns, {"<assistant>": "abcdefgh"})  # the cheapest model
    first = random.SystemRandom().randrange(2**32) if NIGHTLY else 0
    model = None
    with ThreadPoolExecutor(5) as pool:
        for seed in range(first, first + PROGRAMS):
            if model is None:
                model = load_model(path, n_ctx=256, n_parallel=2, n_threads=1, trust=True)
            threads = [in_a_thread] * 4 + [in_an_event_loop]
            futures = [pool.submit(use, model, random.Random(seed * 5 + i)) for i, use in enumerate(threads)]
            assert [future.exception(SECONDS) for future in futures] == [None] * 5, seed
            try:
                model.forget()  # waits for what is being generated
                assert (model.core.engine.idle, model.core.engine.n_busy) == (True, 0), seed
                model.chat("Hi", max_tokens=1).read()
            except ModelError:
                model = None  # it was closed
