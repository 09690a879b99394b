"""Tool calls: parsed from an answer's text as it is generated, and enforced by a grammar."""

import hashlib
import json
import math
import re
import secrets
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any, NamedTuple, TypeVar

from mink_local.generation.call_formats import (
    CALL_ENDS,
    CALL_ID,
    CALL_MARKS,
    FEW_SPACES,
    HEADS,
    JSON,
    LONGEST_END,
    NOTATIONS,
    OPEN,
    TAGS,
    WRAPPERS,
    Head,
    Tags,
    Value,
    as_json,
    end_of,
    json_call,
    typed,
    value_tokens,
)
from mink_local.generation.request import Tool
from mink_local.generation.text import started_length

_MOST_WRAPPERS = 5  # nested
_LONGEST_MARK = max(map(len, CALL_ENDS))
_SPACES = re.compile(r"\s*")
_WORD = re.compile(r".[^\s<\[]*", re.DOTALL)
_CUT_TAG = re.compile(r"\n?<[/a-z_]*(?:=[^<>]*)?\Z")


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call: the first has the id and name, and each has more of the arguments."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Event = str | ToolCallDelta
"""A piece of the answer's text, or of a call."""

EventT = TypeVar("EventT", bound=Event)


def merged(events: Iterable[EventT]) -> Iterator[EventT]:
    """Join consecutive texts, and consecutive pieces of a call."""
    for index, group in groupby(events, lambda event: None if isinstance(event, str) else event.index):
        pieces: list[Any] = list(group)
        if index is None:
            yield "".join(pieces)  # type: ignore[misc]
        else:
            yield replace(pieces[0], arguments="".join(piece.arguments for piece in pieces))


class _Found(NamedTuple):
    """A call that begins: where the rest of it is, and what may follow it."""

    head: Head
    name: str
    at: int
    closings: list[str]


class ToolParser:
    """Finds tool calls in an answer's text, piece by piece.

    A call is found between the marks of the chat template; or, if it names a known tool, at the start of a
    line, as LLaMA-3 writes it, or in a fence or the like, as Qwen2.5-Coder does. Text that merely begins like
    a call remains text. Once a call is certain, its arguments are emitted as they arrive: as the model writes
    them if it writes JSON. An answer that is cut off may end with an incomplete call. Whitespace, marks and
    wrappers around calls are dropped.

    Args:
        tools: The tools; the types of their parameters matter where the model writes no JSON.
        marks: What precedes calls; see `marks_of`.
        is_parallel: Whether to emit more than the first call.

    Attributes:
        n_calls: Number of calls so far.
    """

    def __init__(
        self, tools: Iterable[Tool], marks: Collection[str] = (OPEN,), *, is_parallel: bool = True
    ) -> None:
        functions = [tool["function"] for tool in tools if "function" in tool]
        self.n_calls = 0
        self._schemas = {function["name"]: function.get("parameters") for function in functions}
        self._marks = marks
        self._ends = [CALL_MARKS[mark] for mark in marks]
        self._openings = WRAPPERS | dict(zip(marks, self._ends, strict=True))
        self._longest_first = sorted(self._openings, key=len, reverse=True)
        self._mark = re.compile("|".join(map(re.escape, (*marks, *self._ends))))
        # A line break belongs in no string of JSON, and before a mark it shows that one has no end.
        self._breaks = ["\n" + end for end in self._ends]
        self._lenient = value_tokens('"', "[<`]", "|".join(map(re.escape, self._breaks)))
        self._is_parallel = is_parallel
        self._is_dropped = False  # the call being read
        self._text, self._at = "", 0  # what is held back, from a place on
        self._is_final = False
        self._space = ""  # before the text; dropped if a call follows
        self._is_line_start = True
        self._closings: list[str] = []  # what may follow the last call
        self._events: list[Event] = []
        self._reading = self._read()

    def feed(self, text: str) -> list[Event]:
        """Return what is now certain, at most one piece of each call; what may be a call is held back."""
        self._text += text
        next(self._reading)
        events, self._events = self._events, []
        return [event for event in merged(events) if event]

    def end(self) -> list[Event]:
        """Return what was held back."""
        self._is_final = True
        return self.feed("")

    # The readers are generators, which wait for more text with `yield`.

    def _more(self) -> Generator[None, None, bool]:
        """Wait for more text; return False if there is none."""
        if self._is_final:
            return False
        yield
        return True

    def _read(self) -> Generator[None]:
        while True:
            start, self._at = self._at, end_of(_SPACES, self._text, self._at)
            space = self._text[start : self._at]
            self._space += space
            self._is_line_start |= "\n" in space
            if self._at == len(self._text):
                if self._is_final:
                    self._take_text(self._at)
                self._text, self._at = "", 0
                yield
                continue
            found = yield from self._begin()
            if found is None:
                self._take_text(end_of(_WORD, self._text, self._at))
            elif found.head.rest in ("object", *NOTATIONS):
                yield from self._read_whole(found)
            else:
                is_json = found.head.rest == "json"
                self._take_call(found, found.name, "" if is_json else "{")
                if is_json:
                    yield from self._read_json()
                else:
                    yield from self._read_parameters(TAGS[found.head.rest], self._schemas.get(found.name))
                yield from self._close()

    def _begin(self) -> Generator[None, None, _Found | None]:
        """Return how a call begins here, or None if none does."""
        while True:
            found = self._look()
            if isinstance(found, _Found):
                return found
            if not found or not (yield from self._more()):
                return None

    def _look(self) -> _Found | bool:
        """Return how a call begins here, or whether more text may show it."""
        text, at, closings = self._text, self._at, self._closings
        for _ in range(_MOST_WRAPPERS):
            is_free = self._is_line_start or at > self._at
            for opening in self._longest_first:
                if (is_free or opening in self._marks) and opening.startswith(text[at : at + len(opening)]):
                    break
            else:
                break
            if len(text) - at < len(opening):
                return True
            closings = _opened(closings, self._openings[opening])
            at = end_of(FEW_SPACES, text, at + len(opening))
        if not self._is_line_start and at == self._at:
            return False
        place = 0 if not closings else 1 if CALL_ENDS.isdisjoint(closings) else 2
        for head in HEADS:
            if head.place > place:
                continue
            match = head.match(text, at, self._schemas if head.is_known or place < 2 else None)
            if isinstance(match, re.Match):
                name = match.groupdict().get("name", "")
                return _Found(head, name, match.end(), _opened(closings, head.closing))
            if match:
                return True
        return False

    def _read_whole(self, found: _Found) -> Generator[None]:
        """Read what is certain to be a call only when it is complete."""
        notation = NOTATIONS.get(found.head.rest)
        value, at = Value(notation.tokens if notation else JSON), found.at
        while True:
            at = value.read(self._text, at, len(self._text))
            if value.is_over or not (yield from self._more()):
                break
        call = None
        if value.is_complete:
            written = self._text[found.at : at]
            call = notation.call(found.name, written) if notation else json_call(written)
        elif notation and not value.is_over:  # without what may be incomplete
            certain = self._text[found.at : value.comma or found.at + 1]
            call = notation.call(found.name, certain + notation.closing)
            call = call and (call[0], call[1][:-1])
        if call and (call[0] in self._schemas or not CALL_ENDS.isdisjoint(found.closings)):
            self._take_call(found._replace(at=at), *call)
            yield from self._close()
        else:
            mark = self._mark.search(self._text, self._at + 1, at)
            self._take_text(mark.start() if mark else at)

    def _read_json(self) -> Generator[None]:
        """Read arguments in JSON."""
        value = Value(self._lenient, math.inf)
        while True:
            tail = self._text[max(self._at, len(self._text) - _LONGEST_MARK) :]
            n_held = 0 if self._is_final else started_length(tail, self._breaks)
            self._at = value.read(self._text, self._at, len(self._text) - n_held)
            self._take_arguments(value.text)
            if value.is_over or not (yield from self._more()):
                break
        if not value.is_over:  # an escape without its end
            self._take_arguments(self._text[self._at :])
            self._at = len(self._text)

    def _read_parameters(self, tags: Tags, schema: Any) -> Generator[None]:
        """Read arguments in tags."""
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        separator = ""
        while True:
            self._at = end_of(_SPACES, self._text, self._at)
            start = tags.start.match(self._text, self._at)
            if start is None:
                if self._text.startswith(tags.closing, self._at):
                    self._take_arguments("}")
                elif len(self._text) - self._at < LONGEST_END and (yield from self._more()):
                    continue
                elif self._is_final:
                    self._text = self._text[: self._at] + _CUT_TAG.sub("", self._text[self._at :])
                return
            searched = start.end()
            while (end := tags.end.search(self._text, searched)) is None:
                searched = max(searched, len(self._text) - LONGEST_END)
                if not (yield from self._more()):
                    self._text = _CUT_TAG.sub("", self._text)
                    end = tags.end.search(self._text + tags.closing, searched)
                    break
            key, written = start[1].strip(), self._text[start.end() : end.start() if end else None]
            if end:
                kind = properties.get(key) if isinstance(properties, Mapping) else None
                value, self._at = typed(written, kind), end.end()
            else:
                value, self._at = as_json(written)[:-1], len(self._text)
            self._take_arguments(f"{separator}{as_json(key)}: {value}")
            separator = ", "

    def _close(self) -> Generator[None]:
        """Drop what may follow a call."""
        while True:
            self._at = end_of(_SPACES, self._text, self._at)
            for closing in (*reversed(self._closings), *self._ends):
                if self._text.startswith(closing, self._at):
                    self._at += len(closing)
                    self._closings = _opened(self._closings, closing)[:-1]
                    break
            else:
                rest = self._text[self._at : self._at + LONGEST_END]
                has_id = "}" in self._closings and CALL_ID.match(rest, 0, None)
                if isinstance(has_id, re.Match):
                    self._at += has_id.end()
                    continue
                is_separator = rest.strip() in ("", ";", ",")
                may_close = any(closing.startswith(rest) for closing in (*self._closings, *self._ends))
                if not (has_id or is_separator or may_close) or not (yield from self._more()):
                    break
        if self._is_final and (is_separator or may_close):
            self._at = len(self._text)
        elif rest[0] in ";,":
            self._space, self._at = rest[0], self._at + 1
        self._is_line_start = True

    def _take_text(self, end: int) -> None:
        """Emit the text up to a place, and the space before it."""
        self._events.append(self._space + self._text[self._at : end])
        self._space, self._at, self._is_line_start, self._closings = "", end, False, []

    def _take_call(self, found: _Found, name: str, arguments: str = "") -> None:
        """Emit the head of a call."""
        self._space, self._at, self._closings = "", found.at, [*found.closings]
        self._is_dropped = self.n_calls > 0 and not self._is_parallel
        if not self._is_dropped:
            self.n_calls += 1
            self._events.append(
                ToolCallDelta(self.n_calls - 1, arguments, id=f"call_{secrets.token_hex(12)}", name=name)
            )

    def _take_arguments(self, text: str) -> None:
        if not self._is_dropped:
            self._events.append(ToolCallDelta(self.n_calls - 1, text))


def _opened(closings: list[str], closing: str | None) -> list[str]:
    """Return what may follow a call inside another opening; one of the same kind was never closed."""
    if closing is None:
        return closings
    return [*takewhile(lambda each: each != closing, closings), closing]


@dataclass(frozen=True)
class CallForm:
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


HERMES = CallForm(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CALL_MARKS[OPEN]}", separator="\n")
LLAMA = CallForm('{"name": "', '", "parameters": ', "}")
PLAIN = CallForm('{"name": "', '", "arguments": ', "}", separator="\n")  # grammars allow no control tokens
MISTRAL = replace(PLAIN, has_short_ids=True)
DEEPSEEK = replace(PLAIN, has_text=True)
KIMI = replace(PLAIN, has_named_ids=True)


def form_of(chat_template: str) -> CallForm | None:
    """Return the form of calls in a chat template with tools, or None if unknown."""
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
        f"{json.dumps(f'{form.before}{name}{form.between}')} %json {json.dumps(schema)}"
        for name, schema in parameters.items()
    ]
    start = "call"
    if is_parallel and form.separator is not None:
        start += f" ({json.dumps(form.separator)} call)*"
    if answer is not None:
        start += f" | %json {json.dumps(answer)}"
    return f"start: {start}\ncall: ({' | '.join(calls)}) {json.dumps(form.after)}\n"
