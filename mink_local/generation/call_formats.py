"""How models write tool calls, as their chat templates teach them, and how a call is read.

They write them between marks of their own (`CALL_MARKS`), in a wrapper such as a fence, or alone at the start
of a line. A call is a JSON object, or a name followed by a JSON object, by tagged parameters, or by
parentheses as in Python. Each has a reader, which waits for the end of the call and then reads all of it.
"""

import ast
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from mink_local.generation.text import started_length

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

MOST_DEPTH = 50  # nested brackets in what may be no call
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


class CallReader(ABC):
    """Reads one call in a text that grows; no character is looked at twice.

    Args:
        at: Where the call begins, or its arguments if the name comes before them.
        name: The name, if it comes before the arguments.
        schema: JSON schema of the tool's parameters.

    Attributes:
        at: How far it has read.
        name: The tool's, as soon as this is certain to be a call; "" until then.
    """

    is_certain = True  # if the name is known

    def __init__(self, at: int, name: str = "", schema: Any = None) -> None:
        self.at = self._start = at
        self._name, self._schema = name, schema
        self._is_complete = False
        self.name = name if self.is_certain else ""

    @abstractmethod
    def read(self, text: str, is_final: bool) -> bool:
        """Read on; return whether the call ends at `at`, complete or not."""

    @abstractmethod
    def call(self, text: str) -> Call | None:
        """Return the call as far as it has been read, or None if it is none."""


def value_tokens(quotes: str, illegal: str, stop: str = "(?!)", escape: str = r"\\.") -> re.Pattern[str]:
    """Return a pattern for what matters in a value: quotes, what is illegal outside strings or at all."""
    return re.compile(
        rf"(?P<stop>{stop})|(?P<quote>{quotes})|(?P<illegal>{illegal})|(?P<escape>{escape})|(?P<open>[(\[{{])|"
        r"(?P<close>[)\]}])|(?P<comma>,)",
        re.DOTALL,
    )


# A line break belongs in no string of JSON, and before a mark it shows that one has no end.
_BREAKS = ["\n" + end for end in CALL_ENDS]
_STOP = "|".join(map(re.escape, _BREAKS))
_JSON = value_tokens('"', r"[^\s{}\[\],:0-9a-zNIE.+\-\"\\]", _STOP)
_LENIENT = value_tokens('"', "[<`]", _STOP)
_PYTHON = value_tokens("[\"']", "[<`]")
_GEMMA_BEGUN = "|".join(re.escape(quote[1:n]) for quote in GEMMA_QUOTES for n in range(1, len(quote)))
_GEMMA = value_tokens("|".join(map(re.escape, GEMMA_QUOTES)), rf"<(?!(?:{_GEMMA_BEGUN})\Z)|`", escape="(?!)")
_LONG_TOKENS = ("\\.", *GEMMA_QUOTES, *_BREAKS)


class _BracketReader(CallReader):
    """Reads what ends with the bracket that closes its first one."""

    tokens: re.Pattern[str]

    def __init__(self, at: int, name: str = "", schema: Any = None) -> None:
        super().__init__(at, name, schema)
        self._commas: list[int] = []  # places of those between its elements
        self._is_broken = False
        self._depth, self._quote = 0, ""

    def read(self, text: str, is_final: bool) -> bool:
        end = len(text) - (0 if is_final else started_length(text[self.at :], _LONG_TOKENS))
        for token in self.tokens.finditer(text, self.at, end):
            self._take(token, str(token.lastgroup))
            if self._is_broken or self._is_complete:
                self.at = token.start() if self._is_broken else token.end()
                return True
        self.at = end
        return False

    def _take(self, token: re.Match[str], kind: str) -> None:
        if self._quote and kind != "stop":
            if token[0] == self._quote:
                self._quote = ""
        elif kind == "quote":
            self._quote = token[0]
        elif kind == "open":
            self._depth += 1
            self._is_broken = self._depth > MOST_DEPTH and not self.name
        elif kind == "close":
            self._depth -= 1
            self._is_complete = self._depth == 0
        elif kind == "comma":
            self._commas += [token.start()] * (self._depth == 1)
        else:
            self._is_broken = True


class ObjectReader(_BracketReader):
    """Reads a call that is a JSON object; it is certain to be one when its arguments begin after its name."""

    tokens = _JSON

    def read(self, text: str, is_final: bool) -> bool:
        head = OBJECT_HEAD.match(text, self._start)
        if head and not self.name:
            self._name = head["name"]
            if head["arguments"]:
                self.name, self.tokens, self._arguments = head["name"], _LENIENT, head.start("arguments")
        return super().read(text, is_final)

    def call(self, text: str) -> Call | None:
        if self.name:
            with suppress(ValueError, RecursionError):  # models leave out the last bracket
                arguments, _ = json.JSONDecoder(strict=False).raw_decode(text[: self.at], self._arguments)
                return Call(self.name, as_json(arguments))
            return Call(self.name, text[self._arguments : self.at - self._is_complete], is_whole=False)
        if call := _of_object(text[self._start : self.at]):
            return call
        is_cut = self._name and not (self._is_complete or self._is_broken)
        return Call(self._name, "", is_whole=False) if is_cut else None


class JsonReader(_BracketReader):
    """Reads arguments that are a JSON object."""

    tokens = _LENIENT

    def call(self, text: str) -> Call:
        written = text[self._start : self.at]
        with suppress(ValueError, RecursionError):
            return Call(self.name, as_json(json.loads(written, strict=False)))
        return Call(self.name, written, is_whole=False)


class PythonReader(_BracketReader):
    """Reads arguments in parentheses, as in Python; whether this is a call is known at the last one."""

    tokens, is_certain = _PYTHON, False

    def call(self, text: str) -> Call | None:
        if self._is_broken:
            return None
        bounds = [self._start, *self._commas]
        if self._is_complete:  # else the last argument may be incomplete
            bounds.append(self.at - 1)
        parts = [text[begin + 1 : end] for begin, end in pairwise(bounds)]
        if parts and not parts[-1].strip():
            del parts[-1]
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            arguments = as_json(self.arguments(parts))
            return Call(self._name, arguments[: None if self._is_complete else -1], self._is_complete)
        return None

    def arguments(self, parts: Sequence[str]) -> Any:
        """Return the arguments, given the text of each. Raises ValueError or the like for a malformed one."""
        pairs = [part.split("=", 1) for part in parts]
        return {_identifier(name): python_literal(value) for name, value in pairs}


class GemmaReader(PythonReader):
    """Reads arguments in Gemma's notation: JSON with strings in quotes of its own, and names without any."""

    tokens = _GEMMA

    def arguments(self, parts: Sequence[str]) -> Any:
        return json.loads(f"{{{_GEMMA_WORD.sub(_of_gemma_in_json, ','.join(parts))}}}", strict=False)


class _TagReader(CallReader):
    """Reads arguments in tags.

    Attributes:
        start: How a parameter begins, with its name.
        end: How it ends.
        closing: How arguments end.
        empty: Arguments that are none.
    """

    start: ClassVar[re.Pattern[str]]
    end: ClassVar[re.Pattern[str]]
    closing: ClassVar[re.Pattern[str]]
    empty: ClassVar[re.Pattern[str]]

    def read(self, text: str, is_final: bool) -> bool:  # noqa: ARG002
        found = self.empty.match(text, self._start) or self.closing.search(
            text, max(self._start, self.at - _LONGEST_END)
        )
        self._is_complete, self.at = found is not None, found.end() if found else len(text)
        return self._is_complete

    def call(self, text: str) -> Call:
        schema = self._schema.get("properties") if isinstance(self._schema, Mapping) else None
        kinds = schema if isinstance(schema, Mapping) else {}
        values, at = {}, self._start
        while (start := self.start.search(text, at, self.at)) and (
            end := self.end.search(text, start.end(), self.at)
        ):
            key, at = start[1].strip(), end.end()
            values[key] = typed(text[start.end() : end.start()], kinds.get(key))
        written = ", ".join(f"{as_json(key)}: {value}" for key, value in values.items())
        return Call(self.name, f"{{{written}{'}' if self._is_complete else ''}", self._is_complete)


_LONGEST_END = 200  # characters that tell the end of arguments


class ParameterReader(_TagReader):
    """Reads arguments as Qwen3-Coder writes them."""

    start = re.compile(r"<parameter=([^<>]{1,128})>(?:\n|(?=[^\n]))")
    end = re.compile(r"\n?</parameter>(?=\s{0,64}(?:<parameter=|</function>|</tool_call>|\Z))")
    closing = re.compile(r"</parameter>\s{0,64}(?:</function>|(?=</tool_call>))")
    empty = re.compile(r"\s*</function>")


class ArgKeyReader(_TagReader):
    """Reads arguments as GLM writes them."""

    start = re.compile(r"<arg_key>([^<>]{1,128})</arg_key>\s*<arg_value>")
    end = re.compile(r"</arg_value>(?=\s{0,64}(?:<arg_key>|</tool_call>|\Z))")
    closing = re.compile(r"</arg_value>\s{0,64}</tool_call>")
    empty = re.compile(r"\s*</tool_call>")


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
    _head(r"functions\.@:\w{1,64}~<\|tool_call_argument_begin\|>~(?=\{)", JsonReader),
    _head(r"function<｜tool▁sep｜>@~```json~(?=\{)", JsonReader, False, "```"),
    _head(r"@<｜tool▁sep｜>~(?=\{)", JsonReader),
    _head(r"@~(?:\[CALL_ID\]~\w{1,64}~)?\[ARGS\]~(?=\{)", JsonReader),
    _head(r"@>~(?=\{)", JsonReader),
    _head(r"@>~(?=<parameter=|</function>)", ParameterReader),
    _head(r"@~(?=<arg_key>)", ArgKeyReader),
    _head(r"call:@(?=\{)", GemmaReader),
    _head(r"@~(?=\{)", JsonReader, True),
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


def _of_object(text: str) -> Call | None:
    """Return the call that a JSON object is, or None if it is none."""
    try:
        value = json.loads(text, strict=False)  # models write line breaks into strings
        name = value["name"] if "name" in value else value["tool_name"]
        arguments = value["arguments"] if "arguments" in value else value["parameters"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        written = as_json(arguments)
        name.encode()
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return None
    return Call(name, written) if isinstance(arguments, dict) else None


def _identifier(name: str) -> str:
    """Return the name of an argument. Raises ValueError if it is none."""
    if not name.strip().isidentifier():
        raise ValueError("no name of an argument")
    return name.strip()


class _JsonConstants(ast.NodeTransformer):
    """Replaces JSON's constants, which models write into Python, by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        constants = {"true": True, "false": False, "null": None}
        return ast.Constant(constants[node.id]) if node.id in constants else node


_ESCAPE = re.compile(r"""(\\[\\'"abfnrtv\n0-7xuUN])|\\""")


def python_literal(text: str) -> Any:
    """Return the value of a literal of Python. Raises ValueError, SyntaxError or the like if it is none."""
    text = _ESCAPE.sub(lambda found: found[1] or r"\\", text.strip())
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:  # models write line breaks into strings
        tree = ast.parse(text.replace("\n", r"\n"), mode="eval")
    return ast.literal_eval(_JsonConstants().visit(tree))


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


def typed(text: str, schema: Any) -> str:
    """Return a parameter as JSON: a string if its schema says so, else what it is in JSON or Python."""
    kinds = _kinds(schema)
    if "string" not in kinds or (text in ("null", "None") and "null" in kinds):
        with suppress(ValueError, RecursionError):
            return as_json(json.loads(text))
        if text[:1] in tuple("[{('\"") or text in ("True", "False", "None"):
            with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                return as_json(python_literal(text))
    return as_json(text)


def _kinds(schema: Any) -> set[str]:
    """Return the types that a schema names."""
    if not isinstance(schema, Mapping):
        return set()
    kinds, options = schema.get("type"), [schema.get("anyOf"), schema.get("oneOf")]
    found = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
    return found.union(*(_kinds(each) for option in options if isinstance(option, list) for each in option))
