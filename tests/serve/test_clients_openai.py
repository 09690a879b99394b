"""The openai library for Python, with strict validation of every response, against a running server."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.support.openai_client import strict_openai
from tests.support.server import RunningServer, running_server

MODEL = "smollm2-135m"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with strict_openai(server) as client:
        yield client


def test_models_are_listed_and_each_is_found(client: OpenAI) -> None:
    ids = [model.id for model in client.models.list()]
    assert ids[0] == MODEL
    assert f"{MODEL}:min-k-t5" in ids
    assert [client.models.retrieve(name).id for name in ids] == ids


def test_a_chat_is_answered_with_choices_and_log_probabilities(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=3, n=2, logprobs=True, top_logprobs=2, seed=3
    )
    assert completion.id.startswith("chatcmpl-")
    assert completion._request_id
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 6
    assert [choice.index for choice in completion.choices] == [0, 1]
    for choice in completion.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        text = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content)
        assert text.decode(errors="replace") == choice.message.content != ""
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
        assert all(token.logprob <= 0 for token in choice.logprobs.content)


def test_a_forced_tool_is_called_and_its_result_answered(client: OpenAI) -> None:
    first = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="required", max_tokens=60, temperature=0
    )
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    result: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = client.chat.completions.create(
        model=MODEL,
        messages=[*HELLO, choice.message, result],  # type: ignore[list-item]  # as in OpenAI's documentation
        tools=[WEATHER],
        max_tokens=4,
    )
    assert second.choices[0].message.content


LONG = "word " * 4000


def chat(client: OpenAI, **fields: Any) -> object:
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})


@pytest.mark.parametrize(
    ("ask", "error", "code", "param"),
    [
        (partial(chat, temperature=-1), openai.BadRequestError, None, "temperature"),
        (partial(chat, model="gpt-4"), openai.NotFoundError, "model_not_found", "model"),
        (
            partial(chat, messages=[{"role": "user", "content": LONG}]),
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
        ),
        (
            lambda client: client.completions.create(model=MODEL, prompt=LONG),
            openai.BadRequestError,
            "context_length_exceeded",
            "prompt",
        ),
        (partial(chat, extra_body={"grammar": "root ::= ("}), openai.BadRequestError, None, "grammar"),
        (
            lambda client: client.embeddings.create(model=MODEL, input="a"),
            openai.NotFoundError,
            None,
            None,
        ),
    ],
    ids=["temperature", "model", "chat", "prompt", "grammar", "embeddings"],
)
def test_errors_are_the_sdks_classes(
    client: OpenAI, ask: Callable[[OpenAI], object], error: type[openai.APIStatusError], code: str, param: str
) -> None:
    with pytest.raises(error) as caught:
        ask(client)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id
    assert caught.value.status_code in (400, 404)


@pytest.mark.slow
def test_keys_and_the_queue_have_their_errors() -> None:
    with running_server("--parallel", "1", "--queue", "0", "--api-key", "secret") as server:
        base_url = f"{server.url}/v1"
        with OpenAI(base_url=base_url, api_key="guess", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as refused:
                stranger.models.list()
            assert refused.value.code == "invalid_api_key"
        with OpenAI(base_url=base_url, api_key="secret", max_retries=0) as friend:
            with pytest.raises(openai.BadRequestError, match=r"2 answers.* 1") as many:
                friend.chat.completions.create(model=MODEL, messages=HELLO, n=2)
            assert many.value.param == "n"
            with friend.chat.completions.create(
                model=MODEL, messages=HELLO, stream=True, extra_body={"ignore_eos": True}
            ) as stream:
                next(iter(stream))
                with pytest.raises(openai.RateLimitError) as full:
                    friend.chat.completions.create(model=MODEL, messages=HELLO)
            assert int(full.value.response.headers["retry-after"]) >= 1
            patient = friend.with_options(max_retries=5)
            assert patient.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1).choices
