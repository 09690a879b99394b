"""The service behind the endpoints: events, refusals, streams that wait, the end, metrics."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from starlette.responses import StreamingResponse

from mink_local import Constraints, MinK, Request, SamplingParams, load_model
from mink_local.errors import ConstraintError
from mink_local.generation.engine.engine import Engine
from mink_local.generation.engine.thread import Event
from mink_local.llama import guide
from mink_local.serve import exchange
from mink_local.serve.app import route_of
from mink_local.serve.bodies import ApiError
from mink_local.serve.clients import Client
from mink_local.serve.endpoints import tokens
from mink_local.serve.endpoints.tokens import DetokenizeRequest, TokenizeRequest
from mink_local.serve.metrics import Metrics
from mink_local.serve.protocols import completions, messages, responses
from mink_local.serve.protocols.messages import MessagesRequest
from mink_local.serve.protocols.responses import ResponsesRequest
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.request.parsing import parse
from mink_local.serve.request.presets import Preset, Presets
from mink_local.serve.service import EventStream, Service

pytestmark = pytest.mark.anyio  # for the coroutines
ANN, BOB = Client("ann"), Client("bob")
PROMPTS = ["One, two,", "The sun", "In a village", "Once upon a time", "She said"]


def request(prompt: str, max_tokens: int = 10) -> Request:
    return Request(prompt, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))


async def begin(service: Service, *requests: Request, client: Client = ANN) -> EventStream:
    return await service.begin(client, len(requests), lambda: requests)


async def all_ended(service: Service) -> None:
    while service.n_present:
        await asyncio.sleep(0.01)


async def read(stream: EventStream) -> list[Event]:
    return [event async for event in stream]


async def test_each_client_gets_the_events_of_its_own_answers(tiny_path: Path) -> None:
    async with started(tiny_path) as service:
        expected = service.model.answer_all(map(request, PROMPTS), ordered=True)
        texts = [answer.text for answer in expected]
        streams = [await begin(service, request(prompt)) for prompt in PROMPTS]
        read_in_turns = await asyncio.gather(*map(read, streams))
        await all_ended(service)
    for events, text in zip(read_in_turns, texts, strict=True):
        assert "".join(piece for _, piece in events) == text
        assert [piece.finish_reason for _, piece in events] == [None] * 9 + ["length"]


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[Service]:
    model = load_model(str(path), n_ctx=64, n_parallel=2)
    service = Service(model, Presets(Preset(MinK(), model_id="tiny"), {}), Metrics())
    await service.start()
    yield service
    await service.stop()


async def test_a_conversation_that_the_template_refuses(tiny: Callable[..., Path]) -> None:
    request = Request([{"role": "user", "content": "Hello"}])
    async with started(tiny(template="{{ raise_exception('no system prompt') }}")) as one:
        for refused in (one.threads.run(ANN, one.tokens, request), one.begin(ANN, 1, lambda: [request])):
            with pytest.raises(ApiError, match="no system prompt") as raised:
                await refused
            assert raised.value.status == 400


LONG = "One, two, three. " * 10
DESCRIBED = [
    (tokens.tokenize, TokenizeRequest, {"content": LONG}),
    (tokens.detokenize, DetokenizeRequest, {"tokens": [40] * 50}),
    (tokens.count_input_tokens, ChatRequest, {"messages": [{"role": "user", "content": LONG}]}),
    *(
        (completions.create_completion, CompletionRequest, {"prompt": LONG, "max_tokens": 1, **more})
        for more in ({"echo": True, "logprobs": 2}, {"echo": True, "logprobs": 2, "stream": True})
    ),
]


@pytest.mark.parametrize(("endpoint", "kind", "fields"), DESCRIBED)
async def test_many_tokens_are_described_off_the_event_loop(
    endpoint: Any, kind: Any, fields: dict[str, Any], tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            threads.append(get_ident())
            return function(*arguments, **options)

        return call

    async with started(tiny_path) as one:
        weights = one.model.weights
        monkeypatch.setattr(weights, "piece", noted(weights.piece))
        monkeypatch.setattr(weights, "tokenize", noted(weights.tokenize))
        response = await endpoint(one, ANN, parse(json.dumps(fields).encode(), kind))
        if isinstance(response, StreamingResponse):
            async for _ in response.body_iterator:
                pass
    assert threads
    assert threads.count(get_ident()) <= 3  # of the one token that is generated


async def test_nan_logits_are_the_servers_fault_even_under_constraints(tiny: Callable[..., Path]) -> None:
    request = Request("Hello", SamplingParams(constraints=Constraints(repeat_penalty=1.1)))
    async with started(tiny(scale=float("nan"))) as one:
        with pytest.raises(ApiError, match="NaN") as raised:
            await anext(await one.begin(ANN, 1, lambda: [request]))
    assert (raised.value.status, raised.value.code) == (500, "generation_failed")


HELLO = [{"role": "user", "content": "Hello"}]
STREAMS: list[tuple[Any, Any, dict[str, Any]]] = [
    (completions.create_completion, CompletionRequest, {"prompt": "Hello"}),
    (responses.create_response, ResponsesRequest, {"input": "Hello"}),
    (messages.create_message, MessagesRequest, {"messages": HELLO}),
]
ALIVE = (b": keepalive\n\n", b"event: response.in_progress\n", b"event: ping\n")
FAILED = (  # the types of the event and of its error
    (None, "server_error"),
    ("response.failed", None),
    ("error", "api_error"),
)


async def streamed(
    service: Service, endpoint: Any, kind: Any, fields: dict[str, Any]
) -> AsyncIterator[bytes]:
    """Yield the parts of a stream of two tokens."""
    body = json.dumps({**fields, "max_tokens": 2, "stream": True}).encode()
    response = await endpoint(service, ANN, parse(body, kind))
    assert isinstance(response, StreamingResponse)
    async for part in response.body_iterator:
        assert isinstance(part, bytes)
        yield part


@pytest.mark.parametrize(("asked", "failed"), [*zip(STREAMS, FAILED, strict=True)])
async def test_a_stream_that_fails_ends_with_an_error(
    asked: Any, failed: Any, tiny: Callable[..., Path]
) -> None:
    async with started(tiny(scale=float("nan"))) as one:
        sent = [part async for part in streamed(one, *asked)]
    last = json.loads(sent[-1].partition(b"data: ")[2])
    error = (last.get("response") or last)["error"]
    assert (last.get("type"), error.get("type")) == failed
    assert error["code"] == "generation_failed"
    assert "NaN" in error["message"]


@pytest.mark.parametrize(("asked", "alive"), [*zip(STREAMS, ALIVE, strict=True)])
async def test_a_stream_that_waits_says_so(
    asked: Any, alive: bytes, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a comment; with an event where clients count nothing else, as Codex does."""
    monkeypatch.setattr(exchange, "KEEP_ALIVE_SECONDS", 0.02)
    launch, is_seen = Engine.launch, threading.Event()
    sent: list[bytes] = []

    def slow(engine: Engine) -> None:
        is_seen.wait(30)
        launch(engine)

    monkeypatch.setattr(Engine, "launch", slow)
    async with started(tiny_path) as one:
        async for part in streamed(one, *asked):
            sent.append(part)
            if len(sent) == 6:
                is_seen.set()
    assert sent[0].startswith(b": waiting\n\n")
    assert all(part.startswith(alive) for part in sent[1:6])
    numbers = [int(n) for n in re.findall(rb'"sequence_number":(\d+)', b"".join(sent))]
    assert numbers == [*range(len(numbers))]
    ends = (b"data: [DONE]", b"event: message_stop", b"event: response.incomplete")
    assert any(end in sent[-1] for end in ends)


async def test_the_model_is_not_freed_under_a_request_in_preparation(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has left, and the server ends, while its grammar is compiled."""
    trying, tried = threading.Event(), threading.Event()
    handles: list[object] = []

    def slow(*_: object) -> None:
        trying.set()
        tried.wait(30)
        handles.append(one.model.weights.handle)
        raise ConstraintError("grammar", "too slow")

    monkeypatch.setattr(guide, "_matcher", slow)
    constraints = Constraints(grammar='root ::= "while the server ends"')
    request = Request("Hello", SamplingParams(constraints=constraints))

    def end(*arguments: Any) -> bool:
        ended = end_thread(*arguments)
        # The callback runs when the service next waits for something, and not before.
        loop.call_soon_threadsafe(tried.set)
        return ended

    async with started(tiny_path) as one:
        loop, end_thread = asyncio.get_running_loop(), one.model.core.thread.end
        monkeypatch.setattr(one.model.core.thread, "end", end)
        task = asyncio.create_task(one.begin(ANN, 1, lambda: [request]))
        await asyncio.to_thread(trying.wait, 30)
        task.cancel()
    assert handles
    assert one.model.weights.is_closed


async def test_a_request_that_is_being_prepared_when_the_drain_runs_out(tiny_path: Path) -> None:
    preparing, prepare = threading.Event(), threading.Event()

    def slow() -> list[Request]:
        preparing.set()
        prepare.wait(30)
        return [request(PROMPTS[0])]

    async with started(tiny_path) as one:
        task = asyncio.create_task(one.begin(ANN, 1, slow))
        await asyncio.to_thread(preparing.wait, 30)
        one.interrupt()
        prepare.set()
        with pytest.raises(ApiError) as raised:
            await task
    assert (raised.value.status, raised.value.code) == (503, "stopping")


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers are those of /proc")
def test_the_process_is_measured() -> None:
    numbers = {family.name for family in Metrics().registry.collect()}
    assert {"process_resident_memory_bytes", "process_open_fds", "mink_ready"} <= numbers


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/a/b", "/v1/models/{model_id}"),
        ("/history/req_1", "/history/{request_id}"),
        ("/a", "other"),
    ],
)
def test_responses_are_counted_by_endpoint_and_unknown_paths_together(path: str, label: str) -> None:
    assert route_of(path) == label
