"""POST /v1/chat/completions of a real mink-serve."""

import json
from typing import Any

import httpx
import pytest

from mink_local import MinK, TopP, load_model
from tests.support.server import RunningServer

MESSAGES = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture
def client(server: RunningServer) -> Any:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "max_tokens": 12, "seed": 7, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def streamed(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    body = {"messages": MESSAGES, "max_tokens": 12, "seed": 7, "stream": True, **fields}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_the_answer_is_the_models_own(client: httpx.Client) -> None:
    answer = ask(client, temperature=5, sampler="min-k:tau=3", return_tokens=True)
    with load_model("smollm2-135m", n_ctx=512) as model:
        reply = model.chat(MESSAGES, sampler=MinK(), temperature=5.0, max_tokens=12, seed=7)
        text = reply.read()
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": text}
    assert (choice["k"], choice["tokens"]) == (reply.k, reply.tokens)
    assert choice["finish_reason"] == "length"
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "smollm2-135m"
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (reply.prompt_tokens, 12)
    assert usage["total_tokens"] == reply.prompt_tokens + 12
    assert answer["timings"]["predicted_n"] == 12


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_is_the_whole_in_pieces(client: httpx.Client, n: int) -> None:
    whole = ask(client, n=n, temperature=2, logprobs=True, top_logprobs=2, return_tokens=True)
    chunks = streamed(
        client,
        n=n,
        temperature=2,
        logprobs=True,
        top_logprobs=2,
        return_tokens=True,
        stream_options={"include_usage": True},
    )
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({chunk["id"] for chunk in [*chunks, usage]}) == 1
    for expected in whole["choices"]:
        mine = [
            choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == expected["index"]
        ]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == expected["message"]["content"]
        assert [k for choice in mine for k in choice.get("k", [])] == expected["k"]
        assert [token for choice in mine for token in choice.get("tokens", [])] == expected["tokens"]
        entries = [entry for choice in mine for entry in (choice["logprobs"] or {}).get("content", [])]
        assert [entry["token"] for entry in entries] == [
            entry["token"] for entry in expected["logprobs"]["content"]
        ]
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_several_answers_have_seeds_that_follow_each_other(client: httpx.Client) -> None:
    several = ask(client, n=3, temperature=5)
    texts = [choice["message"]["content"] for choice in several["choices"]]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == ask(client, temperature=5)["choices"][0]["message"]["content"]
    assert several["usage"]["prompt_tokens"] < 60  # one prompt, counted once


def test_a_preset_wins_over_the_clients_sampling(client: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "seed": 1, "temperature": 0, "top_p": 0.5}
    response = client.post("/v1/chat/completions", json={**body, "model": "smollm2-135m:min-k-t5"})
    assert response.headers["x-mink-ignored"] == "temperature,top_p"
    with load_model("smollm2-135m", n_ctx=512) as model:
        expected = model.chat(MESSAGES, sampler=MinK(), temperature=5.0, max_tokens=8, seed=1).read()
        cut = model.chat(
            MESSAGES, sampler=TopP(p=0.5, order="temperature-last"), temperature=1.5, max_tokens=8, seed=1
        ).read()
    assert response.json()["choices"][0]["message"]["content"] == expected
    own = ask(client, max_tokens=8, seed=1, temperature=1.5, top_p=0.5)
    assert own["choices"][0]["message"]["content"] == cut


def test_a_second_turn_finds_the_first_in_the_cache(client: httpx.Client) -> None:
    first = ask(client, temperature=0)
    messages = [*MESSAGES, first["choices"][0]["message"], {"role": "user", "content": "And three more?"}]
    details = ask(client, messages=messages, temperature=0)["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] >= first["usage"]["prompt_tokens"]


def test_json_schemas_and_stop_strings_are_kept(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}}
    answer = ask(client, response_format=form, temperature=5, max_tokens=60)
    assert json.loads(answer["choices"][0]["message"]["content"])["colour"] in ("red", "blue")
    stopped = ask(client, messages=[*MESSAGES], temperature=0, stop=["e"], max_tokens=60)
    assert "e" not in stopped["choices"][0]["message"]["content"]
    assert stopped["choices"][0]["finish_reason"] == "stop"


def test_an_answer_goes_on_after_other_tokens(client: httpx.Client) -> None:
    first = ask(client, temperature=0, return_tokens=True)["choices"][0]
    prefix = first["tokens"][:4]
    rest = ask(client, temperature=0, return_tokens=True, prefix_tokens=prefix, max_tokens=8)["choices"][0]
    assert rest["tokens"] == first["tokens"][4:]


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        (
            {"messages": [{"role": "user", "content": "word " * 900}]},
            400,
            "messages",
            "context_length_exceeded",
        ),
        ({"model": "gpt-4"}, 404, "model", "model_not_found"),
        ({"top_p": 0.5, "min_p": 0.2}, 400, None, None),
        ({"grammar": "root ::= ("}, 400, None, None),
        ({"logit_bias": {"999999": 1}}, 400, None, None),
        ({"temperature": -1}, 400, "temperature", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_answered_has_a_status(
    client: httpx.Client, fields: dict[str, Any], status: int, param: str, code: str, stream: bool
) -> None:
    response = client.post("/v1/chat/completions", json={"messages": MESSAGES, "stream": stream, **fields})
    assert response.status_code == status
    error = response.json()["error"]
    assert error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param
    assert error["code"] == code
