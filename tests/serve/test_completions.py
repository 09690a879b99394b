"""POST /v1/completions of a real mink-serve."""

import json
from typing import Any

import httpx
import pytest

from mink_local import load_model
from tests.support.server import RunningServer

TEXT = "The capital of France is Paris. The capital of Italy is"


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    body = {"prompt": TEXT, "max_tokens": 6, "temperature": 0, **fields}
    response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_every_prompt_is_continued_n_times_in_order(server: RunningServer) -> None:
    answer = ask(server, prompt=["One, two, three,", "A, B, C,"], n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    assert answer["object"] == "text_completion"
    assert answer["usage"]["completion_tokens"] == 24


def test_token_ids_are_continued_as_their_text(server: RunningServer) -> None:
    tokens = httpx.post(f"{server.url}/tokenize", json={"content": TEXT, "add_special": True}).json()[
        "tokens"
    ]
    as_text, as_tokens, as_list = (ask(server, prompt=prompt) for prompt in (TEXT, tokens, [tokens]))
    assert as_text["choices"] == as_tokens["choices"] == as_list["choices"]


def test_a_stream_is_the_whole_in_pieces(server: RunningServer) -> None:
    whole = ask(server, logprobs=2, echo=True)["choices"][0]
    body = {"prompt": TEXT, "max_tokens": 6, "temperature": 0, "logprobs": 2, "echo": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
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
    answer = ask(server, prompt=[*context, *continuation], echo=True, logprobs=1, max_tokens=max_tokens)
    choice = answer["choices"][0]
    n_prompt = len(context) + len(continuation)
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == n_prompt + max_tokens
    assert logprobs["token_logprobs"][0] is None
    scored = logprobs["token_logprobs"][len(context) : n_prompt]
    assert scored == pytest.approx(expected.logprobs, abs=2e-2)
    greedy = [
        max(top.values()) == logprob
        for top, logprob in zip(logprobs["top_logprobs"][len(context) : n_prompt], scored, strict=True)
    ]
    assert all(greedy) == expected.is_greedy
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


def test_a_token_that_ends_the_answer_has_its_log_probability_too(server: RunningServer) -> None:
    [end] = httpx.post(f"{server.url}/tokenize", json={"content": "<|im_end|>"}).json()["tokens"]
    answer = ask(server, prompt=[1, 2, 3], echo=True, logprobs=1, max_tokens=1, logit_bias={str(end): 100})
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 4


def test_tokenize_and_detokenize_are_inverse(server: RunningServer) -> None:
    def post(path: str, **body: Any) -> Any:
        return httpx.post(f"{server.url}{path}", json=body).json()

    text = "naïve 東京 <|im_end|>"
    tokens = post("/tokenize", content=text, parse_special=False)["tokens"]
    assert post("/detokenize", tokens=tokens)["content"] == text
    assert post("/tokenize", prompt=text)["count"] < len(tokens)  # <|im_end|> is one token
    pieces = post("/tokenize", content=text, parse_special=False, with_pieces=True)["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    refused = httpx.post(f"{server.url}/detokenize", json={"tokens": [10**6]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")
    messages = [{"role": "user", "content": "Hi"}]
    counted = post("/v1/chat/completions/input_tokens", messages=messages)["input_tokens"]
    with load_model("smollm2-135m", n_ctx=512) as model:
        assert counted == model.count_tokens(messages)
