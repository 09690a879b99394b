"""Tool calls, parsed from an answer's text as it is generated."""

import re
import secrets
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import groupby

from mink_local.generation.format.call_formats import (
    FEW_SPACES,
    MARKED,
    NO_CALL,
    OBJECT,
    OPEN,
    OPEN_END,
    PYTHON,
    PYTHON_HEAD,
    SPACES,
    WRAPPERS,
    End,
    Format,
    end_of,
)
from mink_local.generation.format.call_forms import NO_FORM, Form
from mink_local.generation.format.text import started_length
from mink_local.generation.request import Tool

_MOST_WRAPPERS = 5  # nested
_MOST_TRIES = 8  # to find a call inside what is none
_LONGEST_START = 300  # characters
_WORD = re.compile(r".[^\s<\[]*", re.DOTALL)


@dataclass(frozen=True)
class ToolCallDelta:
    """A whole call: the arguments are JSON."""

    index: int
    arguments: str
    id: str
    name: str


Part = str | ToolCallDelta
"""A piece of the answer's text, or a call."""


def merged(parts: Iterable[Part]) -> Iterator[Part]:
    """Join consecutive texts."""
    for is_text, group in groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            yield "".join(map(str, group))
        else:
            yield from group


@dataclass
class _Begun:
    """A call that begins.

    Attributes:
        format: How it is written from here on.
        at: Where this begins.
        closings: What may follow it.
        name: The name, if it comes before the arguments.
        end: How far its end has been looked for.
    """

    format: Format
    at: int
    closings: frozenset[str]
    name: str = ""
    end: End = field(init=False)

    def __post_init__(self) -> None:
        self.end = End(self.at)


class ToolParser:
    """Finds tool calls in an answer's text, piece by piece.

    A call is found between the marks of the chat template; or, if the form allows it, without any at the end
    of an answer, if it names a known tool: at the start of a line, as LLaMA-3 writes it, or in a fence or the
    like, as Qwen2.5-Coder does. Text that merely begins like a call remains text. A call is emitted when it
    is complete; one that is cut off is left out. Marks and
    wrappers around calls are dropped, and whitespace unless it is between texts.

    Args:
        tools: The tools; the types of their parameters matter where the model writes no JSON.
        form: How the chat template's calls are read; those in Hermes's marks always are.
        is_parallel: Whether to emit more than the first call.

    Attributes:
        is_cut: Whether a call was cut off, and left out.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        form: Form = NO_FORM,
        *,
        is_parallel: bool = True,
    ) -> None:
        functions = [tool["function"] for tool in tools if "function" in tool]
        self.is_cut = False
        self._n_calls = self._n_tries = 0
        self._schemas = {function["name"]: function.get("parameters") for function in functions}
        self._form = form
        self._marks = {OPEN: frozenset({OPEN_END, MARKED})} | dict(form.marks)
        self._ends = {end for ends in self._marks.values() for end in ends if len(end) > 1}
        self._openings = {mark: frozenset({end}) for mark, end in WRAPPERS.items()} | self._marks
        self._mark = re.compile("|".join(map(re.escape, (*self._marks, *sorted(self._ends)))))
        kinds = ("", '"type":"function",', '"type":"function","function":{')
        self._starts = [f'{{{kind}"name":"{name}",' for kind in kinds for name in self._schemas]
        self._is_parallel = is_parallel
        # A line break belongs in no string of JSON: before a mark it shows that one has no end.
        ends = map(re.escape, sorted(each for each in self._ends if each.startswith(("</", "<|", "[/"))))
        self._stop = re.compile(rf"\n\s*(?:{'|'.join(ends)})")
        self._bare: tuple[Part, ...] = ()  # calls without marks
        self._bare_at: int | None = None  # where these begin
        self._bare_space = ""  # before them
        self._text, self._at = "", 0  # what is held back, from a place on
        self._begun: _Begun | None = None  # the call that begins there
        self._closings: frozenset[str] = frozenset()  # what may follow the last one
        self._section: frozenset[str] = frozenset()  # the same, with what has followed it
        self._space = ""  # what is held back before the place: spaces, after a call also a separator
        self._gap = ""  # between text and the call after it; for more text after the call
        self._has_text = self._follows_call = False
        self._is_line_start = True

    @property
    def in_call(self) -> bool:
        """Whether a call has begun, or what may be one, and not ended."""
        return self._begun is not None or self._bare_at is not None

    @property
    def n_held(self) -> int:
        """Number of characters held back."""
        if self._bare_at is not None:
            return len(self._bare_space) + len(self._text) - self._bare_at
        return len(self._space) + len(self._text) - self._at

    def feed(self, text: str, *, is_final: bool = False, is_cut: bool = False) -> Iterator[Part]:
        """Yield what is now certain; what may be a call is held back.

        Args:
            text: More of the text.
            is_final: Whether this is its end.
            is_cut: Whether it is cut off there: what may begin a call is dropped.
        """
        self._text += text
        return filter(self._is_wanted, self._deferred(self._read(is_final, is_cut), is_final))

    def begins_call(self, text: str) -> bool:
        """Return whether a text begins with the mark of a call."""
        return bool(text) and text.startswith(tuple(self._marks))

    def split_reasoning(self, reasoning: str) -> tuple[str, str]:
        """Return reasoning up to the first mark of a call in it, and from there on."""
        found = next((match for match in self._mark.finditer(reasoning) if match[0] in self._marks), None)
        at = found.start() if found else len(reasoning) - started_length(reasoning, self._marks)
        return reasoning[:at], reasoning[at:]

    def calls_at_end(self, reasoning: str) -> tuple[str, list[Part]]:
        """Return reasoning without the calls at its end, after which the model did not go on, and these."""
        starts = [match.start() for match in self._mark.finditer(reasoning) if match[0] in self._marks]
        for start in starts[-_MOST_WRAPPERS:]:
            parts = [*copy(self).feed(reasoning[start:], is_final=True)]
            if parts and all(isinstance(part, ToolCallDelta) for part in parts):
                return reasoning[:start].rstrip(), parts
        return reasoning, []

    def _is_wanted(self, part: Part) -> bool:
        return self._is_parallel or isinstance(part, str) or part.index == 0

    def _deferred(self, parts: Iterable[Part], is_final: bool) -> Iterator[Part]:
        """Yield parts, calls without marks at the end of all: they are text if other text follows."""
        for part in parts:
            if self._bare_at is None:
                yield part
            elif not isinstance(part, str):
                self._bare = (*self._bare, part)
            elif part.strip():
                yield self._bare_space + self._text[self._bare_at : self._at]
                self._n_calls -= len(self._bare)
                self._bare_at, self._bare = None, ()
        if is_final:
            yield from self._bare
            self._bare_at, self._bare = None, ()

    def _read(self, is_final: bool, is_cut: bool) -> Iterator[Part]:
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
                self._leave_out()
            else:
                yield self._take_text(end_of(_WORD, self._text, self._at))
        if is_final and self._space and not self._follows_call:
            yield self._take_text(self._at)
        self._space = "" if is_final else self._space

    def _skip(self, is_final: bool) -> bool:
        """Go past spaces, and past what closes a call; return whether something else follows."""
        self._hold(end_of(SPACES, self._text, self._at))
        while self._follows_call and self._at < len(self._text):
            closers = self._closings | self._ends
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
        if self._at == len(self._text) and self._bare_at is None:
            self._text, self._at = "", 0
        return self._at < len(self._text)

    def _hold(self, end: int) -> None:
        """Hold back the text up to a place as what separates a call from what follows it."""
        space = self._text[self._at : end]
        self._space, self._at = self._space + space, end
        self._is_line_start |= "\n" in space

    def _look(self) -> _Begun | bool:
        """Return the call that begins here, or whether more text may show that one does."""
        text, at, closings = self._text, self._at, self._closings
        for _ in range(_MOST_WRAPPERS):
            is_start = self._form.allows_bare and self._is_line_start
            openings = self._openings if is_start or at > self._at else self._marks
            begun = [each for each in openings if each.startswith(text[at : at + len(each)])]
            opening = max(begun, key=len, default="")
            if len(text) - at < len(opening):
                return True
            closings |= openings.get(opening, frozenset())
            at = end_of(FEW_SPACES, text, at + len(opening)) if opening else at
        if MARKED in closings:
            return self._look_after_mark(at, closings | self._section)
        is_start = self._form.allows_bare and (self._is_line_start or at > self._at)
        return is_start and self._look_for_known(at, closings)

    def _look_after_mark(self, at: int, closings: frozenset[str]) -> _Begun | bool:
        for head in self._form.heads:
            if match := head.pattern.match(self._text, at):
                return _Begun(head.format, match.end(), closings, match["name"])
        if len(self._text) - at < _LONGEST_START and self._form.may_begin(self._text[at:]):
            return True
        return _Begun(OBJECT, at, closings) if self._text.startswith("{", at) else at == len(self._text)

    def _look_for_known(self, at: int, closings: frozenset[str]) -> _Begun | bool:
        objects = ['{"arguments":', '{"parameters":', *self._starts]
        calls = [f"{name}(" for name in self._schemas] if closings else []
        begun = "".join(self._text[at : at + _LONGEST_START].split())
        if begun.startswith(tuple(objects)):
            return _Begun(OBJECT, at, closings)
        match = PYTHON_HEAD.match(self._text, at)
        if match and begun.startswith(tuple(calls)):
            return _Begun(PYTHON, match.end(), closings, match["name"])
        return any(start.startswith(begun) for start in (*objects, *calls))

    def _go_on(self, begun: _Begun, is_final: bool, is_cut: bool) -> Iterator[Part]:
        """Read a call on, to its end if it is there."""
        is_over = begun.format.end(self._text, begun.end)
        if not (is_over or begun.end.is_broken or is_final):
            return
        self._begun = None
        if is_over and (call := self._call(begun)):
            yield call
            return
        stop = self._stop.search(self._text, begun.at)
        if is_cut and not (is_over or begun.end.is_broken or stop):
            self._leave_out()
            return
        end = begun.end.at if is_over or not stop else stop.start()
        mark = self._mark.search(self._text, self._at + 1, end) if self._n_tries < _MOST_TRIES else None
        self._n_tries = self._n_tries + 1 if mark else 0
        yield self._take_text(mark.start() if mark else end)

    def _call(self, begun: _Begun) -> ToolCallDelta | None:
        """Take the text up to the end of a call, if it is one."""
        written = self._text[begun.at : begun.end.at]
        try:
            name, arguments = begun.format.call(begun.name, written, self._schemas.get(begun.name))
        except NO_CALL:
            return None
        is_marked = MARKED in begun.closings
        if not is_marked and name not in self._schemas:
            return None
        if not is_marked and self._bare_at is None:
            self._bare_at, self._bare_space = self._at, self._space
        self._gap = self._gap if self._follows_call else self._space
        self._space, self._at, self._is_line_start = "", begun.end.at, True
        self._follows_call, self._closings, self._section = True, begun.closings, begun.closings
        if is_marked:  # and models write a bracket too many before the mark
            self._closings |= {f"}}{gap}{each}" for gap in ("", "\n") for each in begun.closings & self._ends}
        self._n_calls += 1
        return ToolCallDelta(self._n_calls - 1, arguments, f"call_{secrets.token_hex(12)}", name)

    def _leave_out(self) -> None:
        """Drop what begins a call that is cut off."""
        self.is_cut = True
        self._space, self._text, self._at = "", "", 0

    def _take_text(self, end: int) -> str:
        """Return the text up to a place, and the space before it."""
        space = self._space
        if self._follows_call:
            space = (space or self._gap) if self._has_text else space.lstrip()
        text = space + self._text[self._at : end]
        self._space, self._at, self._is_line_start, self._closings = "", end, False, frozenset()
        self._has_text, self._follows_call, self._section = True, False, frozenset()
        return text
