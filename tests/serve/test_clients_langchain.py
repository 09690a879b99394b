"""LangChain's ChatOpenAI against a running server."""

from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.support.server import RunningServer

pytestmark = pytest.mark.slow

MODEL = "smollm2-135m"


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(pattern="^(Paris|Rome)$")
    degrees: int | None = None


def chat(server: RunningServer, **options: Any) -> ChatOpenAI:
    common: dict[str, Any] = {
        "base_url": f"{server.url}/v1",
        "api_key": "none",
        "max_tokens": 60,
        "max_retries": 0,
    }
    return ChatOpenAI(**{"model": MODEL} | common | options)


@pytest.fixture(scope="module")
def greedy(server: RunningServer) -> ChatOpenAI:
    return chat(server, temperature=0)


def test_min_k_at_temperature_5(server: RunningServer) -> None:
    hot = chat(server, temperature=5, seed=1, extra_body={"min_k": True})
    preset = chat(server, model=f"{MODEL}:min-k-t5", seed=1)
    assert hot.invoke("Say hello.").content == preset.invoke("Say hello.").content != ""


def test_a_stream_gives_the_same_text_and_the_usage(greedy: ChatOpenAI) -> None:
    message = greedy.invoke("Say hello.")
    chunks = list(greedy.stream("Say hello.", stream_usage=True))
    assert "".join(str(chunk.content) for chunk in chunks) == message.content
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [u["output_tokens"] for u in usage] == [message.usage_metadata["output_tokens"]]  # type: ignore[index]


@pytest.mark.parametrize("method", ["json_schema", pytest.param("function_calling", marks=pytest.mark.slow)])
def test_structured_output(greedy: ChatOpenAI, method: Any) -> None:
    weather = greedy.with_structured_output(Weather, method=method).invoke("The weather?")
    assert isinstance(weather, Weather)
    assert weather.city in ("Paris", "Rome")


def test_bound_tools_are_called(greedy: ChatOpenAI) -> None:
    message = greedy.bind_tools([Weather], tool_choice="any").invoke("How is the weather?")
    assert [call["name"] for call in message.tool_calls] == ["Weather"]
    assert message.tool_calls[0]["args"]["city"] in ("Paris", "Rome")


def test_a_batch_is_answered(greedy: ChatOpenAI) -> None:
    messages = greedy.batch(["Say hello."] * 3)
    assert len({str(message.content) for message in messages}) == 1


def test_a_prompt_that_is_too_long_is_langchains_own_error(greedy: ChatOpenAI) -> None:
    with pytest.raises(ContextOverflowError):
        greedy.invoke("word " * 4000)
