"""Replies and the answers to many requests, read by threads and tasks, dropped, closed and interrupted."""

import asyncio
import copy
import json
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Chain, ContextOverflowError, MinK, TopK, load_model
from mink_local.errors import ConstraintError, GenerationError, MinkError, OptionError
from mink_local.generation.answer import Answer
from mink_local.generation.model import Model
from mink_local.generation.replies import Answers
from mink_local.generation.request import Request, SamplingParams
from tests.conftest import held

SHORT: dict[str, Any] = {"temperature": 5.0, "ignore_eos": True, "max_tokens": 6, "seed": 1}
ENDLESS: dict[str, Any] = {"temperature": 5.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Iterator[Model]:
    with load_model(tiny_path, n_ctx=2048, n_parallel=2, trust=True) as model:
        yield model


def test_pieces_come_once_and_the_text_to_all_who_wait_for_it(model: Model) -> None:
    """`read`, `await` and `str` take no pieces, and may be called in any number of threads and tasks."""
    reply = model.chat("Hi", **SHORT)

    async def tasks() -> list[str]:
        return [*await asyncio.gather(reply, reply), await reply]

    with ThreadPoolExecutor(2) as threads:
        read = [threads.submit(reply.read) for _ in range(2)]
        texts = [*asyncio.run(tasks()), *(one.result(60) for one in read), str(reply), reply.read()]
    assert set(texts) == {reply.text}
    assert "".join([next(reply), next(reply), *reply]) == reply.text
    assert list(reply) == []
    assert reply.read() == reply.text


@pytest.mark.parametrize("make", ["chat", "generate"])
def test_a_second_reader_gets_a_sentence(model: Model, make: str) -> None:
    """In a thread or a task; the first one reads on."""

    def made(options: dict[str, Any]) -> Any:
        return model.chat("Hi", **options) if make == "chat" else model.generate(["Hi"] * 2, **options)

    slow: dict[str, Any] = {**SHORT, "max_tokens": 50}
    with ThreadPoolExecutor(1) as threads, held(model):
        stream = made(slow)
        first = threads.submit(next, stream)
        while not stream._lock.locked():
            time.sleep(0.01)
        with pytest.raises(GenerationError, match="another thread or task"):
            next(stream)
    assert first.result(60) is not None
    assert list(stream)

    async def main() -> None:
        with held(model):
            stream = made(slow)
            first = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)  # until it waits
            with pytest.raises(GenerationError, match="another thread or task"):
                await anext(stream)
        assert await first is not None
        assert [each async for each in stream]

    asyncio.run(main())


def test_a_cancelled_reader_ends_a_reply(model: Model) -> None:
    async def main() -> None:
        async def read() -> None:
            async for _ in reply:
                pass

        reply = model.chat("Hi", **ENDLESS)
        await anext(reply)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), 0.1)
        await reply
        assert reply.finish_reason == "interrupted"

    asyncio.run(main())


def test_a_task_waits_for_no_prompt_to_be_rendered(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which another thread does; what is wrong with a prompt is raised where the reply is read."""
    names = []
    prepare = model.core.engine.prepare

    def noted(*given: Any) -> Any:
        names.append(threading.current_thread() is threading.main_thread())
        return prepare(*given)

    monkeypatch.setattr(model.core.engine, "prepare", noted)
    refused: list[tuple[Any, type[Exception]]] = [
        ("word " * 3000, ContextOverflowError),
        ([{"role": "user"}], ValueError),
    ]

    async def main() -> None:
        assert await model.chat("Hi", **SHORT)
        assert len([answer async for answer in model.generate(["Hi"] * 3, **SHORT)]) == 3
        for prompt, error in refused:
            with pytest.raises(error):
                await model.chat(prompt, **SHORT)
            with pytest.raises(error):
                [piece async for piece in model.chat(prompt, **SHORT)]
        async with model.chat("Hi", **ENDLESS) as reply:  # closed, perhaps before it has begun
            pass
        await reply
        assert reply.finish_reason == "interrupted"

    asyncio.run(main())
    assert set(names) == {False}
    for prompt, error in refused:
        with pytest.raises(error):
            model.chat(prompt, **SHORT)
    assert set(names) == {False, True}


def test_a_finished_reply_keeps_no_model(tiny_path: Path) -> None:
    model = load_model(tiny_path, n_ctx=256, n_parallel=2, trust=True)
    read, looped, answers = (
        model.chat("Hi", **SHORT),
        model.chat("Hi", **SHORT),
        model.generate(["Hi"] * 2, **SHORT),
    )
    read.read()
    assert len(list(looped)) > 1
    assert len(list(answers)) == 2
    kept = weakref.ref(model)
    del model
    assert kept() is None
    assert read.read() == looped.text == str(looped)
    assert list(answers) == []


def test_a_reply_is_closed_at_the_end_of_its_block(model: Model) -> None:
    with model.chat("Hi", **ENDLESS) as reply:
        next(reply)
    assert reply.read() == reply.text
    assert reply.finish_reason == "interrupted"


def test_an_answer_travels_and_a_reply_does_not(model: Model) -> None:
    reply = model.chat("Hi", watch=lambda _: None, **SHORT)
    reply.read()
    answer = pickle.loads(pickle.dumps(reply.answer))
    assert (answer.text, answer.k) == (reply.text, reply.k)
    for use, thing in product(
        (copy.copy, copy.deepcopy, pickle.dumps), (reply, model, model.generate(["Hi"]))
    ):
        with pytest.raises(TypeError, match="answer"):
            use(thing)
    completion = json.loads(json.dumps(answer.as_dict()))
    [choice] = completion["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (reply.content, "length")
    assert completion["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    "error",
    [ContextOverflowError(5, 3), OptionError("a", "b"), ConstraintError("regex", "x", "y"), MinkError("x")],
)
def test_errors_travel(error: Exception) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    "fault", [SystemExit("here"), KeyboardInterrupt(), ZeroDivisionError("here"), ValueError()]
)
def test_a_fault_of_one_answer_ends_that_answer_alone(model: Model, fault: BaseException) -> None:
    def watch(_: object) -> None:
        raise fault

    other = model.chat("Hello", **SHORT)
    reply = model.chat("Hi", watch=watch, **SHORT)
    with pytest.raises(GenerationError, match=str(fault) or type(fault).__name__):
        reply.read()
    assert other.read()
    assert model.chat("Hi", **SHORT).read()


def test_what_watches_the_logits_does_not_change_them(model: Model) -> None:
    rows: list[NDArray[np.float32]] = []

    def watch(row: NDArray[np.float32]) -> None:
        rows.append(row.copy())
        row.fill(np.nan)

    assert model.chat("Hi", watch=watch, **SHORT).read() == model.chat("Hi", **SHORT).read()
    assert len({row.tobytes() for row in rows}) == len(rows) == 6


# Many


def prompts(n: int) -> Iterator[str]:
    yield from map(str, range(n))
    raise OSError("the disk")


def test_an_error_of_the_prompts_comes_after_the_answers_under_way(model: Model) -> None:
    answers = model.generate(prompts(3), ordered=False, **SHORT)
    assert sorted(next(answers).index for _ in range(3)) == [0, 1, 2]
    with pytest.raises(OSError, match="disk"):
        next(answers)


def test_a_malformed_prompt_is_an_answer_that_failed(model: Model) -> None:
    asked: Any = ["Hi", [{"role": "user"}], 5, {"role": "user"}, b"Hi", [-1], "Hello"]
    answers = list(model.generate(asked, ordered=True, **SHORT))
    reasons = [answer.finish_reason for answer in answers]
    assert reasons == ["length", *["error"] * 5, "length"]
    assert [answer.prompt_index for answer in answers] == list(range(7))
    assert all(isinstance(answer.error, ValueError) for answer in answers[1:-1])


@pytest.mark.parametrize("ordered", [False, True])
def test_an_interrupt_tells_what_was_never_begun(model: Model, ordered: bool) -> None:
    answers = model.generate(["Hi"] * 40, ordered=ordered, **SHORT)
    first = next(answers)
    model.interrupt()
    rest = list(answers)
    assert sorted(answer.index for answer in [first, *rest]) == list(range(40))
    assert sum(answer.finish_reason == "interrupted" for answer in rest) > 30


def test_an_interrupt_while_requests_are_prepared_is_for_them_too(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = model.core.engine.prepare

    def interrupted(*given: Any) -> Any:
        model.interrupt()
        return prepare(*given)

    monkeypatch.setattr(model.core.engine, "prepare", interrupted)
    answers = list(model.generate(["Hi"] * 3, **ENDLESS))
    assert [answer.finish_reason for answer in answers] == ["interrupted"] * 3


@pytest.mark.parametrize(("ordered", "most"), [(False, 1 + 2 * 2), (True, 1 + 16 * 2)])
def test_so_many_requests_are_taken_ahead(model: Model, ordered: bool, most: int) -> None:
    taken = []

    def requests() -> Iterator[Request]:
        for i in range(1000):
            taken.append(i)
            yield Request("x", SamplingParams(max_tokens=200 if i == 0 else 1, ignore_eos=True))

    answers = model.answer_all(requests(), ordered=ordered)
    next(answers)
    assert len(taken) <= most + 1
    answers.close()
    assert list(answers) == []


def test_requests_may_follow_from_answers(model: Model) -> None:
    """Which the iterable itself reads; nothing waits for ever."""

    def following() -> Iterator[str]:
        yield "Hi"
        for _ in range(3):
            read.append(next(answers))
            yield read[-1].text

    read: list[Answer] = []
    answers = model.generate(following(), **SHORT)
    read += answers
    assert [answer.index for answer in read] == [0, 1, 2, 3]

    def waiting() -> Iterator[str]:
        yield next(nothing).text

    nothing = model.generate(waiting(), **SHORT)
    with pytest.raises(GenerationError, match="none"):
        next(nothing)


def test_answers_for_a_task(model: Model) -> None:
    """In `async for`; a task that is cancelled ends them."""

    async def main() -> None:
        assert [answer.index async for answer in model.generate(["a"] * 9, ordered=True, **SHORT)] == [
            *range(9)
        ]
        answers: Answers = model.generate(["a"] * 3, **ENDLESS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(answers), 0.2)

    asyncio.run(main())
    model.forget()  # waits for what is being generated
    assert model.core.engine.idle


def test_a_chain_evaluates_to_itself() -> None:
    chain = Chain(TopK(5), MinK())
    assert eval(repr(chain)) == chain
    for wrong in ((TopK(5), MinK()), "top-k", None):
        with pytest.raises(ValueError, match="Chain"):
            Chain(wrong)  # type: ignore[arg-type]
