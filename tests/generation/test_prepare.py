"""Requests that are prepared in other threads than the engine's, while it generates."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Constraints, load_model
from mink_local.generation.answer import Answer
from mink_local.generation.decoding import Decoding
from mink_local.generation.engine import Engine
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from tests.conftest import forget

THREADS = 8
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("smollm2-135m", n_ctx=512, n_parallel=2)


def requests() -> list[Request]:
    """Messages, texts, control tokens, penalties, grammars, schemas; some of them the same."""
    constraints = [
        None,
        Constraints(repeat_penalty=1.3, dry_multiplier=0.8),
        Constraints(grammar='root ::= "yes" | "no"'),
        Constraints(json_schema=SCHEMA),
        None,
    ]
    prompts = [
        *(
            [{"role": "user", "content": f"What is {i} times {i}? <|im_end|>" + " word" * i}]
            for i in range(9)
        ),
        *(f"One, two, three, {i}" for i in range(3)),
    ]
    return [
        Request(prompt, SamplingParams(temperature=0.0, max_tokens=6, constraints=constraints[i % 5]))  # type: ignore[arg-type]
        for i, prompt in enumerate(prompts * 2)
    ]


def finish(engine: Engine) -> None:
    while not engine.idle:
        engine.step()


def answered(model: Model, prepared: Sequence[Decoding]) -> list[tuple[str, list[int]]]:
    """The texts and cutoffs of prepared requests, one after the other in an empty cache."""
    found = []
    for decoding in prepared:
        engine = forget(model).engine
        engine.enqueue(decoding)
        finish(engine)
        found.append((decoding.answer.text, decoding.answer.k))
    return found


@pytest.mark.slow
def test_eight_threads_prepare_what_one_does(model: Model) -> None:
    engine = model.engine
    others = [
        engine.submit(Request(f"Once upon a time {i}", SamplingParams(ignore_eos=True))) for i in (1, 2)
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        waiting = [pool.submit(engine.prepare, request) for request in requests()]
        while not (all(answer.n_tokens for answer in others) and all(future.done() for future in waiting)):
            engine.step()
    together = [future.result() for future in waiting]
    engine.cancel_all()
    with load_model("smollm2-135m", n_ctx=512, n_parallel=2) as other:
        alone = [other.engine.prepare(request) for request in requests()]
        assert [decoding.prompt for decoding in together] == [decoding.prompt for decoding in alone]
        assert answered(model, together[8:14]) == answered(other, alone[8:14])


def test_threads_hear_of_their_own_errors_only(model: Model) -> None:
    """llama.cpp's complaint about a grammar reaches the thread that gave it."""

    def prepare(i: int) -> str:
        grammar = f"root ::= rule{i}" if i % 2 else 'root ::= "x"'
        request = Request("Say x", SamplingParams(constraints=Constraints(grammar=grammar)))
        try:
            return model.engine.prepare(request).answer.text
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(THREADS) as pool:
        for i, message in enumerate(pool.map(prepare, range(6))):
            assert (f"rule{i}" in message) == (i % 2 == 1), message


def test_a_finished_answer_is_not_taken(model: Model) -> None:
    """One whose prompt does not fit, or whose client has left before it was taken."""
    engine = model.engine
    decoding = engine.prepare(Request("word " * 2000))
    assert decoding.answer.finish_reason == "overflow"
    engine.enqueue(decoding)
    assert engine.idle
    decoding = engine.prepare(Request("Hello"))
    decoding.end("interrupted")
    engine.enqueue(decoding)
    assert engine.idle
    engine.cancel(decoding.answer)


def test_preparing_takes_no_slot_and_changes_no_answer(model: Model) -> None:
    engine = forget(model).engine
    answer = engine.submit(Request("Once upon a time", SamplingParams(temperature=0.0, max_tokens=4)))
    prepared = engine.prepare(Request("Once upon a time", SamplingParams(temperature=0.0, max_tokens=4)))
    finish(engine)
    assert answer.finish_reason == "length"
    assert prepared.answer.tokens == []
    engine.enqueue(prepared)
    finish(engine)
    assert prepared.answer.tokens == answer.tokens


def test_a_request_watches_the_logits_of_its_steps(model: Model) -> None:
    rows: list[NDArray[np.float32]] = []
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=0)
    watched = Request("One, two, three,", params, watch=lambda row: rows.append(row.copy()))
    engine = forget(model).engine
    # On a device, too: a request that is watched is not sampled in llama.cpp's graph.
    answers = [engine.submit(watched, backend=True), engine.submit(Request("Hello", params))]
    finish(engine)
    assert [int(row.argmax()) for row in rows] == answers[0].tokens
    assert len(rows) == answers[0].n_tokens == 5


def test_an_answer_of_the_callers_own_is_filled_in(model: Model) -> None:
    class Named(Answer):
        name: Any = None

    request = Request("Hello", SamplingParams(max_tokens=2))
    own = Named(request)
    decoding = model.engine.prepare(request, own)
    assert decoding.answer is own
    model.engine.enqueue(decoding)
    finish(model.engine)
    assert own.n_tokens > 0
