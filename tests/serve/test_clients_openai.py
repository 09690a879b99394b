"""The openai library for Python, with strict validation of every response, and libraries that build on it."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import date
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.support.openai_client import strict_openai
from tests.support.server import RunningServer, running_server

MODEL = "smollm2-135m"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]


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


LONG = "word " * 4000


def chat(client: OpenAI, **fields: Any) -> object:
    return client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})


@pytest.mark.parametrize(
    ("ask", "error", "code", "param"),
    [
        (partial(chat, temperature=-1), openai.BadRequestError, None, "temperature"),
        (partial(chat, model="gpt-4"), openai.NotFoundError, "model_not_found", "model"),
        (
            lambda client: client.responses.input_tokens.count(model="gpt-4", input="a"),
            openai.NotFoundError,
            "model_not_found",
            "model",
        ),
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
    ids=["temperature", "model", "count", "chat", "prompt", "grammar", "embeddings"],
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


TEXT = "Two large shirts for 5 dollars, please."
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": TEXT}]
OPTIONS: Any = {"max_tokens": 120, "temperature": 0}


class Size(Enum):
    SMALL = "small"
    LARGE = "large 🧩"


class Order(BaseModel):
    """What somebody buys."""

    count: int = Field(ge=2, le=9)
    day: date
    size: Size
    price: Annotated[float, Field(ge=0)]
    color: Literal["red", "grün"] | None


ORDER: Any = openai.pydantic_function_tool(Order, name="order")
NAMED: Any = {"type": "function", "function": {"name": "order"}}


@pytest.mark.slow
def test_openai_parses_an_answer_and_a_call(server: RunningServer) -> None:
    with strict_openai(server) as client:
        answer = client.chat.completions.parse(
            model=MODEL, messages=USER, response_format=Order, **OPTIONS
        ).choices[0]
        assert isinstance(answer.message.parsed, Order)
        called = client.chat.completions.parse(
            model=MODEL, messages=USER, tools=[ORDER], tool_choice=NAMED, **OPTIONS
        ).choices[0]
        [call] = called.message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Order)


@pytest.mark.slow
def test_openai_parses_a_streamed_call(server: RunningServer) -> None:
    options: Any = {"tools": [ORDER], "tool_choice": NAMED, "seed": 1, "max_tokens": 120, "temperature": 2}
    with (
        strict_openai(server) as client,
        client.chat.completions.stream(model=MODEL, messages=USER, **options) as stream,
    ):
        events = list(stream)
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(pieces) == 1  # a call is sent when it is whole
    assert "".join(piece.arguments_delta for piece in pieces) == call.function.arguments
    assert isinstance(call.function.parsed_arguments, Order)


@pytest.mark.slow
@pytest.mark.parametrize("output", ["NativeOutput", "ToolOutput"])
def test_pydantic_ai(server: RunningServer, output: str) -> None:
    """The model asks for the price first; with ToolOutput, the answer is a call, too."""
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    asked: list[Size] = []

    def price_of(size: Size) -> str:
        """Tell the price of a shirt."""
        asked.append(size)
        return "5 dollars"

    async def once(_: Any, tool: Any) -> Any:
        return None if asked else tool

    async def run() -> Any:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            agent = pydantic_ai.Agent(
                models.OpenAIChatModel(MODEL, provider=providers.OpenAIProvider(openai_client=client)),
                output_type=getattr(pydantic_ai, output)(Order),
                tools=[pydantic_ai.Tool(price_of, prepare=once)],
                model_settings=OPTIONS,
                retries=0,
            )
            return (await agent.run(TEXT)).output

    assert isinstance(asyncio.run(run()), Order)
    assert len(asked) == 1


@pytest.mark.slow
def test_outlines(server: RunningServer) -> None:
    outlines = pytest.importorskip("outlines")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = outlines.from_openai(client, MODEL)
        assert Order.model_validate_json(model(TEXT, Order, **OPTIONS))
