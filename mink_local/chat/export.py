"""A conversation as a file for people (.md) or for programs (.json)."""

import json
import os
import tempfile
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from mink_local.chat.store import Conversation, Message, Store
from mink_local.errors import MinkError

KINDS = (".md", ".json")


def export(store: Store, conversation: Conversation, path: Path) -> None:
    """Write a conversation to `path`, whose ending says how. Raises MinkError where that cannot be done."""
    if path.suffix not in KINDS:
        raise MinkError(f"{path} ends in neither .md nor .json")
    text = as_markdown(store, conversation) if path.suffix == ".md" else as_json(store, conversation)
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(stream.name, path)
    except OSError as error:
        raise MinkError(f"{path} cannot be written: {error.strerror}") from None


def as_markdown(store: Store, conversation: Conversation) -> str:
    """The branch that is being talked on, thoughts folded."""
    parts = [f"# {conversation.name or f'Conversation {conversation.id}'}"]
    if conversation.system:
        parts.append(f"**System**\n\n{conversation.system}")
    for message in store.branch(conversation.head):
        if message.role == "user":
            parts.append(f"## User\n\n{message.content}")
            continue
        how = message.how
        parts.append(f"## {how.model if how else 'Assistant'}")
        if message.thinking:
            parts.append(f"<details><summary>Thought</summary>\n\n{message.thinking}\n\n</details>")
        parts.append(message.content)
        if how:
            parts.append(f"*{how.sampler}, temperature {how.temperature:g}, seed {how.seed}*")
    return "\n\n".join(parts) + "\n"


def as_json(store: Store, conversation: Conversation) -> str:
    """The branch that is being talked on as `messages`, and every message of the others."""
    branch = store.branch(conversation.head)
    current = {message.id for message in branch}
    others = [message for message in store.messages(conversation.id) if message.id not in current]
    whole = {
        "name": conversation.name,
        "id": conversation.id,
        "model": conversation.model,
        "system": conversation.system,
        "messages": [_plain(message) for message in branch],
        "other_branches": [_plain(message) for message in others],
    }
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _plain(message: Message) -> dict[str, Any]:
    created = datetime.fromtimestamp(message.created).astimezone().isoformat(timespec="seconds")
    return {**asdict(message), "created": created}
