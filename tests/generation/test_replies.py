"""Replies and the answers to many requests, read by threads and tasks, dropped, closed and interrupted."""

import asyncio
import copy
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from queue import SimpleQueue
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

SHORT: dict[str, Any] = {"temperature": 5.0, "ignore_eos": True, "max_tokens": 6, "seed": 1}
ENDLESS: dict[str, Any] = {"temperature": 5.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Iterator[Model]:
    with load_model(tiny_path, n_ctx=2048, n_parallel=2, trust=True) as model:
        yield model


def test_every_reader_gets_all_pieces(model: Model) -> None:
    """Threads and tasks, side by side and afterwards; `read` and `await` too."""
    reply = model.chat("Hi", **SHORT)

    async def tasks() -> list[str]:
        async def read() -> str:
            return "".join([piece async for piece in reply])

        return [*await asyncio.gather(read(), read()), await reply]

    with ThreadPoolExecutor(3) as threads:
        read = [threads.submit(lambda: "".join(reply)), threads.submit(reply.read)]
        texts = [*asyncio.run(tasks()), *(one.result(60) for one in read), "".join(reply)]
    assert set(texts) == {reply.text}
    assert [str(next(reply)) for _ in range(6)] == list(map(str, reply))[:6]


def test_a_cancelled_reader_ends_a_reply_that_nobody_else_reads(model: Model) -> None:
    async def main() -> None:
        async def read() -> None:
            async for _ in reply:
                pass

        for others in (0, 1):
            reply = model.chat("Hi", **ENDLESS)
            tasks = [asyncio.create_task(read()) for _ in range(1 + others)]
            await anext(reply)
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            if others:
                await asyncio.sleep(0.1)
                assert reply.finish_reason is None
                tasks[1].cancel()
            await asyncio.gather(*tasks[1:], return_exceptions=True)
            await reply
            assert reply.finish_reason == "interrupted"

    asyncio.run(main())


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
    answers = model.generate(prompts(3), **SHORT)
    assert sorted(next(answers).index for _ in range(3)) == [0, 1, 2]
    with pytest.raises(OSError, match="disk"):
        next(answers)


def test_a_malformed_prompt_is_an_answer_that_failed(model: Model) -> None:
    asked: Any = ["Hi", [{"role": "user"}], 5, {"role": "user"}, b"Hi", [-1], "Hello"]
    answers = list(model.generate(asked, ordered=True, **SHORT))
    reasons = [answer.finish_reason for answer in answers]
    assert reasons == ["length", *["error"] * 5, "length"]
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


def test_threads_share_what_they_read(model: Model) -> None:
    """Each gets some of the pieces or answers, and together they get all once."""
    reply = model.chat("Hi", **{**SHORT, "max_tokens": 50})
    with ThreadPoolExecutor(4) as threads:
        pieces = [threads.submit(lambda: list(iter(lambda: next(reply, None), None))) for _ in range(4)]
        assert sum(len(one.result(60)) for one in pieces) == len(list(reply))
    answers = model.generate(map(str, range(30)), **SHORT)
    with ThreadPoolExecutor(4) as threads:
        read = [threads.submit(lambda: [answer.index for answer in answers]) for _ in range(4)]
        assert sorted(index for one in read for index in one.result(60)) == list(range(30))


def test_requests_may_follow_from_answers(model: Model) -> None:
    """Which the iterable itself reads, or another thread while it waits; nothing waits for ever."""

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
    inbox: SimpleQueue[str | None] = SimpleQueue()
    shared = model.generate(iter(inbox.get, None), **SHORT)

    def answering() -> list[int]:
        found = []
        for answer in shared:
            found.append(answer.index)
            inbox.put("more" if answer.index < 20 else None)
        return found

    inbox.put("Hi")
    with ThreadPoolExecutor(2) as threads:
        by_threads = [threads.submit(answering) for _ in range(2)]
        assert sorted(i for one in by_threads for i in one.result(60)) == list(range(21))


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
