"""Tool calls, parsed from an answer's text as it is generated."""

import re
import secrets
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

from mink_local.generation.call_formats import (
    ARGUMENTS,
    CALL_ENDS,
    CALL_MARKS,
    FEW_SPACES,
    HEADS,
    NO_CALL,
    OBJECT,
    OBJECT_HEAD,
    OPEN,
    PYTHON,
    PYTHON_HEAD,
    SPACES,
    STOP,
    WRAPPERS,
    Call,
    Format,
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


@dataclass
class _Begun:
    """A call that begins.

    Attributes:
        format: How it is written from here on.
        at: Where this begins.
        closings: What may follow it.
        name: The name, if it comes before the arguments.
        is_certain: Whether this is certain to be a call.
        is_named: Whether its name has been emitted.
        is_broken: Whether it cannot be read.
        tried: How far its end has been looked for.
    """

    format: Format
    at: int
    closings: frozenset[str]
    name: str = ""
    is_certain: bool = False
    is_named: bool = False
    is_broken: bool = False
    tried: int = 0


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
        is_cut: Whether the last call is not whole.
    """

    def __init__(
        self, tools: Iterable[Tool], marks: Iterable[str] = (OPEN,), *, is_parallel: bool = True
    ) -> None:
        functions = [tool["function"] for tool in tools if "function" in tool]
        self.is_cut = False
        self._n_calls = 0
        self._schemas = {function["name"]: function.get("parameters") for function in functions}
        self._marks = {mark: CALL_MARKS[mark] for mark in marks}
        self._openings = WRAPPERS | self._marks
        self._mark = re.compile("|".join(map(re.escape, (*self._marks, *self._marks.values()))))
        kinds = ("", '"type":"function",')
        self._starts = [f'{{{kind}"name":"{name}"' for kind in kinds for name in self._schemas]
        self._is_parallel = is_parallel
        self._text, self._at = "", 0  # what is held back, from a place on
        self._begun: _Begun | None = None  # the call that begins there
        self._closings: frozenset[str] = frozenset()  # what may follow the last one
        self._space = ""  # what is held back before the place: spaces, after a call also a separator
        self._gap = ""  # between text and the call after it; for more text after the call
        self._has_text = self._follows_call = False
        self._is_line_start = True

    @property
    def in_call(self) -> bool:
        """Whether a call has begun, or what may be one, and not ended."""
        return self._begun is not None

    @property
    def n_held(self) -> int:
        """Number of characters held back."""
        return len(self._space) + len(self._text) - self._at

    def feed(self, text: str, *, is_final: bool = False, is_cut: bool = False) -> Iterator[Event]:
        """Yield what is now certain; what may be a call is held back.

        Args:
            text: More of the text.
            is_final: Whether this is its end.
            is_cut: Whether it is cut off there: what may begin a call is dropped.
        """
        self._text += text
        return filter(self._is_wanted, self._read(is_final, is_cut))

    def calls_at_end(self, reasoning: str) -> list[Event]:
        """Return the calls that reasoning ends with which has no end: the model did not go on after them."""
        starts = [match.start() for match in self._mark.finditer(reasoning) if match[0] in self._marks]
        for start in starts[-_MOST_WRAPPERS:]:
            parser = copy(self)
            events = [*parser.feed(reasoning[start:], is_final=True)]
            if not parser.is_cut and all(isinstance(event, ToolCallDelta) for event in events):
                return events
        return []

    def _is_wanted(self, event: Event) -> bool:
        return self._is_parallel or isinstance(event, str) or event.index == 0

    def _read(self, is_final: bool, is_cut: bool) -> Iterator[Event]:
        while self._begun or self._skip(is_final):
            found = self._begun or self._look()
            if isinstance(found, _Begun):
                self._begun = found
                yield from self._go_on(found, is_final, is_cut)
                if self._begun:
                    return
            elif found and not is_final:
                return
            elif found and is_cut:
                yield from self._call(Call("", "", is_whole=False), len(self._text))
            else:
                yield self._take_text(end_of(_WORD, self._text, self._at))
        if is_final and self._space and not self._follows_call:
            yield self._take_text(self._at)
        self._space = "" if is_final else self._space

    def _skip(self, is_final: bool) -> bool:
        """Go past spaces, and past what closes a call; return whether something else follows."""
        self._hold(end_of(SPACES, self._text, self._at))
        while self._follows_call and self._at < len(self._text):
            closers = self._closings.union(self._marks.values())
            begun = [each for each in closers if each.startswith(self._text[self._at : self._at + len(each)])]
            closer = max(begun, key=len, default="")
            if self._text[self._at] in ";," and not self._space.strip():
                self._hold(self._at + 1)
            elif not closer:
                break
            elif self._text.startswith(closer, self._at) or is_final:
                self._closings -= {closer}
                self._space, self._at = "", min(self._at + len(closer), len(self._text))
            else:  # it may be one
                return False
            self._hold(end_of(SPACES, self._text, self._at))
        if self._at == len(self._text):
            self._text, self._at = "", 0
        return self._text != ""

    def _hold(self, end: int) -> None:
        """Hold back the text up to a place as what separates a call from what follows it."""
        space = self._text[self._at : end]
        self._space, self._at = self._space + space, end
        self._is_line_start |= "\n" in space

    def _look(self) -> _Begun | bool:
        """Return the call that begins here, or whether more text may show that one does."""
        text, at, closings = self._text, self._at, self._closings
        for _ in range(_MOST_WRAPPERS):
            openings = self._openings if self._is_line_start or at > self._at else self._marks
            begun = [each for each in openings if each.startswith(text[at : at + len(each)])]
            opening = max(begun, key=len, default="")
            if len(text) - at < len(opening):
                return True
            closings |= {openings[opening]} if opening else set()
            at = end_of(FEW_SPACES, text, at + len(opening)) if opening else at
        if not CALL_ENDS.isdisjoint(closings):
            return self._look_after_mark(at, closings)
        return (self._is_line_start or at > self._at) and self._look_for_known(at, closings)

    def _look_after_mark(self, at: int, closings: frozenset[str]) -> _Begun | bool:
        if self._text.startswith("{", at):
            return _Begun(OBJECT, at, closings)
        for head in HEADS:
            match = head.pattern.match(self._text, at)
            if match and (not head.is_known or match["name"] in self._schemas):
                closings = closings.union(head.closing)
                return _Begun(head.format, match.end(), closings, match["name"], head.format.is_certain)
        return len(self._text) - at < _LONGEST_START and not ARGUMENTS.search(self._text, at)

    def _look_for_known(self, at: int, closings: frozenset[str]) -> _Begun | bool:
        objects = ['{"arguments":', '{"parameters":', *self._starts]
        calls = [f"{name}(" for name in self._schemas] if closings else []
        begun = "".join(self._text[at : at + _LONGEST_START].split())
        if begun.startswith(tuple(objects)):
            return _Begun(OBJECT, at, closings)
        match = PYTHON_HEAD.pattern.match(self._text, at)
        if match and begun.startswith(tuple(calls)):
            return _Begun(PYTHON, match.end(), closings, match["name"])
        return any(start.startswith(begun) for start in (*objects, *calls))

    def _go_on(self, begun: _Begun, is_final: bool, is_cut: bool) -> Iterator[Event]:
        """Read a call on, to its end if it is there."""
        if begun.format is OBJECT and (head := OBJECT_HEAD.match(self._text, begun.at)) and head["arguments"]:
            begun.name, begun.is_certain = head["name"], True
        if begun.is_certain and not begun.is_named:
            begun.is_named = True
            yield self._named(begun.name)
        call = self._whole(begun)
        if call is None and (begun.is_certain or not begun.is_broken):
            is_over = begun.is_certain and (begun.is_broken or is_final)
            stop = STOP.search(self._text, begun.at) if is_over else None
            if not (stop or is_final):
                return
            begun.tried = stop.start() if stop else len(self._text)
            if begun.is_certain or is_cut:
                written = self._text[begun.at : begun.tried]
                call = begun.format.cut(begun.name, written, self._schemas.get(begun.name))
        self._begun = None
        is_known = begun.is_certain or not CALL_ENDS.isdisjoint(begun.closings)
        if call and (is_known or call.name in self._schemas):
            yield from self._call(call, begun.tried, is_named=begun.is_named)
            self._closings = begun.closings
        elif is_cut and not begun.is_broken:
            yield from self._call(Call("", "", is_whole=False), len(self._text))
        else:
            mark = self._mark.search(self._text, self._at + 1, begun.tried)
            yield self._take_text(mark.start() if mark else begun.tried)

    def _whole(self, begun: _Begun) -> Call | None:
        """Return a call that is complete."""
        closing = begun.format.closing
        while not begun.is_broken and (end := self._text.find(closing, max(begun.at, begun.tried))) >= 0:
            begun.tried = end + len(closing)
            try:
                written = self._text[begun.at : begun.tried]
                return begun.format.whole(begun.name, written, self._schemas.get(begun.name))
            except SyntaxError:
                continue
            except NO_CALL:
                begun.is_broken = True
        return None

    def _call(self, call: Call, end: int, *, is_named: bool = False) -> Iterator[Event]:
        """Take the text up to a place as a call, or as the beginning of one that has no name yet."""
        if call.name and not is_named:
            yield self._named(call.name)
        if call.name:
            self.is_cut = not call.is_whole and (self._is_parallel or self._n_calls == 1)
            yield ToolCallDelta(self._n_calls - 1, call.arguments)
        self._space, self._at, self._is_line_start = "", end, True

    def _named(self, name: str) -> ToolCallDelta:
        self._gap = self._gap if self._follows_call else self._space
        self._space, self._follows_call = "", True
        self._n_calls += 1
        return ToolCallDelta(self._n_calls - 1, id=f"call_{secrets.token_hex(12)}", name=name)

    def _take_text(self, end: int) -> str:
        """Return the text up to a place, and the space before it."""
        space = self._space
        if self._follows_call:
            space = (space or self._gap) if self._has_text else space.lstrip()
        text = space + self._text[self._at : end]
        self._space, self._at, self._is_line_start, self._closings = "", end, False, frozenset()
        self._has_text, self._follows_call = True, False
        return text
