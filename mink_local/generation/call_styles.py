"""How a model is made to write tool calls, by a grammar, and how its chat template takes earlier ones."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mink_local.generation.call_formats import CALL_MARKS, OPEN


@dataclass(frozen=True)
class CallStyle:
    """How a model is made to write calls, and how its chat template takes earlier ones.

    Attributes:
        before, between, after: The texts before the name, between name and arguments, and after them.
        separator: The text between calls; without one, a message has a single call.
        has_text: Whether the template takes arguments only as text.
        has_short_ids: Whether the template takes only ids of nine letters and digits.
        has_named_ids: Whether it writes an id for the name, such as `functions.get_weather:0`.
    """

    before: str
    between: str
    after: str
    separator: str | None = None
    has_text: bool = False
    has_short_ids: bool = False
    has_named_ids: bool = False

    def write(self, name: str, arguments: str) -> str:
        """Return a call as the model writes it; the arguments are JSON."""
        return f"{self.before}{name}{self.between}{arguments}{self.after}"

    def id_of(self, call_id: Any) -> Any:
        """Return a call's id as the template takes it."""
        return hashlib.sha256(str(call_id).encode()).hexdigest()[:9] if self.has_short_ids else call_id


HERMES = CallStyle(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CALL_MARKS[OPEN]}", separator="\n")
LLAMA = CallStyle('{"name": "', '", "parameters": ', "}")
PLAIN = CallStyle('{"name": "', '", "arguments": ', "}", separator="\n")  # grammars allow no control tokens
MISTRAL = replace(PLAIN, has_short_ids=True)
DEEPSEEK = replace(PLAIN, has_text=True)
KIMI = replace(PLAIN, has_named_ids=True)


def style_of(chat_template: str) -> CallStyle | None:
    """Return how calls are written in a chat template with tools, or None if unknown."""
    mark = next((mark for mark in CALL_MARKS if mark in chat_template), None)
    if mark in (None, "<|python_tag|>"):
        return LLAMA if '"parameters": ' in chat_template else None
    return {
        OPEN: HERMES,
        "[TOOL_CALLS]": MISTRAL,
        "<｜tool▁calls▁begin｜>": DEEPSEEK,
        "<｜tool▁call▁begin｜>": DEEPSEEK,
        "<|tool_calls_section_begin|>": KIMI,
    }.get(mark, PLAIN)


NO_PARAMETERS = {"type": "object", "properties": {}}


def calls_grammar(
    style: CallStyle,
    parameters: Mapping[str, Mapping[str, Any]],
    *,
    is_parallel: bool,
    answer: Mapping[str, Any] | None = None,
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
        start += f" | %json {json.dumps(answer)}"
    return f"start: {start}\ncall: ({' | '.join(calls)}) {json.dumps(style.after)}\n"
