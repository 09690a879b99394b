"""A model's conventions: how its template takes contents, reasoning and calls, and how it writes them.

They are derived from what the template writes, or known by hand, or given by the user: a wrong guess needs no
other version of this package.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_args, get_type_hints

from mink_local.checks import shown
from mink_local.errors import MinkError, OptionError
from mink_local.generation.format.call_derivation import CHECKS, is_read, understood_style
from mink_local.generation.format.call_forms import NO_FORM, Form, form_of
from mink_local.generation.format.call_styles import BY_HAND, HERMES, NAMED, CallStyle
from mink_local.generation.format.derived import (
    Reasoning,
    Render,
    Taken,
    how_calls_are_taken,
    reasoning_of,
    roles_with_parts,
)
from mink_local.generation.format.text import Marks


@dataclass(frozen=True)
class Conventions:
    """How a model writes, and how its template takes what it wrote.

    Attributes:
        roles_with_parts: The roles whose content the template takes only as a list of parts; None if it shows
            nothing of what users write.
        reasoning: How it takes reasoning, and what stands around that.
        style: How calls are written; None if the template does not show them, or in a way that is not
            understood: then they are text in the style of Hermes.
        taken: How the template takes tools and calls; None if they become text.
        is_understood: Whether the calls of a template that shows tools are.
    """

    roles_with_parts: frozenset[str] | None = frozenset()
    reasoning: Reasoning = field(default_factory=Reasoning)
    style: CallStyle | None = None
    taken: Taken | None = None
    is_understood: bool = True

    @property
    def form(self) -> Form:
        """How calls are read."""
        return form_of(self.style) if self.style else NO_FORM

    @property
    def reasons(self) -> str:
        """Whether the model reasons: yes, no or optional."""
        return ("optional" if self.reasoning.switch else "yes") if self.reasoning.is_known else "no"

    def __str__(self) -> str:
        return f"reasoning: {self.reasoning_in_words}; calls: {self.calls_in_words}"

    @property
    def reasoning_in_words(self) -> str:
        """What stands around reasoning, and what turns it on and off, in one line."""
        start, end = (mark.strip() for mark in self.reasoning.marks[:2])
        switches = (*(self.reasoning.switch or [()])[0],)
        switch = "".join(f", switched by {name}" for name in switches)
        return f"{start} … {end}{switch}" if self.reasoning.is_known else "no"

    @property
    def calls_in_words(self) -> str:
        """A call as the model writes it, in one line."""
        written = json.dumps((self.style or HERMES).write([("NAME", {"KEY": "VALUE"})]), ensure_ascii=False)
        why = "none shown" if self.is_understood else "not understood"
        return written[1:-1].replace('\\"', '"') + (f" ({why}: as text)" if self.style is None else "")

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON; `calls` is what `call_style` takes."""
        reasoning = self.reasoning
        return {
            "roles_with_parts": sorted(self.roles_with_parts or ()),
            "reasoning": {
                "is_known": reasoning.is_known,
                "marks": [mark.strip() for mark in reasoning.marks[:2]],
                "is_opened": reasoning.is_opened,
                "field": reasoning.field,
                "switch": reasoning.switch,
            },
            "calls": asdict(self.style) if self.style else None,
            "taken": asdict(self.taken) if self.taken else None,
        }


def conventions_of(
    render: Render,
    source: str,
    own: CallStyle | None = None,
    marks: Marks | None = None,
) -> Conventions:
    """Return a template's conventions.

    Args:
        render: Renders the template.
        source: Its source, which is looked through for what is known by hand.
        own: How calls are written, whatever it shows.
        marks: What stands around reasoning, whatever it shows.
    """
    found = Conventions()
    with suppress(MinkError):  # a template that does not end is not asked again and again
        found = _derived(render, source, own)
    if marks is not None:
        found = replace(found, reasoning=replace(found.reasoning, marks=marks, is_known=True))
    return replace(found, style=own) if own else found


def _derived(render: Render, source: str, own: CallStyle | None) -> Conventions:
    roles = roles_with_parts(render) if "content" in source else frozenset[str]()
    reasoning = reasoning_of(render, source)
    taken = how_calls_are_taken(render)
    by_hand = next((NAMED[name] for sign, name in BY_HAND.items() if sign in source), None)
    style = own or by_hand or understood_style(render, taken, reasoning.marks)
    is_understood = style is not None or "tools" not in source
    return Conventions(roles, reasoning, style, taken if style else None, is_understood)


def style_of(given: str | Mapping[str, Any]) -> CallStyle:
    """Return the style that a user names or describes. Raises OptionError."""
    if isinstance(given, str):
        if given in NAMED:
            return NAMED[given]
        raise OptionError("call_style", f"must be {', '.join(NAMED)}, or a file, not {shown(given)}")
    if not isinstance(given, Mapping):
        raise OptionError("call_style", f"must be a name or a dict of fields, not {shown(given)}")
    known = {each.name for each in fields(CallStyle)}
    for name, value in given.items():
        if name not in known:
            raise OptionError("call_style", f"has no field {shown(name)}: it has {', '.join(sorted(known))}")
        if not isinstance(value, str) and not (name == "separator" and value is None):
            raise OptionError(f"call_style.{name}", f"must be a text, not {shown(value)}")
    style = CallStyle(**given)
    if style.kind not in (kinds := get_args(get_type_hints(CallStyle)["kind"])):
        raise OptionError("call_style.kind", f"must be {', '.join(kinds)}, not {shown(style.kind)}")
    calls = (calls for calls in CHECKS if len(calls) == 1 or style.separator is not None)
    if not all(is_read(style, style.write(each), each) for each in calls):
        raise OptionError("call_style", f"writes what cannot be read back: {style.write(CHECKS[0])!r}")
    return style


def marks_of(given: Sequence[str]) -> Marks:
    """Return the marks that a user gives. Raises OptionError."""
    start, end = given if isinstance(given, list | tuple) and len(given) == 2 else ("", "")
    if not all(isinstance(mark, str) and mark.strip() for mark in (start, end)):
        raise OptionError("reasoning_marks", f"must be the two texts around reasoning, not {shown(given)}")
    return Marks(start, end)
