"""How tools and earlier calls are shown to models, and how a call is forced."""

import json
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from mink_local import Constraints, MinK, Request, SamplingParams
from mink_local.errors import ConstraintError
from mink_local.generation.format.call_derivation import understood_style
from mink_local.generation.format.call_forms import form_of
from mink_local.generation.format.call_grammar import with_call_grammar
from mink_local.generation.format.call_styles import (
    GPT_OSS,
    HERMES,
    CallStyle,
    as_text,
    one_call_each,
)
from mink_local.generation.format.derived import how_calls_are_taken
from mink_local.generation.format.rendering import Renderer
from mink_local.generation.format.template import template_input
from mink_local.generation.format.tool_calls import ToolCallDelta, ToolParser
from mink_local.generation.model import Model
from mink_local.llama import guide
from mink_local.llama.guide import Guide
from tests.conftest import shared
from tests.support.calls import whole_calls

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


NOW = tool("now")
CALLS = [call("get_weather", '{"place": {"name": "Rome"}}'), call("now", "{}", "call_2")]
PARSED: list[Any] = [
    {**each, "function": {**each["function"], "arguments": json.loads(each["function"]["arguments"])}}
    for each in CALLS
]
RESULTS = [result("noon", "call_2"), result("sunny", "call_1")]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


LLAMA = CallStyle('{"name": "', '", "parameters": ', "}")


def rendered(model: str, messages: list[dict[str, Any]]) -> tuple[CallStyle | None, str]:
    """Return the style of a real template, and the prompt's text, from messages as the engine gives them."""
    template = shared(f"vocab/{model}.jinja").read_text()
    if "llama" in model:
        messages = list(one_call_each(messages))
    renderer = Renderer(template, bos_token="", eos_token="", in_process=True)
    taken = how_calls_are_taken(renderer)
    style = understood_style(renderer, taken)
    return style, renderer(**template_input(messages, [WEATHER, DAYS, NOW], style, taken))


@pytest.mark.parametrize("model", ["Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct"])
def test_a_real_template_shows_the_tools_and_what_became_of_calls(model: str) -> None:
    called = {"role": "assistant", "content": "", "tool_calls": CALLS}
    style, text = rendered(model, [USER, called, *RESULTS])
    assert "count_days" in text
    assert text.index("noon") > text.index('"name": "now", "')
    # The parser reads the form in which the template writes earlier calls.
    called = {"role": "assistant", "content": "", "tool_calls": CALLS[:1]}
    text = rendered(model, [USER, called, RESULTS[1]])[1]
    start = text.index("{", text.index(USER["content"]))
    assert style is not None
    written = (
        style.before.partition("{")[0]
        + text[start : text.index("<|e" if "<|e" in text[start:] else "<|im", start)]
    )
    events = ToolParser([WEATHER], form_of(style)).feed(written, is_final=True)
    [found] = whole_calls([event for event in events if isinstance(event, ToolCallDelta)])
    assert json.loads(found["function"]["arguments"]) == {"place": {"name": "Rome"}}


def test_llamas_template_gets_a_message_for_each_call() -> None:
    messages = one_call_each(
        [USER, {"role": "assistant", "content": "", "tool_calls": CALLS}, *RESULTS, USER]
    )
    assert [message.get("tool_calls") or message["content"] for message in messages] == [
        USER["content"],
        [CALLS[1]],
        "noon",
        [CALLS[0]],
        "sunny",
        USER["content"],
    ]


def test_a_template_without_tools_gets_them_in_the_system_message() -> None:
    alone = as_text([dict(USER)], [WEATHER])
    merged = as_text([{"role": "developer", "content": "Be brief."}, dict(USER)], [WEATHER])
    assert [message["role"] for message in alone] == ["system", "user"]
    assert json.dumps(WEATHER) in alone[0]["content"]
    assert merged[0]["content"] == f"Be brief.\n\n{alone[0]['content']}"


def test_calls_and_results_are_written_as_hermes_has_them() -> None:
    called = {"role": "assistant", "content": "", "tool_calls": PARSED}
    assert [message["content"] for message in as_text([dict(USER), called, *RESULTS], [])] == [
        USER["content"],
        '<tool_call>\n{"name": "get_weather", "arguments": {"place": {"name": "Rome"}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nsunny\n</tool_response>",
    ]


def forced(style: CallStyle, *tools: dict[str, Any], **fields: Any) -> Request:
    request = Request([USER], SamplingParams(seed=1), tools=tools or (WEATHER, DAYS, NOW), **fields)
    return with_call_grammar(request, style)


def test_a_schema_that_makes_no_grammar_is_refused_if_the_call_is_forced() -> None:
    wrong = tool("f", {"a": {"type": "unknown"}})
    assert forced(HERMES, wrong).params.constraints is None
    with pytest.raises(ConstraintError, match="unknown") as caught:
        forced(HERMES, NOW, wrong, tool_choice="required")
    assert str(caught.value.place).startswith("tools[1].function.parameters")


def test_the_schema_of_a_tool_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known, compiled = tool("known_once", {"a": {"type": "integer"}}), Mock(side_effect=guide._compiled)
    monkeypatch.setattr(guide, "_compiled", compiled)
    for _ in range(3):
        forced(HERMES, known, tool_choice="required")
    assert compiled.call_count == 1


@pytest.mark.parametrize(
    ("style", "fields", "several"),
    [
        (HERMES, {"tool_choice": "required", "parallel_tool_calls": True}, True),
        (HERMES, {"tool_choice": "required"}, False),
        (HERMES, {"tool_choice": named("now"), "parallel_tool_calls": True}, False),
        (LLAMA, {"tool_choice": "required", "parallel_tool_calls": True}, False),
    ],
)
def test_several_calls_are_forced_only_if_asked_for(
    style: CallStyle, fields: dict[str, Any], several: bool
) -> None:
    constraints = forced(style, **fields).params.constraints
    assert constraints is not None
    assert ("call)*" in str(constraints.grammar)) is several


def called(model: Model, request: Request, style: CallStyle) -> list[str | ToolCallDelta]:
    """Return what the grammar makes the embedded model write at temperature 5, the tools unseen."""
    constraints = with_call_grammar(request, style).params.constraints
    sampling = SamplingParams(sampler=MinK(), temperature=5.0, max_tokens=80, seed=1, constraints=constraints)
    [answer] = model.answer_all([Request([USER], sampling)])
    parser = ToolParser(request.tools, form_of(style))
    return [*parser.feed(answer.text, is_final=True)]


@pytest.mark.parametrize("style", [HERMES, LLAMA])
def test_a_named_tool_is_called_by_its_schema_at_any_temperature(smollm2: Model, style: CallStyle) -> None:
    request = Request([USER], tools=[WEATHER, DAYS, NOW], tool_choice=named("get_weather"))
    deltas: list[Any] = called(smollm2, request, style)  # and no text
    [found] = whole_calls(deltas)
    assert found["function"]["name"] == "get_weather"
    assert json.loads(found["function"]["arguments"])["place"]["name"] in ("Rome", "Oslo")


@pytest.mark.parametrize("bias", [100.0, -100.0])
def test_an_answer_by_a_schema_may_come_in_place_of_a_call(smollm2: Model, bias: float) -> None:
    [mark] = {smollm2.tokenize(text)[0] for text in ("<tool_call>\n", "<")}
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "additionalProperties": False}
    constraints = Constraints(json_schema=schema, logit_bias={mark: bias})
    request = Request([USER], SamplingParams(constraints=constraints), tools=[WEATHER, DAYS, NOW])
    events = called(smollm2, request, HERMES)
    if bias > 0:
        assert isinstance(events[0], ToolCallDelta)
    else:
        assert json.loads("".join(map(str, events))) in ({}, {"a": 1})


TAGS = CallStyle(
    "<call>", ">", "</call>", "\n", kind="tags", key="<p=", equals=">", equals_other=">", end="</p>"
)


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


MARKED = {  # styles, with a call of `count_days` in 3 days
    "Hermes": (HERMES, '<tool_call>\n{"name": "count_days", "arguments": {"days": 3}}\n</tool_call>'),
    "section": (
        CallStyle("<c>", ":", "</c>", "", opening="[CALLS]", closing="[END]"),
        '[CALLS]<c>count_days:{"days": 3}</c>[END]',
    ),
    "tags": (TAGS, "<call>count_days><p=days>3</p></call>"),
}


@pytest.mark.parametrize(("style", "call"), MARKED.values(), ids=MARKED)
def test_text_is_free_up_to_the_mark_of_a_strict_call(smollm2: Model, style: CallStyle, call: str) -> None:
    request = Request([USER], tools=[strict(DAYS), strict(NOW)])
    constraints = with_call_grammar(request, style).params.constraints
    assert constraints is not None
    guide = Guide("grammar", constraints.grammar, smollm2.weights)
    other = call.replace("count_days", "now")
    for text in ("", "a < b, <b>, [C] and {}", call, f"See.\n{call}", f"{call} So {call} and\n"):
        assert guide.may_end(text)
    for text in (
        call[:-1],
        call.replace("3", "two"),
        other,
        f"See {style.mark} there",
        f"{call} {style.mark}!",
    ):
        assert not guide.may_end(text)


def test_what_is_not_strict_takes_any_arguments_beside_what_is(smollm2: Model) -> None:
    loose = tool("loose", {"a": {"type": "unknown"}})
    request = Request([USER], tools=[strict(DAYS), loose])
    constraints = with_call_grammar(request, HERMES).params.constraints
    assert constraints is not None
    guide = Guide("grammar", constraints.grammar, smollm2.weights)
    assert guide.may_end('<tool_call>\n{"name": "loose", "arguments": {"b": [1]}}\n</tool_call>')


@pytest.mark.parametrize("style", [LLAMA, GPT_OSS])
def test_calls_without_a_mark_stay_free_and_so_does_an_answer_with_a_form(style: CallStyle) -> None:
    request = Request([USER], tools=[strict(NOW)])
    assert with_call_grammar(request, style) is request
    formed = replace(request, params=SamplingParams(constraints=Constraints(regex="a")))
    assert with_call_grammar(formed, HERMES) is formed
