"""The last answers by their requests' ids, and what could have come in their place."""

import contextlib
from pathlib import Path

import httpx
import pytest

from mink_local import Request, SamplingParams, load_model
from mink_local.serve.bodies import ApiError, ResponseHead
from mink_local.serve.history import History, recorded
from tests.support.server import RunningServer, running_server

MESSAGES = [{"role": "user", "content": "Name a colour."}]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_found_by_its_requests_id(server: RunningServer, stream: bool) -> None:
    fields = {"messages": MESSAGES, "sampler": "top-k:k=5", "temperature": 2, "max_tokens": 6, "seed": 3}
    response = server.post("/v1/chat/completions", **fields, stream=stream, n=2, return_tokens=True)
    record = httpx.get(f"{server.url}/history/{response.headers['x-request-id']}").json()
    first = record["answers"][0]
    assert record["model"] == "smollm2-135m"
    assert len(record["answers"]) == 2
    assert (first["sampler"], first["temperature"], first["finish_reason"]) == ("top-k:k=5", 2, "length")
    assert "<|im_start|>user\nName a colour.<|im_end|>" in first["prompt_text"]
    assert {token["k"] for token in first["tokens"]} == {5}
    if not stream:
        answer = response.json()
        [choice, _] = answer["choices"]
        assert [token["id"] for token in first["tokens"]] == choice["tokens"]
        assert "".join(token["text"] for token in first["tokens"]) == choice["message"]["content"]
        assert httpx.get(f"{server.url}/history/{answer['id']}").json() == record
    ids = [token["id"] for token in first["tokens"]]
    step = server.post("/candidates", prompt=first["prompt"], prefix_tokens=ids[:3], sampled=ids[3]).json()
    assert step["sampled"]["rank"] <= 5
    asked = {"messages": MESSAGES, "prefix_tokens": ids[:3], "sampled": ids[3]}
    assert server.post("/candidates", **asked).json()["candidates"][:3] == step["candidates"][:3]


def test_only_the_last_are_kept(tiny_path: Path) -> None:
    history = History(2)
    with load_model(str(tiny_path), n_ctx=64) as model:
        [answer] = model.answer_all([Request("Hi", SamplingParams(max_tokens=1))])
    for name in "abc":
        history.add(ResponseHead(name, 0, "tiny", "", answer.request.params, "ann"), [answer])
    assert [history.find(f"req_{name}", "ann")[0].request_id for name in "bc"] == ["b", "c"]
    for name, client in (("req_a", "ann"), ("req_none", "ann"), ("req_c", "bob")):
        with pytest.raises(ApiError) as caught:
            history.find(name, client)
        assert caught.value.status == 404


def test_the_history_keeps_numbers_within_its_bytes(tiny_path: Path) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=20)
    with load_model(str(tiny_path), n_ctx=64) as model:
        [answer] = model.answer_all([Request("Hi", params)])
    n_bytes = len(recorded(answer))
    assert n_bytes < 5 * (answer.prompt_tokens + 20 + 20) + 200  # not 20 log-probabilities a token
    history = History(100, most_bytes=3 * n_bytes)
    for i in range(10):
        history.add(ResponseHead(str(i), 0, "tiny", "", params, "ann"), [answer])
    kept = []
    for i in range(10):
        with contextlib.suppress(ApiError):
            kept.append(history.find(f"req_{i}", "ann")[0].request_id)
    assert kept == ["7", "8", "9"]


@pytest.mark.slow
def test_nothing_is_kept_with_no_history_nor_shown_without_the_key() -> None:
    key = {"Authorization": "Bearer secret"}
    with running_server("--no-history", "--api-key", "secret") as server:
        url = f"{server.url}/v1/completions"
        answered = httpx.post(url, json={"prompt": "x", "max_tokens": 1}, headers=key, timeout=60)
        path = f"{server.url}/history/{answered.headers['x-request-id']}"
        assert [httpx.get(path).status_code, httpx.get(path, headers=key).status_code] == [401, 404]
