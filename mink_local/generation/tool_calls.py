"""Tool calls: parsed from an answer's text as it is generated, and enforced by a grammar."""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FENCE, FENCE_END = "```json", "```"
_CLOSINGS = {OPEN: CLOSE, FENCE: FENCE_END}
_MARK = re.compile(f"{OPEN}|{CLOSE}")
_WORD = re.compile(r".[^\s<]*", re.DOTALL)
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_HEAD_CHARACTERS = 256  # enough for any tool's name
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks into strings

NO_PARAMETERS = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call: the first has the id and name, later ones more of the arguments."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Event = str | ToolCallDelta
"""A piece of the answer's text, or of a call."""


def whole_calls(deltas: Iterable[ToolCallDelta]) -> list[dict[str, Any]]:
    """Return the entries of `message.tool_calls` in OpenAI's format."""
    calls: dict[int, ToolCallDelta] = {}
    for delta in deltas:
        call = calls.get(delta.index)
        calls[delta.index] = replace(call, arguments=call.arguments + delta.arguments) if call else delta
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls.values()
    ]


class ToolParser:
    """Finds tool calls in an answer's text, piece by piece.

    A call is a JSON object with a name and arguments (or `parameters`): between the tags of Hermes and Qwen3;
    or, if it begins with the name of a known tool, at the start of a line, as LLaMA-3 writes it, or in a
    fence, as Qwen2.5-Coder does. Text that merely begins like a call remains text. Whitespace around calls is
    dropped.

    The parser is in one of four states. Each is a method that takes what is certain from the start of the
    held text and returns it, or None until there is more text: `_read_text`, `_read_call` (at a possible
    call), `_read_arguments` (inside a certain one), `_skip_separators` (after a call).

    Args:
        names: Names of the tools.
        is_constrained: Whether a grammar ensures that every call is complete, so that arguments are emitted
            as they arrive. Otherwise, a call is emitted once it is complete and its arguments are a JSON
            object.
        is_parallel: Whether to emit more than the first call.

    Attributes:
        n_calls: Number of calls so far.
    """

    def __init__(
        self, names: Sequence[str], *, is_constrained: bool = False, is_parallel: bool = True
    ) -> None:
        self.n_calls = 0
        self._names = names
        self._heads = [f'{{{start}"name":"{name}"' for name in names for start in ("", '"type":"function",')]
        self._is_constrained = is_constrained
        self._is_parallel = is_parallel
        self._state: Callable[[bool], list[Event] | None] = self._read_text
        self._held = ""
        self._space = ""  # before the held text
        self._is_line_start = True
        self._closing = CLOSE  # may follow a call
        self._searched = 0  # in an object at the start of the held text; no mark begins before this
        self._arguments = ""  # of a call emitted as it arrives

    def feed(self, text: str) -> list[Event]:
        """Return what is now certain; text that may belong to a call is held back."""
        self._held += text
        return self._events(final=False)

    def end(self) -> list[Event]:
        """Return the text held back."""
        return self._events(final=True)

    def _events(self, final: bool) -> list[Event]:
        """Take events from the held text; consecutive texts are joined."""
        events: list[Event] = []
        while self._held or (final and self._space):
            new = self._state(final)
            if new is None:
                if not final:
                    break
                new = self._take_text(len(self._held))
            for event in new:
                if isinstance(event, str) and events and isinstance(events[-1], str):
                    events[-1] += event
                else:
                    events.append(event)
        return events

    def _read_text(self, final: bool) -> list[Event] | None:
        held = self._held.lstrip()
        space = self._held[: len(self._held) - len(held)]
        self._held, self._space = held, self._space + space
        self._is_line_start |= "\n" in space
        openings = (OPEN, FENCE, "{") if self._is_line_start else (OPEN,)
        if held.startswith(openings):
            self._state, self._searched = self._read_call, 0
            return []
        if not held or (not final and any(opening.startswith(held) for opening in openings)):
            return None
        return self._take_text(_word_length(held))

    def _take_text(self, length: int) -> list[Event]:
        """Emit the whitespace and the first `length` characters of the held text as text."""
        text, self._held = self._space + self._held[:length], self._held[length:]
        self._space, self._is_line_start, self._state = "", False, self._read_text
        return [text] if text else []

    def _read_call(self, _final: bool) -> list[Event] | None:
        opening = next(filter(self._held.startswith, _CLOSINGS), "")
        self._closing = _CLOSINGS.get(opening, self._closing)
        body = self._held.removeprefix(opening).lstrip()
        if not body:
            return None
        is_marked = opening == OPEN
        if not body.startswith("{") or not (is_marked or self._may_be_known(body)):
            return self._take_text(_word_length(self._held))
        if self._is_constrained and (head := _HEAD.match(body)):
            self._space, self._held, self._state = "", body[head.end() :], self._read_arguments
            self._arguments = ""
            return [self._first_delta(head[1])]
        return self._read_object(body, is_marked)

    def _read_object(self, body: str, is_marked: bool) -> list[Event] | None:
        """Take the JSON object at the start of `body`, the end of the held text, once it is complete."""
        start = len(self._held) - len(body)
        mark = _MARK.search(body, max(0, self._searched - len(CLOSE)))
        has_new_end = "}" in body[self._searched :]
        self._searched = len(body)
        found = _object(body[: mark.start()] if mark else body) if has_new_end else None
        if found is None:  # an object with a mark inside will never be complete
            return self._take_text(start + mark.start()) if mark else None
        value, end = found
        call = _call(value)
        if call is None or not (is_marked or call[0] in self._names):
            return self._take_text(start + end)
        self._space, self._held, self._state = "", body[end:], self._skip_separators
        if self.n_calls and not self._is_parallel:
            return []
        name, arguments = call
        return [self._first_delta(name), ToolCallDelta(self.n_calls - 1, arguments)]

    def _may_be_known(self, body: str) -> bool:
        """Return whether an object begins like a call of a known tool, or still may."""
        compact = "".join(body[:_HEAD_CHARACTERS].split())
        return any(compact.startswith(head) or head.startswith(compact) for head in self._heads)

    def _first_delta(self, name: str) -> ToolCallDelta:
        self.n_calls += 1
        return ToolCallDelta(self.n_calls - 1, id=f"call_{secrets.token_hex(12)}", name=name)

    def _read_arguments(self, _final: bool) -> list[Event]:
        held, self._held = self._held, ""
        self._arguments += held
        found = _object(self._arguments) if "}" in held else None
        if found is not None:  # and what follows closes the object around them
            length = len(held) - (len(self._arguments) - found[1])
            held, self._held, self._state = held[:length], held[length:], self._skip_separators
        return [ToolCallDelta(self.n_calls - 1, held)] if held else []

    def _skip_separators(self, final: bool) -> list[Event] | None:
        separators = r"[\s;}]" if self._is_constrained else r"[\s;]"
        self._held = re.sub(rf"(?:{separators}|{self._closing})*", "", self._held, count=1)
        if self._closing.startswith(self._held) and not final:
            return None
        self._is_line_start, self._state = True, self._read_text
        return []


def _word_length(text: str) -> int:
    """Return the length of the text before the next whitespace or mark."""
    word = _WORD.match(text)
    return word.end() if word else 0


def _object(text: str) -> tuple[Any, int] | None:
    """Return the JSON object at the start of a text, and its end; None if malformed or incomplete."""
    try:
        return _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None


def _call(value: Any) -> tuple[str, str] | None:
    """Return a call's name and its arguments as JSON, or None if the object is not a call."""
    try:
        name = value["name"]
        arguments = value["arguments"] if "arguments" in value else value["parameters"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        f"{name}{written}".encode()  # a lone surrogate cannot be sent
    except (ValueError, LookupError, RecursionError):
        return None
    return (name, written) if isinstance(name, str) and isinstance(arguments, dict) else None


@dataclass(frozen=True)
class CallForm:
    """The texts before the name, between name and arguments, and after them, and the one between calls.

    Without a separator, a message has a single call.
    """

    before: str
    between: str
    after: str
    separator: str | None = None

    def write(self, name: str, arguments: str) -> str:
        """Return a call as the model writes it; the arguments are JSON."""
        return f"{self.before}{name}{self.between}{arguments}{self.after}"


HERMES = CallForm(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CLOSE}", separator="\n")
LLAMA = CallForm('{"name": "', '", "parameters": ', "}")


def form_of(chat_template: str) -> CallForm | None:
    """Return the form of calls in a chat template with tools, or None if unknown."""
    if OPEN in chat_template:
        return None if "<function=" in chat_template else HERMES  # Qwen3-Coder writes no JSON
    return LLAMA if '"parameters": ' in chat_template else None


def _closed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool's parameters without any that it does not name, which small models like to invent."""
    is_closed = "properties" in parameters and not {"$ref", "allOf", "anyOf", "oneOf"} & parameters.keys()
    return {"additionalProperties": False, **parameters} if is_closed else parameters


def calls_grammar(
    form: CallForm,
    parameters: Mapping[str, Mapping[str, Any]],
    *,
    is_parallel: bool,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """Return a grammar for tool calls, in Lark's syntax.

    Args:
        form: How the model writes calls.
        parameters: JSON schemas of the tools' parameters, by tool name.
        is_parallel: Whether to allow several calls, if the form does.
        answer: JSON schema of an answer that may come in place of a call.
    """
    calls = [
        f"{json.dumps(f'{form.before}{name}{form.between}')} %json {json.dumps(_closed(schema))}"
        for name, schema in parameters.items()
    ]
    start = "call"
    if is_parallel and form.separator is not None:
        start += f" ({json.dumps(form.separator)} call)*"
    if answer is not None:
        start += f" | %json {json.dumps(answer)}"
    return f"start: {start}\ncall: ({' | '.join(calls)}) {json.dumps(form.after)}\n"
