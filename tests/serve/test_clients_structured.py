"""Clients that want an answer of some form, or a call: openai's helpers, instructor, pydantic-ai and more."""

import asyncio
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.support.openai_client import strict_openai
from tests.support.server import RunningServer

MODEL = "smollm2-135m"
TEXT = "Two large shirts for 5 dollars, please."
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": TEXT}]
OPTIONS: Any = {"max_tokens": 120, "temperature": 0}

pytestmark = pytest.mark.slow


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


def test_openai_parses_a_streamed_call(server: RunningServer) -> None:
    options: Any = {"tools": [ORDER], "tool_choice": NAMED, "seed": 1, "max_tokens": 120, "temperature": 2}
    with (
        strict_openai(server) as client,
        client.chat.completions.stream(model=MODEL, messages=USER, **options) as stream,
    ):
        events = list(stream)
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(pieces) == 2  # with the name, and with the arguments
    assert "".join(piece.arguments_delta for piece in pieces) == call.function.arguments
    assert isinstance(call.function.parsed_arguments, Order)


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


def test_outlines(server: RunningServer) -> None:
    outlines = pytest.importorskip("outlines")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = outlines.from_openai(client, MODEL)
        assert Order.model_validate_json(model(TEXT, Order, **OPTIONS))
