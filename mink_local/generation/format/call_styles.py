"""How a model is shown tools and earlier calls, and made to write calls: as its chat template has them.

If the template has no tools, or writes calls in an unknown style, a system message shows the tools, and calls
are text in the style of Hermes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, starmap
from typing import TYPE_CHECKING, Any, Literal

from mink_local.generation.format.call_formats import OPEN, OPEN_END

if TYPE_CHECKING:
    from mink_local.generation.request import Tool

_INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return {}:
{}"""  # as in Qwen's templates
_MARK = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z_]+\])")

_Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class CallStyle:
    """How a model writes calls.

    Attributes:
        before, between, after: The texts before the name, between name and arguments, and after them.
        separator: The text between calls; without one, a message has a single call.
        opening, closing: The texts around all calls.
        kind: How arguments are written: as JSON, in tags, as in Python, or as in JSON with another quote.
        key, equals, end: In tags, the texts before a name, before its value and after that.
        equals_other: The text before a value that is no string.
        quote: What stands around strings.
    """

    before: str = ""
    between: str = ""
    after: str = ""
    separator: str | None = None
    opening: str = ""
    closing: str = ""
    kind: Literal["json", "tags", "python", "quoted"] = "json"
    key: str = ""
    equals: str = ""
    equals_other: str = ""
    end: str = ""
    quote: str = ""

    @property
    def mark(self) -> str:
        """The tag that begins a call, or calls, and nothing else; "" if there is none."""
        found = _MARK.match(self.opening or self.before)
        return found[1] if found else ""

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return calls, names and arguments, as the model writes them."""
        written = [f"{self.before}{name}{self._arguments(values)}{self.after}" for name, values in calls]
        return self.opening + (self.separator or "\n").join(written) + self.closing

    def _arguments(self, values: Mapping[str, Any]) -> str:
        if self.kind == "python":
            return "(" + ", ".join(f"{key}={_json(value)}" for key, value in values.items()) + ")"
        if self.kind == "quoted":
            return self.between.removesuffix("{") + self._quoted(values)
        if self.kind == "tags":
            return self.between + "".join(starmap(self._tagged, values.items()))
        return self.between + _json(values)

    def _tagged(self, key: str, value: Any) -> str:
        equals, text = (self.equals, value) if isinstance(value, str) else (self.equals_other, _json(value))
        return f"{self.key}{key}{equals}{text}{self.end}"

    def _quoted(self, value: Any) -> str:
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{self._quoted(each)}" for key, each in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._quoted, value)) + "]"
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else _json(value)


HERMES = CallStyle(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{OPEN_END}", separator="\n")
GPT_OSS = CallStyle(" to=functions.", "<|channel|>commentary json<|message|>")
NAMED = {
    "hermes": HERMES,
    "gpt-oss": GPT_OSS,
    "lfm2": CallStyle(
        between="(", separator=", ", opening="<|tool_call_start|>[", closing="]<|tool_call_end|>",
        kind="python",
    ),
    "granite-3.3": CallStyle(
        '{"name": "', '", "arguments": ', "}", ", ", opening="<|tool_call|>[", closing="]"
    ),
}  # fmt: skip
BY_HAND = {
    "<|channel|>analysis": "gpt-oss",
    "List of tools: ": "lfm2",
    "respond only with <|tool_call|> followed by a JSON list": "granite-3.3",
}
"""Named styles by what templates have in them that write no calls, or write them in channels."""


def as_text(messages: _Messages, tools: "Sequence[Tool]", style: CallStyle = HERMES) -> _Messages:
    """Return messages in which tools, calls and results are written into contents."""
    texts = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            results = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in group]
            texts.append({"role": "user", "content": "\n".join(results)})
            continue
        for message in group:
            texts.append(with_written_calls(message, style))
    return with_instructions(texts, tools, style) if tools else texts


def with_written_calls(message: Mapping[str, Any], style: CallStyle) -> dict[str, Any]:
    """Return a message whose calls are part of its content."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    written = style.write([(call["name"], call["arguments"]) for call in calls]) if calls else ""
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join(filter(None, [message["content"], written]))}


def with_instructions(messages: _Messages, tools: "Sequence[Tool]", style: CallStyle) -> _Messages:
    """Return the messages with the tools, and how to call them, at the end of the system message."""
    how = "a call in this form"
    if style is HERMES:
        how = "a json object with function name and arguments within <tool_call></tool_call> XML tags"
    example = style.write([("<function-name>", {"<name>": "<value>"})])
    example = example.replace('{"<name>": "<value>"}', "<args-json-object>")
    example = example.replace('"<function-name>"', "<function-name>")
    listed = _INSTRUCTIONS.format("\n".join(map(_json, tools)), how, example)
    if messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": listed}, *messages]
    return [{**messages[0], "content": f"{messages[0]['content']}\n\n{listed}"}, *messages[1:]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def one_call_each(messages: _Messages) -> Iterator[dict[str, Any]]:
    """Yield the messages with one call in each, and its result after it, as LLaMA-3's template wants them."""
    waiting: _Messages = []
    for message in messages:
        if message["role"] == "tool" and waiting:
            ids = [call["tool_calls"][0].get("id") for call in waiting]
            result_of = message.get("tool_call_id")
            yield waiting.pop(ids.index(result_of) if result_of in ids else 0)
            yield message
            continue
        yield from waiting
        waiting = [{**message, "tool_calls": [call]} for call in message.get("tool_calls", ())]
        if not waiting:
            yield message
    yield from waiting
