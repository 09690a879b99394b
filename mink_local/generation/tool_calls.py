"""Tool calls, parsed from an answer's text as it is generated."""

import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any, TypeVar

from mink_local.generation.call_formats import (
    BEGUN_HEAD,
    CALL_ENDS,
    CALL_MARKS,
    FEW_SPACES,
    HEADS,
    OPEN,
    PYTHON_HEAD,
    SPACES,
    WRAPPERS,
    CallReader,
    ObjectReader,
    PythonReader,
    end_of,
)
from mink_local.generation.request import Tool

_MOST_WRAPPERS = 5  # nested
_LONGEST_START = 300  # characters
_WORD = re.compile(r".[^\s<\[]*", re.DOTALL)


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


class ToolParser:
    """Finds tool calls in an answer's text, piece by piece.

    A call is found between the marks of the chat template; or, if it names a known tool, at the start of a
    line, as LLaMA-3 writes it, or in a fence or the like, as Qwen2.5-Coder does. Text that merely begins like
    a call remains text. The name of a call is emitted as soon as it is certain, its arguments when they are
    complete. A call that is cut off has what there is of its arguments. Marks and wrappers around calls are
    dropped, and whitespace unless it is between texts.

    Args:
        tools: The tools; the types of their parameters matter where the model writes no JSON.
        marks: What precedes calls; see `marks_of`.
        is_parallel: Whether to emit more than the first call.

    Attributes:
        n_calls: Number of calls so far.
        is_cut: Whether the last call is not whole.
    """

    def __init__(
        self, tools: Iterable[Tool], marks: Collection[str] = (OPEN,), *, is_parallel: bool = True
    ) -> None:
        functions = [tool["function"] for tool in tools if "function" in tool]
        self.n_calls = 0
        self.is_cut = False
        self._schemas = {function["name"]: function.get("parameters") for function in functions}
        self._marks = marks
        self._ends = [CALL_MARKS[mark] for mark in marks]
        self._openings = WRAPPERS | dict(zip(marks, self._ends, strict=True))
        self._longest_first = sorted(self._openings, key=len, reverse=True)
        self._mark = re.compile("|".join(map(re.escape, (*marks, *self._ends))))
        self._object_starts = [
            *('{"arguments":', '{"parameters":'),
            *(f'{{{kind}"name":"{name}"' for kind in ("", '"type":"function",') for name in self._schemas),
        ]
        self._starts = [*self._object_starts, *(f"{name}(" for name in self._schemas)]
        self._is_parallel = is_parallel
        self._is_dropped = False  # the call being read
        self._text, self._at = "", 0  # what is held back, from a place on
        self._reader: CallReader | None = None  # of the call that begins there
        self._is_named = False  # whether its name has been emitted
        self._begun_name = ""  # what follows the mark if it may be a call
        self._found: list[str] = []  # what may follow the call that is read
        self._closings: list[str] = []  # what may follow the last one
        self._space = ""  # what is held back before the place: spaces, after a call also a separator
        self._gap = ""  # between text and the call after it; for more text after the call
        self._has_text = self._follows_call = False
        self._is_line_start = True

    @property
    def n_held(self) -> int:
        """Number of characters held back."""
        return len(self._space) + len(self._text) - self._at

    def feed(self, text: str) -> Iterator[Event]:
        """Yield what is now certain; what may be a call is held back."""
        self._text += text
        return self._read(is_final=False, is_cut=False)

    def end(self, *, is_cut: bool = False) -> Iterator[Event]:
        """Yield what was held back; if the text is cut off, what may begin a call is dropped."""
        return self._read(is_final=True, is_cut=is_cut)

    def calls_at_end(self, reasoning: str) -> list[Event]:
        """Return the calls that reasoning ends with which has no end: the model did not go on after them."""
        starts = [match.start() for match in self._mark.finditer(reasoning) if match[0] in self._marks]
        for start in starts[-_MOST_WRAPPERS:]:
            parser = copy(self)
            events = [*parser.feed(reasoning[start:]), *parser.end()]
            if not parser.is_cut and all(isinstance(event, ToolCallDelta) for event in events):
                return events
        return []

    def _read(self, *, is_final: bool, is_cut: bool) -> Iterator[Event]:
        while self._reader or self._skip(is_final):
            found = self._reader or self._look()
            if isinstance(found, CallReader):
                self._reader = found
                is_over = found.read(self._text, is_final)
                if found.name and not self._is_named:
                    yield from self._named(found.name)
                if not (is_over or is_final):
                    return
                yield from self._ended(found, is_cut=is_cut and not is_over)
            elif found and not is_final:
                return
            elif found and is_cut:
                yield from self._cut()
            else:
                yield self._take_text(end_of(_WORD, self._text, self._at))
        if is_final and self._space and not self._follows_call:
            yield self._take_text(self._at)
        self._space = "" if is_final else self._space

    def _skip(self, is_final: bool) -> bool:
        """Go past spaces, and past what closes a call; return whether something else follows."""
        self._hold(end_of(SPACES, self._text, self._at))
        while self._follows_call and self._at < len(self._text):
            closers = (*reversed(self._closings), *self._ends)
            if closer := next((each for each in closers if self._text.startswith(each, self._at)), None):
                self._closings = _opened(self._closings, closer)[:-1]
                self._space, self._at = "", self._at + len(closer)
            elif self._text[self._at] in ";," and not self._space.strip():
                self._hold(self._at + 1)
            elif not any(each.startswith(self._text[self._at : self._at + len(each)]) for each in closers):
                break
            elif not is_final:  # it may be one
                return False
            else:
                self._at = len(self._text)
            self._hold(end_of(SPACES, self._text, self._at))
        if self._at == len(self._text):
            self._text, self._at = "", 0
        return self._text != ""

    def _hold(self, end: int) -> None:
        """Hold back the text up to a place as what separates a call from what follows it."""
        space = self._text[self._at : end]
        self._space, self._at = self._space + space, end
        self._is_line_start |= "\n" in space

    def _look(self) -> CallReader | bool:
        """Return what reads the call that begins here, or whether more text may show that one does."""
        text, at, closings = self._text, self._at, self._closings
        self._begun_name = ""
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
        self._found = closings
        if not CALL_ENDS.isdisjoint(closings):
            return self._look_after_mark(at)
        return (self._is_line_start or at > self._at) and self._look_for_known(at)

    def _look_after_mark(self, at: int) -> CallReader | bool:
        if self._text.startswith("{", at):
            return ObjectReader(at)
        for head in HEADS:
            match = head.pattern.match(self._text, at)
            if match and (not head.is_known or match["name"] in self._schemas):
                self._found = _opened(self._found, head.closing)
                return head.reader(match.end(), match["name"], self._schemas.get(match["name"]))
        if begun := BEGUN_HEAD.match(self._text, at):
            self._begun_name = begun["name"] if begun["rest"] else ""
        return begun is not None

    def _look_for_known(self, at: int) -> CallReader | bool:
        starts = self._starts if self._found else self._object_starts
        begun = "".join(self._text[at : at + _LONGEST_START].split())
        if any(begun.startswith(start) for start in starts):
            if self._text[at] == "{":
                return ObjectReader(at)
            match = PYTHON_HEAD.pattern.match(self._text, at)
            return PythonReader(match.end(), match["name"]) if match else False
        return any(start.startswith(begun) for start in starts)

    def _named(self, name: str) -> Iterator[Event]:
        """Begin a call."""
        self._is_named = True
        self._gap = self._gap if self._follows_call else self._space
        self._space, self._follows_call = "", True
        self._is_dropped = self.n_calls > 0 and not self._is_parallel
        if not self._is_dropped:
            self.n_calls += 1
            yield ToolCallDelta(self.n_calls - 1, id=f"call_{secrets.token_hex(12)}", name=name)

    def _ended(self, reader: CallReader, *, is_cut: bool) -> Iterator[Event]:
        """Take what has been read, which is a call or is none."""
        call, self._reader = reader.call(self._text), None
        if call and not (call.is_whole or reader.name or is_cut):
            call = None
        if call and (call.name in self._schemas or not CALL_ENDS.isdisjoint(self._found)):
            if not self._is_named:
                yield from self._named(call.name)
            self._at, self._closings = reader.at, [*self._found]
            self._is_named, self._is_line_start = False, True
            if not self._is_dropped:
                self.is_cut = not call.is_whole
                yield ToolCallDelta(self.n_calls - 1, call.arguments)
        elif is_cut:
            self._drop()
        else:
            mark = self._mark.search(self._text, self._at + 1, reader.at)
            yield self._take_text(mark.start() if mark else reader.at)

    def _cut(self) -> Iterator[Event]:
        """Take what begins like a call: it has no arguments yet, and perhaps no name."""
        if self._begun_name:
            yield from self._named(self._begun_name)
            self.is_cut = not self._is_dropped
        self._drop()

    def _drop(self) -> None:
        """Drop what is held back."""
        self._space, self._text, self._at = "", "", 0

    def _take_text(self, end: int) -> str:
        """Return the text up to a place, and the space before it."""
        space = self._space
        if self._follows_call:
            space = (space or self._gap) if self._has_text else space.lstrip()
        text = space + self._text[self._at : end]
        self._space, self._at, self._is_line_start, self._closings = "", end, False, []
        self._has_text, self._follows_call = True, False
        return text


def _opened(closings: list[str], closing: str | None) -> list[str]:
    """Return what may follow a call inside another opening; one of the same kind was never closed."""
    if closing is None:
        return closings
    return [*takewhile(lambda each: each != closing, closings), closing]
