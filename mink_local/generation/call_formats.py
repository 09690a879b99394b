"""How models write tool calls, as their chat templates teach them, and how to read it.

They write them between marks of their own (`CALL_MARKS`), in a wrapper such as a fence, or alone at the start
of a line. A call is a JSON object, or a name followed by a JSON object, by tagged parameters, or by
parentheses as in Python (`HEADS`).
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

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
LONGEST_END = 200  # characters that tell the end of a parameter
FEW_SPACES = re.compile(r"\s{0,64}")


def marks_of(chat_template: str) -> frozenset[str]:
    """Return the marks that a chat template has before calls, and Hermes's, which many models know."""
    return frozenset(mark for mark in CALL_MARKS if mark in chat_template) | {OPEN}


_ATOMS = {"~": FEW_SPACES.pattern, "@": r"(?P<name>[^\s\"'\\<>(){}\[\],;:=`]{1,128})", "#": r"\w{1,64}"}


def end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of a match that is always there."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


class Head:
    """How a call begins.

    Args:
        form: `~` is spaces, `@` the name, `#` an id; what follows `^` belongs to the rest.
        rest: What follows: `json` for arguments in JSON, `object` for the whole call in JSON, one of
            `NOTATIONS`, or the tag that parameters are in.
        place: Where it may be: 0 at the start of a line, 1 in a wrapper, 2 between marks.
        is_known: Whether the name must be a tool's even between marks.
        closing: What may follow the call.
    """

    def __init__(
        self, form: str, rest: str, place: int = 2, *, is_known: bool = False, closing: str | None = None
    ) -> None:
        self.rest, self.place, self.is_known, self.closing = rest, place, is_known, closing
        self._form = form

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """What matches all of it, and any beginning; compiling those of all heads takes 5 ms."""
        before, after = ([_ATOMS.get(c, re.escape(c)) for c in part] for part in self._form.split("^"))
        begun = ""
        for atom in reversed([*before, *after]):
            begun = f"(?:{atom}{begun})?"
        return re.compile(f"{''.join(before)}(?={''.join(after)})"), re.compile(begun)

    def match(self, text: str, at: int, names: Collection[str] | None) -> re.Match[str] | bool:
        """Return the match at a place of a text, or whether more text may bring one.

        Args:
            names: The possible names; None for any.
        """
        all_of_it, beginning = self._patterns
        whole = all_of_it.match(text, at)
        begun = whole or beginning.fullmatch(text, at)
        if begun is None:
            return False
        name = begun.groupdict().get("name")
        if name and names is not None and name not in names:
            is_complete = begun.end("name") < len(text)
            return not is_complete and any(known.startswith(name) for known in names)
        return whole or True


HEADS = (
    *(
        Head(f'{{~{kind}"name"~:~"@"~,~"{key}"~:~^{{', "json", 0, closing="}")
        for kind in ("", '"type"~:~"function"~,~')
        for key in ("arguments", "parameters")
    ),
    Head('{~"tool_call_id"~:~"#"~,~"tool_name"~:~"@"~,~"parameters"~:~^{', "json", closing="}"),
    Head('^{~"name"~:~"@"', "object", 0),
    Head('^{~"type"~:~"function"~,~"name"~:~"@"', "object", 0),
    Head('^{~"arguments"~:', "object", 0),
    Head('^{~"parameters"~:', "object", 0),
    Head("^{", "object"),
    Head("@~^(", "python", 1, is_known=True),
    Head("@~^{", "json", is_known=True),
    Head("call:@^{", "gemma"),
    Head("functions.@:#~<|tool_call_argument_begin|>~^{", "json"),
    Head("@~[ARGS]~^{", "json"),
    Head("@~[CALL_ID]~#~[ARGS]~^{", "json"),
    Head("@>~^{", "json"),
    Head("@>~^<parameter=", "parameter"),
    Head("@>~^</function>", "parameter"),
    Head("@~^<arg_key>", "arg_key"),
    Head("@~^</tool_call>", "arg_key", is_known=True),
    Head("@<｜tool▁sep｜>~^{", "json"),
    Head("function<｜tool▁sep｜>@~```json~^{", "json", closing="```"),
)
CALL_ID = Head(',~"id"~:~"#"~^}', "")  # after the arguments, as Mistral has it


class Tags(NamedTuple):
    """How a parameter begins, with its name, and ends, before the next one or what closes the call."""

    start: re.Pattern[str]
    end: re.Pattern[str]
    closing: str


TAGS = {
    "parameter": Tags(
        re.compile(r"<parameter=([^<>]{1,128})>(?:\n|(?=[^\n]))"),
        re.compile(r"\n?</parameter>(?=\s{0,64}(?:<parameter=|</function>))"),
        "</function>",
    ),
    "arg_key": Tags(
        re.compile(r"<arg_key>([^<>]{1,128})</arg_key>\s*<arg_value>"),
        re.compile(r"</arg_value>(?=\s{0,64}(?:<arg_key>|</tool_call>))"),
        "</tool_call>",
    ),
}


def value_tokens(quotes: str, illegal: str, stop: str = "(?!)", escape: str = r"\\.") -> re.Pattern[str]:
    """Return a pattern for what matters in a value: quotes, what is illegal outside strings or at all."""
    return re.compile(
        rf"(?P<stop>{stop})|(?P<quote>{quotes})|(?P<illegal>{illegal})|(?P<escape>{escape})|(?P<open>[(\[{{])|"
        r"(?P<close>[)\]}])|(?P<comma>,)|(?P<control>[\x00-\x1f])",
        re.DOTALL,
    )


JSON = value_tokens('"', r"[^\s{}\[\],:0-9a-zNIE.+\-\"\\]")
PYTHON = value_tokens("[\"']", "[<`]")
_BEGUN = "|".join(re.escape(quote[1:n]) for quote in GEMMA_QUOTES for n in range(1, len(quote)))
GEMMA = value_tokens("|".join(map(re.escape, GEMMA_QUOTES)), rf"<(?!(?:{_BEGUN})\Z)|`", escape="(?!)")


class Value:
    """A value in brackets, read piece by piece; no character is looked at twice.

    Attributes:
        text: The last piece, with line breaks in strings as JSON has them.
        comma: Place of the last comma between its elements.
        is_complete: Whether its last bracket is read.
        is_over: Whether it ends here, complete or not.
    """

    def __init__(self, tokens: re.Pattern[str], most_depth: float = MOST_DEPTH) -> None:
        self.text, self.comma = "", 0
        self.is_complete = self.is_over = False
        self._tokens, self._most_depth = tokens, most_depth
        self._depth, self._quote = 0, ""

    def read(self, text: str, at: int, end: int) -> int:
        """Read on; return where the value ends, or where to go on with more text."""
        written, start = [], at
        for token in self._tokens.finditer(text, at, end):
            kind, at = token.lastgroup, token.end()
            if kind == "stop":
                self.is_over = True
            elif self._quote:
                if token[0] == self._quote:
                    self._quote = ""
                elif kind == "control":
                    written += [text[start : token.start()], json.dumps(token[0])[1:-1]]
                    start = at
            elif kind == "quote":
                self._quote = token[0]
            elif kind == "open":
                self._depth += 1
                self.is_over = self._depth > self._most_depth
            elif kind == "close":
                self._depth -= 1
                self.is_complete = self._depth == 0
            elif kind == "comma" and self._depth == 1:
                self.comma = token.start()
            elif kind in ("illegal", "escape"):
                self.is_over = True
            if self.is_complete or self.is_over:
                end = at if self.is_complete else token.start()
                self.is_over = True
                break
        else:
            end -= started_length(text[at:end], ("\\.", *GEMMA_QUOTES))  # the rest is yet to come
        self.text = "".join([*written, text[start:end]])
        return end


def as_json(value: Any) -> str:
    """Return a value as JSON. Raises ValueError or TypeError if there is none, or it cannot be sent."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    written.encode()  # a lone surrogate cannot
    return written


def json_call(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a call in JSON, or None if it is none."""
    try:
        value = json.loads(text, strict=False)  # models write line breaks into strings
        name = value["name"] if "name" in value else value["tool_name"]
        arguments = value["arguments"] if "arguments" in value else value["parameters"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        written = as_json(arguments)
        name.encode()
    except (ValueError, LookupError, AttributeError):
        return None
    return (name, written) if isinstance(arguments, dict) else None


def python_call(name: str, text: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a call, given in parentheses, or None if one has no name."""
    try:
        arguments = json.loads(f"{{{_PYTHON_WORD.sub(_in_json, text[1:-1])}}}", strict=False)
        return name, as_json(arguments)
    except ValueError:
        return None


def gemma_call(name: str, text: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a call in Gemma's notation, or None if they are malformed."""
    try:
        return name, as_json(json.loads(_GEMMA_WORD.sub(_of_gemma_in_json, text), strict=False))
    except ValueError:
        return None


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
        return _PYTHON_CONSTANTS.get(word["name"], word["name"])
    return as_json(word["text"])


_PYTHON_WORD = re.compile(
    r"""'(?P<single>(?:\\.|[^'\\])*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<name>[^\W\d]\w*)(?P<is>\s*=)?""",
    re.DOTALL,
)
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_ESCAPE = re.compile(r"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\'|["\\]""")


def _in_json(word: re.Match[str]) -> str:
    """Return a string, a constant or the name of an argument of Python as it is in JSON."""
    if word["is"]:
        return f'"{word["name"]}":'
    if word["name"]:
        return _PYTHON_CONSTANTS.get(word["name"], word["name"])
    text = word["single"] if word["single"] is not None else word["double"]
    return f'"{_PYTHON_ESCAPE.sub(_escaped, text)}"'


def _escaped(found: re.Match[str]) -> str:
    return {"\\'": "'", '"': '\\"', "\\": "\\\\"}.get(found[0], found[0])


class Notation(NamedTuple):
    """How arguments that are not JSON are read, and what closes them."""

    tokens: re.Pattern[str]
    call: Callable[[str, str], tuple[str, str] | None]
    closing: str


NOTATIONS = {
    "python": Notation(PYTHON, python_call, ")"),
    "gemma": Notation(GEMMA, gemma_call, "}"),
}


def typed(text: str, schema: Any) -> str:
    """Return a parameter as JSON: a string if its schema says so, else what it is in JSON or Python."""
    kinds = _kinds(schema)
    if "string" not in kinds or (text in ("null", "None") and "null" in kinds):
        for written in (text, _PYTHON_WORD.sub(_in_json, text)):
            with suppress(ValueError, RecursionError):
                return as_json(json.loads(written))
    return as_json(text)


def _kinds(schema: Any) -> set[str]:
    """Return the types that a schema names."""
    if not isinstance(schema, Mapping):
        return set()
    kinds, options = schema.get("type"), [schema.get("anyOf"), schema.get("oneOf")]
    found = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
    return found.union(*(_kinds(each) for option in options if isinstance(option, list) for each in option))
