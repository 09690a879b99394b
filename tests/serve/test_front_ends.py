"""What role-play front ends, agents and today's generators of schemas send."""

import json
from typing import Any

import httpx
import pytest

from mink_local.llama.constants import RANDOM_SEED
from mink_local.serve.bodies import ApiError
from mink_local.serve.protocols.messages import MessagesRequest
from mink_local.serve.protocols.responses import ResponsesRequest
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.request.fields import SamplingFields
from mink_local.serve.request.parsing import Parsed, parse
from tests.serve.test_answers import streamed
from tests.support.server import RunningServer

HI = [{"role": "user", "content": "Say ok."}]
BUNDLE = {  # of SillyTavern 1.19: what its types of text completion send together, nearly all neutral
    "temperature": 1,
    "typical_p": 1,
    "typical": 1,
    "sampler_seed": -1,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_k": 0,
    "skew": 0,
    "min_tokens": 0,
    "add_bos_token": True,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 2,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_sequence_breakers": '["\\n",":","\\"","*"]',
    "dry_penalty_last_n": 0,
    "max_tokens_second": 0,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "top_a": 0,
    "tfs": 1,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "custom_token_bans": "",
    "banned_strings": [],
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "nsigma": 0,
    "top_n_sigma": 0,
    "grammar": "",
    "grammar_string": "",
    "json_schema": {},
    "cache_prompt": True,
    "n_predict": 12,
    "max_tokens": 12,
    "rep_pen": 1.05,
    "rep_pen_range": 0,
    "repetition_penalty_range": 0,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "guidance_scale": 1,
    "api_type": "tabby",
    "api_server": "http://127.0.0.1",
    "truncation_length": 2048,
    "include_reasoning": True,
    "spaces_between_special_tokens": True,
    "stop": [f"\nName{i}:" for i in range(300)],
    "stopping_strings": [f"\nName{i}:" for i in range(300)],
    "max_new_tokens": 12,
    "num_predict": 12,
    "num_ctx": 2048,
    "min_length": 0,
    "min_keep": 0,
    "adaptive_target": -0.01,
    "adaptive_decay": 0.9,
    "repetition_decay": 0,
    "repeat_penalty": 1.05,
    "repeat_last_n": 0,
    "rep_pen_slope": 1,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "penalty_alpha": 0,
    "num_beams": 1,
    "length_penalty": 1,
    "early_stopping": False,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "mirostat": 0,
    "temperature_last": True,
    "speculative_ngram": False,
    "do_sample": True,
    "trim_stop": True,
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "negative_prompt": "",
    "n": 1,
    "model": "",
}


def read(kind: Any, **fields: Any) -> Parsed[Any]:
    return parse(json.dumps(fields).encode(), kind)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
def test_a_whole_bundle_is_answered_and_nothing_in_it_is_named(server: RunningServer, path: str) -> None:
    response = server.post(path, prompt="Once upon a time", **BUNDLE)
    assert response.status_code == 200, response.text
    assert "x-mink-ignored" not in response.headers


def test_llama_servers_own_endpoint(server: RunningServer) -> None:
    asked = {"prompt": "One, two, three,", "temperature": 0, "n_predict": 8}
    whole = server.post("/completion", **asked).json()
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 8)
    lines = server.post("/completion", **asked, stream=True).text.splitlines()
    *pieces, last = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert not any(piece["stop"] for piece in pieces)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", 8)
    word = server.post("/completion", **asked | {"stop": [whole["content"][-4:]]}).json()
    assert (word["stop_type"], word["stopping_word"]) == ("word", whole["content"][-4:])
    refused = server.post("/completion", **asked, n=2)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    found = httpx.get(f"{server.url}/props").json()
    assert found["default_generation_settings"]["n_ctx"] == 512
    assert "<|im_start|>" in found["chat_template"]


def test_front_ends_connect_by_the_calls_of_each_server(server: RunningServer) -> None:
    """SillyTavern's types: TabbyAPI lists models without an s, and each counts tokens at its own path."""
    listed = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert httpx.get(f"{server.url}/v1/model/list").json()["data"] == listed
    assert httpx.get(f"{server.url}/v1/model").json() == listed[0]
    counted = server.post("/tokenize", content="Hi there").json()
    for path, field in (
        ("/v1/tokenize", "prompt"),
        ("/api/extra/tokencount", "prompt"),
        ("/v1/token/encode", "text"),
        ("/v1/internal/encode", "text"),
    ):
        assert server.post(path, **{field: "Hi there"}).json() == counted


def test_constraints_of_other_names_are_kept(server: RunningServer) -> None:
    response = server.post("/v1/completions", prompt="x", grammar_string='root ::= "ok"', max_tokens=5)
    assert response.json()["choices"][0]["text"] == "ok"
    first = server.post("/v1/completions", prompt="x", max_tokens=1, temperature=0, return_tokens=True).json()
    [token] = first["choices"][0]["tokens"]
    asked = {"prompt": "x", "max_tokens": 1, "temperature": 0, "return_tokens": True}
    for more in ({}, {"logit_bias": {"5": 1}}, {"logit_bias": [[5, 1]]}):
        other = server.post("/v1/completions", **asked, **more, custom_token_bans=f" {token}, 3").json()
        assert other["choices"][0]["tokens"] != [token]
    asked_so = server.post("/v1/completions", **asked, custom_token_bans=[token, 3]).json()  # as Aphrodite
    assert asked_so["choices"][0]["tokens"] != [token]
    for wrong in ("one", "1,", 5, [-5]):
        with pytest.raises(ApiError, match="custom_token_bans"):
            read(CompletionRequest, prompt="x", custom_token_bans=wrong)
    for wrong in (5, [1], "x"):
        with pytest.raises(ApiError, match="logit_bias"):
            read(CompletionRequest, prompt="x", custom_token_bans="1", logit_bias=wrong)


def test_koboldcpps_names_are_read() -> None:
    given = {"max_length": 8, "stop_sequence": ["\n"], "rep_pen": 1.1, "sampler_seed": 5, "typical": 0.9}
    parsed = read(CompletionRequest, prompt="x", **given)
    request = parsed.request
    assert (request.max_tokens, request.stop, request.repeat_penalty) == (8, ["\n"], 1.1)
    assert (request.seed, request.typical_p, parsed.ignored) == (5, 0.9, set())


@pytest.mark.parametrize("breakers", ['["\\n", "abc"]', '"\\n", "abc"', ["\n", "abc"]])
def test_breakers_may_be_json_in_a_text(breakers: Any) -> None:
    request = read(ChatRequest, messages=HI, dry_sequence_breakers=breakers).request
    assert request.dry_sequence_breakers == ["\n", "abc"]


def test_long_and_many_breakers_are_taken(server: RunningServer) -> None:
    breakers = ["x" * 99, *(f"<{i}>" for i in range(40))]
    response = server.post(
        "/v1/completions", prompt="x", max_tokens=2, dry_multiplier=0.8, dry_sequence_breakers=breakers
    )
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": HI}),
        ("/v1/completions", {"prompt": "Hi"}),
    ],
)
def test_seeds_of_64_bits_are_taken_and_neighbours_differ(
    server: RunningServer, path: str, more: dict[str, Any]
) -> None:
    for seed in (1764355200000, -9007199254740991, 2**63 - 1):
        response = server.post(path, **more, seed=seed, max_tokens=1)
        assert response.status_code == 200, response.text
    assert len({seed % RANDOM_SEED for seed in range(2**40, 2**40 + 1000)}) == 1000


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("tail \\ud83d", "tail \ufffd"),
        ("\\udc00 head", "\ufffd head"),
        ("mid \\ud83d dle", "mid \ufffd dle"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"),
        ("whole \\ud83d\\ude00", "whole \U0001f600"),
        ("\\\\ud83d", "\\ud83d"),
        ("\\\\\\ud83d", "\\\ufffd"),
        ('\\n\\"\\u0041', '\n"A'),
    ],
)
def test_half_an_emoji_is_a_replacement_character(escaped: str, text: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "{escaped}"}}]}}'.encode()
    assert parse(body, ChatRequest).request.messages[0].content == text


@pytest.mark.parametrize("bias", ["nan", float("nan")])
@pytest.mark.parametrize("pairs", [True, False])
def test_a_bias_that_is_no_number_is_refused(server: RunningServer, bias: Any, pairs: bool) -> None:
    body = {"prompt": "x", "max_tokens": 1, "logit_bias": [[5, bias]] if pairs else {"5": bias}}
    response = httpx.post(f"{server.url}/v1/completions", content=json.dumps(body), timeout=60)
    assert response.status_code == 400


@pytest.mark.parametrize("value", ["inf", "nan", "-inf"])
@pytest.mark.parametrize("name", ["temperature", "frequency_penalty", "top_p"])
def test_a_number_as_text_must_be_finite(name: str, value: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(ChatRequest, messages=HI, **{name: value})
    assert caught.value.param == name


def test_texts_may_be_keys_of_a_bias(server: RunningServer) -> None:
    asked = {"messages": HI, "temperature": 0, "max_tokens": 8}
    plain = server.post("/v1/chat/completions", **asked).json()["choices"][0]["message"]["content"]
    word = plain.split()[0]
    response = server.post("/v1/chat/completions", **asked, logit_bias={word: -100, "1": 1})
    assert not response.json()["choices"][0]["message"]["content"].startswith(word)


# --- schemas

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WRAPPED = [
    {"type": "json_object", "json_schema": {"name": "x", "schema": A}},
    {"type": "json_object", "json_schema": A},
    {"type": "json_object", "schema": A},
    {"type": "json_schema", "schema": A},
    {"type": "json_schema", "json_schema": A},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": A, "strict": True}},
]
HOW: list[tuple[Any, Any]] = [
    (ChatRequest, lambda given: {"messages": HI, "response_format": given}),
    (ResponsesRequest, lambda given: {"input": "Hi", "text": {"format": given}}),
    (MessagesRequest, lambda given: {"messages": HI, "output_config": {"format": given}}),
]


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize(("kind", "fields"), HOW)
def test_a_schema_is_kept_in_whatever_wrapper_it_comes(kind: Any, fields: Any, wrapped: Any) -> None:
    request: SamplingFields = read(kind, **fields(wrapped)).request
    assert [(option, value) for option, value, _ in request.normal().constraints()] == [("json_schema", A)]


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"schema": None}},
        {"type": "text", "schema": A},
        {"type": "text", "json_schema": {"schema": A}},
    ],
)
@pytest.mark.parametrize(("kind", "fields"), HOW)
def test_a_schema_that_is_missing_or_cannot_be_kept_is_refused(kind: Any, fields: Any, given: Any) -> None:
    with pytest.raises(ApiError) as caught:
        read(kind, **fields(given))
    assert "format" in str(caught.value.param)


# --- Anthropic's blocks and tools

OWN = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
WEB = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


def test_tools_of_a_server_are_left_out_beside_others(server: RunningServer) -> None:
    response = server.post("/v1/messages", messages=HI, max_tokens=2, tools=[WEB, OWN])
    assert response.status_code == 200, response.text
    assert "tools.web_search_20250305" in response.headers["x-mink-ignored"]
    alone = server.post("/v1/messages", messages=HI, max_tokens=2, tools=[WEB])
    assert (alone.status_code, alone.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "declare a function" in alone.json()["error"]["message"]


def test_an_own_tool_needs_a_schema() -> None:
    with pytest.raises(ApiError) as caught:
        read(MessagesRequest, messages=HI, tools=[{"name": "f"}])
    assert caught.value.param == "tools[0].input_schema"


TEXT = {"type": "text", "text": "found"}
DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "body"},
    "title": "T",
}
RESULT = {"type": "search_result", "title": "T", "source": "http://a", "content": [TEXT]}
REFERENCE = {"type": "tool_reference", "tool_name": "get_time"}


@pytest.mark.parametrize(
    ("block", "text"),
    [(DOCUMENT, "T\nbody"), (RESULT, "T\nhttp://a\nfound"), (REFERENCE, "tool: get_time"), (TEXT, "found")],
)
def test_texts_of_all_blocks_are_read(block: dict[str, Any], text: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    messages = [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "get_time"}, {"type": "thinking"}],
        },
        {"role": "user", "content": [result, block]},
    ]
    normal = read(MessagesRequest, messages=messages).request.normal()
    assert [message.content for message in normal.messages] == ["", text, text]


@pytest.mark.parametrize("kind", ["base64", "url", "file"])
def test_a_document_that_is_no_text_is_refused_with_a_remedy(kind: str) -> None:
    block = {"type": "document", "source": {"type": kind, "data": "AA=="}}
    with pytest.raises(ApiError, match="text only"):
        read(MessagesRequest, messages=[{"role": "user", "content": [block]}])


@pytest.mark.parametrize("part", ["reasoning_text", "summary_text"])
def test_reasoning_is_no_text_of_the_users(part: str) -> None:
    content = [{"type": part, "text": "Hm."}]
    with pytest.raises(ApiError):
        read(ChatRequest, messages=[{"role": "user", "content": content}])
    item = {"type": "reasoning", "content": content}
    request = read(ResponsesRequest, input=[item, {"role": "user", "content": "Hi"}]).request
    assert request.normal().messages[0].reasoning_content == "Hm."


def test_a_forced_call_is_alone_in_the_response_that_says_so(server: RunningServer) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    for choice, expected in (("required", False), ("auto", True)):
        response = server.post(
            "/v1/responses", input="Hi", tools=[tool], tool_choice=choice, max_output_tokens=30
        )
        assert response.json()["parallel_tool_calls"] == expected


# --- log-probabilities


def test_each_token_has_as_many_log_probabilities_as_asked_for(server: RunningServer) -> None:
    """Also where texts are the same: parts of characters are all U+FFFD."""
    asked = {
        "prompt": "I love 🦙 and 漢字 🎉",
        "max_tokens": 1,
        "temperature": 0,
        "echo": True,
        "logprobs": 5,
    }
    found = server.post("/v1/completions", **asked).json()["choices"][0]["logprobs"]
    for token, value, top in [
        *zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    ][1:]:
        assert len(top) in (5, 6)
        assert top[token] == value
        assert sorted(top.values(), reverse=True)[: len(top)] == sorted(top.values(), reverse=True)


@pytest.mark.parametrize("is_stream", [False, True])
def test_tokens_that_a_stop_string_cut_off_have_no_log_probabilities(
    server: RunningServer, is_stream: bool
) -> None:
    asked = {"messages": HI, "max_tokens": 12, "temperature": 0, "logprobs": True}
    plain = server.post("/v1/chat/completions", **asked).json()["choices"][0]
    text, tokens = plain["message"]["content"], [one["token"] for one in plain["logprobs"]["content"]]
    assert "".join(tokens) == text
    for stop in {text[i:] for i in range(1, len(text))}:
        if text.count(stop) > 1:
            continue
        if is_stream:
            chunks = streamed(server, "/v1/chat/completions", **asked, stop=[stop])
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            entries = [
                one for choice in choices for one in (choice["logprobs"] or {"content": []})["content"]
            ]
            content = "".join(choice["delta"].get("content") or "" for choice in choices)
        else:
            choice = server.post("/v1/chat/completions", **asked, stop=[stop]).json()["choices"][0]
            entries, content = choice["logprobs"]["content"], choice["message"]["content"]
        described = "".join(one["token"] for one in entries)
        assert described.startswith(content)
        assert len(described) - len(content) < len(entries[-1]["token"]) if entries else not content
