"""The service behind the endpoints: requests that a model refuses, and the end while one is prepared."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local import Constraints, MinK, Request, SamplingParams, load_model
from mink_local.llama import grammar
from mink_local.serve.api_errors import ApiError
from mink_local.serve.metrics import Metrics
from mink_local.serve.presets import Defaults, Presets
from mink_local.serve.service import Service


def service(path: Path) -> Service:
    model = load_model(str(path), n_ctx=64, n_parallel=2)
    return Service(model, Presets("tiny", Defaults(MinK(), 1.0), {}), Metrics({}, []))


def test_a_conversation_that_the_template_refuses(tiny: Callable[..., Path]) -> None:
    one = service(tiny(template="{{ raise_exception('no system prompt') }}"))
    request = Request([{"role": "user", "content": "Hello"}])

    async def run() -> None:
        await one.start(lambda: None)
        for refused in (one.off_loop(one.tokens, request), one.begin([request])):
            with pytest.raises(ApiError, match="refuses this conversation: no system prompt") as raised:
                await refused
            assert raised.value.status == 400
        await one.stop()

    asyncio.run(run())


def test_the_model_is_not_freed_under_a_request_in_preparation(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has left, and the server ends, while a child process tries its grammar."""
    one = service(tiny_path)
    trying, tried = threading.Event(), threading.Event()
    weights: list[object] = []

    def slow(*_: object, **__: object) -> None:
        trying.set()
        tried.wait(30)
        weights.append(one.model.weights.handle)

    monkeypatch.setattr(grammar, "ask", slow)
    constraints = Constraints(grammar='root ::= "while the server ends"')

    async def run() -> None:
        await one.start(lambda: None)
        task = asyncio.create_task(one.begin([Request("Hello", SamplingParams(constraints=constraints))]))
        await asyncio.to_thread(trying.wait, 30)
        task.cancel()
        stopping = asyncio.create_task(one.stop())
        await asyncio.sleep(0.2)
        tried.set()
        await stopping

    asyncio.run(run())
    [handle] = weights
    assert handle is not None
    assert one.model.weights.handle is None
