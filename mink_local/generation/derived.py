"""What a chat template's renderings of known conversations tell about it.

A template is a stranger's program, so it is asked, not read: what is looked for are texts that occur nowhere
else, in what it writes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mink_local.generation.rendering import RefusalError

TEXT, RESULT, NAME, KEY, VALUE = "MKtext", "MKresult", "mkname", "mkkey", "mkvalue"
USER = {"role": "user", "content": "q"}
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "d",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string"}}, "required": []},
    },
}
_LONG_ID, _SHORT_ID = "call_0123456789abcdef01234567", "abcdef012"

Render = Callable[..., str]
"""Returns the prompt for messages and variables; raises RefusalError if the template refuses them."""


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
    """How a template takes calls and their results.

    Attributes:
        arguments: As an object, or as JSON text.
        has_short_ids: Whether it takes only ids of nine letters and digits.
        has_parts: Whether it shows a result only if that is a list of parts.
    """

    arguments: Literal["object", "text"]
    has_short_ids: bool = False
    has_parts: bool = False


def how_calls_are_taken(render: Render) -> Taken | None:
    """Return how a template takes calls, or None if it does not show them, or not their results."""
    ways = [
        Taken(arguments, has_short_ids, has_parts)
        for has_parts in (False, True)
        for arguments in ("object", "text")
        for has_short_ids in (False, True)
    ]
    return next((way for way in ways if _is_taken(render, way)), None)


def _is_taken(render: Render, way: Taken) -> bool:
    call_id = _SHORT_ID if way.has_short_ids else _LONG_ID
    arguments: Any = {KEY: VALUE} if way.arguments == "object" else f'{{"{KEY}": "{VALUE}"}}'
    call = {"id": call_id, "type": "function", "function": {"name": NAME, "arguments": arguments}}
    result = {
        "role": "tool",
        "tool_call_id": call_id,
        "name": NAME,
        "content": as_parts(RESULT) if way.has_parts else RESULT,
    }
    text = attempt(
        render, USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result, tools=[TOOL]
    )
    shown = text[text.rfind("q") + 1 :] if KEY not in text.rpartition(RESULT)[0] else text
    # Python's way of writing an object, and JSON in a string, show that the other form is wanted.
    is_garbled = f"{{'{KEY}': '{VALUE}'}}" in text or f'\\"{KEY}\\"' in text
    return RESULT in text and VALUE in shown.partition(RESULT)[0] and not is_garbled
