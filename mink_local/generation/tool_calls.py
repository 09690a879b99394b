"""Calls of tools as models write them, parsed from an answer's text while it is generated."""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FENCE, FENCE_END = "```json", "```"
_CLOSINGS = {OPEN: CLOSE, FENCE: FENCE_END}
_MARK = re.compile(f"{OPEN}|{CLOSE}")
_WORD = re.compile(r".[^\s<]*", re.DOTALL)
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_HEAD_CHARACTERS = 256  # enough for any tool's name


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call: the first has the id and the name, the others have more of the arguments."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of `delta.tool_calls` in OpenAI's form."""
        if self.id is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


Event = str | ToolCallDelta
"""A text of the answer, or a piece of a call."""


def whole_calls(deltas: Iterable[ToolCallDelta]) -> list[dict[str, Any]]:
    """Return the entries of `message.tool_calls` in OpenAI's form."""
    calls = []
    for _, group in groupby(deltas, key=lambda delta: delta.index):
        first, *rest = group
        function = {"name": first.name, "arguments": "".join(delta.arguments for delta in (first, *rest))}
        calls.append({"id": first.id, "type": "function", "function": function})
    return calls


class ToolParser:
    """Finds calls of tools in an answer's text, piece by piece.

    A call is a JSON object with a name and arguments (or `parameters`): between the marks of Hermes and
    Qwen3; or, if it begins with the name of a known tool, at the start of a line, as LLaMA-3 writes it, or in
    a fence, as Qwen2.5-Coder does. What only begins like a call remains text. Whitespace next to calls is
    dropped.

    The parser is in one of four states, each a method that takes from the start of the held text what is
    certain and returns it, or None until there is more text: `_read_text`, `_read_call` (at what may be
    one), `_read_arguments` (inside what is certain to be one), `_skip_separators` (after a call).

    Args:
        names: Names of the tools.
        is_constrained: A grammar makes every call complete, so that arguments are passed on as they come.
            Otherwise a call is passed on when it is complete and its arguments are a JSON object.
        is_parallel: Whether there may be more than one call; if not, only the first is passed on.

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
        self._scanner = _ObjectScanner()

    def feed(self, text: str) -> list[Event]:
        """Return what is certain now; text that may belong to a call is held back."""
        self._held += text
        return _joined(self._events(final=False))

    def end(self) -> list[Event]:
        """Return what was held back to the end."""
        return _joined(self._events(final=True) + self._take_text(len(self._held)))

    def _events(self, final: bool) -> list[Event]:
        events: list[Event] = []
        while self._held and (new := self._state(final)) is not None:
            events += new
        return events

    def _read_text(self, final: bool) -> list[Event] | None:
        held = self._held.lstrip()
        space = self._held[: len(self._held) - len(held)]
        self._held, self._space = held, self._space + space
        self._is_line_start |= "\n" in space
        openings = (OPEN, FENCE, "{") if self._is_line_start else (OPEN,)
        if held.startswith(openings):
            self._state, self._scanner = self._read_call, _ObjectScanner()
            return []
        if not held or (not final and any(opening.startswith(held) for opening in openings)):
            return None
        return self._take_text(_word_length(held))

    def _take_text(self, length: int) -> list[Event]:
        """Pass on the whitespace and the first characters of the held text as text."""
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
            self._scanner = _ObjectScanner(depth=1)
            return [self._first_delta(head[1])]
        return self._read_object(body, is_marked)

    def _read_object(self, body: str, is_marked: bool) -> list[Event] | None:
        """Take the JSON object that `body`, the end of the held text, begins with, once it is complete."""
        start = len(self._held) - len(body)
        mark = _MARK.search(body, max(0, self._scanner.position - len(CLOSE)))
        end = self._scanner.end(body[: mark.start()] if mark else body)
        if end is None:  # a mark inside an object means that it will never be complete
            return self._take_text(start + mark.start()) if mark else None
        call = _parsed(body[:end])
        if call is None or not (is_marked or call[0] in self._names):
            return self._take_text(start + end)
        self._space, self._held, self._state = "", body[end:], self._skip_separators
        if self.n_calls and not self._is_parallel:
            return []
        name, arguments = call
        return [self._first_delta(name), ToolCallDelta(self.n_calls - 1, arguments)]

    def _may_be_known(self, body: str) -> bool:
        """Return whether an object begins, or may go on, like a call of a known tool."""
        compact = "".join(body[:_HEAD_CHARACTERS].split())
        return any(compact.startswith(head) or head.startswith(compact) for head in self._heads)

    def _first_delta(self, name: str) -> ToolCallDelta:
        self.n_calls += 1
        return ToolCallDelta(self.n_calls - 1, id=f"call_{secrets.token_hex(12)}", name=name)

    def _read_arguments(self, _final: bool) -> list[Event]:
        held, self._held = self._held, ""
        self._scanner.position = 0
        end = self._scanner.end(held)
        if end is not None:  # of the object around the arguments
            held, self._held, self._state = held[: end - 1], held[end:], self._skip_separators
        return [ToolCallDelta(self.n_calls - 1, held)] if held else []

    def _skip_separators(self, final: bool) -> list[Event] | None:
        self._held = re.sub(rf"(?:[\s;]|{self._closing})*", "", self._held, count=1)
        if self._closing.startswith(self._held) and not final:
            return None
        self._is_line_start, self._state = True, self._read_text
        return []


class _ObjectScanner:
    """Finds the end of a JSON object in a text that grows."""

    def __init__(self, depth: int = 0) -> None:
        self.position = 0
        self._depth = depth
        self._is_string = self._is_escaped = False

    def end(self, text: str) -> int | None:
        """Continue at `position`; return the end of the object, or None if it is not complete."""
        start, self.position = self.position, len(text)
        for position in range(start, len(text)):
            character = text[position]
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_string:
                self._is_escaped = character == "\\"
                self._is_string = character != '"'
            elif character == '"':
                self._is_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return position + 1
        return None


def _word_length(text: str) -> int:
    """Return the length of what precedes the next whitespace or mark."""
    word = _WORD.match(text)
    return word.end() if word else 0


def _joined(events: Sequence[Event]) -> list[Event]:
    """Return the events with successive texts joined."""
    joined: list[Event] = []
    for event in events:
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


def _parsed(text: str) -> tuple[str, str] | None:
    """Return a call's name and its arguments as JSON, or None if the text is no call."""
    try:
        call = json.loads(text, strict=False)  # models write line breaks into strings
        arguments = call["arguments"] if "arguments" in call else call["parameters"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False)
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        f"{call['name']}{written}".encode()  # a lone surrogate cannot be sent
    except (ValueError, LookupError, RecursionError):
        return None
    return (call["name"], written) if isinstance(call["name"], str) and isinstance(arguments, dict) else None
