"""Export of a conversation: Markdown for people, JSON for programs."""

import json
import math
from pathlib import Path
from typing import Any

from mink_local.chat.conversation.store import Conversation, ConversationStore, StoredMessage, time_of
from mink_local.cli import UNPRINTABLE, printable
from mink_local.errors import MinkError
from mink_local.files import write_atomic

FORMATS = (".md", ".json")
_ESCAPES = {code: f"\\u{code:04x}" for code in UNPRINTABLE}


def export(store: ConversationStore, conversation: Conversation, path: Path) -> None:
    """Write a conversation to a file whose ending names the format. Raises MinkError."""
    if path.suffix not in FORMATS:
        raise MinkError(f"{path} ends in neither .md nor .json")
    as_text = as_markdown if path.suffix == ".md" else as_json
    try:
        write_atomic(path, as_text(store, conversation))
    except OSError as error:
        raise MinkError(f"{path} cannot be written: {error.strerror}") from None


def as_markdown(store: ConversationStore, conversation: Conversation) -> str:
    """Return the current branch as Markdown, with the reasoning folded."""
    parts = [f"# {conversation.name or f'Conversation {conversation.id}'}"]
    if conversation.system:
        parts.append(f"**System**\n\n{conversation.system}")
    for message in store.branch(conversation.end):
        if message.role == "user":
            parts.append(f"## User\n\n{message.content}")
            continue
        parts.append(f"## {message.parts[0].model if message.parts else 'Assistant'}")
        if message.reasoning:
            parts.append(f"<details><summary>Reasoning</summary>\n\n{message.reasoning}\n\n</details>")
        parts.append(message.content)
        for how in message.parts[:1]:
            other = f" (reasoning: {how.of_reasoning})" if how.of_reasoning else ""
            parts.append(f"*{how.sampler}, temperature {how.temperature:g}{other}, seed {how.seed}*")
    return printable("\n\n".join(parts)) + "\n"


def as_json(store: ConversationStore, conversation: Conversation) -> str:
    """Return the current branch as `messages`, and all other messages as `other_branches`."""
    branch = store.branch(conversation.end)
    current = {message.id for message in branch}
    others = [message for message in store.messages(conversation.id) if message.id not in current]
    whole = {
        "name": conversation.name,
        "id": conversation.id,
        "model": conversation.model,
        "system": conversation.system,
        "messages": [_fields(message) for message in branch],
        "other_branches": [_fields(message) for message in others],
    }
    return dumps(whole, indent=1) + "\n"


def answer_as_json(answer: StoredMessage) -> str:
    """Return what is known of an answer as a line of JSON."""
    how = answer.parts[-1]
    known = {
        "model": how.model,
        "sampler": how.sampler,
        "temperature": how.temperature,
        "reasoning_sampler": how.reasoning_sampler,
        "reasoning_temperature": how.reasoning_temperature,
        "seed": how.seed,
        "text": answer.content,
        "reasoning": answer.reasoning,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "evaluated_tokens": answer.evaluated_tokens,
        "n_tokens": len(answer.tokens),
        "tokens": answer.tokens,
        "k": answer.k,
        "timings": {"first_token_s": round(answer.first_token_s, 4), "total_s": round(answer.seconds, 4)},
    }
    return dumps(known) + "\n"


def dumps(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON with control characters escaped, for terminals."""
    return json.dumps(_finite(value), ensure_ascii=False, indent=indent).translate(_ESCAPES)


def _finite(value: Any) -> Any:
    """Return a value with texts for infinite numbers, which JSON does not have: of a token that is banned."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _fields(message: StoredMessage) -> dict[str, Any]:
    created = time_of(message.created).astimezone().isoformat(timespec="seconds")
    return {**message.as_exported(), "created": created}
