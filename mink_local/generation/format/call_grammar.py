"""Grammars in which a model can write nothing but calls, or text with calls, in its own style."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mink_local.generation.format.call_styles import HERMES, CallStyle
from mink_local.generation.format.text import literal, up_to
from mink_local.generation.request import Request
from mink_local.llama.constraints import Constraints
from mink_local.llama.guide import check

NO_PARAMETERS = {"type": "object", "properties": {}}


def with_call_grammar(
    request: Request, style: CallStyle | None, ids: Mapping[str, int] | None = None, text: str = ""
) -> Request:
    """Return a request whose answer is a call if it must be one, or if it has a schema, a call or that.

    If a tool is strict, the answer is any text in which a call fits its tool's schema from its mark on.

    Args:
        style: How the model writes calls; None for Hermes's style.
        ids: Ids of tokens in that style which have no text.
        text: What begins an answer that is no call.

    Raises:
        ConstraintError: The schema of a tool's parameters cannot be enforced.
    """
    choice, constraints = request.tool_choice, request.params.constraints or Constraints()
    style, ids = style or HERMES, ids or {}
    answer: Any = constraints.schema if choice == "auto" else None
    is_strict = any(tool["function"].get("strict") for tool in request.tools)
    is_marked = choice == "auto" and constraints.form is None and is_strict and bool(style.mark) and not text
    if not request.tools or (choice == "auto" and answer is None and not is_marked):
        return request
    parameters = _parameters(request, strict_only=is_marked)
    grammar: str | None
    if is_marked:
        grammar = marked_calls_grammar(style, parameters, ids)
    else:
        is_parallel = request.parallel_tool_calls is True and isinstance(choice, str)
        grammar = calls_grammar(style, parameters, is_parallel=is_parallel, answer=answer, ids=ids, text=text)
    if grammar is None:
        return request
    constraints = replace(constraints, grammar=grammar, json_schema=None)
    return replace(request, params=replace(request.params, constraints=constraints), tool_choice="auto")


def _parameters(request: Request, *, strict_only: bool) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the tools that may be called by name, or of the strict ones alone."""
    choice = request.tool_choice
    schemas: dict[str, Mapping[str, Any]] = {}
    for i, tool in enumerate(request.tools):
        function = tool["function"]
        name, schema = function["name"], function.get("parameters") or NO_PARAMETERS
        if strict_only and not function.get("strict"):
            schemas[name] = {"type": "object"}
        elif isinstance(choice, str) or choice["function"]["name"] == name:
            schemas[name] = schema
            check("json_schema", schema, f"tools[{i}].function.parameters")
    return schemas


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
    rules = _call_rules(style, parameters, ids)
    if rules is None:  # Hermes's style can say what this one cannot
        return calls_grammar(HERMES, parameters, is_parallel=is_parallel, answer=answer, ids=ids, text=text)
    start = _calls(style, ids, is_parallel=is_parallel)
    if answer is not None:
        schema = answer if isinstance(answer, str) else json.dumps(answer)
        start += f" | {literal(text, ids)} %json {schema}"
    return f"start: {start}\n{rules}"


def marked_calls_grammar(
    style: CallStyle, parameters: Mapping[str, Mapping[str, Any]], ids: Mapping[str, int]
) -> str | None:
    """Return a grammar for any text with calls in it, which begin with the style's mark, or None.

    Args:
        style: How the model writes calls; it has a mark.
        parameters: JSON schemas of the tools' parameters, by tool name.
        ids: Ids of tokens in the style which have no text.
    """
    mark, is_around = style.mark, bool(style.opening)
    first = style.opening if is_around else style.before
    rest = first[first.index(mark) + len(mark) :]
    style = replace(style, opening=rest) if is_around else replace(style, before=rest)
    rules = _call_rules(style, parameters, ids)
    if rules is None:
        return None
    before, last = up_to(mark, "before", ids), "LAST: /(?s:.*)/"
    if mark not in ids:
        last += f" & ~/(?s:.*{re.escape(mark)}.*)/"
    return f"start: (before {_calls(style, ids, is_parallel=is_around)})* LAST\n{before}{last}\n{rules}"


def _calls(style: CallStyle, ids: Mapping[str, int], *, is_parallel: bool) -> str:
    """Return a rule for a call, or for several if the style has them."""
    calls = "call"
    if is_parallel and style.separator is not None:
        calls += f" ({literal(style.separator, ids)} call)*"
    return " ".join((literal(style.opening, ids), calls, literal(style.closing, ids)))


def _call_rules(
    style: CallStyle, parameters: Mapping[str, Mapping[str, Any]], ids: Mapping[str, int]
) -> str | None:
    """Return the rules for a call, or None if the style cannot keep to a schema."""
    written = {name: _arguments(style, schema, ids) for name, schema in parameters.items()}
    if None in written.values():
        return None
    calls = [
        " ".join(filter(None, (literal(f"{style.before}{name}{style.between}", ids), arguments)))
        for name, arguments in written.items()
    ]
    end = style.end if style.kind == "tags" else style.quote
    value = up_to(end, "value", ids) if end else ""
    return f"call: ({' | '.join(calls)}) {literal(style.after, ids)}\n{value}"


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
        body = f"({' | '.join(literal(each, ids) for each in schema['enum'])}) {literal(end, ids)}"
    elif kind in ("integer", "number", "boolean") or (style.kind == "tags" and kind in ("array", "object")):
        body = f"%json {whole} {literal(end, ids)}"
    else:
        return None
    return f"{literal(before, ids)} {body}"
