"""Regular expressions as GBNF grammars, read with the parser of Python's `re`."""

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from mink_local.sandbox import in_a_line

_constants: Any = import_module("re._constants")  # has no type stubs
_parser: Any = import_module("re._parser")

_CLASSES = {
    "CATEGORY_DIGIT": "0-9",
    "CATEGORY_SPACE": r" \t\n\r\x0B\x0C",
    "CATEGORY_WORD": "a-zA-Z0-9_",
}  # ASCII, as in JSON schemas


def from_regex(pattern: str) -> str:
    """Return a grammar for the texts that a regular expression matches in full.

    Raises:
        ValueError: The expression is invalid, or uses what grammars lack: look-around, references, flags.
    """
    try:
        parsed = _parser.parse(pattern)
        if parsed.state.flags & ~re.UNICODE:
            raise ValueError("it has flags")
        return f"root ::= {_sequence(parsed)}"
    except RecursionError:
        reason = "it is nested too deeply"
    except (ValueError, OverflowError, re.error) as error:
        reason = str(error)
    raise ValueError(f"cannot convert the regular expression to a grammar: {in_a_line(reason)}")


def _sequence(parts: Iterable[tuple[Any, Any]]) -> str:
    return " ".join(filter(None, (_part(str(kind), value) for kind, value in parts))) or '""'


def _part(kind: str, value: Any) -> str:
    """Return the grammar for one part, which the parser names; anchors are empty."""
    match kind:
        case "LITERAL":
            return f"[{_character(value)}]"
        case "NOT_LITERAL":
            return f"[^{_character(value)}]"
        case "ANY":
            return r"[^\n]"
        case "IN":
            return _set(value)
        case "BRANCH":
            return f"({' | '.join(map(_sequence, value[1]))})"
        case "SUBPATTERN" if not (value[1] or value[2]):  # flags
            return f"({_sequence(value[3])})"
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, repeated = value
            upper = "" if most == _constants.MAXREPEAT else int(most)
            return f"({_sequence(repeated)}){{{least},{upper}}}"
        case "AT" if str(value) in ("AT_BEGINNING", "AT_END"):
            return ""
    raise ValueError(f"it has {kind}")


def _set(members: Iterable[tuple[Any, Any]]) -> str:
    """Return a character set; it may be a negated class such as `\\D`, but not contain one."""
    named = [(str(kind), value) for kind, value in members]
    if [kind for kind, _ in named] == ["CATEGORY"] and "_NOT_" in str(named[0][1]):
        return f"[^{_CLASSES[str(named[0][1]).replace('_NOT', '')]}]"
    return f"[{''.join(_member(*member) for member in named)}]"


def _member(kind: str, value: Any) -> str:
    match kind:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return _character(value)
        case "RANGE":
            return "-".join(map(_character, value))
        case "CATEGORY" if str(value) in _CLASSES:
            return _CLASSES[str(value)]
    raise ValueError(f"a character set has {value}")


def _character(code: int) -> str:
    return f"\\U{code:08X}"
