"""How models write the arguments of a call, and how these are read.

Arguments are JSON, tagged parameters, parentheses as in Python, or JSON with quotes of its own; or all of a
call is a JSON object. It is read when all of it is there.
"""

import ast
import json
import keyword
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

OPEN = "<tool_call>"
OPEN_END = "</tool_call>"
WRAPPERS = {  # the same for calls of known tools at the start of a line
    "<tools>": "</tools>",
    "```json": "```",
    "```xml": "```",
    "```tool_call": "```",
    "```tool_code": "```",
    "```\n": "```",
    "[": "]",
}
MARKED = "\ufdd0"
"""Among what may follow a call: it stands between marks."""
GEMMA_QUOTES = ('<|"|>', "<escape>")
_LONGEST_QUOTE = max(map(len, GEMMA_QUOTES))
SPACES = re.compile(r"\s*")
FEW_SPACES = re.compile(r"\s{0,64}")


def end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of a match that is always there."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


class Call(NamedTuple):
    """A call: its arguments are a JSON object."""

    name: str
    arguments: str


class Format(NamedTuple):
    """How the arguments of a call are written, or all of the call.

    Attributes:
        end: Returns where they end, or how far that is certain to be; see `End`.
        call: Returns the call that a text is, given the name before it and the schema of its parameters.
            Raises any of `NO_CALL`.
    """

    end: "Callable[[str, End], bool]"
    call: Callable[[str, str, Any], Call]


@dataclass
class End:
    """How far the end of arguments has been looked for, so that no text is read twice.

    Attributes:
        at: The place in the text; the end, once that is found.
        quote: What ends the string or the value there, if there is one.
        depth: The number of open brackets.
        is_broken: Whether there is no end.
    """

    at: int
    quote: str = ""
    depth: int = 0
    is_broken: bool = False


def _bracket_after(*quotes: str) -> Callable[[str, End], bool]:
    """Return what finds the bracket that closes the first one; strings are in quotes of some kinds."""
    starts = "".join(re.escape(quote[0]) for quote in quotes)
    outside = re.compile(rf"[^()\[\]{{}}{starts}]*+")
    escaped = {quote: re.compile(rf"(?:[^\\{quote}]++|\\.)*+", re.DOTALL) for quote in ("'", '"')}
    inside = {quote: escaped.get(quote) or re.compile(f"[^{quote[0]}]*+") for quote in quotes}

    def end(text: str, found: End) -> bool:
        while True:
            found.at = end_of(inside[found.quote] if found.quote else outside, text, found.at)
            rest = text[found.at : found.at + _LONGEST_QUOTE]
            wanted = (found.quote,) if found.quote else quotes
            quote = next((each for each in wanted if rest.startswith(each)), "")
            if rest in ("", "\\") or (not quote and any(each.startswith(rest) for each in wanted)):
                return False
            found.at += len(quote) or 1
            if quote:
                found.quote = "" if found.quote else quote
            elif not found.quote and rest[0] in "([{":
                found.depth += 1
            elif not found.quote and rest[0] in ")]}":
                found.depth -= 1
                if found.depth <= 0:
                    return True

    return end


NO_CALL = (SyntaxError, ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError)


def as_json(value: Any) -> str:
    """Return a value as JSON. Raises ValueError or TypeError if there is none, or it cannot be sent."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    written.encode()  # a lone surrogate cannot
    return written


_UNSTRICT = re.compile(
    r'"(?:[^"\\]++|\\.)*+"|\'(?P<quoted>(?:[^\'\\]++|\\.)*+)\'|,(?P<gap>\s*)(?=[}\]])', re.DOTALL
)


def _mended(found: re.Match[str]) -> str:
    """Return what JSON has for a trailing comma, or a string in single quotes."""
    if found["quoted"] is None:
        return found["gap"] or found[0] * (found["gap"] is None)
    return '"' + re.sub(r"""\\'|\\.|\"""", lambda each: _QUOTES.get(each[0], each[0]), found["quoted"]) + '"'


_QUOTES = {"\\'": "'", '"': '\\"'}


def _json_object(text: str) -> dict[str, Any]:
    """Return a JSON object, of which a comma or quotes may be wrong. Raises ValueError."""
    try:
        value = json.loads(text, strict=False)  # models write line breaks into strings
    except json.JSONDecodeError:
        value = json.loads(_UNSTRICT.sub(_mended, text), strict=False)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


_AROUND = {"name", "tool_name", "arguments", "parameters", "type", "id", "index", "tool_call_id"}


def _of_object(_: str, text: str, schema: Any) -> Call:  # noqa: ARG001
    value = _json_object(text)
    if isinstance(value.get("function"), dict):  # OpenAI's own form
        value = value["function"]
    name = value["name"] if "name" in value else value["tool_name"]
    name.encode()
    arguments = value.get("arguments", value.get("parameters"))
    if not arguments and not value.keys() <= _AROUND:  # its arguments have another name
        raise ValueError("no arguments")
    found = dict(arguments or {}) if not isinstance(arguments, str) else _json_object(arguments or "{}")
    return Call(name, as_json(found))


def _python_arguments(text: str) -> dict[str, Any]:
    """Return arguments in parentheses. Raises SyntaxError or ValueError."""
    call = _python(f"_{text}")
    if not isinstance(call, ast.Call) or call.args or not all(each.arg for each in call.keywords):
        raise ValueError("arguments need names")
    return {str(each.arg).removeprefix(_MARK): ast.literal_eval(each.value) for each in call.keywords}


def _gemma_arguments(text: str) -> dict[str, Any]:
    """Return arguments that are JSON but for strings in quotes of Gemma's own, and names without any."""
    return _json_object(_GEMMA_WORD.sub(_of_gemma_in_json, text))


def tags(key: str, between: str, end: str, closing: str, pad: str = "", text: str = "") -> Format:
    """Return the format of arguments in tags.

    Args:
        key: The text before a name.
        between: A pattern for what stands between name and value.
        end: The text after a value.
        closing: The text after all of them.
        pad: A line break that belongs to the tags, if there is one next to them.
        text: What stands between name and value if that is a string; without it, the schema tells.
    """
    begin = re.compile(rf"\s*{re.escape(key)}([^<>\"]{{1,128}}?)({between}){pad}")

    def value_ends(text: str, at: int) -> bool | None:
        """Return whether a value ends before what stands here, or None if more text must show it."""
        at = end_of(FEW_SPACES, text, at)
        rest = text[at : at + max(len(key), len(closing))]
        if rest.startswith((key, closing)):
            return True
        return None if any(each.startswith(rest) for each in (key, closing)) else False

    def is_over(text: str, found: End) -> bool:
        while True:
            if not found.quote:
                start = begin.match(text, found.at)
                at = end_of(SPACES, text, found.at)
                if start is None:
                    is_closed = text.startswith(closing, at)
                    found.at = at + len(closing) * is_closed
                    begun = any(each.startswith(text[at : at + len(each)]) for each in (key, closing))
                    found.is_broken = not begun or len(text) - at > _LONGEST_TAG
                    return is_closed
                found.quote, found.at = end, start.end()
            at = text.find(end, found.at)
            ends = None if at < 0 else value_ends(text, at + len(end))
            if ends is None:
                found.at = at if at >= 0 else max(found.at, len(text) - len(end) + 1)
                return False
            found.at, found.quote = at + len(end), "" if ends else end

    def call(name: str, written: str, schema: Any) -> Call:
        given = schema.get("properties") if isinstance(schema, Mapping) else None
        kinds, values, found = given if isinstance(given, Mapping) else {}, {}, End(0)
        while start := begin.match(written, found.at):
            stop = written.index(end, start.end())
            while not value_ends(written, stop + len(end)):
                stop = written.index(end, stop + 1)
            value, found.at = written[start.end() : stop], stop + len(end)
            value = value.removesuffix("\n") if pad else value
            if value.startswith(_CDATA[0]) and value.endswith(_CDATA[1]):
                values[start[1].strip()] = value[len(_CDATA[0]) : -len(_CDATA[1])]
                continue
            given_type = {"type": "string" if "".join(start[2].split()) == text else "other"}
            values[start[1].strip()] = typed(value, given_type if text else kinds.get(start[1].strip()))
        return Call(name, as_json(values))

    return Format(is_over, call)


_LONGEST_TAG = 300
_CDATA = "<![CDATA[", "]]>"
_BRACKET = _bracket_after('"', "'")
OBJECT = Format(_BRACKET, _of_object)
JSON = Format(_BRACKET, lambda name, text, _: Call(name, as_json(_json_object(text))))
PYTHON = Format(_BRACKET, lambda name, text, _: Call(name, as_json(_python_arguments(text))))
GEMMA = Format(
    _bracket_after(*GEMMA_QUOTES), lambda name, text, _: Call(name, as_json(_gemma_arguments(text)))
)

NAME = r"(?P<name>[^\s\"'\\<>(){}\[\],;:=`]{1,128})"
FEW = FEW_SPACES.pattern


PYTHON_HEAD = re.compile(rf"{NAME}{FEW}(?=\()")


class _JsonConstants(ast.NodeTransformer):
    """Replaces JSON's constants, which models write into Python, by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        constants = {"true": True, "false": False, "null": None}
        return ast.Constant(constants[node.id]) if node.id in constants else node


_ESCAPE = re.compile(r"""(\\[\\'"abfnrtv\n0-7xuUN])|\\""")
_KEYWORD = re.compile(rf"([(,]\s*)({'|'.join(keyword.kwlist)})(?=\s*=)")
_MARK = "ǃ"  # a letter that nobody writes


def _python(text: str) -> ast.expr:
    """Return an expression's tree. Raises SyntaxError or the like if it is none."""
    text = _ESCAPE.sub(lambda found: found[1] or r"\\", text.strip())
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:  # models write line breaks into strings, and arguments named `from`
        tree = ast.parse(_KEYWORD.sub(rf"\1{_MARK}\2", text.replace("\n", r"\n")), mode="eval")
    expression: ast.expr = _JsonConstants().visit(tree).body
    return expression


_GEMMA_WORD = re.compile(
    rf"(?P<quote>{'|'.join(map(re.escape, GEMMA_QUOTES))})(?P<text>.*?)(?P=quote)|"
    r"(?P<name>[^\W\d][\w.-]*)(?P<is>\s*:)?",
    re.DOTALL,
)


def _of_gemma_in_json(word: re.Match[str]) -> str:
    """Return a string, a constant or the name of an argument of Gemma as it is in JSON."""
    if word["is"]:
        return f'"{word["name"]}":'
    if word["name"]:
        return {"True": "true", "False": "false", "None": "null"}.get(word["name"], word["name"])
    return as_json(word["text"])


def typed(text: str, schema: Any) -> Any:
    """Return the value of a parameter: what it is in JSON or Python, unless its schema has only strings."""
    kinds = _kinds(schema)
    if kinds != {"string"}:
        for read in (json.loads, lambda text: ast.literal_eval(_python(text))):
            with suppress(*NO_CALL):
                value = read(text)
                as_json(value)
                if "string" not in kinds or _KINDS.get(type(value), "") in kinds:
                    return value
    return text


_KINDS = {dict: "object", list: "array", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _kinds(schema: Any) -> set[str]:
    """Return the types that a schema names."""
    if not isinstance(schema, Mapping):
        return set()
    kinds, options = schema.get("type"), [schema.get("anyOf"), schema.get("oneOf")]
    found = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
    return found.union(*(_kinds(each) for option in options if isinstance(option, list) for each in option))
