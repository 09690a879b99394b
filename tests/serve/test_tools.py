"""Messages of chats: reasoning, text and calls, in order and whole, in all three protocols."""

import json
from typing import Any

import msgspec
import pytest

from mink_local.generation.answer import Answer, Piece, Splitter
from mink_local.generation.request import Request
from mink_local.generation.text import ReasoningSplitter
from mink_local.generation.tool_calls import ToolParser
from mink_local.serve.protocols.completions import message_delta, whole_message
from tests.support.server import RunningServer

REASONING = "Shall I write <tool_call>? Yes."
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TEXT = f"<think>\n{REASONING}\n</think>\n\nOne moment.\n{CALL}"


NOW = {"type": "function", "function": {"name": "now"}}


def pieces_of(text: str, length: int) -> list[Piece]:
    """Return the pieces of a text whose tokens all have one length."""
    splitter = Splitter(ReasoningSplitter("start"), ToolParser([NOW]))
    return [
        *(splitter.feed(text[start : start + length]) for start in range(0, len(text), length)),
        splitter.feed("", is_final=True),
    ]


def answer_of(text: str, length: int) -> Answer:
    answer = Answer(Request(""))
    for piece in pieces_of(text, length):
        answer.add(piece)
    return answer


@pytest.mark.parametrize("length", [1, 5, 1000])
def test_reasoning_comes_before_text_and_calls(length: int) -> None:
    message = msgspec.to_builtins(whole_message(answer_of(TEXT, length)))
    [call] = message.pop("tool_calls")
    assert message == {
        "role": "assistant",
        "content": "One moment.",
        "reasoning_content": REASONING,
        "reasoning": REASONING,
    }
    assert call["function"] == {"name": "now", "arguments": "{}"}


def test_a_call_that_is_cut_off_is_incomplete() -> None:
    message = whole_message(answer_of(f"{TEXT}\n{CALL[:-15]}", 3))
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


WRITTEN = 'Look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\nDone.'
GRAMMAR = f"root ::= {json.dumps(WRITTEN)}"
TOOL = {"name": "f", "description": "x"}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}


def chat_parts(server: RunningServer, stream: bool, **fields: Any) -> tuple[list[Any], Any]:
    tools = [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}]
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, **fields}
    answered = server.post("/v1/chat/completions", stream=stream, **body)
    choices = [one for event in events_of(answered, stream) for one in event["choices"]]
    parts: list[Any] = []
    for message in (choice.get("delta", choice.get("message")) for choice in choices):
        parts += [message["content"]] if message.get("content") else []
        for call in message.get("tool_calls") or ():
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
        blocks = [(block.get("text") or [block["name"], block["input"]]) for block in events[0]["content"]]
        return blocks, events[0]["stop_reason"]
    parts: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            block = event["content_block"]
            parts.append([block["name"], ""] if block["type"] == "tool_use" else "")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                parts[event["index"]] += delta["text"]
            else:
                parts[event["index"]][1] += delta["partial_json"]
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parts_of", "whole", "cut"),
    [
        (chat_parts, "tool_calls", "length"),
        (messages_parts, "tool_use", "max_tokens"),
        (responses_parts, "completed", "incomplete"),
    ],
)
def test_parts_are_whole_and_in_order(
    server: RunningServer, parts_of: Any, whole: str, cut: str, stream: bool
) -> None:
    """Whatever the stop strings; what is cut off has its name, and is in no text."""
    for stop in (["}}\n</tool_call>\nEND"], ["\n"], ["}", '"', "<tool_call>"]):
        parts, reason = parts_of(server, stream, grammar=GRAMMAR, stop=stop, max_tokens=99)
        texts = [part for part in parts if isinstance(part, str)]
        [[name, given]] = [part for part in parts if not isinstance(part, str)]
        assert (name, arguments(given), "".join(texts), reason) == ("f", {"a": 1}, "Look.\nDone.", whole)
        assert isinstance(parts[-1], str) or parts_of is chat_parts
    for n_tokens in (3, 6, 10, 16, 20):
        parts, reason = parts_of(server, stream, grammar=GRAMMAR, max_tokens=n_tokens)
        assert reason == cut
        assert "".join(part for part in parts if isinstance(part, str)).strip() in ("Look", "Look.")
        assert [part[0] for part in parts if not isinstance(part, str)] in ([], ["f"])
    assert parts[-1][0] == "f"
