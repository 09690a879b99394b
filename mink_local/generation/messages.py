"""Messages and tools, checked and as JSON values, for a chat template."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mink_local.generation.request import Message, Tool


def template_input(messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the messages, and the tools if there are any, by the names that chat templates use.

    Text parts of a content are joined, None fields dropped, and arguments of tool calls parsed. Raises
    ValueError for malformed input.
    """
    if not messages:
        raise ValueError("there is no message to answer")
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError("tools must be dicts as in OpenAI's API")
    found = {"messages": [_message(message) for message in messages]}
    return found | {"tools": [dict(tool) for tool in tools]} if tools else found


def as_json(value: object) -> str:
    """Return a value as JSON text, the same for equal values. Raises ValueError if it cannot be JSON."""
    try:
        return json.dumps(value)
    except TypeError as error:
        raise ValueError(f"messages and tools must be JSON values: {error}") from None


def split_prefill(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Split off the content of a last message of the assistant, which the answer continues."""
    last = messages[-1]
    if last["role"] != "assistant":
        return messages, ""
    if "tool_calls" in last:
        raise ValueError("the last message calls tools: append a message with role tool for each call")
    if len(messages) == 1:
        raise ValueError("there is no message to answer before the assistant's")
    return messages[:-1], last["content"]


def strings(value: Any) -> Iterator[str]:
    """Yield every string of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every string, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): map_strings(item, change) for key, item in value.items()}
    return value


def _message(message: Message) -> dict[str, Any]:
    checked = {name: value for name, value in message.items() if value is not None}
    if calls := checked.pop("tool_calls", None):
        checked["tool_calls"] = [_tool_call(call) for call in calls]
        checked.setdefault("content", "")
    checked["content"] = _content(checked)
    return checked


def _content(message: Message) -> str:
    role, content = message.get("role"), message.get("content")
    if isinstance(role, str) and isinstance(content, str):
        return content
    if not isinstance(role, str) or not isinstance(content, list | tuple):
        raise ValueError(f"a message needs role and content, both str, not {message!r}")
    for part in content:
        if (
            not isinstance(part, Mapping)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise ValueError(
                f'a content part must be {{"type": "text", "text": str}} (no images, no sound), not {part!r}'
            )
    return "".join(part["text"] for part in content)


def _tool_call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, which templates write as JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(
            f'a tool call must have {{"function": {{"name": str, "arguments": …}}}}, not {call!r}'
        )
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # what is not JSON stays text
            arguments = json.loads(arguments)
    return {**call, "function": {**function, "arguments": arguments}}
