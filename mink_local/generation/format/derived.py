"""What a chat template's renderings of known conversations tell about it.

A template is a stranger's program, so it is asked, not read: what is looked for are texts that occur nowhere
else, in what it writes.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from mink_local.generation.format.harmony import HARMONY
from mink_local.generation.format.rendering import RefusalError
from mink_local.generation.format.text import THINK_MARKS, Marks

TEXT, RESULT, NAME, KEY, VALUE, REASON = "MKtext", "MKresult", "mkname", "mkkey", "mkvalue", "MKreason"
USER = {"role": "user", "content": "q"}
STRING = {"type": "string"}
_LONG_ID, _SHORT_ID = "call_0123456789abcdef01234567", "abcdef012"

Render = Callable[..., str]
"""Returns the prompt for messages and variables; raises RefusalError if the template refuses them."""

Calls = Sequence[tuple[str, dict[str, Any]]]
"""Names and arguments."""


def tool(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool."""
    described = {key: {**schema, "description": "d"} for key, schema in properties.items()}  # some want it
    parameters = {"type": "object", "properties": described, "required": []}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


TOOL = tool(NAME, {KEY: STRING})


def as_parts(text: str) -> list[dict[str, str]]:
    """Return a content as a list of parts."""
    return [{"type": "text", "text": text}]


def attempt(render: Render, *messages: dict[str, Any], **options: Any) -> str:
    """Return a conversation's prompt, or no text if the template refuses it."""
    try:
        return render(messages, **options)
    except RefusalError:
        return ""


def roles_with_parts(render: Render) -> frozenset[str] | None:
    """Return the roles whose content a template shows only if it is a list of parts.

    None if it shows what the user writes in neither form.
    """
    found = set()
    for role in ("user", "assistant", "system"):
        text, parts = (attempt(render, *_turns_with(role, content)) for content in (TEXT, as_parts(TEXT)))
        if text and TEXT not in text:
            if TEXT in parts:
                found.add(role)
            elif role == "user":
                return None
    return frozenset(found)


def _turns_with(role: str, content: Any) -> list[dict[str, Any]]:
    message = {"role": role, "content": content}
    return {"user": [message], "assistant": [USER, message, USER], "system": [message, USER]}[role]


@dataclass(frozen=True)
class Taken:
    """How a template takes tools, calls and their results.

    Attributes:
        arguments: As an object, or as JSON text; "no" if it does not show calls, which become text.
        has_short_ids: Whether it takes only ids of nine letters and digits.
        has_parts: Whether it shows a result only if that is a list of parts.
        shows_tools: Whether it shows the tools.
    """

    arguments: Literal["object", "text", "no"] = "object"
    has_short_ids: bool = False
    has_parts: bool = False
    shows_tools: bool = True

    def id_of(self, call_id: Any) -> Any:
        """Return a call's id as the template takes it."""
        return hashlib.sha256(str(call_id).encode()).hexdigest()[:9] if self.has_short_ids else call_id


def how_calls_are_taken(render: Render) -> Taken | None:
    """Return how a template takes calls, or None if it shows no results, or neither tools nor calls."""
    shows_tools = NAME in attempt(render, USER, tools=[TOOL])
    ways = [
        Taken(arguments, has_short_ids, has_parts, shows_tools)
        for taken in (("object", "text"), ("no",))
        for has_parts in (False, True)
        for arguments in taken
        for has_short_ids in (False, True)
    ]
    found = next((way for way in ways if _is_taken(render, way)), None)
    return found if shows_tools or (found and found.arguments != "no") else None


def calling(calls: Calls, way: Taken, content: Any = "", ids: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a message with some calls, and their results, as a template takes them."""
    ids = ids or [_SHORT_ID if way.has_short_ids else _LONG_ID]
    result = as_parts(RESULT) if way.has_parts else RESULT
    made, results = [], []
    for call_id, (name, arguments) in zip(ids, calls, strict=False):
        given = json.dumps(arguments, ensure_ascii=False) if way.arguments == "text" else arguments
        made.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": given}})
        results.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": result})
    return [{"role": "assistant", "content": content, "tool_calls": made}, *results]


def _is_taken(render: Render, way: Taken) -> bool:
    message, result = calling([(NAME, {KEY: VALUE})], way)
    if way.arguments == "no":
        message = {"role": "assistant", "content": VALUE}
    text = attempt(render, USER, message, result, tools=[TOOL])
    shown = text[text.rfind("q") + 1 :] if KEY not in text.rpartition(RESULT)[0] else text
    # Python's way of writing an object, and JSON in a string, show that the other form is wanted.
    is_garbled = f"{{'{KEY}': '{VALUE}'}}" in text or f'\\"{KEY}\\"' in text
    return RESULT in text and VALUE in shown.partition(RESULT)[0] and not is_garbled


@dataclass(frozen=True)
class Reasoning:
    """How a template takes reasoning.

    Attributes:
        marks: What stands around it.
        field: Under what name it takes that of earlier answers; "parts" if it is a part of the content.
        switch: The variables that turn it on, and off.
        is_known: Whether the template shows any.
        is_opened: Whether a prompt ends by opening it.
    """

    marks: Marks = THINK_MARKS
    field: str = "reasoning_content"
    switch: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    is_known: bool = False
    is_opened: bool = False


# By what their templates have in them; what defies derivation.
BY_HAND = {
    "<|channel|>analysis": HARMONY,
    "<|channel>thought": Marks(
        "<|channel>thought\n", "<channel|>", ("<channel|>", "<|channel>"), is_repeated=True
    ),
    "<|inner_prefix|>": Marks("<|inner_prefix|>", "<|inner_suffix|>"),
    "[BEGIN FINAL RESPONSE]": Marks(
        "Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n", ("[END FINAL RESPONSE]",)
    ),
    "<|open|>": Marks(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        text="<|open|>response<|sep|>",
    ),
    "<|begin|>assistant<|think|>": Marks(
        "<|think|>",
        "<|end|>",
        ("<|begin|>assistant", "<|content|>", "<|end|>"),
        after_end="<|begin|>assistant",
        text="<|content|>",
        is_repeated=True,
    ),
    " to=self<|message|>": Marks(
        " to=self<|message|>",
        "<|eom|>",
        ("<|start|>assistant", " to=user<|message|>", "<|eot|>", "<|eom|>"),
        after_end="<|start|>assistant",
        text=" to=user<|message|>",
        is_repeated=True,
    ),
    "<|START_TEXT|>": Marks(
        "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>", "<|END_TEXT|>"),
        text="<|START_TEXT|>",
    ),
    "<|START_RESPONSE|>": Marks(
        "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        text="<|START_RESPONSE|>",
    ),
    "<response></response>": Marks(frame=("<response>", "</response>")),
}  # fmt: skip
_FIELDS = ("reasoning_content", "reasoning", "thinking", "parts")
_KEEPING = {
    "preserve_thinking": True,
    "clear_thinking": False,
    "keep_past_thinking": True,
    "drop_thinking": False,
    "truncate_history_thinking": False,
}
_SWITCHES = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("thinking_mode", "enabled", "disabled"),
    ("reasoning_effort", "high", "none"),
    ("reasoning_effort", "high", "no_think"),
    ("thinking_budget", -1, 0),
)
_WORDS = re.compile(r"[\w\s]*")


def is_mark(text: str) -> bool:
    """Return whether a text can be told from what people write."""
    return len(text.strip()) >= 4 and not _WORDS.fullmatch(text)


def reasoning_of(render: Render, source: str) -> Reasoning:
    """Return how a template takes reasoning, from what it writes and, where that does not tell, by hand."""
    by_hand = next((marks for sign, marks in BY_HAND.items() if sign in source), None)
    shown = (_shown_reasoning(render, field) for field in _FIELDS)
    field, derived = next(filter(None, shown), ("reasoning_content", None))
    return Reasoning(
        marks := by_hand or derived or THINK_MARKS,
        field,
        _switch(render, source),
        marks is not THINK_MARKS or "<think>" in source,
        attempt(render, USER).rstrip().endswith(marks.start.rstrip()),
    )


def with_reasoning(message: Mapping[str, Any], field: str, reasoning: str) -> dict[str, Any]:
    """Return a message with its reasoning as a template takes it."""
    if field != "parts":
        return {**message, field: reasoning}
    return {
        **message,
        "content": [{"type": "thinking", "thinking": reasoning}, *as_parts(message["content"])],
    }


def _shown_reasoning(render: Render, field: str) -> tuple[str, Marks | None] | None:
    """Return a name under which a template shows reasoning, and the marks around it, if it does."""
    answer = with_reasoning({"role": "assistant", "content": TEXT}, field, REASON)
    content = "" if isinstance(answer["content"], str) else answer["content"]
    message, result = calling([(NAME, {KEY: VALUE})], Taken(has_short_ids=True), content)
    for messages in ((USER, answer, USER), (USER, answer), (USER, {**answer, **message}, result)):
        for variables in ({}, _KEEPING | {"enable_thinking": True, "thinking": True}):
            text = attempt(render, *messages, tools=[TOOL], **variables)
            if REASON in text and "'type'" not in text and '"thinking": "' not in text:
                return field, _marks_around(text, attempt(render, USER, tools=[TOOL], **variables))
    return None


def _marks_around(text: str, prompt: str) -> Marks | None:
    """Return the marks around reasoning in a text, given the prompt before the answer."""
    before, _, after = text.partition(REASON)
    start = before[len(common(before, prompt)) :]
    if match := re.search(r"(<[^<>]*>|\[[^\[\]]*\])\s*\Z", before):
        start = match[0]
    end = re.match(r"\s*(<[^<>]*>|\[[^\[\]]*\])\s*", after)
    return Marks(start, end[0]) if end and is_mark(start) and is_mark(end[0]) else None


def common(a: str, b: str) -> str:
    """Return the text with which both texts begin."""
    return a[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))]


def _switch(render: Render, source: str) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the variables that turn reasoning on and off, if that changes the prompt.

    Efforts must change its end: others are words for the model.
    """
    asked = {"role": "user", "content": TEXT}
    for name, on, off in _SWITCHES:
        if name in source:
            texts = [attempt(render, asked, **{name: value}) for value in (on, off)]
            compared = texts if isinstance(on, bool) else [text.rpartition(TEXT)[2] for text in texts]
            if all(texts) and compared[0] != compared[1]:
                return {name: on}, {name: off}
    return None
