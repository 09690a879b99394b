"""How a model writes calls, derived from what its chat template writes for known ones.

One call, two, one with two arguments, one with a number: what is equal or differs around their names, keys
and values shows what opens, separates and closes calls, and how arguments are written.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mink_local.generation.format.call_forms import form_of
from mink_local.generation.format.call_styles import CallStyle
from mink_local.generation.format.derived import (
    RESULT,
    STRING,
    TEXT,
    USER,
    Calls,
    Render,
    Taken,
    attempt,
    calling,
    common,
    tool,
)
from mink_local.generation.format.rendering import RefusalError
from mink_local.generation.format.text import THINK_MARKS, Marks
from mink_local.generation.format.tool_calls import ToolParser

_NAMES, _KEYS, _VALUES = ("mkfnone", "mkfntwo"), ("mkkeyone", "mkkeytwo"), ("mkvalone", "mkvaltwo")
_IDS = ("callidab1", "callidab2")

_NUMBER = re.compile(r'(?<=[:"])[0-2](?=["<\s])')  # of a call in the list
_TAG = re.compile(r"<[^<>]*>|\[[A-Z_]+\]|[\[\](){}]|```")


class Writer:
    """Has a template write calls.

    Args:
        render: Renders the template.
        taken: How it takes calls.
        tools: The tools that are called.
        content: The text before calls.
    """

    def __init__(
        self, render: Render, taken: Taken, tools: Sequence[dict[str, Any]] = (), content: str = TEXT
    ) -> None:
        properties = dict.fromkeys(_KEYS, STRING)
        self.tools = [*(tools or (tool(name, properties) for name in _NAMES))]
        self._render, self._taken, self._content = render, taken, content
        self._prompt = attempt(render, USER, tools=self.tools)

    def written(self, calls: Calls, content: str | None = None) -> str:
        """Return what a template writes for an answer with calls, up to the first result.

        Raises RefusalError if it refuses it, ValueError if the calls are not in it.
        """
        content = self._content if content is None else content
        text = self._render([USER, *calling(calls, self._taken, content, _IDS)], tools=self.tools)
        text = _NUMBER.sub("0", text.replace(_IDS[1], _IDS[0]))
        text = text[: text.index(RESULT, text.rindex(calls[-1][0]))]
        at = text.rfind(content) if content else -1
        if at >= 0 and at < text.rindex(calls[0][0]):
            return text[at + len(content) :]
        at = len(common(text, self._prompt))
        while at and at < len(self._prompt) and text[at - 1] not in ">]\n":
            at -= 1
        return text[at:]

    def turn_end(self) -> str:
        """Return the mark with which a template ends an answer, if it has one."""
        answer = {"role": "assistant", "content": TEXT}
        after = attempt(self._render, USER, answer, USER).rpartition(TEXT)[2]
        match = _TAG.match(after.lstrip())
        return match[0] if match else ""


def understood_style(render: Render, taken: Taken | None, marks: Marks = THINK_MARKS) -> CallStyle | None:
    """Return how a template writes calls, if it shows them and what it writes is read as it was meant."""
    if taken is None or taken.arguments == "no":
        return None
    for content in (TEXT, ""):  # some templates show either text or calls
        with suppress(RefusalError, ValueError, LookupError):
            writer = Writer(render, taken, content=content)
            style = _tidied(_style(writer), writer.turn_end(), marks)
            if _is_understood(Writer(render, taken, TOOLS, content), style):
                return style
    return None


def _is_understood(writer: Writer, style: CallStyle) -> bool:
    turn_end, has_marks = writer.turn_end(), bool(form_of(style).marks)
    for calls in CHECKS:
        if len(calls) == 1 or style.separator is not None:
            written = writer.written(calls)
            written = written[: written.find(turn_end)] if turn_end in written and not has_marks else written
            if not is_read(style, written, calls):
                return False
    return True


def is_read(style: CallStyle, written: str, calls: Calls) -> bool:
    """Return whether a text in a style is read as the calls that it is meant to be."""
    events = ToolParser(TOOLS, form_of(style)).feed(written, is_final=True)
    return [(call.name, json.loads(call.arguments)) for call in events if not isinstance(call, str)] == calls


def _style(writer: Writer) -> CallStyle:
    [one, two], [key, other], [value, _] = _NAMES, _KEYS, _VALUES
    alone = writer.written([(one, {key: value})])
    at_key = alone.rindex(key)
    at_name = alone.rindex(one, 0, at_key)
    at_value = alone.index(value, at_key)
    before, inside = alone[:at_name], alone[at_name + len(one) : at_key]
    style = CallStyle()
    start = alone.rfind("{", at_name, at_key)
    try:
        found, length = json.JSONDecoder().raw_decode(alone[start:]) if start >= 0 else (None, 0)
    except ValueError:
        found = None
    if found == {key: value}:
        style = replace(style, kind="json", between=alone[at_name + len(one) : start])
        after = alone[start + length :]
    else:
        style, after = _with_parameters(
            writer, style, inside, alone[at_key + len(key) :], alone[at_value + len(value) :]
        )
    bare = writer.written([(one, {key: value})], "")
    before = _suffix(before, bare[: bare.rindex(one, 0, bare.rindex(key))])
    try:
        both = writer.written([(one, {key: value}), (two, {other: value})])
        end = both.index(value, both.rindex(key, 0, both.rindex(two))) + len(value)
        gap = both[end : both.rindex(two, 0, both.rindex(other))][
            len(alone) - at_value - len(value) - len(after) :
        ]
    except (RefusalError, ValueError):
        return replace(style, before=before.lstrip(), after=after)
    post = _whole_tags(common(after, gap))
    pre = _suffix(before, gap[len(post) :])
    return replace(
        style,
        opening=before[: len(before) - len(pre)],
        before=pre,
        after=post,
        separator=gap[len(post) : len(gap) - len(pre)],
        closing=after[len(post) :],
    )


def _tidied(style: CallStyle, turn_end: str, marks: Marks) -> CallStyle:
    """Return a style without what ends the turn or belongs to a result, and without optional ids."""
    opening, before, after = style.opening.lstrip(), style.before, style.after
    for mark in (marks.end.strip(), *marks.frame):
        opening = opening.removeprefix(mark).lstrip()
    if before.lstrip().startswith("{"):
        before, after = (re.sub(rf', "id": "{_IDS[0]}"', "", text) for text in (before, after))
    tags = list(_TAG.finditer(style.closing))[: len(_TAG.findall(opening))]
    closing = style.closing[: tags[-1].end()] if tags else ""
    if style.separator is not None and turn_end in style.opening + before + style.key:
        turn_end = ""
    if any(name in opening + style.separator for name in _NAMES if style.separator):
        raise ValueError("names are written twice")
    ended = (text.partition(turn_end)[0] if turn_end else text for text in (after, closing))
    after, closing = ended
    return replace(style, opening=opening, before=before, after=after, closing=closing)


def _with_parameters(
    writer: Writer, style: CallStyle, inside: str, rest: str, after: str
) -> tuple[CallStyle, str]:
    """Return the style of calls whose arguments are no JSON, and what follows these.

    Args:
        inside: The text between a call's name and its only key.
        rest: The text after that.
        after: The text after the only value.
    """
    [one, _], [key, other], [value, _] = _NAMES, _KEYS, _VALUES
    both = writer.written([(one, {key: value, other: value})])
    at_other = both.rindex(other)
    gap = both[both.index(value, both.rindex(key, 0, at_other)) + len(value) : at_other]
    equals = rest[: rest.index(value)]
    number = writer.written([(one, {key: 7})])
    found = re.compile(re.escape(key) + r"(.*?)\b7\b", re.DOTALL).match(number, number.rindex(key))
    if found is None:
        raise ValueError("no number")
    before_key = _suffix(inside, gap)
    if ">" in before_key.partition("<")[0]:  # that one closes the tag before
        before_key = before_key[before_key.index(">") + 1 :]
    end = gap[: len(gap) - len(before_key)]
    style = replace(
        style,
        kind="tags",
        between=inside[: len(inside) - len(before_key)],
        key=before_key,
        equals=equals,
        equals_other=found[1],
        end=end,
    )
    if equals.strip() in ("='", '="'):
        style, bracket = replace(style, kind="python"), ")"
    elif equals != found[1] and equals.startswith(found[1]):
        style, bracket = replace(style, kind="quoted", quote=equals[len(found[1]) :]), "}"
    else:
        return style, after.removeprefix(end)
    empty = writer.written([(one, {})])
    between = common(inside, empty[empty.rindex(one) + len(one) :])
    return replace(style, between=between or inside), after[after.index(bracket) + 1 :]


def _suffix(a: str, b: str) -> str:
    """Return the text with which both texts end."""
    return common(a[::-1], b[::-1])[::-1]


def _whole_tags(text: str) -> str:
    """Return a text without a tag that only begins."""
    at = text.rfind("<")
    return text[:at] if at >= 0 and ">" not in text[at:] else text


HARD = {
    "text": 'He said "hi"\nand {left} <b>x</b> é 日本 \\n end',
    "n": -3,
    "flag": True,
    "opts": {"a": [1, 2.5, {"b": None}], "b": {}},
    "names": ["x", "y, z"],
}
_TYPES = {
    "text": STRING,
    "n": {"type": "integer"},
    "flag": {"type": "boolean"},
    "opts": {"type": "object", "additionalProperties": {}},
    "names": {"type": "array", "items": {}},
}
TOOLS = [
    tool("write_file", _TYPES),
    tool("get_weather", {"city": STRING, "days": {"type": "integer"}}),
]
CHECKS: tuple[Calls, ...] = (
    [("get_weather", {"city": "Rome"})],
    [("write_file", HARD)],
    [("get_weather", {"city": "Oslo", "days": 2}), ("write_file", HARD)],
)
"""Calls that are not used for deriving."""
