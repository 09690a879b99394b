"""How a model is shown tools and earlier calls, and made to write calls: as its chat template has them.

If the template has no tools, or writes calls in an unknown style, a system message shows the tools, and calls
are text in the style of Hermes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from mink_local.generation.call_formats import CALL_MARKS, OPEN
from mink_local.generation.request import Request, Tool
from mink_local.llama.constraints import Constraints
from mink_local.llama.guide import check

_INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""  # as in Qwen's templates
NO_PARAMETERS = {"type": "object", "properties": {}}

_Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class CallStyle:
    """How a model is made to write calls, and how its chat template takes earlier ones.

    Attributes:
        before, between, after: The texts before the name, between name and arguments, and after them.
        separator: The text between calls; without one, a message has a single call.
        arguments, has_short_ids, has_parts: See `Taken`.
    """

    before: str
    between: str
    after: str
    separator: str | None = None
    arguments: Literal["object", "text"] = "object"
    has_short_ids: bool = False
    has_parts: bool = False

    def write(self, name: str, arguments: str) -> str:
        """Return a call as the model writes it; the arguments are JSON."""
        return f"{self.before}{name}{self.between}{arguments}{self.after}"

    def id_of(self, call_id: Any) -> Any:
        """Return a call's id as the template takes it."""
        return hashlib.sha256(str(call_id).encode()).hexdigest()[:9] if self.has_short_ids else call_id


HERMES = CallStyle(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CALL_MARKS[OPEN]}", separator="\n")
LLAMA = CallStyle('{"name": "', '", "parameters": ', "}")
PLAIN = CallStyle('{"name": "', '", "arguments": ', "}", separator="\n")  # grammars allow no control tokens


def style_of(chat_template: str) -> CallStyle | None:
    """Return how calls are written in a chat template with tools, or None if unknown."""
    mark = next((mark for mark in CALL_MARKS if mark in chat_template), None)
    if mark in (None, "<|python_tag|>"):
        return LLAMA if '"parameters": ' in chat_template else None
    return HERMES if mark == OPEN else PLAIN


def as_text(messages: _Messages, tools: Sequence[Tool]) -> _Messages:
    """Return messages in which tools, calls and results are written into contents, in the style of Hermes."""
    texts = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            results = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in group]
            texts.append({"role": "user", "content": "\n".join(results)})
            continue
        for message in map(dict, group):
            calls = [call["function"] for call in message.pop("tool_calls", ())]
            written = [HERMES.write(call["name"], _json(call["arguments"])) for call in calls]
            texts.append({**message, "content": "\n".join(filter(None, [message["content"], *written]))})
    return _with_instructions(texts, tools) if tools else texts


def _with_instructions(messages: _Messages, tools: Sequence[Tool]) -> _Messages:
    """Return the messages with the tools at the end of the system message."""
    listed = _INSTRUCTIONS.format("\n".join(map(_json, tools)))
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


def with_call_grammar(request: Request, style: CallStyle | None) -> Request:
    """Return a request whose answer is a call if it must be one, or if it has a schema, a call or that.

    Raises:
        ConstraintError: The schema of a tool's parameters cannot be enforced.
    """
    choice, constraints = request.tool_choice, request.params.constraints or Constraints()
    answer: Any = constraints.schema if choice == "auto" else None
    if not request.tools or (choice == "auto" and answer is None):
        return request
    parameters = {}
    for i, tool in enumerate(request.tools):
        function = tool["function"]
        if isinstance(choice, str) or choice["function"]["name"] == function["name"]:
            schema = parameters[function["name"]] = function.get("parameters") or NO_PARAMETERS
            check("json_schema", schema, f"tools[{i}].function.parameters")
    is_parallel = request.parallel_tool_calls is True and isinstance(choice, str)
    grammar = calls_grammar(style or HERMES, parameters, is_parallel=is_parallel, answer=answer)
    constraints = replace(constraints, grammar=grammar, json_schema=None)
    return replace(request, params=replace(request.params, constraints=constraints), tool_choice="auto")


def calls_grammar(
    style: CallStyle,
    parameters: Mapping[str, Mapping[str, Any]],
    *,
    is_parallel: bool,
    answer: Any = None,
) -> str:
    """Return a grammar for tool calls, in Lark's syntax.

    Args:
        style: How the model writes calls.
        parameters: JSON schemas of the tools' parameters, by tool name.
        is_parallel: Whether to allow several calls, if the style does.
        answer: JSON schema of an answer that may come in place of a call.
    """
    calls = [
        f"{json.dumps(f'{style.before}{name}{style.between}')} %json {json.dumps(schema)}"
        for name, schema in parameters.items()
    ]
    start = "call"
    if is_parallel and style.separator is not None:
        start += f" ({json.dumps(style.separator)} call)*"
    if answer is not None:
        start += f" | %json {answer if isinstance(answer, str) else json.dumps(answer)}"
    return f"start: {start}\ncall: ({' | '.join(calls)}) {json.dumps(style.after)}\n"
