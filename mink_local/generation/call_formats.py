"""How models write tool calls, as their chat templates teach them, and how a call is read.

They write them between marks of their own (`CALL_MARKS`), in a wrapper such as a fence, or alone at the start
of a line. A call is a JSON object, or a name followed by a JSON object, by tagged parameters, or by
parentheses as in Python (`HEADS`, `Format`); it is read when all of it is there.
"""

import ast
import json
import keyword
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

OPEN = "<tool_call>"
CALL_MARKS = {  # what precedes calls, and what may follow them
    OPEN: "</tool_call>",  # Hermes, Qwen, GLM
    "<function=": "</function>",  # Qwen3-Coder, inside the former or alone
    "[TOOL_CALLS]": "[/TOOL_CALLS]",  # Mistral
    "<|python_tag|>": "<|eom_id|>",  # LLaMA-3
    "<|tool_call|>": "<|/tool_call|>",  # Phi-4, Granite
    "<|tool_call_start|>": "<|tool_call_end|>",  # LFM2
    "<TOOLCALL>": "</TOOLCALL>",  # Nemotron
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",  # DeepSeek
    "<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>",
    "<|tool_calls_section_begin|>": "<|tool_calls_section_end|>",  # Kimi K2
    "<|tool_call_begin|>": "<|tool_call_end|>",
    "<|START_ACTION|>": "<|END_ACTION|>",  # Command R7B, Command A
    "<|tool_call>": "<tool_call|>",  # Gemma 4
    "<start_function_call>": "<end_function_call>",  # FunctionGemma
}
WRAPPERS = {  # the same for calls of known tools at the start of a line
    "<tools>": "</tools>",
    "```json": "```",
    "```xml": "```",
    "```tool_call": "```",
    "```tool_code": "```",
    "```\n": "```",
    "[": "]",
}
CALL_ENDS = frozenset(CALL_MARKS.values())
GEMMA_QUOTES = ('<|"|>', "<escape>")
CALL_TEXTS = (
    *CALL_MARKS, *sorted(CALL_ENDS), "[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "<|tool_call_argument_begin|>",
    *GEMMA_QUOTES,
)  # fmt: skip
"""Texts around and in calls that are control tokens in some vocabularies."""

SPACES = re.compile(r"\s*")
FEW_SPACES = re.compile(r"\s{0,64}")


def marks_of(chat_template: str) -> frozenset[str]:
    """Return the marks that a chat template has before calls, and Hermes's, which many models know."""
    return frozenset(mark for mark in CALL_MARKS if mark in chat_template) | {OPEN}


def end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of a match that is always there."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


class Call(NamedTuple):
    """A call: its arguments are a JSON object, or what there is of it if the call is not whole."""

    name: str
    arguments: str
    is_whole: bool = True


class Format(NamedTuple):
    """How the arguments of a call are written, or all of the call.

    Attributes:
        closing: What they end with, though it may also occur in them.
        whole: Returns the call that a text is, given the name before it and the schema of its parameters.
            Raises SyntaxError if more text may make it one, or any of `NO_CALL`.
        cut: Returns what there is of a call that is cut off.
        is_certain: Whether a call is certain when they begin.
    """

    closing: str
    whole: Callable[[str, str, Any], Call]
    cut: Callable[[str, str, Any], Call | None]
    is_certain: bool = True


# A line break belongs in no string of JSON: before a mark it shows that one has no end.
STOP = re.compile(rf"\n\s*(?:{'|'.join(map(re.escape, sorted(CALL_ENDS)))})")
NO_CALL = (ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError)


def as_json(value: Any) -> str:
    """Return a value as JSON. Raises ValueError or TypeError if there is none, or it cannot be sent."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    written.encode()  # a lone surrogate cannot
    return written


def _json_object(text: str) -> dict[str, Any]:
    """Return a JSON object. Raises SyntaxError if it has no end, or ValueError."""
    try:
        value = json.loads(text, strict=False)  # models write line breaks into strings
    except json.JSONDecodeError as error:
        if error.pos >= len(text) or error.msg.startswith("Unterminated string"):
            raise SyntaxError from None
        raise
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _of_object(_: str, text: str, schema: Any) -> Call:  # noqa: ARG001
    value = _json_object(text)
    name = value["name"] if "name" in value else value["tool_name"]
    arguments = value["arguments"] if "arguments" in value else value["parameters"]
    name.encode()
    return Call(name, as_json(dict(_json_object(arguments) if isinstance(arguments, str) else arguments)))


def _of_cut_object(_: str, text: str, schema: Any) -> Call | None:  # noqa: ARG001
    head = OBJECT_HEAD.match(text)
    if head is None or not head["arguments"]:
        return head and Call(head["name"], "", is_whole=False)
    with suppress(*NO_CALL):  # models leave out the last bracket
        arguments, _end = json.JSONDecoder(strict=False).raw_decode(text, head.start("arguments"))
        return Call(head["name"], as_json(arguments))
    return Call(head["name"], text[head.start("arguments") :], is_whole=False)


def _python_arguments(text: str) -> dict[str, Any]:
    """Return arguments in parentheses. Raises SyntaxError if they have no end, or ValueError."""
    call = _python(f"_{text}")
    if not isinstance(call, ast.Call) or call.args or not all(each.arg for each in call.keywords):
        raise ValueError("arguments need names")
    return {str(each.arg).removeprefix(_MARK): ast.literal_eval(each.value) for each in call.keywords}


def _gemma_arguments(text: str) -> dict[str, Any]:
    """Return arguments that are JSON but for strings in quotes of Gemma's own, and names without any."""
    try:
        return _json_object(_GEMMA_WORD.sub(_of_gemma_in_json, text))
    except ValueError:
        raise SyntaxError from None


def _notation(closing: str, arguments: Callable[[str], dict[str, Any]]) -> Format:
    """Return the format of arguments that show only at their end that this is a call."""

    return Format(
        closing,
        lambda name, text, _: Call(name, as_json(arguments(text))),
        lambda name, *_: Call(name, "", is_whole=False),  # part of it cannot be said in JSON
        is_certain=False,
    )


def _tags(closing: str, begin: re.Pattern[str], end: re.Pattern[str]) -> Format:
    """Return the format of arguments in tags, given how each begins, with its name, and ends."""

    def read(text: str, schema: Any) -> tuple[str, str]:
        """Return the complete arguments, and what follows them."""
        found = schema.get("properties") if isinstance(schema, Mapping) else None
        kinds, values, at = found if isinstance(found, Mapping) else {}, {}, 0
        while (start := begin.match(text, at)) and (stop := end.search(text, start.end())):
            key, at = start[1].strip(), stop.end()
            values[key] = typed(text[start.end() : stop.start()], kinds.get(key))
        return as_json(values), text[at:].strip()

    def whole(name: str, text: str, schema: Any) -> Call:
        arguments, rest = read(text, schema)
        if rest != closing:
            raise SyntaxError
        return Call(name, arguments)

    return Format(closing, whole, lambda *given: Call(given[0], read(*given[1:])[0][:-1], is_whole=False))


OBJECT = Format("}", _of_object, _of_cut_object, is_certain=False)
JSON = Format(
    "}",
    lambda name, text, _: Call(name, as_json(_json_object(text))),
    lambda name, text, _: Call(name, text, is_whole=False),
)
PYTHON = _notation(")", _python_arguments)
_GEMMA = _notation("}", _gemma_arguments)
_PARAMETERS = _tags(
    "</function>",
    re.compile(r"\s*<parameter=([^<>]{1,128})>\n?"),
    re.compile(r"\n?</parameter>(?=\s{0,64}(?:<parameter=|</function>|\Z))"),
)
_ARG_KEYS = _tags(
    "</tool_call>",
    re.compile(r"\s*<arg_key>([^<>]{1,128})</arg_key>\s*<arg_value>"),
    re.compile(r"</arg_value>(?=\s{0,64}(?:<arg_key>|</tool_call>|\Z))"),
)

_NAME = r"(?P<name>[^\s\"'\\<>(){}\[\],;:=`]{1,128})"
_FEW = FEW_SPACES.pattern
OBJECT_HEAD = re.compile(
    r'\{~(?:"(?:type|id|tool_call_id)"~:~"\w{1,64}"~,~)?"(?:tool_)?name"~:~"@"'
    r'(?:~,~"(?:arguments|parameters)"~:~(?P<arguments>\{))?'.replace("~", _FEW).replace("@", _NAME)
)


class Head(NamedTuple):
    """How a call between marks begins before its arguments.

    Attributes:
        pattern: All that precedes the arguments.
        format: How they are written.
        is_known: Whether the name must be a tool's.
        closing: What may follow the arguments.
    """

    pattern: re.Pattern[str]
    format: Format
    is_known: bool = False
    closing: frozenset[str] = frozenset()


def _head(form: str, *rest: Any) -> Head:
    """Return a head: in `form`, `~` is spaces, and `@` the name."""
    return Head(re.compile(form.replace("~", _FEW).replace("@", _NAME)), *rest)


PYTHON_HEAD = _head(r"@~(?=\()", PYTHON, True)
HEADS = (
    _head(r"functions\.@:\w{1,64}~<\|tool_call_argument_begin\|>~(?=\{)", JSON),
    _head(r"function<｜tool▁sep｜>@~```json~(?=\{)", JSON, False, frozenset({"```"})),
    _head(r"@<｜tool▁sep｜>~(?=\{)", JSON),
    _head(r"@~(?:\[CALL_ID\]~\w{1,64}~)?\[ARGS\]~(?=\{)", JSON),
    _head(r"@>~(?=\{)", JSON),
    _head(r"@>~(?=<parameter=|</function>)", _PARAMETERS),
    _head(r"@~(?=<arg_key>)", _ARG_KEYS),
    _head(r"call:@(?=\{)", _GEMMA),
    _head(r"@~(?=\{)", JSON, True),
    _head(r"@~(?=</tool_call>)", _ARG_KEYS, True),
    PYTHON_HEAD,
)
ARGUMENTS = re.compile(r"[({]|<parameter=|<arg_key>|</\w+>")
"""What a head ends before."""


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
    """Return the value of a parameter: a string if its schema says so, else what it is in JSON or Python."""
    kinds = _kinds(schema)
    if "string" not in kinds or (text in ("null", "None") and "null" in kinds):
        for read in (json.loads, lambda text: ast.literal_eval(_python(text))):
            with suppress(SyntaxError, *NO_CALL):
                value = read(text)
                as_json(value)
                return value
    return text


def _kinds(schema: Any) -> set[str]:
    """Return the types that a schema names."""
    if not isinstance(schema, Mapping):
        return set()
    kinds, options = schema.get("type"), [schema.get("anyOf"), schema.get("oneOf")]
    found = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
    return found.union(*(_kinds(each) for option in options if isinstance(option, list) for each in option))
