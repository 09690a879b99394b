"""What a program that embeds the package relies on: options, metadata, life and threads of a model."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from mink_local import Constraints, load_model
from mink_local.errors import GenerationError, ModelError
from mink_local.generation.model import Model
from mink_local.generation.request import Prompt, Request, SamplingOptions, SamplingParams
from tests.generation.conftest import FRANCE, STORY, answered
from tests.support.python import output_of


def test_options_are_the_fields_of_sampling_params() -> None:
    names = [field.name for field in fields(SamplingParams)]
    assert list(SamplingOptions.__annotations__) == names


def test_options_replace_those_of_the_params(smollm2: Model) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3)
    reply = smollm2.chat(STORY, params, max_tokens=5)
    assert reply.request.params == SamplingParams(temperature=0.0, max_tokens=5)
    assert len(next(smollm2.generate([STORY], params)).tokens) == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": b"x"}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids .*1000000.*49151"),
        ({"prefix": [5, -1]}, "prefix .*-1.*49151"),
        ({"temperature": 10**5000}, "temperature"),
        ({"ignore_eos": "no"}, "ignore_eos"),
        ({"enable_thinking": "false"}, "enable_thinking"),
        ({"prefix": bytearray(b"Hi")}, "prefix"),
        ({"prefix": [True]}, "prefix"),
        ({"template_kwargs": "x"}, "template_kwargs"),
        ({"template_kwargs": {"self": 1}}, "template_kwargs.self"),
        ({"template_kwargs": {"messages": []}}, "template_kwargs"),
        ({"template_kwargs": {"bos_token": ""}}, "template_kwargs"),
        ({"template_kwargs": {1: 1}}, "template_kwargs"),
        ({"template_kwargs": {"x": b""}}, "template_kwargs"),
        ({"tools": [{"name": "f"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools"),
        ({"messages": []}, "message"),
        ({"messages": [{"role": "assistant", "content": "The capital"}]}, "assistant"),
        ({"messages": memoryview(b"Hi")}, "prompt"),
        ({"messages": [{"role": "user", "content": "", "reasoning_content": 5}]}, "reasoning_content"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image"),
    ],
)
def test_options_out_of_range(smollm2: Model, options: dict[str, Any], named: str) -> None:
    messages = options.pop("messages", STORY)
    with pytest.raises(ValueError, match=named):
        smollm2.chat(messages, **options)


@pytest.mark.parametrize("ids", [[3, 10**6], [-1], [2**64], [1.0], [True], [[1]], ["x"], 3, b"ab", {1: 2}])
@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda model, ids: model.logits("Hi", prefix=ids), "prefix"),
        (lambda model, ids: model.logits(ids), "prompt"),
        (lambda model, ids: model.chat("Hi", prefix=ids), "prefix"),
        (lambda model, ids: model.chat("Hi", stop_token_ids=ids), "stop_token_ids"),
        (lambda model, ids: model.complete(ids), "prompt"),
        (lambda model, ids: model.logprobs([([1], ids)]), r"pairs\[0\]\[1\]"),
        (lambda model, ids: model.detokenize(ids), "tokens"),
        (lambda model, ids: model.token_texts(ids), "tokens"),
    ],
)
def test_tokens_that_are_none_are_refused_by_the_arguments_name(
    smollm2: Model, use: Callable[[Model, Any], object], name: str, ids: Any
) -> None:
    with pytest.raises(ValueError, match=rf"\b{name} (has|must|is)\b"):
        use(smollm2, ids)


@pytest.mark.parametrize(
    ("option", "owner"),
    [
        ("top_p", "TopP(p="),
        ("min_k_tau", "MinK(tau="),
        ("presence_penalty", "Constraints(presence_penalty="),
        ("temprature", "perhaps temperature"),
        ("tool", "perhaps tools"),
    ],
)
def test_options_of_other_programs(smollm2: Model, option: str, owner: str) -> None:
    options: dict[str, Any] = {option: 1.0}
    for use in (lambda: smollm2.chat(STORY, **options), lambda: smollm2.generate([STORY], **options)):
        with pytest.raises(TypeError, match=re.escape(option)) as caught:
            use()
        assert owner in str(caught.value)


def test_min_tokens_and_ignore_eos(smollm2: Model) -> None:
    answer = partial(answered, smollm2, "What is 2 + 2?", temperature=0.0)
    short = answer()
    assert short.finish_reason == "stop"
    n = short.n_tokens + 5
    longer = answer(min_tokens=n, max_tokens=n + 1)
    assert longer.n_tokens >= n
    assert longer.tokens[: short.n_tokens] == short.tokens
    endless = answer(ignore_eos=True, max_tokens=n)
    assert (endless.finish_reason, endless.n_tokens) == ("length", n)
    stopped = answer(min_tokens=3, max_tokens=6, stop_token_ids=[short.tokens[0]])
    assert stopped.n_tokens >= 3
    assert short.tokens[0] not in stopped.tokens[:3]


# Parts of an answer

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rom"}}</tool_call>'


def test_a_reply_calls_a_tool_and_its_message_continues_the_conversation(tiny: Callable[..., Path]) -> None:
    template = "{{ tools }}{% for m in messages %}{{ m.tool_calls or m.content }}{% endfor %}<think>"
    with load_model(tiny(template=template), trust=True) as model:
        grammar = "root ::= " + json.dumps(CALL)
        reply = model.chat(
            "Rain?", tools=[WEATHER], constraints=Constraints(grammar=grammar), reasoning_budget=0
        )
        assert reply.read().endswith(CALL)
        [call] = reply.tool_calls
        assert (call["function"]["name"], reply.content, reply.reasoning) == ("get_weather", "", "")
        result = {"role": "tool", "tool_call_id": call["id"], "content": "Sun."}
        assert "Rom" in model.apply_chat_template([*STORY, reply.message, result])


# Prompts


def test_a_text_is_a_users_message_or_is_completed(smollm2: Model) -> None:
    [message] = STORY
    chat = smollm2.chat(message["content"])
    assert chat.request == smollm2.chat(STORY).request
    prompts: list[Prompt] = [message["content"], [message], smollm2.prompt_tokens(STORY)]
    answers = list(smollm2.generate(prompts, temperature=0.0, max_tokens=8))
    assert len({answer.text for answer in answers}) == 1
    rendered = smollm2.apply_chat_template(STORY)
    assert smollm2.complete(rendered, temperature=0.0, max_tokens=8).read() == answers[0].text
    tokens = smollm2.weights.tokenize("Once upon", add_special=True, parse_special=True)
    assert smollm2.complete("Once upon").prompt_tokens == len(tokens)
    assert smollm2.complete(tokens).prompt_tokens == len(tokens)


def test_answers_to_one_prompt_and_their_order(tiny_path: Path) -> None:
    with load_model(tiny_path, n_ctx=256, n_parallel=3, trust=True) as model:
        options: dict[str, Any] = {"temperature": 5.0, "max_tokens": 4, "n": 2}
        answers = list(model.generate(["One", "Two", FRANCE], seed=2**32 - 4, ordered=True, **options))
        assert [answer.index for answer in answers] == list(range(6))
        assert [answer.seed for answer in answers] == [2**32 - 4, 2**32 - 3, 2**32 - 2, 0, 1, 2]
        assert [answers[i].request.prompt == FRANCE for i in range(6)] == [False] * 4 + [True] * 2
        assert len({answer.text for answer in answers[:2]}) == 2
        assert all(answer.seconds > 0 for answer in answers)
        requests = [Request("x", SamplingParams(max_tokens=n)) for n in (9, 1)]
        assert [answer.index for answer in model.answer_all(requests)] == [1, 0]
        assert [answer.index for answer in model.answer_all(requests, ordered=True)] == [0, 1]
        with pytest.raises(ValueError, match="0"):
            model.generate(["One"], n=0)


# Messages


def test_an_assistants_last_message_is_continued(smollm2: Model) -> None:
    begun = [*FRANCE, {"role": "assistant", "content": "The capital of France is the city of"}]
    reply = smollm2.chat(begun, temperature=0.0, max_tokens=5)
    assert "Paris" in reply.read()
    assert reply.message["content"] == begun[-1]["content"] + reply.content
    text = smollm2.apply_chat_template(FRANCE) + "The capital of France is the city of"
    assert smollm2.apply_chat_template(begun) == text
    assert b"".join(smollm2.weights.piece(t) for t in smollm2.prompt_tokens(begun)[-3:]).endswith(b"city of")


# The life of a model


def test_a_model_is_closed(tiny: Callable[..., Path]) -> None:
    before = set(psutil.Process().children())
    with load_model(str(tiny(template="{{ messages[0].content }}"))) as model:
        reply = model.chat(FRANCE, max_tokens=50)
        next(reply)
        assert len(set(psutil.Process().children()) - before) == 1, "the child that renders the template"
    assert set(psutil.Process().children()) <= before
    with pytest.raises((GenerationError, ModelError)):
        list(reply)
    model.close()


@pytest.mark.slow
@pytest.mark.cpu
def test_closing_frees_the_memory(smollm2_path: Path) -> None:
    process = psutil.Process()

    def load_and_close() -> int:
        with load_model(str(smollm2_path), n_ctx=4096, trust=True) as model:
            model.chat(FRANCE, max_tokens=2).read()
        return int(process.memory_info().rss)

    load_and_close()
    before = load_and_close()
    assert [load_and_close() for _ in range(2)][-1] < before + (40 << 20), "a KV cache alone has 90 MB"


def test_a_trusted_model_starts_no_child(tiny: Callable[..., Path]) -> None:
    with load_model(tiny(), trust=True) as model:
        before = set(psutil.Process().children())
        grammar = Constraints(grammar='root ::= "yes"')
        assert model.chat(FRANCE, constraints=grammar).read() == "yes"
        with pytest.raises(ValueError, match="grammar"):
            model.chat(FRANCE, constraints=Constraints(grammar='root ::= "a'))
        assert set(psutil.Process().children()) <= before


# Threads and tasks


def test_the_models_thread_refuses_to_wait_for_itself(smollm2: Model) -> None:
    """What `watch` raises ends its answer."""
    reply = smollm2.chat(STORY, watch=lambda _: smollm2.forget())
    with pytest.raises(GenerationError, match="thread"):
        reply.read()
    assert (reply.finish_reason, smollm2.chat("Hi", max_tokens=2).read() != "") == ("error", True)


def test_a_failure_of_the_thread_reaches_every_reader(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load_model(tiny_path, n_parallel=2, trust=True) as model:
        replies = [model.chat(FRANCE, max_tokens=2000, ignore_eos=True) for _ in range(3)]
        monkeypatch.setattr(model.core.engine, "launch", lambda: 1 / 0)
        for use in (*(reply.read for reply in replies), lambda: model.chat(FRANCE).read(), model.forget):
            with pytest.raises(GenerationError, match="ZeroDivisionError") as caught:
                use()
            assert "ZeroDivisionError" in repr(caught.value.__cause__)


FORKED = """
import os
from mink_local import GenerationError, load_model
model = load_model("smollm2-135m", n_ctx=256)
model.chat("Hi", max_tokens=2).read()
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), model.chat("Hi", max_tokens=2).read() != "")
else:
    try:
        model.chat("Hi", max_tokens=2).read()
    except GenerationError as error:
        os._exit(7 if "fork" in str(error) else 1)
"""


@pytest.mark.linux
@pytest.mark.slow
def test_a_forked_process_is_told(smollm2_path: Path) -> None:  # noqa: ARG001
    assert output_of("-W", "ignore", "-c", FORKED).strip() == "7 True"


def test_an_answer_goes_on_inside_a_character(smollm2: Model) -> None:
    *begun, last = smollm2.tokenize("🧿")
    assert begun
    only = Constraints(logit_bias={last: 1000.0})
    reply = smollm2.chat(FRANCE, prefix=begun, temperature=0.0, max_tokens=1, constraints=only)
    assert reply.read() == "🧿"
