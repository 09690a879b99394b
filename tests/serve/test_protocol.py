"""Requests: what is read of them, and the sentence for each that is refused."""

import json
from typing import Any

import pytest

from mink_local.serve.api_errors import ApiError
from mink_local.serve.protocol import ChatRequest, CompletionRequest, TokenizeRequest, parse

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"messages": HELLO} | fields).encode(), ChatRequest)[0]


def completion(**fields: Any) -> CompletionRequest:
    return parse(json.dumps({"prompt": "Hello"} | fields).encode(), CompletionRequest)[0]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"a": schema}
    return schema


def test_fields_of_openai_without_a_use_are_ignored_and_unknown_ways_of_sampling_reported() -> None:
    fields = {
        "messages": HELLO,
        "user": "me",
        "store": True,
        "metadata": {},
        "verbosity": "low",
        "top_p": 0.9,
    }
    body = json.dumps(fields | {"tfs_z": 0.5, "min_k_taus": 3, "guided_json": {}, "top_a": 1})
    assert parse(body.encode(), ChatRequest)[1] == ["guided_json", "min_k_taus", "tfs_z", "top_a"]


def test_null_is_as_good_as_absent() -> None:
    nulls = dict.fromkeys(set(ChatRequest.__struct_fields__) - {"messages"})
    assert chat(**nulls) == chat()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "cannot be read as JSON"),
        (b"{", "cannot be read as JSON"),
        (b"\xff", "cannot be read as JSON"),
        (b'{"messages": NaN}', "cannot be read as JSON"),
        (b"[]", "the body must be an object, not a list"),
        (b'"a"', "the body must be an object, not a text"),
        (b"null", "the body must be an object, not null"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        parse(body, ChatRequest)
    assert caught.value.status == 400


MANY = "x" * 10_000


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"messages": []}, "messages", "must be a list of length >= 1"),
        ({"messages": "Hello"}, "messages", "must be a list, not a text"),
        ({"messages": [{"content": "a"}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        (
            {"messages": [{"role": "king", "content": "a"}]},
            "messages[0].role",
            "must be one of system, developer, user, assistant, tool",
        ),
        (
            {"messages": [{"role": "user", "content": 1}]},
            "messages[0].content",
            "must be a text or a list, not",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
            "messages[0].content[0]",
            "images and sound are not supported",
        ),
        ({"messages": HELLO * 2049}, "messages", "length <= 2048"),
        ({"temperature": -1}, "temperature", "must be a number >= 0"),
        ({"temperature": "hot"}, "temperature", "must be a number, not a text"),
        ({"max_tokens": 1.5}, "max_tokens", "must be a whole number, not a number"),
        ({"max_tokens": -2}, "max_tokens", "must be a whole number >= -1"),
        ({"n": 0}, "n", "must be a whole number >= 1"),
        ({"model": MANY}, "model", "length <= 256"),
        ({"n": 65}, "n", "must be a whole number <= 64"),
        ({"stop": ["a"] * 17}, "stop", "length <= 16"),
        ({"stop": [MANY]}, "stop[0]", "length <= 1024"),
        ({"stop": 5}, "stop", "must be a text or a list, not a whole number"),
        ({"seed": "1"}, "seed", "must be a whole number, not a text"),
        ({"top_p": 1.5}, "top_p", "must be a number <= 1"),
        ({"stream": "yes"}, "stream", "must be true or false, not a text"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "is for streams"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024"),
        ({"logit_bias": [[1, 1]] * 1025}, "logit_bias", "length <= 1024"),
        ({"logit_bias": {"1": "a"}}, "logit_bias", "must be a number, not a text"),
        ({"top_logprobs": 5}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "must be a whole number <= 20"),
        ({"logprobs": 5}, "logprobs", "must be true or false"),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "one of text, json_object, json_schema",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "is missing"),
        ({"json_schema": {}, "grammar": 'root ::= "a"'}, "grammar", "cannot be combined with json_schema"),
        ({"json_schema": nested(33)}, "json_schema", "deeper than 32"),
        ({"json_schema": {"enum": ["a"] * 5_001}}, "json_schema", "more than 5000 values"),
        ({"grammar": MANY * 7}, "grammar", "length <= 65536"),
        ({"tools": [WEATHER] * 129}, "tools", "length <= 128"),
        ({"tools": [WEATHER] * 2}, "tools[1].function.name", "another tool"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be one of function"),
        ({"mirostat": 3}, "mirostat", "must be one of 0, 1, 2"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": nested(33)}}]},
            "tools[0].function.parameters",
            "deeper than 32",
        ),
        ({"tool_choice": "always", "tools": [WEATHER]}, "tool_choice", "one of none, auto, required"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "time"}}},
            "tool_choice",
            "'time', which is none of the tools: weather",
        ),
        ({"functions": []}, "functions", "use tools"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "is not accepted"),
        ({"samplers": ["top_k"] * 33}, "samplers", "length <= 32"),
        ({"prefix_tokens": [-1]}, "prefix_tokens[0]", ">= 0"),
        ({"min_tokens": 2**40}, "min_tokens", "<= 2147483647"),
    ],
)
def test_a_wrong_field_is_named_in_one_sentence(fields: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    error = caught.value
    assert (error.status, error.param) == (400, param)
    assert str(error).startswith(f"{param} ")
    assert reason in str(error)
    assert "`" not in str(error)
    assert error.body()["error"] == {
        "message": str(error), "type": "invalid_request_error", "param": param, "code": None
    }  # fmt: skip


def test_a_number_that_no_float_holds_is_refused() -> None:
    with pytest.raises(ApiError, match="temperature must be a smaller number"):
        parse(b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}', ChatRequest)


def test_messages_are_given_to_the_template_in_its_form() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    request = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "Hm."},
            {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "weather"},
            {"role": "assistant", "content": "It is", "refusal": None, "audio": None},
        ]
    )
    assert request.template_messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "weather"},
        {"role": "assistant", "content": "It is"},
    ]


def test_tools_are_given_to_the_template_as_they_came() -> None:
    assert chat(tools=[WEATHER]).template_tools() == [WEATHER]
    assert chat(tools=[]).template_tools() == chat().template_tools() == []


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {}}, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, True),
    ],
)
def test_each_switch_for_reasoning_is_heard(fields: dict[str, Any], thinking: bool | None) -> None:
    assert chat(**fields).enable_thinking is thinking


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": None}, None),
        ({"n_predict": -1}, None),
        ({"n_predict": 9}, 9),
    ],
)
def test_the_limit_of_tokens_has_three_names(fields: dict[str, Any], limit: int | None) -> None:
    assert chat(**fields).token_limit == limit


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"type": "object"}),
        ({"response_format": {"type": "json_object", "schema": {"a": 1}}}, {"a": 1}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}}, {"a": 1}),
        ({"json_schema": {"a": 1}}, {"a": 1}),
    ],
)
def test_a_schema_comes_in_three_ways(fields: dict[str, Any], schema: dict[str, Any] | None) -> None:
    assert chat(**fields).answer_schema == schema


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts() == prompts


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": ["a", 1]}, 400, "prompt"),
        ({"prompt": [[1], 1]}, 400, "prompt"),
        ({"prompt": [-1]}, 400, "prompt[0]"),
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, 400, "prompt"),
        ({"logprobs": 21}, 400, "logprobs"),
        ({"best_of": 2}, 400, "best_of"),
        ({"suffix": "end"}, 501, "suffix"),
    ],
)
def test_a_wrong_completion_request_is_refused(fields: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert (caught.value.status, caught.value.param) == (status, param)


def test_what_is_not_supported_is_not_tried_again() -> None:
    with pytest.raises(ApiError) as caught:
        completion(suffix="end")
    assert caught.value.headers == {"x-should-retry": "false"}
    assert caught.value.body()["error"]["type"] == "not_supported_error"


def test_an_empty_suffix_and_a_best_of_that_is_n_are_accepted() -> None:
    assert completion(suffix="", best_of=2, n=2).n == 2


def test_tokenize_needs_a_text() -> None:
    assert parse(b'{"prompt": "a"}', TokenizeRequest)[0].prompt == "a"
    with pytest.raises(ApiError, match="content is missing"):
        parse(b"{}", TokenizeRequest)
