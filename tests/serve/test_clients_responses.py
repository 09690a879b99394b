"""OpenAI's Responses and Anthropic's Messages with their own SDKs and with LangChain."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import OpenAI
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from mink_local.serve.protocols.messages import MessagesRequest
from mink_local.serve.protocols.responses import ResponsesRequest
from mink_local.serve.request.parsing import parse
from tests.support.openai_client import strict_openai
from tests.support.server import RunningServer, running_server

anthropic = pytest.importorskip("anthropic")

MODEL = "smollm2-135m"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather.",
    "parameters": {**SCHEMA, "additionalProperties": False},
    "strict": True,
}
SKY: Any = {"type": "namespace", "name": "sky", "description": "The sky.", "tools": [WEATHER]}
NO_OBJECT = {**WEATHER, "name": "f", "parameters": {"type": "array"}}
FORM = {"type": "json_schema", "schema": {"not": {}}}
USER = [{"role": "user", "content": "Hi"}]
USED = {"name": "get_weather", "description": "Tell the weather.", "input_schema": SCHEMA}


class City(BaseModel):
    city: Literal["Rome", "Oslo"]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--parallel", "2", "--model", MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def openai(server: RunningServer) -> Iterator[OpenAI]:
    with strict_openai(server) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: RunningServer) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


# Responses


def test_a_text_is_answered(openai: OpenAI) -> None:
    response = openai.responses.create(
        model=f"{MODEL}:min-k-t5",
        instructions="Be brief.",
        input="Say hello.",
        max_output_tokens=5,
        store=True,
        extra_body={"ignore_eos": True},
    )
    assert (response.status, response.temperature) == ("incomplete", 5.0)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 5
    assert response.usage.total_tokens == response.usage.input_tokens + 5
    assert response.output_text
    assert response.output[0].type == "message"


def test_a_stream_has_the_events_that_the_sdk_puts_together(openai: OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "Say hello.", "temperature": 0, "extra_body": {"stop": ["."]}}
    with openai.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-3:] == ["response.content_part.done", "response.output_item.done", "response.completed"]
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(set(numbers))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    whole = openai.responses.create(**asked)
    assert deltas == final.output_text == whole.output_text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("tool", "namespace"), [(WEATHER, None), (SKY, "sky")])
def test_a_function_is_called_and_its_output_answered(
    openai: OpenAI, tool: Any, namespace: str | None, stream: bool
) -> None:
    asked: Any = {
        "model": MODEL,
        "input": "What is the weather in Rome?",
        "tools": [tool],
        "tool_choice": "required",
        "temperature": 0,
    }
    if stream:
        with openai.responses.stream(**asked) as events:
            pieces = [
                event.delta for event in events if event.type == "response.function_call_arguments.delta"
            ]
            response: Any = events.get_final_response()
    else:
        response = openai.responses.create(**asked)
    [call] = response.output
    assert (call.type, call.namespace, call.name) == ("function_call", namespace, "get_weather")
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    if stream:
        assert "".join(pieces) == call.arguments
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": asked["input"]}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call.model_dump(exclude_none=True, exclude={"parsed_arguments"}),
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sun."},
    ]
    answer = openai.responses.create(model=MODEL, input=items, tools=[tool], max_output_tokens=4)
    assert answer.output_text


def test_a_schema_is_kept_and_parsed(openai: OpenAI) -> None:
    response = openai.responses.parse(model=MODEL, input="Which city?", text_format=City, temperature=5)
    assert isinstance(response.output_parsed, City)


NAMED_ITEMS: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"tools": [WEATHER, {"type": "web_search"}]}, "tools[1].type"),
    ({"tools": [{**WEATHER, "name": "get weather"}]}, "tools[0].name"),
    ({"tools": [SKY, WEATHER, WEATHER]}, "tools[2].name"),
    ({"tools": [WEATHER, {**SKY, "tools": [WEATHER, NO_OBJECT]}]}, "tools[1].tools[1].parameters.type"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {**FORM, "name": "x"}}}, "text.format.schema.not"),
    ({"max_output_tokens": -2}, "max_output_tokens"),
    ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
    ({"input": "word " * 3000}, "input"),
    ({"sampler": "no-such"}, "sampler"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
    ({"input": []}, "input"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"n": 2}, "n"),
    ({"n": 2, "stream": True}, "n"),
]
NAMED_BLOCKS: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{**USED, "name": "get weather"}]}, "tools[0].name"),
    ({"tools": [USED, USED]}, "tools[1].name"),
    (
        {"tools": [USED, {**USED, "name": "f", "input_schema": {"type": "array"}}]},
        "tools[1].input_schema.type",
    ),
    ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [USED], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"output_config": {"format": FORM}}, "output_config.format.schema.not"),
    ({"thinking": {"type": "on"}}, "thinking.type"),
    ({"stop_sequences": ["a"] * 513}, "stop_sequences"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
    ({"messages": []}, "messages"),
    ({"n": 2}, "n"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"model": "claude-x"}, "model"),
]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        *(("/v1/responses", *row) for row in NAMED_ITEMS),
        *(("/v1/messages", *row) for row in NAMED_BLOCKS),
    ],
)
def test_what_is_refused_is_named_as_the_client_named_it(
    server: RunningServer, path: str, fields: dict[str, Any], param: str
) -> None:
    valid = {"input": "Hi"} if path == "/v1/responses" else {"messages": USER, "max_tokens": 3}
    response = server.post(path, **valid | fields)
    body, error = response.json(), response.json()["error"]
    assert (response.status_code, error["param"]) == (404 if param == "model" else 400, param)
    if path == "/v1/messages":  # in Anthropic's form
        kind = "not_found_error" if param == "model" else "invalid_request_error"
        assert (body["type"], error["type"]) == ("error", kind)
    assert "function." not in error["message"]


SAID = [{"type": "output_text", "text": text} for text in ("One.", "Two.")]
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "disk"}]}
USED_IT = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
CONVERSATIONS: list[tuple[type[ResponsesRequest | MessagesRequest], list[Any], list[tuple[Any, ...]]]] = [
    (  # two messages are two turns; several texts are joined by line breaks
        ResponsesRequest,
        [{"role": "assistant", "content": SAID}, {"role": "assistant", "content": "Three.", "type": None}],
        [("assistant", "One.\nTwo.", None), ("assistant", "Three.", None)],
    ),
    (  # Codex sends two messages of the developer's; templates refuse a second one of the system's
        ResponsesRequest,
        [{"role": role, "content": role} for role in ("developer", "system", "user", "user", "developer")],
        [
            ("system", "developer\n\nsystem", None),
            *(("user", "user", None),) * 2,
            ("system", "developer", None),
        ],
    ),
    (
        ResponsesRequest,
        [THOUGHT, THOUGHT, CALLED, {"role": "assistant", "content": "So."}, {"role": "user", "content": "?"}],
        [("assistant", "So.", "Hm.\nHm."), ("user", "?", None)],
    ),
    (
        MessagesRequest,
        [
            {"role": "assistant", "content": [USED_IT]},
            {"role": "user", "content": [RESULT | {"is_error": True}]},
        ],
        [("assistant", "", None), ("tool", "Error: disk", None)],
    ),
    (  # results first
        MessagesRequest,
        [{"role": "user", "content": [{"type": "text", "text": "a"}, RESULT, {"type": "text", "text": "b"}]}],
        [("tool", "disk", None), ("user", "a\nb", None)],
    ),
]


@pytest.mark.parametrize(("kind", "given", "expected"), CONVERSATIONS)
def test_a_conversation_is_that_of_a_chat(
    kind: type[ResponsesRequest | MessagesRequest], given: list[Any], expected: list[tuple[Any, ...]]
) -> None:
    body = json.dumps({"input" if kind is ResponsesRequest else "messages": given}).encode()
    messages = [message.for_template() for message in parse(body, kind).request.normal().messages]
    assert [(one["role"], one["content"], one.get("reasoning_content")) for one in messages] == expected
    calls = [call["function"]["name"] for one in messages for call in one.get("tool_calls", ())]
    assert calls == ["f"] * ("function_call" in str(given) or "tool_use'" in str(given))


def test_a_response_repeats_what_was_used(server: RunningServer) -> None:
    asked = {"input": "Hi", "max_output_tokens": 1, "top_p": 0.5, "temperature": 0.3, "metadata": {"a": "b"}}
    response = server.post("/v1/responses", **asked).json()
    assert {name: response[name] for name in asked if name != "input"} == {
        name: value for name, value in asked.items() if name != "input"
    }
    assert server.post("/v1/responses", input="Hi", max_output_tokens=1).json()["top_p"] == 1


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/chat/completions"])
def test_many_tools_are_taken(server: RunningServer, path: str) -> None:
    """Claude Code sends some 260 with those of MCP servers."""
    names = [f"f{i}" for i in range(200)]
    tools: dict[str, list[Any]] = {
        "/v1/responses": [{"type": "function", "name": name} for name in names],
        "/v1/messages": [{"name": name, "input_schema": {"type": "object"}} for name in names],
        "/v1/chat/completions": [{"type": "function", "function": {"name": name}} for name in names],
    }
    response = server.post(path, input="Hi", messages=USER, tools=tools[path], max_tokens=1)
    assert response.json()["error"]["code"] == "context_length_exceeded"  # of 512 tokens


def test_long_names_of_functions_are_taken(openai: OpenAI) -> None:
    """Those of MCP servers' tools have up to 128 letters, and a namespace before them."""
    name = "x" * 128
    tools: Any = [{**SKY, "name": name, "tools": [{**WEATHER, "name": name[1:]}]}]
    response: Any = openai.responses.create(model=MODEL, input="Hi", tools=tools, tool_choice="required")
    [call] = response.output
    assert (call.type, call.namespace, call.name) == ("function_call", name, name[1:])


def test_variables_of_the_template_are_taken(tmp_path: Path) -> None:
    template = tmp_path / "x.jinja"
    template.write_text("{{ messages[0].content * n }}{{ ' thinks' if enable_thinking }}", encoding="utf-8")

    def tokens(path: str, **fields: Any) -> int:
        usage = asking.post(path, **fields).json()
        return int(usage.get("usage", usage)["input_tokens"])

    with running_server("--chat-template-file", str(template), "--template-kwargs", '{"n": 1}') as asking:
        many = {"chat_template_kwargs": {"n": 40}}
        assert tokens("/v1/responses", input="a b", max_output_tokens=1, **many) > 40
        count = "/v1/messages/count_tokens"
        once, often = (tokens(count, messages=USER, **more) for more in ({}, many))
        assert often > 30 + once
        thinking = {"thinking": {"type": "enabled"}}
        assert tokens(count, messages=USER, **many, **thinking) > often


def ignored(server: RunningServer, path: str, fields: dict[str, Any]) -> str:
    """Return the fields that the server says it has ignored."""
    common = {} if path == "/candidates" else {"max_tokens": 1}
    asked = {"input": "Hi"} if path.startswith("/v1/responses") else {"messages": USER}
    response = server.post(path, **common, **asked, **fields)
    assert response.status_code == 200, response.text
    return str(response.headers.get("x-mink-ignored", ""))


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "none"}, "reasoning_effort"),
        ("/v1/chat/completions", {"reasoning": {"effort": "low"}, "stream": True}, "reasoning.effort"),
        ("/v1/chat/completions", {"thinking_budget_tokens": 5}, "thinking_budget_tokens"),
        ("/v1/chat/completions", {"reasoning_budget": -1, "reasoning_format": "auto"}, ""),
        ("/v1/chat/completions", {"reasoning_format": "raw"}, "reasoning_format"),
        ("/candidates", {"chat_template_kwargs": {"x": 1}, "中\r\nX: y": 1}, "???X??y"),
        (
            "/v1/messages",
            {f"x{n:03}": "long" * 999 for n in range(99)},
            ",".join(f"x{n:03}" for n in range(32)),
        ),
        ("/candidates", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("/v1/responses", {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ("/v1/responses/input_tokens", {"reasoning": {"effort": "high"}}, "max_tokens,reasoning.effort"),
        (
            "/v1/responses/input_tokens",
            {
                "repetition_penalty": 2,
                "temperature": 5,
                "top_p": 0.5,
                "instructions": "Be.",
                "tool_choice": "none",
            },
            "max_tokens,repetition_penalty,temperature,top_p",
        ),
        (
            "/v1/messages",
            {"thinking": {"type": "enabled", "budget_tokens": 9}, "stream": True},
            "thinking.budget_tokens,thinking.type",
        ),
        ("/v1/messages/count_tokens", {"thinking": {"type": "disabled"}}, "max_tokens,thinking.type"),
    ],
)
def test_reasoning_that_a_model_does_not_have_is_named(
    server: RunningServer, path: str, fields: dict[str, Any], named: str
) -> None:
    """SmolLM2's has no reasoning."""
    assert ignored(server, path, fields) == named


# Messages


def test_a_message_is_answered(claude: Any) -> None:
    message = claude.messages.create(
        model=MODEL,
        max_tokens=5,
        extra_body={"ignore_eos": True},
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}],
    )
    assert (message.stop_reason, message.role, message.usage.output_tokens) == ("max_tokens", "assistant", 5)
    assert message.content[0].text
    assert message._request_id.startswith("req_")
    stopped = claude.messages.create(
        model=MODEL,
        max_tokens=20,
        extra_body={"extra_body": {"temperature": 0}},
        stop_sequences=["3"],
        messages=[{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2,"}],
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "3")


def test_a_stream_of_messages(claude: Any) -> None:
    asked = {
        "model": MODEL,
        "max_tokens": 6,
        "messages": [{"role": "user", "content": "Hi"}],
        "extra_body": {"temperature": 0},
    }
    with claude.messages.stream(**asked) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    assert final.content[0].text == claude.messages.create(**asked).content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 6)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_used_and_its_result_answered(claude: Any, stream: bool) -> None:
    user = {"role": "user", "content": "What is the weather in Rome?"}
    asked: Any = {
        "model": MODEL,
        "max_tokens": 60,
        "messages": [user],
        "tools": [USED],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "extra_body": {"temperature": 0},
    }
    if stream:
        with claude.messages.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = claude.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    [block] = message.content
    assert (block.type, block.name) == ("tool_use", "get_weather")
    assert block.input["city"] in ("Rome", "Oslo")
    result = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "Sun."}]}
    again = [
        user,
        {"role": "assistant", "content": [block.model_dump()]},
        {"role": "user", "content": [result]},
    ]
    answer = claude.messages.create(model=MODEL, max_tokens=4, messages=again, tools=[USED])
    assert answer.content[0].text


def test_a_message_conforms_to_a_schema(claude: Any) -> None:
    message = claude.messages.parse(
        model=MODEL,
        max_tokens=40,
        messages=[{"role": "user", "content": "Which city?"}],
        output_format=City,
        extra_body={"temperature": 5},
    )
    assert isinstance(message.parsed_output, City)


def test_the_models_are_listed(claude: Any) -> None:
    models = list(claude.models.list(limit=100))
    assert [model.id for model in models if model.type == "model"] == [model.display_name for model in models]
    assert claude.models.retrieve(MODEL).id == MODEL


def test_tokens_are_counted(claude: Any, server: RunningServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert server.post("/v1/messages/count_tokens", messages=messages).json().keys() == {"input_tokens"}
    count = claude.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.").input_tokens
    used = claude.messages.create(model=MODEL, messages=messages, system="Be brief.", max_tokens=1).usage
    assert count == used.input_tokens + used.cache_read_input_tokens
