"""Messages of chats: reasoning, text and calls, and how tools are shown to the model and forced."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mink_local import Constraints, MinK, Request, SamplingParams
from mink_local.generation.answer import Piece, Splitter
from mink_local.generation.call_formats import marks_of
from mink_local.generation.model import Model
from mink_local.generation.rendering import Renderer
from mink_local.generation.template import template_input
from mink_local.generation.text import ReasoningSplitter
from mink_local.generation.tool_calls import ToolCallDelta, ToolParser
from mink_local.serve.completions.builder import message_delta, whole_message
from mink_local.serve.errors import ApiError
from mink_local.serve.request.chat import ChatRequest
from mink_local.serve.request.engine_requests import prepare_chat
from mink_local.serve.request.parsing import parse
from tests.conftest import shared
from tests.support.calls import whole_calls

REASONING = "Shall I write <tool_call>? Yes."
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TEXT = f"<think>\n{REASONING}\n</think>\n\nOne moment.\n{CALL}"


NOW = {"type": "function", "function": {"name": "now"}}


def pieces_of(text: str, length: int) -> list[Piece]:
    """Return the pieces of a text whose tokens all have one length."""
    splitter = Splitter(ReasoningSplitter("start"), ToolParser([NOW]))
    return [
        *(splitter.feed(text[start : start + length]) for start in range(0, len(text), length)),
        splitter.end(""),
    ]


@pytest.mark.parametrize("length", [1, 5, 1000])
def test_reasoning_comes_before_text_and_calls(length: int) -> None:
    message = msgspec.to_builtins(whole_message(pieces_of(TEXT, length)))
    [call] = message.pop("tool_calls")
    assert message == {
        "role": "assistant",
        "content": "One moment.",
        "reasoning_content": REASONING,
        "reasoning": REASONING,
    }
    assert call["function"] == {"name": "now", "arguments": "{}"}


def test_a_call_that_is_cut_off_is_incomplete() -> None:
    message = whole_message(pieces_of(f"{TEXT}\n{CALL[:-15]}", 3))
    assert message.content == "One moment."
    assert [call.function.arguments for call in message.tool_calls or ()] == ["{}", "{"]


def test_text_after_a_call_comes_after_it() -> None:
    """A stop string that might begin inside the call holds back its end and the text after it."""
    [piece, _] = pieces_of(f"{CALL}\nDone.", 1000)
    assert [event if isinstance(event, str) else event.name for event in piece.events] == ["now", "Done."]


def test_a_chunk_has_one_entry_of_a_call() -> None:
    """Clients read the first one, or refuse two with the same index."""
    delta = message_delta(pieces_of(CALL + CALL, 1))
    assert [call.index for call in delta.tool_calls or ()] == [0, 1]


USER = {"role": "user", "content": "What is the weather in Rome?"}
PLACE = {"type": "object", "properties": {"name": {"enum": ["Rome", "Oslo"]}}, "required": ["name"]}


def tool(name: str, properties: dict[str, Any] | None = None, **schema: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties or {},
        "required": [*(properties or {})],
        **schema,
    }
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


WEATHER = tool("get_weather", {"place": {"$ref": "#/$defs/Place"}}, **{"$defs": {"Place": PLACE}})
DAYS = tool("count_days", {"days": {"type": "integer"}})


def call(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": call_id}


CALLS = [call("get_weather", '{"place": {"name": "Rome"}}'), call("now", "{}", "call_2")]
CONVERSATION: list[dict[str, Any]] = [USER, {"role": "assistant", "content": None, "tool_calls": CALLS}]
RESULTS = [result("noon", "call_2"), result("sunny", "call_1")]


def chat(messages: Sequence[dict[str, Any]] = (USER,), **fields: Any) -> ChatRequest:
    body = {"messages": messages, "tools": [WEATHER, DAYS, NOW], **fields}
    return parse(json.dumps(body).encode(), ChatRequest).request


def prepared(template: str | None, request: ChatRequest) -> Any:
    """Return the engine's request for a chat with a model that has a template, or one without tools."""
    supports_tools = template is not None
    model: Any = SimpleNamespace(
        chat_template=template, supports_tools=supports_tools, has_thinking_switch=False
    )
    return prepare_chat(model, request, SamplingParams())


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(params=["Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct"])
def template(request: pytest.FixtureRequest) -> str:
    return shared(f"vocab/{request.param}.jinja").read_text()


def rendered(template: str, messages: Sequence[dict[str, Any]]) -> str:
    """Return the prompt's text, from messages as the engine gives them to templates."""
    made = prepared(template, chat(messages))
    renderer = Renderer(template, bos_token="", eos_token="", in_process=True)
    return renderer(**template_input(made.prompt, made.tools))


def test_a_real_template_shows_the_tools_and_what_became_of_calls(template: str) -> None:
    text = rendered(template, [*CONVERSATION, *RESULTS])
    assert "count_days" in text
    assert "sunny" in text
    assert '"name": "get_weather", "' in text
    assert text.index("noon") > text.index('"name": "now", "')


def test_llamas_template_gets_a_message_for_each_call() -> None:
    template = shared("vocab/meta-llama-Llama-3.1-8B-Instruct.jinja").read_text()
    made = prepared(template, chat([*CONVERSATION, *RESULTS, USER]))
    assert [message.get("tool_calls") or message["content"] for message in made.prompt] == [
        USER["content"],
        [CALLS[1]],
        "noon",
        [CALLS[0]],
        "sunny",
        USER["content"],
    ]


def test_calls_of_a_real_template_are_found_again(template: str) -> None:
    """The parser reads the form in which the template writes earlier calls."""
    called = {"role": "assistant", "content": None, "tool_calls": CALLS[:1]}
    text = rendered(template, [USER, called, result("sunny")])
    parser = prepared(template, chat()).make_parser(marks_of(template))
    start = text.index("get_weather", text.index(USER["content"])) - len('{"name": "')
    deltas = [
        event for event in parser.feed(text[start : text.index("sunny")]) if isinstance(event, ToolCallDelta)
    ]
    assert [json.loads(call["function"]["arguments"]) for call in whole_calls(deltas)] == [
        {"place": {"name": "Rome"}}
    ]


def test_a_template_without_tools_gets_them_in_the_system_message() -> None:
    alone = prepared(None, chat()).prompt
    merged = prepared(None, chat([{"role": "developer", "content": "Be brief."}, USER])).prompt
    assert (
        [message["role"] for message in alone]
        == [message["role"] for message in merged]
        == ["system", "user"]
    )
    assert json.dumps(WEATHER) in alone[0]["content"]
    assert merged[0]["content"] == f"Be brief.\n\n{alone[0]['content']}"
    assert prepared(None, chat()).tools == ()


@pytest.mark.parametrize("template", [None, "{{ tools }}"])
def test_calls_in_an_unknown_form_are_shown_as_hermes_has_them(template: str | None) -> None:
    made = prepared(template, chat([*CONVERSATION, *RESULTS], tools=None))
    assert made.prompt == [
        USER,
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "get_weather", "arguments": {"place": {"name": "Rome"}}}\n'
            '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nsunny\n</tool_response>",
        },
    ]


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
def test_without_tools_the_answer_is_text(fields: dict[str, Any], template: str) -> None:
    request = chat(**fields)
    assert prepared(template, request) == Request([USER], tools=[])


def test_a_schema_that_makes_no_grammar_is_refused_if_the_call_is_forced() -> None:
    wrong = tool("f", {"a": {"type": "unknown"}})
    assert prepared(None, chat(tools=[wrong])).params == SamplingParams()
    with pytest.raises(ApiError, match="unknown"):
        prepared(None, chat(tools=[wrong], tool_choice="required"))


LLAMA = '{{ "parameters": }}'


def events_of(
    model: Model, template: str | None, request: ChatRequest, bias: dict[int, float] | None = None
) -> list[str | ToolCallDelta]:
    """Return what the grammar makes the embedded model write, the tools unseen."""
    constraints = Constraints(grammar=grammar_of(template, request), logit_bias=bias or {})
    params = SamplingParams(sampler=MinK(), temperature=5.0, max_tokens=80, seed=1, constraints=constraints)
    [answer] = model.answer_all([Request([USER], params)])
    parser: ToolParser = prepared(template, request).make_parser(marks_of(template or ""))
    return [*parser.feed(answer.text), *parser.end()]


def grammar_of(template: str | None, request: ChatRequest) -> str:
    return str(prepared(template, request).params.constraints.grammar)


def call_of(model: Model, template: str | None, **fields: Any) -> tuple[str, Any]:
    """Return the name and the arguments of the only call."""
    deltas: list[Any] = events_of(model, template, chat(**fields))  # and no text
    [call] = whole_calls(deltas)
    return call["function"]["name"], json.loads(call["function"]["arguments"])


@pytest.mark.slow
@pytest.mark.parametrize("template", [None, LLAMA])
def test_a_forced_call_is_valid_at_any_temperature(smollm2: Model, template: str | None) -> None:
    name, arguments = call_of(smollm2, template, tool_choice="required")
    assert name in ("get_weather", "count_days", "now")
    assert isinstance(arguments, dict)


def test_a_named_tool_is_called_by_its_schema(smollm2: Model) -> None:
    name, arguments = call_of(smollm2, None, tool_choice=named("get_weather"))
    assert name == "get_weather"
    assert arguments["place"]["name"] in ("Rome", "Oslo")
    assert call_of(smollm2, LLAMA, tool_choice=named("now")) == ("now", {})


@pytest.mark.parametrize(
    ("template", "fields", "several"),
    [
        (None, {"tool_choice": "required", "parallel_tool_calls": True}, True),
        (None, {"tool_choice": "required"}, False),
        (None, {"tool_choice": named("now"), "parallel_tool_calls": True}, False),
        (LLAMA, {"tool_choice": "required", "parallel_tool_calls": True}, False),
    ],
)
def test_several_calls_are_forced_only_if_asked_for(
    template: str | None, fields: dict[str, Any], several: bool
) -> None:
    assert ("call)*" in grammar_of(template, chat(**fields))) is several


SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "schema": {"type": "object", "properties": {"a": {"enum": [1]}}, "additionalProperties": False}
    },
}


@pytest.mark.parametrize("bias", [100.0, -100.0])
def test_an_answer_by_a_schema_may_come_in_place_of_a_call(smollm2: Model, bias: float) -> None:
    [mark] = {smollm2.tokenize(text)[0] for text in ("<tool_call>\n", "<")}
    events = events_of(smollm2, None, chat(response_format=SCHEMA), {mark: bias})
    if bias > 0:
        assert isinstance(events[0], ToolCallDelta)
    else:
        text = "".join(event for event in events if isinstance(event, str))
        assert json.loads(text) in ({}, {"a": 1})
