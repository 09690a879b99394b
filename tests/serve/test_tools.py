"""Messages of chats: reasoning, text and calls, in order and whole, in all three protocols."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import RunningServer, running_server
from tests.support.tiny import write_scripted

REASONING = "Shall I write <tool_call>? Yes."
CALL = '{"name": "f", "arguments": {"a": 1}}'
THINKING = ["<think>\n", REASONING, "\n</think>\n\n", "Look.\n", "<tool_call>\n", CALL, "\n</tool_call>"]
WRITTEN = 'Look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\nDone.'
GRAMMAR = f"root ::= {json.dumps(WRITTEN)}"
TOOL: dict[str, Any] = {"name": "f", "description": "x"}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}


def chat_parts(server: RunningServer, stream: bool, **fields: Any) -> tuple[list[Any], Any]:
    tools = [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}]
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, **fields}
    answered = server.post("/v1/chat/completions", stream=stream, **body)
    choices = [one for event in events_of(answered, stream) for one in event["choices"]]
    parts: list[Any] = []
    for message in (choice.get("delta", choice.get("message")) for choice in choices):
        assert message.get("reasoning") == message.get("reasoning_content")
        parts += filter(None, map(message.get, ("reasoning", "content")))
        calls = message.get("tool_calls") or ()
        assert len({call.get("index") for call in calls}) == len(calls)  # clients read one entry of a call
        for call in calls:
            parts += [[call["function"]["name"], ""]] if call.get("id") else []
            parts[-1][1] += call["function"]["arguments"]
    return parts, choices[-1]["finish_reason"]


def messages_parts(
    server: RunningServer, stream: bool, stop: Any = None, **fields: Any
) -> tuple[list[Any], Any]:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{**TOOL, "input_schema": SCHEMA}],
        **fields,
    }
    answered = server.post("/v1/messages", stream=stream, stop_sequences=stop, **body)
    events = events_of(answered, stream)
    if not stream:
        blocks = events[0]["content"]
        parts = [b.get("thinking") or b.get("text") or [b["name"], b["input"]] for b in blocks]
        return parts, events[0]["stop_reason"]
    parts = []
    for event in events:
        if event["type"] == "content_block_start":
            block = event["content_block"]
            parts.append([block["name"], ""] if block["type"] == "tool_use" else "")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                parts[event["index"]][1] += delta["partial_json"]
            else:
                parts[event["index"]] += delta[delta["type"].removesuffix("_delta")]
    return parts, next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")


def responses_parts(
    server: RunningServer, stream: bool, max_tokens: Any = None, **fields: Any
) -> tuple[list[Any], Any]:
    body = {"input": "Hi", "tools": [{**TOOL, "type": "function", "parameters": SCHEMA}], **fields}
    answered = server.post("/v1/responses", stream=stream, max_output_tokens=max_tokens, **body)
    response = events_of(answered, stream)[-1]
    response = response["response"] if stream else response
    items = [
        [item["name"], item["arguments"]] if item["type"] == "function_call" else item["content"][0]["text"]
        for item in response["output"]
    ]
    return items, response["status"]


def events_of(response: Any, stream: bool) -> list[Any]:
    assert response.status_code == 200, response.text
    if not stream:
        return [response.json()]
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def arguments(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


PROTOCOLS = pytest.mark.parametrize(
    ("parts_of", "whole", "cut"),
    [
        (chat_parts, "tool_calls", "length"),
        (messages_parts, "tool_use", "max_tokens"),
        (responses_parts, "completed", "incomplete"),
    ],
)


@pytest.mark.parametrize("stream", [False, True])
@PROTOCOLS
def test_parts_are_whole_and_in_order(
    server: RunningServer, parts_of: Any, whole: str, cut: str, stream: bool
) -> None:
    """Whatever the stop strings; a call that is cut off is left out, and the reason says why."""
    for stop in (["}}\n</tool_call>\nEND"], ["\n"], ["}", '"', "<tool_call>"]):
        parts, reason = parts_of(server, stream, grammar=GRAMMAR, stop=stop, max_tokens=99)
        texts = [part for part in parts if isinstance(part, str)]
        [[name, given]] = [part for part in parts if not isinstance(part, str)]
        assert (name, arguments(given), "".join(texts), reason) == ("f", {"a": 1}, "Look.\nDone.", whole)
        assert isinstance(parts[-1], str) or parts_of is chat_parts
    for n_tokens in (3, 6, 10, 16, 20):
        parts, reason = parts_of(server, stream, grammar=GRAMMAR, max_tokens=n_tokens)
        assert reason == cut
        assert "".join(parts).strip() in ("Look", "Look.")


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model reasons, says something and calls a tool."""
    template = "{# tools <tool_call> <think> #}{{ '<|go|>' }}"
    path = write_scripted(tmp_path_factory.mktemp("reasoner") / "x.gguf", template, {"<|go|>": THINKING})
    with running_server("--model", str(path)) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
@PROTOCOLS
def test_reasoning_comes_before_text_and_calls(
    reasoner: RunningServer, parts_of: Any, whole: str, cut: str, stream: bool
) -> None:
    parts, reason = parts_of(reasoner, stream, max_tokens=99)
    [*texts, [name, given]] = parts
    assert ("".join(texts), name, arguments(given), reason) == (f"{REASONING}Look.", "f", {"a": 1}, whole)
    parts, reason = parts_of(reasoner, stream, max_tokens=2)
    assert ("".join(parts), reason) == (REASONING, cut)


def test_a_file_says_how_a_model_calls_that_its_template_does_not_teach(tmp_path: Path) -> None:
    """And what stands around its reasoning; both are in the line that the server says at its start."""
    template = "{{ messages | tojson ~ tools | tojson ~ '<|go|>' }}"
    pieces = ["<hm>", "Well", "</hm>", "<<call", " f", ' {"a": ', "1", "}", ">>"]
    path = write_scripted(tmp_path / "x.gguf", template, {"<|go|>": pieces})
    style = tmp_path / "style.json"
    style.write_text(json.dumps({"before": "<<call ", "between": " ", "after": ">>", "separator": ""}))
    marks = ("--reasoning-marks", "<hm>", "</hm>")
    with running_server("--model", str(path), "--call-style", str(style), *marks) as server:
        assert any("<hm> … </hm>" in line and "<<call NAME" in line for line in server.said)
        for choice in ("auto", "required"):
            [reasoning, [name, given]], reason = chat_parts(server, False, tool_choice=choice)
            assert (reasoning, name, json.loads(given), reason) == ("Well", "f", {"a": 1}, "tool_calls")


QUOTED = [
    f"To call the tool write:\n```json\n{CALL}\n```\nOK?",
    f"Here is an example of the format:\n{CALL}\nUse it when you need it.",
    "It looks like [f(a=1)] in Python.",
    f"The log says:\n{CALL}\n{CALL}\nand so on.",
]


@pytest.mark.parametrize("text", QUOTED)
@pytest.mark.parametrize("stream", [False, True])
@PROTOCOLS
def test_a_call_that_is_only_quoted_is_text(
    server: RunningServer, parts_of: Any, whole: str, cut: str, stream: bool, text: str
) -> None:
    parts, reason = parts_of(server, stream, grammar=f"root ::= {json.dumps(text)}", max_tokens=99)
    assert "".join(parts) == text
    assert reason in ("stop", "end_turn", "completed")
    assert reason not in {whole, cut} - {"completed"}


# A model's calls have the tag of Hermes's, or none that is certain.
TEMPLATES = {"tag": "{{ '<|go|>' }}", "none": "{# <|channel|>analysis #}{{ '<|go|>' }}"}


@pytest.fixture(scope="module", params=TEMPLATES)
def careless(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, bool]]:
    """A server whose model gives a tool another argument than it takes, and whether its calls have a tag."""
    script = ["Look.\n<tool_call>\n", CALL.replace("1", "2"), "\n</tool_call>"]
    path = tmp_path_factory.mktemp("careless") / "x.gguf"
    write_scripted(path, TEMPLATES[request.param], {"<|go|>": script})
    with running_server("--model", str(path)) as server:
        yield server, request.param == "tag"


@pytest.mark.parametrize("is_strict", [True, False])
@PROTOCOLS
def test_a_strict_tool_gets_the_arguments_that_it_takes(
    careless: tuple[RunningServer, bool],
    parts_of: Any,
    whole: str,
    cut: str,  # noqa: ARG001
    is_strict: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, has_tag = careless
    monkeypatch.setitem(TOOL, "strict", is_strict)
    parts, reason = parts_of(server, False, max_tokens=99)
    [text, [name, given]] = parts
    expected = {"a": 1 if is_strict and has_tag else 2}
    assert (text.strip(), name, arguments(given), reason) == ("Look.", "f", expected, whole)
    ignored = server.post(
        "/v1/responses", input="Hi", max_output_tokens=1, tools=[{**TOOL, "type": "function"}]
    )
    assert ("tools.strict" in ignored.headers.get("x-mink-ignored", "")) is (is_strict and not has_tag)
