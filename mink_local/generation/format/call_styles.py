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

from mink_local.generation.format.call_formats import OPEN, OPEN_END
from mink_local.generation.format.text import literal
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
    """How a model writes calls, and how its chat template takes earlier ones.

    Attributes:
        before, between, after: The texts before the name, between name and arguments, and after them.
        separator: The text between calls; without one, a message has a single call.
        opening, closing: The texts around all calls.
        kind: How arguments are written: as JSON, in tags, as in Python, or as in JSON with another quote.
        key, equals, end: In tags, the texts before a name, before its value and after that.
        equals_other: The text before a value that is no string.
        quote: What stands around strings.
        is_rendered: Whether the template writes earlier calls; otherwise they become text.
        arguments, has_short_ids, has_parts: See `Taken`.
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
    is_rendered: bool = True
    arguments: Literal["object", "text"] = "object"
    has_short_ids: bool = False
    has_parts: bool = False

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return calls, names and arguments, as the model writes them; only as JSON or Python."""
        written = [f"{self.before}{name}{self._between(values)}{self.after}" for name, values in calls]
        return self.opening + (self.separator or "\n").join(written) + self.closing

    def _between(self, arguments: Mapping[str, Any]) -> str:
        if self.kind == "python":
            return "(" + ", ".join(f"{key}={_json(value)}" for key, value in arguments.items()) + ")"
        return self.between + _json(arguments)

    def id_of(self, call_id: Any) -> Any:
        """Return a call's id as the template takes it."""
        return hashlib.sha256(str(call_id).encode()).hexdigest()[:9] if self.has_short_ids else call_id


HERMES = CallStyle(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{OPEN_END}", separator="\n")
GPT_OSS = CallStyle(" to=functions.", "<|channel|>commentary json<|message|>")
_LFM2 = CallStyle(
    between="(",
    separator=", ",
    opening="<|tool_call_start|>[",
    closing="]<|tool_call_end|>",
    kind="python",
    is_rendered=False,
)
_GRANITE = CallStyle(
    '{"name": "', '", "arguments": ', "}", ", ", opening="<|tool_call|>[", closing="]", is_rendered=False
)
# By what their templates have in them: these write no calls, or write them in channels.
BY_HAND = {
    "<|channel|>analysis": GPT_OSS,
    "List of tools: ": _LFM2,
    "respond only with <|tool_call|> followed by a JSON list": _GRANITE,
}


def as_text(messages: _Messages, tools: Sequence[Tool]) -> _Messages:
    """Return messages in which tools, calls and results are written into contents, in the style of Hermes."""
    texts = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            results = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in group]
            texts.append({"role": "user", "content": "\n".join(results)})
            continue
        for message in group:
            texts.append(with_written_calls(message, HERMES))
    return _with_instructions(texts, tools) if tools else texts


def with_written_calls(message: Mapping[str, Any], style: CallStyle) -> dict[str, Any]:
    """Return a message whose calls are part of its content."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    written = style.write([(call["name"], call["arguments"]) for call in calls]) if calls else ""
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join(filter(None, [message["content"], written]))}


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


def with_call_grammar(
    request: Request, style: CallStyle | None, ids: Mapping[str, int] | None = None, text: str = ""
) -> Request:
    """Return a request whose answer is a call if it must be one, or if it has a schema, a call or that.

    Args:
        style: How the model writes calls; None for Hermes's style.
        ids: Ids of tokens in that style which have no text.
        text: What begins an answer that is no call.

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
    grammar = calls_grammar(
        style or HERMES, parameters, is_parallel=is_parallel, answer=answer, ids=ids or {}, text=text
    )
    constraints = replace(constraints, grammar=grammar, json_schema=None)
    return replace(request, params=replace(request.params, constraints=constraints), tool_choice="auto")


def calls_grammar(
    style: CallStyle,
    parameters: Mapping[str, Mapping[str, Any]],
    *,
    is_parallel: bool,
    answer: Any = None,
    ids: Mapping[str, int] | None = None,
    text: str = "",
) -> str:
    """Return a grammar for tool calls, in Lark's syntax.

    Args:
        style: How the model writes calls.
        parameters: JSON schemas of the tools' parameters, by tool name.
        is_parallel: Whether to allow several calls, if the style does.
        answer: JSON schema of an answer that may come in place of a call.
        ids: Ids of tokens in the style which have no text.
        text: What begins such an answer.
    """
    ids = ids or {}
    written = {name: _arguments(style, schema, ids) for name, schema in parameters.items()}
    if None in written.values():  # Hermes's style can say what this one cannot
        return calls_grammar(HERMES, parameters, is_parallel=is_parallel, answer=answer, ids=ids, text=text)
    calls = [
        " ".join(filter(None, (_literal(f"{style.before}{name}{style.between}", ids), arguments)))
        for name, arguments in written.items()
    ]
    start = "call"
    if is_parallel and style.separator is not None:
        start += f" ({_literal(style.separator, ids)} call)*"
    start = " ".join((_literal(style.opening, ids), start, _literal(style.closing, ids)))
    if answer is not None:
        schema = answer if isinstance(answer, str) else json.dumps(answer)
        start += f" | {_literal(text, ids)} %json {schema}"
    end = style.end if style.kind == "tags" else style.quote
    value = f"value: /(?s:.*)/ {_literal(end, ids)}\n" if end else ""
    if not any(token in end for token in ids):  # llguidance reads up to the first one
        value = f"value[suffix={json.dumps(end)}]: /(?s:.*)/\n" if end else ""
    return f"start: {start}\ncall: ({' | '.join(calls)}) {_literal(style.after, ids)}\n{value}"


def _literal(text: str, ids: Mapping[str, int]) -> str:
    """Return a text, perhaps none, in Lark's syntax."""
    return literal(text, ids) if text else ""


def _arguments(style: CallStyle, schema: Mapping[str, Any], ids: Mapping[str, int]) -> str | None:
    """Return a rule for arguments in a style, or None if it cannot keep to the schema."""
    if style.kind == "json":
        return f"%json {json.dumps(schema)}"
    if not schema.keys() <= _PLAIN | {"type", "properties", "required", "additionalProperties", "$defs"}:
        return None
    properties, required = schema.get("properties", {}), schema.get("required", ())
    parameters = {}
    for name, each in properties.items():
        value = _value(style, each, schema.get("$defs"), ids)
        if value is None or not name.isidentifier():
            return None
        parameters[name] = value.replace("@", name)
    if style.kind == "tags":
        return " ".join(f"({rule}){'?' * (name not in required)}" for name, rule in parameters.items())
    comma, bracket = ('", "', '")"') if style.kind == "python" else ('","', '"}"')
    return " ".join(filter(None, (_listed(parameters, required, comma), bracket)))


def _listed(parameters: Mapping[str, str], required: Sequence[str], comma: str) -> str:
    """Return a rule for parameters between commas, those that are required first."""
    first = [rule for name, rule in parameters.items() if name in required]
    others = [rule for name, rule in parameters.items() if name not in required]
    if first:
        return " ".join((f" {comma} ".join(first), *(f"({comma} {rule})?" for rule in others)))
    chains = [
        " ".join((rule, *(f"({comma} {one})?" for one in others[i + 1 :]))) for i, rule in enumerate(others)
    ]
    return f"({' | '.join(chains)})?" if chains else ""


_PLAIN = {"description", "title", "default", "examples", "$schema", "$comment", "strict"}


def _value(style: CallStyle, schema: Any, defs: Any, ids: Mapping[str, int]) -> str | None:
    """Return a rule for a parameter named @, or None."""
    if not isinstance(schema, Mapping):
        return None
    kind, keys = schema.get("type"), schema.keys() - _PLAIN - {"type"}
    whole = json.dumps({**schema, "$defs": defs} if defs else schema)
    if style.kind == "python":
        return f'"@=" %json {whole}' if kind != "object" else None
    equals = style.equals if kind == "string" else style.equals_other
    before, end = f"{style.key}@{equals}", style.end
    if style.kind == "quoted":
        before, end = f"@:{style.quote if kind == 'string' else ''}", style.quote if kind == "string" else ""
    if kind == "string" and not keys:
        body = "value"
    elif kind == "string" and keys == {"enum"} and all(isinstance(each, str) for each in schema["enum"]):
        body = f"({' | '.join(_literal(each, ids) for each in schema['enum'])}) {_literal(end, ids)}"
    elif kind in ("integer", "number", "boolean") or (style.kind == "tags" and kind in ("array", "object")):
        body = f"%json {whole} {_literal(end, ids)}"
    else:
        return None
    return f"{_literal(before, ids)} {body}"
