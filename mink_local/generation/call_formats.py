"""How models write tool calls, as their chat templates teach them, and how a call is read.

They write them between marks of their own (`CALL_MARKS`), in a wrapper such as a fence, or alone at the start
of a line. A call is a JSON object, or a name followed by a JSON object, by tagged parameters, or by
parentheses as in Python. Each has a reader, which reads the call at its end.
"""

import ast
import json
import keyword
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

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

_MOST_COMMAS = 50  # at which arguments that are cut off may be complete
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


# A line break belongs in no string of JSON: before a mark it shows that one has no end.
_STOP = re.compile(rf"\n\s*(?:{'|'.join(map(re.escape, sorted(CALL_ENDS)))})")
_NO_CALL = (ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError)


class CallReader:
    """Reads one call in a text that grows; its arguments are a JSON object, unless a subclass says otherwise.

    Args:
        at: Where the call begins, or its arguments if the name comes before them.
        name: The name, if it comes before the arguments.
        schema: JSON schema of the tool's parameters.

    Attributes:
        at: How far it has read.
        name: The tool's, as soon as this is certain to be a call; "" until then.
    """

    closing = "}"  # what a call ends with, but need not end at
    is_certain = True  # if the name is known

    def __init__(self, at: int, name: str = "", schema: Any = None) -> None:
        self.at = self._start = at
        self.name = name if self.is_certain else ""
        self._name, self._schema = name, schema
        self._whole: Call | None = None
        self._is_broken = False

    def read(self, text: str, is_final: bool) -> bool:
        """Read on; return whether this ends at `at`: a call, or what cannot become one."""
        while not (self._whole or self._is_broken) and (end := text.find(self.closing, self.at)) >= 0:
            self.at = end + len(self.closing)
            try:
                self._whole = self.whole(text[self._start : self.at])
            except SyntaxError:
                continue
            except _NO_CALL:
                self._is_broken = True
        if self._whole or (self._is_broken and not self.name):
            return True
        stop = _STOP.search(text, self._start) if self.name and (self._is_broken or is_final) else None
        self.at = stop.start() if stop else len(text) if is_final else self.at
        return stop is not None

    def call(self, text: str) -> Call | None:
        """Return the call, or what there is of it at the end of a text; None if it is none."""
        with suppress(SyntaxError, *_NO_CALL):
            return self._whole or self.cut(text[self._start : self.at])
        return None

    def whole(self, text: str) -> Call:
        """Return the call that a text is. Raises SyntaxError if more text may make it one, or ValueError."""
        return Call(self.name, as_json(_json_object(text)))

    def cut(self, text: str) -> Call | None:
        """Return what there is of a call that is not whole."""
        return Call(self.name, text, is_whole=False)


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


class ObjectReader(CallReader):
    """Reads a call that is a JSON object; it is certain to be one when its arguments begin after its name."""

    def read(self, text: str, is_final: bool) -> bool:
        head = OBJECT_HEAD.match(text, self._start)
        if head and not self.name:
            self._name, self._head = head["name"], head.end() - self._start
            self.name = head["name"] if head["arguments"] else ""
        return super().read(text, is_final)

    def whole(self, text: str) -> Call:
        value = _json_object(text)
        name = value["name"] if "name" in value else value["tool_name"]
        arguments = value["arguments"] if "arguments" in value else value["parameters"]
        if isinstance(arguments, str):
            arguments = _json_object(arguments)
        name.encode()
        arguments.keys()
        return Call(self.name or name, as_json(arguments))

    def cut(self, text: str) -> Call | None:
        if not self.name:
            return Call(self._name, "", is_whole=False) if self._name and not self._is_broken else None
        with suppress(ValueError, RecursionError):  # models leave out the last bracket
            arguments, _ = json.JSONDecoder(strict=False).raw_decode(text, self._head - 1)
            return Call(self.name, as_json(arguments))
        return Call(self.name, text[self._head - 1 :], is_whole=False)


class PythonReader(CallReader):
    """Reads arguments in parentheses, as in Python; whether this is a call is known at the last one."""

    closing = ")"
    is_certain = False

    def whole(self, text: str) -> Call:
        return Call(self._name, as_json(self.arguments(text)))

    def cut(self, text: str) -> Call | None:
        """Return the call without what may be incomplete."""
        commas = [match.start() for match in re.finditer(",", text)][-_MOST_COMMAS:]
        for end in (*reversed(commas), 1):
            with suppress(SyntaxError, *_NO_CALL):
                arguments = as_json(self.arguments(text[:end] + self.closing))
                return None if self._is_broken else Call(self._name, arguments[:-1], is_whole=False)
        return None

    def arguments(self, text: str) -> Any:
        """Return arguments. Raises SyntaxError if more text may complete them, or ValueError or the like."""
        call = _python(f"_{text}")
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("arguments need names")
        return {_own_name(each.arg): ast.literal_eval(each.value) for each in call.keywords}


class GemmaReader(PythonReader):
    """Reads arguments in Gemma's notation: JSON with strings in quotes of its own, and names without any."""

    closing = "}"

    def arguments(self, text: str) -> Any:
        try:
            return json.loads(_GEMMA_WORD.sub(_of_gemma_in_json, text), strict=False)
        except ValueError:
            raise SyntaxError from None


class _TagReader(CallReader):
    """Reads arguments in tags.

    Attributes:
        begin: How a parameter begins, with its name.
        end: How it ends.
    """

    begin: ClassVar[re.Pattern[str]]
    end: ClassVar[re.Pattern[str]]

    def whole(self, text: str) -> Call:
        arguments, rest = self._arguments(text)
        if rest.strip() != self.closing:
            raise SyntaxError
        return Call(self.name, as_json(arguments))

    def cut(self, text: str) -> Call:
        return Call(self.name, as_json(self._arguments(text)[0])[:-1], is_whole=False)

    def _arguments(self, text: str) -> tuple[dict[str, Any], str]:
        """Return the complete arguments, and what follows them."""
        schema = self._schema.get("properties") if isinstance(self._schema, Mapping) else None
        kinds = schema if isinstance(schema, Mapping) else {}
        values, at = {}, 0
        while (begin := self.begin.match(text, at)) and (end := self.end.search(text, begin.end())):
            key, at = begin[1].strip(), end.end()
            values[key] = typed(text[begin.end() : end.start()], kinds.get(key))
        return values, text[at:]


class ParameterReader(_TagReader):
    """Reads arguments as Qwen3-Coder writes them."""

    closing = "</function>"
    begin = re.compile(r"\s*<parameter=([^<>]{1,128})>\n?")
    end = re.compile(r"\n?</parameter>(?=\s{0,64}(?:<parameter=|</function>|\Z))")


class ArgKeyReader(_TagReader):
    """Reads arguments as GLM writes them."""

    closing = "</tool_call>"
    begin = re.compile(r"\s*<arg_key>([^<>]{1,128})</arg_key>\s*<arg_value>")
    end = re.compile(r"</arg_value>(?=\s{0,64}(?:<arg_key>|</tool_call>|\Z))")


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
        reader: What reads them.
        is_known: Whether the name must be a tool's.
        closing: What may follow the arguments.
    """

    pattern: re.Pattern[str]
    reader: type[CallReader]
    is_known: bool = False
    closing: str | None = None


def _head(form: str, *rest: Any) -> Head:
    """Return a head: in `form`, `~` is spaces, and `@` the name."""
    return Head(re.compile(form.replace("~", _FEW).replace("@", _NAME)), *rest)


PYTHON_HEAD = _head(r"@~(?=\()", PythonReader, True)
HEADS = (
    _head(r"functions\.@:\w{1,64}~<\|tool_call_argument_begin\|>~(?=\{)", CallReader),
    _head(r"function<｜tool▁sep｜>@~```json~(?=\{)", CallReader, False, "```"),
    _head(r"@<｜tool▁sep｜>~(?=\{)", CallReader),
    _head(r"@~(?:\[CALL_ID\]~\w{1,64}~)?\[ARGS\]~(?=\{)", CallReader),
    _head(r"@>~(?=\{)", CallReader),
    _head(r"@>~(?=<parameter=|</function>)", ParameterReader),
    _head(r"@~(?=<arg_key>)", ArgKeyReader),
    _head(r"call:@(?=\{)", GemmaReader),
    _head(r"@~(?=\{)", CallReader, True),
    _head(r"@~(?=</tool_call>)", ArgKeyReader, True),
    PYTHON_HEAD,
)
BEGUN_HEAD = re.compile(
    rf"(?:(?:call:|functions\.|function<｜tool▁sep｜>)?(?:(?!function<){_NAME}(?P<rest>(?::\w{{0,64}})?{_FEW}"
    r"(?:[<>`\[].{0,100})?))?|function<｜?[tool▁sep]{0,8}｜?)\Z",
    re.DOTALL,
)
"""The beginning of a head; the name is complete if something follows it."""


def as_json(value: Any) -> str:
    """Return a value as JSON. Raises ValueError or TypeError if there is none, or it cannot be sent."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    written.encode()  # a lone surrogate cannot
    return written


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


def _own_name(name: str | None) -> str:
    """Return the name of an argument. Raises ValueError for `**`."""
    if name is None:
        raise ValueError("arguments need names")
    return name.removeprefix(_MARK)


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
            with suppress(SyntaxError, *_NO_CALL):
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
