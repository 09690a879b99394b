"""POST /v1/chat/completions and /v1/completions of a real mink-serve."""

import json
import re
from typing import Any

import pytest

from mink_local import MinK, Model, load_model
from mink_local.generation.model import read_rows
from tests.support.server import RunningServer

MESSAGES = [{"role": "user", "content": "Name three colours."}]
NOWHERE = {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}}
NO_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/nowhere"}}}
KIND = "invalid_request_error"


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "max_tokens": 12, "seed": 7, **fields}
    response = server.post("/v1/chat/completions", **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def streamed(
    server: RunningServer, path: str = "/v1/chat/completions", **fields: Any
) -> list[dict[str, Any]]:
    body = {"max_tokens": 12, "seed": 7, "stream": True, **fields}
    response = server.post(path, **body)
    assert response.status_code == 200
    first, *lines, last = filter(None, response.text.splitlines())
    assert first.startswith(": ")
    assert last == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_the_answer_is_the_models_own(server: RunningServer) -> None:
    answer = ask(server, temperature=5, sampler="min-k:tau=3", return_tokens=True)
    with load_model("smollm2-135m", n_ctx=512) as model:
        reply = model.chat(MESSAGES, sampler=MinK(), temperature=5.0, max_tokens=12, seed=7)
        text = reply.read()
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": text}
    assert (choice["k"], choice["tokens"]) == (reply.k, reply.tokens)
    assert choice["finish_reason"] == "length"
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "smollm2-135m"
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (reply.prompt_tokens, 12)
    assert usage["total_tokens"] == reply.prompt_tokens + 12
    assert answer["timings"]["predicted_n"] == 12


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_is_the_whole_in_pieces(server: RunningServer, n: int) -> None:
    whole = ask(server, n=n, temperature=2, logprobs=True, top_logprobs=2, return_tokens=True)
    chunks = streamed(
        server,
        messages=MESSAGES,
        n=n,
        temperature=2,
        logprobs=True,
        top_logprobs=2,
        return_tokens=True,
        stream_options={"include_usage": True},
    )
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({chunk["id"] for chunk in [*chunks, usage]}) == 1
    for expected in whole["choices"]:
        mine = [
            choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == expected["index"]
        ]
        assert [choice["delta"].get("role") for choice in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == expected["message"]["content"]
        assert [k for choice in mine for k in choice.get("k", [])] == expected["k"]
        assert [token for choice in mine for token in choice.get("tokens", [])] == expected["tokens"]
        entries = [entry for choice in mine for entry in (choice["logprobs"] or {}).get("content", [])]
        assert [entry["token"] for entry in entries] == [
            entry["token"] for entry in expected["logprobs"]["content"]
        ]
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_several_answers_have_seeds_that_follow_each_other(server: RunningServer) -> None:
    several = ask(server, n=3, temperature=5)
    texts = [choice["message"]["content"] for choice in several["choices"]]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == ask(server, temperature=5)["choices"][0]["message"]["content"]
    assert several["usage"]["prompt_tokens"] < 60  # one prompt, counted once


def test_a_preset_wins_over_the_clients_sampling(server: RunningServer) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "seed": 1, "temperature": 0, "top_p": 0.5}
    response = server.post("/v1/chat/completions", **body, model="smollm2-135m:min-k-t5")
    assert response.headers["x-mink-ignored"] == "temperature,top_p"
    with load_model("smollm2-135m", n_ctx=512) as model:
        expected = model.chat(MESSAGES, sampler=MinK(), temperature=5.0, max_tokens=8, seed=1).read()
    assert response.json()["choices"][0]["message"]["content"] == expected


def test_a_second_turn_finds_the_first_in_the_cache(server: RunningServer) -> None:
    first = ask(server, temperature=0)
    messages = [*MESSAGES, first["choices"][0]["message"], {"role": "user", "content": "And three more?"}]
    details = ask(server, messages=messages, temperature=0)["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] >= first["usage"]["prompt_tokens"]


def test_choices_and_expressions_are_kept(server: RunningServer) -> None:
    chosen = ask(server, choice=["a parrot", "a fish"], temperature=5)
    assert chosen["choices"][0]["message"]["content"] in ("a parrot", "a fish")
    [matched] = ask(server, regex=r"\d{3}-\w+(x|y)?!", temperature=5)["choices"]
    assert re.match(r"\d{3}-\w+", matched["message"]["content"])


def test_an_answer_goes_on_after_other_tokens(server: RunningServer) -> None:
    first = ask(server, temperature=0, return_tokens=True)["choices"][0]
    prefix = first["tokens"][:4]
    rest = ask(server, temperature=0, return_tokens=True, prefix_tokens=prefix, max_tokens=8)["choices"][0]
    assert rest["tokens"] == first["tokens"][4:]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def test_a_forced_call_has_no_content_that_a_schema_is_about(server: RunningServer) -> None:
    """Agents send the schema of their output with every request."""
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    choice = ask(
        server,
        max_tokens=60,
        tools=[TOOL],
        tool_choice="required",
        response_format={"type": "json_schema", "json_schema": {"name": "output", "schema": schema}},
    )["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        (
            {"messages": [{"role": "user", "content": "word " * 900}]},
            400,
            "messages",
            "context_length_exceeded",
        ),
        ({"model": "gpt-4"}, 404, "model", "model_not_found"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "messages", None),
        ({"grammar": "root ::= ("}, 400, "grammar", None),
        ({"json_schema": {"$ref": "#/nowhere"}}, 400, "json_schema", None),
        ({"response_format": NOWHERE}, 400, "response_format.json_schema.schema", None),
        ({"structured_outputs": {"json": {"$ref": "#/nowhere"}}}, 400, "structured_outputs.json", None),
        ({"structured_outputs": {"json": "{"}}, 400, "structured_outputs.json", None),
        ({"structured_outputs": {"regex": r"(a)\1"}}, 400, "structured_outputs.regex", None),
        ({"regex": "("}, 400, "regex", None),
        ({"json_schema": {"enum": ["a"] * 5_001}}, 400, "json_schema", None),
        ({"tools": [NO_TOOL], "tool_choice": "required"}, 400, "tools[0].function.parameters", None),
        ({"logit_bias": {"999999": 1}}, 400, "logit_bias", None),
        ({"tool_choice": "required"}, 400, "tool_choice", None),
        ({"tools": [TOOL], "tool_choice": "required", "regex": "a"}, 400, "tool_choice", None),
        ({"stop_token_ids": [999999]}, 400, "stop_token_ids", None),
        ({"prefix_tokens": [999999]}, 400, "prefix_tokens", None),
        ({"repetition_penalty": 0}, 400, "repetition_penalty", None),
        ({"temperature": -1}, 400, "temperature", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_answered_has_a_status(
    server: RunningServer, fields: dict[str, Any], status: int, param: str, code: str, stream: bool
) -> None:
    response = server.post("/v1/chat/completions", **{"messages": MESSAGES, "stream": stream, **fields})
    assert response.status_code == status
    error = response.json()["error"]
    assert error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == ("exceed_context_size_error" if code == "context_length_exceeded" else KIND)
    assert (error["param"], error["code"]) == (param, code)


def test_more_prompts_than_the_server_takes_are_refused_as_prompts(server: RunningServer) -> None:
    response = server.post("/v1/completions", max_tokens=1, prompt=["a"] * 100)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "prompt")
    assert "100" in error["message"]


TEXT = "The capital of France is Paris. The capital of Italy is"


def complete(server: RunningServer, **fields: Any) -> dict[str, Any]:
    body = {"prompt": TEXT, "max_tokens": 6, "temperature": 0, **fields}
    response = server.post("/v1/completions", **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_every_prompt_is_continued_n_times_in_order(server: RunningServer) -> None:
    answer = complete(server, prompt=["One, two, three,", "A, B, C,"], n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    assert answer["object"] == "text_completion"
    assert answer["usage"]["completion_tokens"] == 24


def test_token_ids_are_continued_as_their_text(server: RunningServer) -> None:
    tokens = server.post("/tokenize", content=TEXT, add_special=True).json()["tokens"]
    as_text, as_tokens, as_list = (complete(server, prompt=prompt) for prompt in (TEXT, tokens, [tokens]))
    assert as_text["choices"] == as_tokens["choices"] == as_list["choices"]


def test_a_streamed_completion_is_the_whole_in_pieces(server: RunningServer) -> None:
    whole = complete(server, logprobs=2, echo=True)["choices"][0]
    fields = {"prompt": TEXT, "max_tokens": 6, "temperature": 0, "logprobs": 2, "echo": True}
    choices = [chunk["choices"][0] for chunk in streamed(server, "/v1/completions", **fields)]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert whole["text"].startswith(TEXT)
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [value for choice in choices for value in choice["logprobs"][name]]
        if name == "token_logprobs":
            assert joined[1:] == pytest.approx(whole["logprobs"][name][1:], abs=1e-3)
        elif name != "top_logprobs":
            assert joined == whole["logprobs"][name]
        assert len(joined) == len(whole["logprobs"]["tokens"])


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_gives_the_prompts_log_probabilities(server: RunningServer, max_tokens: int) -> None:
    with load_model("smollm2-135m", n_ctx=512) as model:
        context, continuation = model.tokenize(TEXT)[:-3], model.tokenize(TEXT)[-3:]
        [expected] = model.logprobs([(context, continuation)])
        likeliest = [
            int(rows.argmax()) for rows in next(read_rows(model, [([*context, *continuation[:-1]], 3)]))[1]
        ]
    answer = complete(server, prompt=[*context, *continuation], echo=True, logprobs=1, max_tokens=max_tokens)
    choice = answer["choices"][0]
    n_prompt = len(context) + len(continuation)
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == n_prompt + max_tokens
    assert logprobs["token_logprobs"][0] is None
    scored = logprobs["token_logprobs"][len(context) : n_prompt]
    assert scored == pytest.approx(expected, abs=2e-2)
    tops = logprobs["top_logprobs"][len(context) : n_prompt]
    is_top = [max(top.values()) == logprob for top, logprob in zip(tops, scored, strict=True)]
    assert is_top == [a == b for a, b in zip(likeliest, continuation, strict=True)]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


def test_a_token_that_ends_the_answer_has_its_log_probability_too(server: RunningServer) -> None:
    [end] = server.post("/tokenize", content="<|im_end|>").json()["tokens"]
    answer = complete(
        server, prompt=[1, 2, 3], echo=True, logprobs=1, max_tokens=1, logit_bias={str(end): 100}
    )
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": True}},
        {"max_tokens": 4.0, "top_k": 20.0, "seed": 7.0},
        {"logprobs": False, "top_logprobs": 2},
        {"tool_choice": "auto"},
        {"tools": [], "tool_choice": "none"},
        {"temperature": 0, "top_p": 0.95, "top_k": 20, "min_p": 0},
    ],
)
def test_what_careless_clients_send_is_answered(server: RunningServer, fields: dict[str, Any]) -> None:
    assert ask(server, **fields)["choices"][0]["message"]["content"]


def test_no_tokens_are_an_empty_answer(server: RunningServer) -> None:
    answer = ask(server, max_tokens=0)
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"], choice["k"]) == ("", "length", [])
    assert answer["usage"]["completion_tokens"] == 0
    [chunk] = streamed(server, messages=MESSAGES, max_tokens=0)
    assert chunk["choices"][0]["finish_reason"] == "length"
    completed = server.post("/v1/completions", prompt="Hello", max_tokens=0).json()
    assert (completed["choices"][0]["text"], completed["usage"]["completion_tokens"]) == ("", 0)


def test_tokenize_and_detokenize_are_inverse(server: RunningServer) -> None:
    text = "naïve 東京 <|im_end|>"
    fields = {"content": text, "parse_special": False}
    tokens = server.post("/tokenize", **fields).json()["tokens"]
    assert server.post("/detokenize", tokens=tokens).json()["content"] == text
    assert server.post("/tokenize", prompt=text).json()["count"] < len(tokens)  # <|im_end|> is one token
    refused = server.post("/detokenize", tokens=[10**6])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")


def test_the_tokens_of_a_conversation_are_counted(server: RunningServer, smollm2: Model) -> None:
    counted = server.post("/v1/responses/input_tokens", input=MESSAGES).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": smollm2.count_tokens(MESSAGES)}


TURNS = "Hi", "Hello.", "Yes or no?", "No.", "Sure?", "Yes.", "Ok", "Ok.", "Again?", "No.", "Bye", "Bye."


@pytest.mark.parametrize("penalty", [
    {}, {"frequency_penalty": 1.0}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0},
    {"repeat_penalty": 1.3}, {"dry_multiplier": 1.0},
])  # fmt: skip
def test_penalties_let_answers_end_in_long_conversations(
    server: RunningServer, penalty: dict[str, Any]
) -> None:
    texts = [*TURNS, "Say only: ok"]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    response = server.post(
        "/v1/chat/completions", messages=messages, temperature=0, max_tokens=120, **penalty
    ).json()
    assert response["choices"][0]["finish_reason"] == "stop"
    assert response["usage"]["completion_tokens"] <= 2  # as many as without a penalty
