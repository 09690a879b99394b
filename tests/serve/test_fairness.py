"""Several clients on one server: none waits behind everything that another has sent."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mink_local import MinK, Request, SamplingParams, load_model
from mink_local.serve.bodies import ApiError
from mink_local.serve.clients import Client, FairThreads
from mink_local.serve.endpoints.candidates import CandidatesRequest, find_candidates
from mink_local.serve.keys import Keys
from mink_local.serve.metrics import Metrics
from mink_local.serve.request.parsing import parse
from mink_local.serve.request.presets import Preset, Presets
from mink_local.serve.service import EventStream, Service
from tests.support.http import until
from tests.support.server import running_server

pytestmark = pytest.mark.anyio
ALICE, BOB, EVE = Client("alice"), Client("bob"), Client("eve")


@pytest.fixture
def began() -> list[str]:
    """What work has begun, in order."""
    return []


async def test_a_client_waits_behind_its_own_work_alone(began: list[str]) -> None:
    threads, gate = FairThreads(), threading.Event()

    def work(name: str, *, waits: bool = False) -> str:
        began.append(name)
        return name if not waits or gate.wait(30) else ""

    tasks = [
        asyncio.create_task(threads.run(ALICE, partial(work, waits=True), f"alice{i}")) for i in range(16)
    ]
    assert await threads.run(BOB, work, "bob1") == "bob1"
    assert await threads.run(EVE, work, "eve") == "eve"
    assert await threads.run(BOB, work, "bob2") == "bob2"
    assert sorted(began) == ["alice0", "bob1", "bob2", "eve"]
    gate.set()
    assert await asyncio.gather(*tasks) == [f"alice{i}" for i in range(16)]
    await threads.close()


async def test_work_that_nobody_waits_for_keeps_its_thread_until_it_ends(began: list[str]) -> None:
    """Who sends and leaves, again and again, gets no more threads by that."""
    threads, gate = FairThreads(), threading.Event()

    def work(name: str) -> None:
        began.append(name)
        gate.wait(30)

    for i in range(8):
        task = asyncio.create_task(threads.run(ALICE, work, f"alice{i}"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert began == ["alice0"]
    last = asyncio.create_task(threads.run(ALICE, work, "last"))
    gate.set()
    await last
    assert began == ["alice0", "last"]
    await threads.close()


async def test_an_error_of_one_work_ends_that_alone() -> None:
    threads = FairThreads()
    with pytest.raises(ZeroDivisionError):
        await threads.run(ALICE, lambda: 1 // 0)
    assert await threads.run(ALICE, lambda: 1) == 1
    await threads.close()


@asynccontextmanager
async def started(path: Path, max_waiting: int = 64, keys: Keys | None = None) -> AsyncIterator[Service]:
    model = load_model(str(path), n_ctx=256, n_parallel=2)
    presets = Presets(Preset(MinK(), model_id="tiny"), {})
    service = Service(model, presets, Metrics(), keys, max_waiting=max_waiting)
    await service.start()
    yield service
    await service.stop()


def requests(*prompts: str, max_tokens: int = 40) -> list[Request]:
    params = SamplingParams(temperature=1, max_tokens=max_tokens, ignore_eos=True)
    return [Request(prompt, params) for prompt in prompts]


async def begin(service: Service, client: Client, *prompts: str) -> EventStream:
    return await service.begin(client, len(prompts), lambda: requests(*prompts), "tiny")


async def read(stream: EventStream) -> None:
    async for _ in stream:
        pass


async def test_the_next_slot_is_the_others(tiny_path: Path) -> None:
    async with started(tiny_path) as service:
        alice = await begin(service, ALICE, *(f"Alice {i}" for i in range(10)))
        await anext(alice)  # two of them have a slot
        bob = await begin(service, BOB, "Bob")
        await asyncio.gather(read(alice), read(bob))
    [of_bob] = bob.answers
    before = [answer for answer in alice.answers if answer.began < of_bob.began]
    assert len(before) == 2


async def test_a_full_queue_has_a_place_for_who_has_nothing_here(tiny_path: Path) -> None:
    keys = Keys(["alice:sk-a", "bob:sk-b"])
    async with started(tiny_path, max_waiting=2, keys=keys) as service:
        alice = await begin(service, ALICE, *"abcd")
        bob = await begin(service, BOB, "b")
        for client, n in ((ALICE, 1), (BOB, 1), (EVE, 2)):
            with pytest.raises(ApiError) as refused:
                await begin(service, client, *"x" * n)
            assert (refused.value.status, refused.value.code) == (429, "queue_full")
            assert int(refused.value.headers["retry-after"]) >= 1
        eve = await begin(service, EVE, "e")
        with pytest.raises(ApiError):  # the queue and one for each key
            await begin(service, Client("mallory"), "m")
        await asyncio.gather(*map(read, (alice, bob, eve)))
        for stream in (alice, bob, eve):
            service.close(stream)
        await read(await begin(service, ALICE, *"abcd"))


async def test_retry_after_is_the_mean_of_the_last_answers(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tiny_path, max_waiting=0) as service:
        ended = await begin(service, ALICE, "a", "b")
        await read(ended)
        for answer in ended.answers:
            monkeypatch.setattr(answer, "seconds", 30.0)
        service.close(ended)
        running = await begin(service, ALICE, "a", "b")
        for answer in running.answers:
            monkeypatch.setattr(answer, "began", 0.0)
        with pytest.raises(ApiError, match="30 s") as refused:
            await begin(service, ALICE, "c", "d")
        assert refused.value.headers["retry-after"] == "30"
        service.close(running)


async def test_other_work_counts_like_answers(tiny_path: Path) -> None:
    gate = threading.Event()
    async with started(tiny_path, max_waiting=0) as service:
        work = [asyncio.create_task(service.work(ALICE, gate.wait, 30)) for _ in range(2)]
        await asyncio.sleep(0)
        assert service.n_present == 2
        with pytest.raises(ApiError) as refused:
            await service.work(ALICE, int)
        assert refused.value.status == 429
        assert await service.work(BOB, int) == 0
        gate.set()
        await asyncio.gather(*work)
        assert service.n_present == 0


async def test_candidates_belong_to_who_asks_for_them(tiny_path: Path) -> None:
    async with started(tiny_path) as service:
        parsed = parse(b'{"prompt": [1, 2, 3]}', CandidatesRequest)
        assert (await find_candidates(service, ALICE, parsed)).prompt_tokens == 3
        numbers = service.metrics.registry.get_sample_value
        who = {"model": "tiny", "client": "alice"}
        assert numbers("mink_prompt_tokens_total", who) == 3
        assert numbers("mink_generated_tokens_total", who) == 1


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "One, two, three, four."}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ],
)
def test_prompts_without_a_token_are_counted_once_and_logged(
    tiny_path: Path, path: str, prompt: dict[str, Any]
) -> None:
    with running_server("--model", str(tiny_path), "--no-presets") as server:
        response = server.post(path, **prompt, n=3, max_tokens=0)
        n_prompt = response.json()["usage"]["prompt_tokens"]
        assert server.metric("prompt_tokens_total") == n_prompt
        request_id = response.headers["x-request-id"]
        until(lambda: any(request_id in said for said in server.said))
        [line] = [said for said in server.said if request_id in said]
        assert f"prompt_tokens={n_prompt} " in line
        assert "queue_seconds=" in line


async def test_prompts_of_clients_that_left_are_counted(tiny_path: Path) -> None:
    async with started(tiny_path) as service:
        waiting = await begin(service, ALICE, *"abc")
        ended = await begin(service, ALICE, "d")
        await read(ended)
        assert all(answer.began for answer in waiting.answers)
        service.close(waiting)
        numbers = service.metrics.registry.get_sample_value
        who = {"model": "tiny", "client": "alice"}
        prompts = [one.prompt_tokens for one in (*waiting.answers, *ended.answers)]
        assert numbers("mink_prompt_tokens_total", who) == sum(prompts)
