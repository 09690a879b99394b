"""Grammars in which a model can write nothing but calls, in its own style."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mink_local.generation.format.call_styles import HERMES, CallStyle
from mink_local.generation.format.text import literal
from mink_local.generation.request import Request
from mink_local.llama.constraints import Constraints
from mink_local.llama.guide import check

NO_PARAMETERS = {"type": "object", "properties": {}}


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
