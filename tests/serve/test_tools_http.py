"""Tool calling over HTTP, by the library that OpenAI's users have."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from mink_local.serve.tool_forms import HERMES
from tests.support.server import RunningServer

pytestmark = pytest.mark.slow

USER: Any = {"role": "user", "content": "What is the weather in Rome?"}
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    options = {"messages": [USER], "tools": TOOLS, "max_tokens": 60, "seed": 1, "temperature": 5, **fields}
    return client.chat.completions.create(model="smollm2-135m", **options)


def test_a_named_tool_is_called_in_pieces_as_in_one(client: openai.OpenAI) -> None:
    whole = ask(client, tool_choice=NAMED).choices[0]
    [call] = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name, call.id[:5]) == ("function", "get_weather", "call_")
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")

    choices = [chunk.choices[0] for chunk in ask(client, tool_choice=NAMED, stream=True)]
    first, *rest = [delta for choice in choices for delta in choice.delta.tool_calls or ()]
    assert (first.index, first.type, first.function.name) == (0, "function", "get_weather")
    assert {(delta.index, delta.id, delta.function.name) for delta in rest} == {(0, None, None)}
    arguments = [first.function.arguments, *(delta.function.arguments for delta in rest)]
    assert len(arguments) > 2
    assert "".join(arguments) == call.function.arguments
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["tool_calls"]
    assert "".join(choice.delta.content or "" for choice in choices) == ""


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_call_that_the_model_chooses_to_make_is_found(client: openai.OpenAI, is_stream: bool) -> None:
    """The grammar is the client's own; of the tools the server only knows what to look for."""
    calls = [HERMES.write("get_weather", json.dumps({"city": city})) for city in ("Rome", "Oslo")]
    grammar = f"root ::= {json.dumps('I look. ' + ' '.join(calls))}"
    answer = ask(client, stream=is_stream, extra_body={"grammar": grammar}, max_tokens=120)
    if is_stream:
        choices = [chunk.choices[0] for chunk in answer]
        content = "".join(choice.delta.content or "" for choice in choices)
        deltas = [delta for choice in choices for delta in choice.delta.tool_calls or ()]
        found = [
            "".join(delta.function.arguments for delta in deltas if delta.index == index) for index in (0, 1)
        ]
        finish_reason = choices[-1].finish_reason
    else:
        [choice] = answer.choices
        content, finish_reason = choice.message.content, choice.finish_reason
        found = [call.function.arguments for call in choice.message.tool_calls]
    assert (content, finish_reason) == ("I look.", "tool_calls")
    assert [json.loads(arguments) for arguments in found] == [{"city": "Rome"}, {"city": "Oslo"}]


def test_a_call_that_is_cut_off_says_so(client: openai.OpenAI) -> None:
    choice = ask(client, tool_choice=NAMED, max_tokens=5).choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)


def test_a_forced_call_wins_over_a_schema_for_the_answer(client: openai.OpenAI) -> None:
    choice = ask(client, tool_choice="required", response_format={"type": "json_object"}).choices[0]
    assert choice.message.tool_calls[0].function.name == "get_weather"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [*TOOLS, {"type": "function", "function": {"name": "a b"}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
         "tools[0].function.parameters.type"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_tools_is_named(client: openai.OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param
