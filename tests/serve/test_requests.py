"""Requests: how they are decoded, which are refused, and the sampling parameters and presets they lead to."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.generation.request import SamplingParams
from mink_local.llama.constraints import Constraints
from mink_local.samplers import (
    SAMPLERS,
    AdaptiveP,
    Chain,
    DynamicTemperature,
    Greedy,
    MinK,
    MinP,
    Mirostat,
    Order,
    PLess,
    Sampler,
    TopA,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
)
from mink_local.serve.bodies import ApiError
from mink_local.serve.endpoints.tokens import TokenizeRequest
from mink_local.serve.protocols.messages import MessagesRequest
from mink_local.serve.protocols.responses import ResponsesRequest
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.request.fields import REFUSED, Fields
from mink_local.serve.request.parsing import parse
from mink_local.serve.request.presets import BUILT_IN, Preset, Presets
from mink_local.serve.request.sampling import sampling_params
from mink_local.serve.table import ENDPOINTS

LAST: Order = "temperature-last"
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}

ARRAY = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}


def chat(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"messages": HELLO} | fields).encode(), ChatRequest).request


def completion(**fields: Any) -> CompletionRequest:
    return parse(json.dumps({"prompt": "Hello"} | fields).encode(), CompletionRequest).request


UNKNOWN: list[tuple[type[Fields], dict[str, Any], set[str]]] = [
    (
        ChatRequest,
        {"user": "me", "store": True, "min_k_taus": 3, "top_p": 0.9},
        {"user", "store", "min_k_taus"},
    ),
    (
        ChatRequest,
        {"tfs_z": 0.5, "min_keep": 1, "samplers": ["top_k"]},
        {"tfs_z", "min_keep", "samplers"},
    ),
    (
        ChatRequest,
        {"tfs": 1, "smoothing_factor": 0, "typical_p": None, "guided_json": None, "metadata": {}},
        set(),
    ),
    (ChatRequest, {"temprature": 0.1, "options": {"temperature": 1}}, {"temprature", "options"}),
    (ChatRequest, {"do_sample": False, "temperature_last": False}, {"do_sample", "temperature_last"}),
    (ChatRequest, {"reasoning": {"effort": "low", "summry": 1}}, {"reasoning.summry"}),
    (ChatRequest, {"stream_options": {"include_obfuscation": True}}, {"stream_options.include_obfuscation"}),
    (
        ChatRequest,
        {"tools": [{"function": {"name": "f", "strict": True, "cost": 1}}]},
        {"tools.function.cost"},
    ),
    (ChatRequest, {"max_tokens": 5, "max_completion_tokens": 7}, {"max_tokens"}),
    (ChatRequest, {"max_tokens": 5, "n_predict": 5}, set()),
    (ChatRequest, {"max_completion_tokens": {}, "max_tokens": 5}, {"max_completion_tokens"}),
    (ChatRequest, {"repeat_penalty": 1.1, "repetition_penalty": 1.2}, {"repetition_penalty"}),
    (TokenizeRequest, {"content": "a", "add_spcial": True}, {"add_spcial"}),
    (
        ResponsesRequest,
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "font": "b"}]}]},
        {"input.content.font"},
    ),
    (ResponsesRequest, {"input": "a", "text": {"verbosity": "low"}, "n": 1}, {"text.verbosity"}),
    (
        MessagesRequest,
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"a": 1}}]}
            ]
        },
        {"messages.content.cache_control"},
    ),
]


@pytest.mark.parametrize(("kind", "fields", "ignored"), UNKNOWN)
def test_what_a_type_does_not_have_is_ignored_and_listed(
    kind: type[Fields], fields: dict[str, Any], ignored: set[str]
) -> None:
    given = {"messages": HELLO} | fields if kind is ChatRequest else fields
    assert set(parse(json.dumps(given).encode(), kind).ignored) == ignored


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )
)
def test_no_value_of_an_unknown_field_is_a_fault(value: Any) -> None:
    for place in ({"x": value}, {"messages": [HELLO[0] | {"x": value}]}, {"tools": [WEATHER | {"x": value}]}):
        body = json.dumps({"messages": HELLO} | place).encode()
        assert parse(body, ChatRequest).request.messages[0].content == "Hello"


@pytest.mark.parametrize("name", REFUSED)
def test_constraints_that_are_not_supported_are_refused(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**{name: "a"})
    assert (caught.value.status, caught.value.param, caught.value.code) == (
        400,
        name,
        "unsupported_parameter",
    )
    chat(**{name: ""})
    for kind in ResponsesRequest, MessagesRequest, CompletionRequest:
        with pytest.raises(ApiError, match=name):
            parse(json.dumps({name: "a"}).encode(), kind)


COLOURS = {"enum": ["red", "blue"]}


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"json_schema": COLOURS}, ("json_schema", COLOURS)),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ("json_schema", {"type": "object"})),
        ({"response_format": {"type": "json_object", "schema": COLOURS}}, ("json_schema", COLOURS)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": COLOURS, "name": "x"}}},
            ("json_schema", COLOURS),
        ),
        ({"structured_outputs": {"json": COLOURS}}, ("json_schema", COLOURS)),
        ({"structured_outputs": {"json": json.dumps(COLOURS)}}, ("json_schema", json.dumps(COLOURS))),
        ({"choice": ['a"b', "é\n"]}, ("choice", ['a"b', "é\n"])),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ("choice", ["yes", "no"])),
        ({"structured_outputs": {"grammar": 'root ::= "x"'}}, ("grammar", 'root ::= "x"')),
        ({"regex": "[ab]"}, ("regex", "[ab]")),
        ({"structured_outputs": {"regex": "[ab]"}}, ("regex", "[ab]")),
        ({"choice": [], "format": "", "structured_outputs": {}, "grammar": ""}, None),
    ],
)
def test_what_an_answer_conforms_to_has_several_names(fields: dict[str, Any], form: object) -> None:
    given = [(option, value) for option, value, _ in chat(**fields).constraints()]
    assert given == [form] * (form is not None)


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": COLOURS, "choice": ["a"]}},
        {"structured_outputs": {"regex": "a"}, "regex": "a"},
        {"structured_outputs": {"json": COLOURS}, "json_schema": COLOURS},
        {"response_format": {"type": "json_object"}, "grammar": "a"},
        {"choice": [1]},
        {"format": "xml"},
    ],
)
def test_forms_that_cannot_be_kept_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert caught.value.status == 400
    assert re.split(r"\W", str(caught.value.param))[0] in json.dumps(fields)


TYPES: tuple[Any, ...] = ({}, {"a": 1}, [], [1], "", "x", True, 1.5)
TAKEN: dict[str, tuple[Any, ...]] = {
    "stop": ([], "", "x"),
    "content": ("", "x"),
    "repeat_penalty": (1.5,),
    "add_special": (True,),
    "grammar": ("", "x"),
    "reasoning_message": ("", "x"),
    "top_n_sigma": (1.5,),
    "typical_p": (1.5,),
    "mirostat": (1.5,),
}


@pytest.mark.parametrize(
    ("kind", "name", "alias"),
    [
        (endpoint.request, name, alias)
        for endpoint in ENDPOINTS.values()
        if endpoint.request is not None
        for name, aliases in endpoint.request.names.items()
        for alias in aliases
    ],
)
def test_a_wrong_type_is_refused_under_every_name(kind: type[Fields], name: str, alias: str) -> None:
    for wrong in TYPES:
        if wrong not in TAKEN.get(name, ()):
            with pytest.raises(ApiError) as caught:
                parse(json.dumps({alias: wrong}).encode(), kind)
            assert str(caught.value.param).removesuffix("[0]") == alias


def tokenize(**fields: Any) -> TokenizeRequest:
    return parse(json.dumps(fields).encode(), TokenizeRequest).request


def test_tokenize_has_two_names_for_one_switch() -> None:
    assert tokenize(prompt="a").add_special is None
    assert tokenize(prompt="a", add_special_tokens=True).add_special is True
    assert tokenize(content="a", add_special_tokens=True, add_special=False).add_special is False
    with pytest.raises(ApiError):
        tokenize(content="a", prompt="a")


def test_null_is_as_good_as_absent() -> None:
    nulls = dict.fromkeys(set(ChatRequest.__struct_fields__) - {"messages"})
    assert chat(**nulls) == chat()


def test_messages_are_given_to_the_template_in_its_form() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    request = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "Hm."},
            {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "weather"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "No."}], "audio": None},
        ]
    )
    assert [message.for_template() for message in request.messages] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hel\nlo"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "weather"},
        {"role": "assistant", "content": "No."},
    ]


@pytest.mark.parametrize(
    ("attribute", "fields", "value"),
    [
        ("enable_thinking", {}, None),
        ("enable_thinking", {"reasoning_effort": "none"}, False),
        ("enable_thinking", {"reasoning_effort": "low"}, True),
        ("enable_thinking", {"reasoning": {"effort": "none"}}, False),
        ("enable_thinking", {"reasoning": {}}, None),
        ("enable_thinking", {"chat_template_kwargs": {"enable_thinking": False}}, False),
        (
            "enable_thinking",
            {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"},
            True,
        ),
        ("template_kwargs", {}, {}),
        ("template_kwargs", {"reasoning_effort": "none"}, {}),
        ("template_kwargs", {"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            "template_kwargs",
            {
                "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "x", "y": [1]},
                "reasoning_effort": "low",
            },
            {"reasoning_effort": "x", "y": [1]},
        ),
        ("token_limit", {}, None),
        ("token_limit", {"max_tokens": 5}, 5),
        ("token_limit", {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ("token_limit", {"max_tokens": None}, None),
        ("token_limit", {"max_tokens": 5, "max_completion_tokens": None}, 5),
        ("token_limit", {"max_tokens": 5, "n_predict": 7}, 5),
        ("token_limit", {"n_predict": -1}, None),
        ("token_limit", {"n_predict": 9}, 9),
    ],
)
def test_fields_with_several_names_have_one_value(attribute: str, fields: dict[str, Any], value: Any) -> None:
    assert getattr(chat(**fields), attribute) == value


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts() == prompts


SERVER = Preset(MinK(tau=2.0), 1.5, "m", is_fixed=False)
FIXED = Preset(MinK(), 5.0, "m:min-k-t5")
MODEL: Any = SimpleNamespace(n_ctx=4096, tokenize=lambda text: [ord(c) for c in text])


def params_of(preset: Preset = SERVER, **fields: Any) -> tuple[SamplingParams, list[str]]:
    parsed = parse(json.dumps({"messages": HELLO} | fields).encode(), ChatRequest)
    try:
        params, ignored = sampling_params(parsed.request, preset, MODEL)
    except ApiError as error:
        raise parsed.about_field(error) from None
    return params, sorted({*ignored, *parsed.ignored})


def accepted(**fields: Any) -> SamplingParams:
    params, ignored = params_of(**fields)
    assert ignored == []
    return params


def test_what_a_models_file_recommends_is_a_default(tiny: Callable[..., Path]) -> None:
    values = {"temp": 0.6, "top_k": 20, "penalty_repeat": 1.05}
    path = tiny("qwen.gguf", more_keys={f"general.sampling.{name}": value for name, value in values.items()})
    preset = Preset.default(path, "model", None, is_fixed=False)
    penalties = Constraints(repeat_penalty=1.05)
    assert params_of(preset) == (SamplingParams(sampler=TopK(20), temperature=0.6, constraints=penalties), [])
    params, _ = params_of(preset, temperature=2, top_k=5, repeat_penalty=1.5)
    assert params == SamplingParams(
        sampler=TopK(5), temperature=2, constraints=Constraints(repeat_penalty=1.5)
    )
    assert params_of(preset, repeat_penalty=1)[0].constraints is None
    assert Preset.default(path, "model", 5.0, is_fixed=True).temperature == 5  # the operator's
    assert Preset.default(path, MinK(), None, is_fixed=True) == Preset(MinK(), 1.0)


NEUTRAL = {
    "top_p": 1, "top_k": 0, "min_p": 0, "top_n_sigma": -1, "mirostat": 0, "mirostat_tau": 5, "min_k": False,
    "min_k_tau": -1, "min_k_floor": 0, "typical_p": 1, "top_a": 0, "xtc_probability": 0, "xtc_threshold": 0.1,
    "dynatemp_range": 0, "dynatemp_exponent": 1, "adaptive_target": -0.01, "adaptive_decay": 0.9,
    "frequency_penalty": 0, "presence_penalty": 0, "repeat_penalty": 1,
    "repeat_last_n": 128, "dry_multiplier": 0, "dry_base": 2, "logit_bias": {}, "stop": "", "seed": -1,
    "min_tokens": 0, "max_tokens": -1, "grammar": "",
}  # fmt: skip


def test_a_request_that_asks_for_nothing_is_sampled_as_the_server_says() -> None:
    assert accepted() == SamplingParams(sampler=MinK(tau=2.0), temperature=1.5)


@pytest.mark.parametrize("fields", [NEUTRAL, *({field: value} for field, value in NEUTRAL.items())])
def test_neutral_values_ask_for_nothing(fields: dict[str, Any]) -> None:
    assert accepted(**fields) == accepted()


@pytest.mark.parametrize(
    ("fields", "sampler"),
    [
        ({"top_k": 40}, TopK(40)),
        ({"top_p": 0.8}, TopP(0.8, LAST)),
        ({"min_p": 0.05}, MinP(0.05, LAST)),
        ({"typical_p": 0.5}, Typical(0.5, LAST)),
        ({"top_a": 0.3}, TopA(0.3, LAST)),
        ({"xtc_probability": 0.4, "xtc_threshold": 0.2}, Xtc(0.4, 0.2, LAST)),
        ({"dynatemp_range": 0.4, "dynatemp_exponent": 2}, DynamicTemperature(0.4, 2.0)),
        ({"adaptive_target": 0, "min_p": 0.1}, Chain(MinP(0.1, LAST), AdaptiveP(0.0))),
        ({"top_p": 1.5, "min_p": 2, "top_k": -1}, MinP(1.0, LAST)),  # within their ranges, as in llama-server
        ({"top_k": 2**31}, TopK(2**31 - 1)),
        ({"top_k": 4.0, "mirostat": -1}, TopK(4)),
        ({"top_n_sigma": 1.5}, TopNSigma(1.5)),
        ({"mirostat": 1, "mirostat_tau": 4, "mirostat_eta": 0.2}, Mirostat(4.0, 0.2, 1)),
        ({"min_k": True}, MinK()),
        ({"min_k": True, "min_k_tau": 0}, MinK(tau=0.0)),
        ({"min_k_tau": 1}, MinK(tau=1.0)),
        ({"min_k_tau": -1}, MinK(tau=2.0)),
        ({"min_k_floor": 1.5}, MinK(floor=1.5)),
        ({"min_k_tau": 1, "min_k_floor": 0}, MinK(tau=1.0)),
        ({"sampler": "min-k:floor=1"}, MinK(floor=1.0)),
        ({"sampler": "p-less"}, PLess(LAST)),
        ({"sampler": "top-p:order=temperature-first"}, TopP()),
        ({"sampler": "min-k:tau=0.5"}, MinK(tau=0.5)),
        ({"sampler": "top-k:k=9+min-k"}, Chain(TopK(9), MinK())),
        ({"top_p": 0.95, "top_k": 20, "min_p": 0}, Chain(TopK(20), TopP(0.95, LAST))),
        ({"min_p": 0.2, "top_n_sigma": 2}, Chain(TopNSigma(2.0), MinP(0.2, LAST))),
        ({"min_k": True, "top_p": 0.95}, Chain(MinK(), TopP(0.95, LAST))),
        ({"min_k": True, "top_p": 1, "top_k": 0}, MinK()),
        ({"min_k_tau": 1, "top_n_sigma": 2, "top_k": 2}, Chain(MinK(tau=1.0), TopNSigma(2.0), TopK(2))),
    ],
)
def test_a_sampler_is_set_by_its_fields(fields: dict[str, Any], sampler: Any) -> None:
    assert accepted(**fields) == SamplingParams(sampler=sampler, temperature=1.5)


EVERY: dict[str, Any] = {
    "min_k": True, "top_n_sigma": 2, "top_k": 40, "top_a": 0.1, "typical_p": 0.9, "top_p": 0.95,
    "min_p": 0.05, "xtc_probability": 0.5,
}  # fmt: skip
CUTS = [
    MinK(), TopNSigma(2.0), TopK(40), TopA(0.1, LAST), Typical(0.9, LAST), TopP(0.95, LAST), MinP(0.05, LAST),
    Xtc(0.5, order=LAST),
]  # fmt: skip


def test_cuts_are_in_llama_cpps_order_whatever_the_clients() -> None:
    fields = dict(reversed(EVERY.items()))
    assert accepted(**fields, dynatemp_range=1).sampler == Chain(*CUTS, DynamicTemperature(1.0))


@pytest.mark.parametrize("fields", [EVERY, {**EVERY, "mirostat": 2}])
def test_at_temperature_0_every_request_is_greedy(fields: dict[str, Any]) -> None:
    assert params_of(**fields, temperature=0)[0].effective_sampler == Greedy()


def content(kind: str) -> dict[str, Any]:
    return {"messages": [*HELLO, {"role": "user", "content": [{kind: {}, "type": kind}]}]}


CALL = {"id": "1", "type": "custom", "custom": {"name": "f", "input": ""}}
NOT_HERE: list[tuple[dict[str, Any], str, str]] = [
    *(
        (content(kind), "messages[1].content[0].type", "text")
        for kind in ("image_url", "input_audio", "file")
    ),
    *(
        ({"tools": [WEATHER, {"type": kind}]}, "tools[1].type", "function")
        for kind in ("web_search", "custom")
    ),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.type", "auto"),
    ({"tool_choice": "any"}, "tool_choice", "required"),
    ({"messages": [{"role": "function", "content": "1"}]}, "messages[0].role", "tool"),
    ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "messages[0].tool_calls[0].type", "text"),
    ({"response_format": {"type": "grammar"}}, "response_format.type", "json_schema"),
    (content("x" * 1_000_000), "messages[1].content[0].type", "x"),
]


MANY = "x" * 10_000
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "1"),
    ({"messages": "Hello"}, "messages", "str"),
    ({"messages": [{"content": "a"}]}, "messages[0].role", "role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "content"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role", "king"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "int"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
        "messages[0].content[0].type",
        "image_url",
    ),
    ({"messages": HELLO * 2049}, "messages", "2048"),
    ({"temperature": -1}, "temperature", "0"),
    ({"temperature": "hot"}, "temperature", "str"),
    ({"max_tokens": 1.5}, "max_tokens", "int"),
    ({"max_tokens": -2}, "max_tokens", "-1"),
    ({"n": 0}, "n", "1"),
    ({"n": 65}, "n", "64"),
    ({"model": MANY}, "model", "256"),
    ({"stop": ["a"] * 513}, "stop", "512"),
    ({"stop": [MANY]}, "stop[0]", "1024"),
    ({"stop": 5}, "stop", "int"),
    ({"seed": "one"}, "seed", "str"),
    ({"top_p": "high"}, "top_p", "str"),
    ({"stream": "yes"}, "stream", "str"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
    ({"logit_bias": [[1, 1]] * 1025}, "logit_bias", "1024"),
    ({"logit_bias": {"1": "a"}}, "logit_bias", "str"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"logprobs": 5}, "logprobs", "int"),
    ({"n": "null and void"}, "n", "str"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "json_schema"),
    ({"json_schema": {}, "grammar": 'root ::= "a"'}, "grammar", "json_schema"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "text"),
    ({"grammar": MANY * 7}, "grammar", "65536"),
    ({"tools": [WEATHER] * 2049}, "tools", "2048"),
    ({"tools": [WEATHER] * 2}, "tools[1].function.name", "weather"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
    (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
        "[a-zA-Z0-9_.-]",
    ),
    ({"tools": [WEATHER, ARRAY]}, "tools[1].function.parameters.type", "'f'"),
    ({"tool_choice": "always", "tools": [WEATHER]}, "tool_choice", "always"),
    ({"prefix_tokens": [-1]}, "prefix_tokens[0]", "0"),
    ({"min_tokens": 2**40}, "min_tokens", "2147483647"),
]
WRONG_PROMPTS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": []}, "prompt", ""),
    ({"prompt": ""}, "prompt", ""),
    ({"prompt": [[]]}, "prompt", ""),
    ({"prompt": ["a", 1]}, "prompt", ""),
    ({"prompt": [[1], 1]}, "prompt", ""),
    ({"prompt": [-1]}, "prompt[0]", ""),
    ({"prompt": None}, "prompt", ""),
    ({"logprobs": 21}, "logprobs", "20"),
]
IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    ({"sampler": "mirostat+top-k"}, "sampler", "mirostat"),
    ({"mirostat": 3}, "mirostat", "3"),
    ({"sampler": "min-q"}, "sampler", "'min-q'"),
    ({"sampler": "min-k:tau=-1"}, "sampler", "-1"),
    ({"repeat_penalty": 0}, "repeat_penalty", "0"),
    ({"repetition_penalty": 0}, "repetition_penalty", "0"),
    ({"frequency_penalty": 1e31}, "frequency_penalty", "1e+31"),
    ({"logit_bias": [[1, True]]}, "logit_bias", "true"),
]


@pytest.mark.parametrize(
    ("given", "fields", "param", "value"),
    [
        *((chat, *row) for row in WRONG + NOT_HERE),
        (tokenize, {}, "content", "content"),
        *((completion, *row) for row in WRONG_PROMPTS),
        *((params_of, *row) for row in IMPOSSIBLE),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(
    given: Callable[..., Any], fields: dict[str, Any], param: str, value: str
) -> None:
    with pytest.raises(ApiError) as caught:
        given(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert value in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert caught.value.body()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("fields", "sampler"),
    [
        ({"sampler": "min-k"}, MinK()),
        ({"mirostat": 2, "mirostat_tau": 4}, Mirostat(4.0)),
        ({"temperature": 0}, Greedy()),
        ({"temperature": 0, "sampler": "greedy"}, Greedy()),
    ],
)
def test_a_sampler_that_stays_alone_wins_and_the_other_fields_are_reported(
    fields: dict[str, Any], sampler: Sampler
) -> None:
    params, ignored = params_of(**fields, min_k=True, top_p=0.9, min_p=0)
    assert (params.effective_sampler, ignored) == (sampler, ["min_k", "top_p"])


def test_a_preset_wins_over_the_clients_sampler_and_temperature_and_nothing_else() -> None:
    params, ignored = params_of(
        FIXED, temperature=0, top_p=0.5, top_k=3, min_p=0, sampler="min-q", seed=5, stop="a"
    )
    assert params == SamplingParams(sampler=MinK(), temperature=5.0, seed=5, stop=("a",))
    assert sorted(ignored) == ["sampler", "temperature", "top_k", "top_p"]


def test_a_sampler_that_is_registered_later_has_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Epsilon(Sampler):
        epsilon: float = 0.2

        name = "epsilon"
        request_fields: ClassVar = {"epsilon_cutoff": "epsilon"}

    monkeypatch.setitem(SAMPLERS, "epsilon", Epsilon)
    assert accepted(epsilon_cutoff=0.5).sampler == Epsilon(0.5)
    assert accepted(epsilon_cutoff=0).sampler == SERVER.sampler


def test_the_servers_limit_of_tokens_holds() -> None:
    for fields, limit in ({}, 10), ({"max_tokens": 20}, 10), ({"max_tokens": 5}, 5):
        assert sampling_params(chat(**fields), SERVER, MODEL, 10)[0].max_tokens == limit


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        *(({"temperature": value}, {"temperature": value}) for value in (0, 0.5, 5, 1000)),
        ({"seed": 0}, {"seed": 0}),
        ({"seed": 2**32 - 2}, {"seed": 2**32 - 2}),
        ({"seed": -1}, {"seed": None}),
        ({"stop": ["a", ""]}, {"stop": ("a",)}),
        ({"stop_token_ids": [3]}, {"stop_token_ids": [3]}),
        ({"ignore_eos": True, "min_tokens": 2}, {"ignore_eos": True, "min_tokens": 2}),
        ({"reasoning_budget": 7}, {"reasoning_budget": 7}),
        ({"thinking_budget_tokens": 7}, {"reasoning_budget": 7}),
        ({"reasoning_sampler": "min-k:tau=2"}, {"reasoning_sampler": MinK(tau=2.0)}),
        ({"reasoning_temperature": 0}, {"reasoning_temperature": 0}),
        ({"reasoning_budget_message": "Stop."}, {"reasoning_message": "Stop."}),
        *(({"end_loops": what}, {"end_loops": what}) for what in ("reasoning", "all", "none")),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"logprobs": False}, {"logprobs": None}),
    ],
)
def test_a_field_is_a_parameter_of_sampling(fields: dict[str, Any], params: dict[str, Any]) -> None:
    assert accepted(**fields) == replace(accepted(), **params)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (  # within 100, which bans
            {"logit_bias": {"1": 2.5, "2": 500, "3": -100}},
            Constraints(logit_bias={1: 2.5, 2: 100.0, 3: -math.inf}),
        ),
        (  # by text
            {"logit_bias": [[7, 1], ["ab", False]]},
            Constraints(logit_bias={7: 1.0, 97: -math.inf, 98: -math.inf}),
        ),
        ({"repetition_penalty": 1.2}, Constraints(repeat_penalty=1.2)),
        (
            {"frequency_penalty": 0.5, "presence_penalty": 1, "repeat_last_n": -1},
            Constraints(frequency_penalty=0.5, presence_penalty=1.0, penalty_last_n=4096),
        ),
        (
            {"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 9},
            Constraints(dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=3, dry_penalty_last_n=9),
        ),
        (
            {"dry_multiplier": 1, "dry_sequence_breakers": ["a"]},
            Constraints(dry_multiplier=1.0, dry_sequence_breakers=("a",)),
        ),
        ({"grammar": 'root ::= "a"'}, Constraints(grammar='root ::= "a"')),
        ({"json_schema": {"type": "string"}}, Constraints(json_schema={"type": "string"})),
        ({"response_format": {"type": "json_object"}}, Constraints(json_schema={"type": "object"})),
    ],
)
def test_constraints_have_the_names_of_llama_cpp(fields: dict[str, Any], wanted: Constraints) -> None:
    assert accepted(**fields).constraints == wanted


def completion_params(**fields: Any) -> SamplingParams:
    return sampling_params(completion(**fields), SERVER, MODEL)[0]


def test_a_completion_asks_for_the_prompts_logprobs_with_echo() -> None:
    params = completion_params(logprobs=2)
    assert (params.logprobs, params.prompt_logprobs) == (2, None)
    assert completion_params(logprobs=1, echo=True).prompt_logprobs == 1


def test_the_first_id_is_the_models_and_each_preset_has_one() -> None:
    presets = Presets(SERVER)
    assert presets.find("m:creative") == Preset(MinK(floor=1.4), 5.0, "m:creative")
    assert list(presets.by_id) == ["m", *(f"m:{name}" for name in BUILT_IN)]
    assert presets.find("m:min-k-t5") == FIXED
    assert presets.find("m") == presets.find(None) == presets.find("") == SERVER


def test_an_unknown_id_is_not_found_unless_any_is_accepted() -> None:
    with pytest.raises(ApiError, match=r"'gpt-4'.* m, m:a$") as caught:
        Presets(SERVER, {"a": FIXED}).find("gpt-4")
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    assert Presets(SERVER, any_model=True).find("gpt-4") == SERVER


def test_a_pair_of_a_preset_gives_way_like_its_answers_sampler() -> None:
    pair = Preset.parse("top-k:k=5@2 / greedy@0")
    fields: dict[str, Any] = {"reasoning_temperature": 0.5}
    for preset, temperature in (pair, 2.0), (replace(pair, is_fixed=False), 0.5):
        params, ignored = sampling_params(chat(**fields), preset, MODEL)
        assert (params.reasoning_sampler, params.reasoning_temperature) == (TopK(5), temperature)
        assert ignored == ["reasoning_temperature"] * preset.is_fixed


@pytest.mark.parametrize(
    ("text", "preset"),
    [
        ("min-k", Preset(MinK(), 1.0)),
        ("min-k:tau=2@5", Preset(MinK(tau=2.0), 5.0)),
        ("top-p:p=0.8@0.7", Preset(TopP(0.8, LAST), 0.7)),
        (
            "min-k@1.2/top-p:p=0.8@0.7",
            Preset(TopP(0.8, LAST), 0.7, reasoning_sampler=MinK(), reasoning_temperature=1.2),
        ),
    ],
)
def test_a_presets_text_has_a_sampler_and_a_temperature(text: str, preset: Preset) -> None:
    assert Preset.parse(text) == preset
