"""How calls in a style are read: what precedes them, how they begin, and how their arguments are written."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from mink_local.generation.format.call_formats import FEW, GEMMA, JSON, MARKED, NAME, PYTHON, Format, tags
from mink_local.generation.format.call_styles import GPT_OSS, CallStyle
from mink_local.generation.format.derived import common, is_mark
from mink_local.generation.format.harmony import CALL

_ID = re.compile(r"callidab1|mkfn\w+")
_ONE = re.compile(r"callidab1|mkfn\w+|\b0\b")
_NUMBER = re.compile(r"\d+")
_TAG = re.compile(r"<[^<>]*>|\[[A-Z_]+\]")


def loosely(text: str) -> str:
    """Return a pattern for a text in which spaces, ids and numbers vary."""
    parts = re.split(rf"(\s+|{_ONE.pattern})", text.strip())
    return "".join(
        r"\s*" if part.isspace() else r"[\w.-]{1,64}\s*" if _ONE.fullmatch(part) else re.escape(part)
        for part in parts
    )


class Head(NamedTuple):
    """How a call begins before its arguments.

    Attributes:
        pattern: All that precedes the arguments.
        format: How they are written.
        before, after: What may stand around the name, without spaces, numbers as 0, up to what varies.
    """

    pattern: re.Pattern[str]
    format: Format
    before: str
    after: tuple[str, ...]

    def may_begin(self, text: str) -> bool:
        """Return whether a text without spaces is the beginning of one."""
        if not text.startswith(self.before):
            return self.before.startswith(text)
        name = _NAME_START.match(text, len(self.before))
        rest = _NUMBER.sub("0", text[name.end() :]) if name else ""
        if rest and name and name.end() == len(self.before):
            return False
        return not self.after or any(each.startswith(rest) for each in self.after)


class Form(NamedTuple):
    """How a template's calls are read.

    Attributes:
        marks: What precedes calls, and what may follow those.
        heads: What comes before arguments.
        allows_bare: Whether calls may come without marks.
    """

    marks: Mapping[str, frozenset[str]] = {}
    heads: tuple[Head, ...] = ()
    allows_bare: bool = True

    def may_begin(self, text: str) -> bool:
        """Return whether a text is the beginning of a head."""
        begun = "".join(text.split())
        return any(head.may_begin(begun) for head in self.heads)


NO_FORM = Form()
_NAME_START = re.compile(NAME.replace("{1,", "{0,"))


def form_of(style: CallStyle) -> Form:
    """Return how calls in a style are read."""
    if style is GPT_OSS:
        style = replace(style, before=CALL, between="<|message|>")
    before, between = style.before.strip(), style.between.strip()
    known = _marks_of(style)
    if before.endswith('name": "') and before.count("{") == 1 and between.startswith('", "'):
        return Form(known, allows_bare=not known)  # an object with a name in it, which needs no head
    arguments = {"python": (PYTHON, "("), "quoted": (GEMMA, "{"), "json": (JSON, "{")}
    kind, *first = arguments.get(style.kind) or _tags_of(style)
    between = "" if style.kind in ("python", "quoted") else between
    starts = {before, *(before.removeprefix(mark).strip() for mark in known if before.startswith(mark))}
    starts |= {""} if before.endswith(tuple(known)) else set()
    tail = f"{FEW}{loosely(between)}{FEW}(?={'|'.join(map(re.escape, first))})"
    ordered = sorted(starts, key=len, reverse=True)
    heads = (
        Head(
            re.compile(loosely(start) + NAME + tail), kind, *_fixed(start, [between + each for each in first])
        )
        for start in ordered
    )
    return Form(known, tuple(heads), allows_bare=not known)


def _fixed(before: str, after: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return what may stand around a name, without spaces, as far as it never varies."""
    ends = (
        ()
        if _ID.search("".join((before, *after)))
        else tuple(_NUMBER.sub("0", "".join(each.split())) for each in after)
    )
    return "".join(_ID.split(before)[0].split()), ends


def _marks_of(style: CallStyle) -> dict[str, frozenset[str]]:
    """Return the marks before calls in a style, with what may follow the calls."""
    opening, before, after = style.opening.strip(), style.before.strip(), style.after + style.closing
    between = _TAG.sub(" ", after)
    parts = [*_TAG.findall(after), *re.findall(r"[\[\](){}]|[^\s\[\](){}]+", between)]
    closers = frozenset((*parts, MARKED)) - {""}
    last = before[before.rfind("<") :] if "<" in before else ""  # models leave out the first one
    marks = (_first_mark(opening), _first_mark(before), last)
    return {mark: closers for mark in marks if is_mark(mark) and "{" not in mark}


def _first_mark(text: str) -> str:
    """Return the mark with which a text begins."""
    text = text.partition("{")[0].rstrip()
    if re.search(r"\w", _TAG.sub("", text)) and not re.search(rf"=|{_ONE.pattern}", text):
        return text
    match = re.match(r"(?:\[[A-Z_]+\]|<[^<>\s]*>)", text)
    return match[0] if match else ""


def _tags_of(style: CallStyle) -> tuple[Format, str, str]:
    """Return the format of a style's arguments in tags, and what they begin with if there are any or none."""
    key, end, after = style.key.strip(), style.end.strip(), (style.after or style.closing).strip()
    left = common(style.equals, style.equals_other)
    right = common(style.equals[len(left) :][::-1], style.equals_other[len(left) :][::-1])[::-1]
    varies = style.equals != style.equals_other
    between = loosely(left) + r"\w*" * varies + loosely(right)
    pad = r"\n?" if style.equals.endswith("\n") and style.end.startswith("\n") else ""
    tag = None if re.search(r"\w", _TAG.sub("", after)) else _TAG.match(after)
    closing = tag[0] if tag else after
    text = "".join(style.equals.split()) if varies else ""
    return tags(key, between, end, closing, pad, text), key, closing
