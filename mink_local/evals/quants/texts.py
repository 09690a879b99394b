"""The texts that files are compared on, by kind, and their chunks of tokens.

The bundled ones were written for mink-local, under its license. Conversations are rendered by the base's chat
template, since a quantization is used through it.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from mink_local.errors import DataError, MinkError
from mink_local.evals.answering import DATE
from mink_local.evals.tasks.base import decoded_lines
from mink_local.generation.template import ChatTemplate
from mink_local.llama.weights import Weights

FEWEST = 2  # chunks needed for an interval
ENOUGH = 8  # chunks of each kind, unless more or fewer positions are wanted

_FOLDER = Path(__file__).parent / "texts"
KINDS = ("prose", "code", "chat", "tools", "non-latin")
"""Kinds of the bundled texts: chats and calls of tools are conversations."""

log = logging.getLogger("mink_local")


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of a text."""

    kind: str
    tokens: list[int]


def text_files(path: Path | None) -> dict[str, Path]:
    """Return the user's text file, or the bundled ones if there is none, by kind."""
    return {"text": path} if path else {kind: next(_FOLDER.glob(f"{kind}.*")) for kind in KINDS}


def chunks_of(
    files: Mapping[str, Path], vocabulary: Weights, length: int, positions: int | None
) -> list[Chunk]:
    """Return the chunks to compare, one of each kind after the other.

    Args:
        files: Text files by kind.
        vocabulary: The base's, with its chat template.
        length: Tokens per chunk.
        positions: Minimum number of positions; None for `ENOUGH` chunks of each kind.

    Raises:
        DataError: A file cannot be read, or there are too few chunks for intervals.
    """
    template = ChatTemplate(vocabulary, DATE)
    try:
        tokens = {kind: _tokens(file, vocabulary, template) for kind, file in files.items()}
    finally:
        template.close()
    special = vocabulary.tokenize("", add_special=True, parse_special=False)[:1]
    every = [_cut(kind, ids, length, special) for kind, ids in tokens.items()]
    chunks = [chunk for chunk in chain.from_iterable(zip_longest(*every)) if chunk]
    each = n_scored(length)
    n = ENOUGH * len(files) if positions is None else max(FEWEST, -(-positions // each))
    if len(chunks) < FEWEST:
        raise DataError(
            f"the text fills {len(chunks)} chunks of {length:,} tokens, and intervals need {FEWEST}: "
            "give a longer --text or a smaller --chunk"
        )
    if len(chunks) < n:
        wanted = positions or each * n
        log.warning(
            "the text has %d positions, fewer than %d: give a longer --text", each * len(chunks), wanted
        )
    return chunks[:n]


def _tokens(file: Path, vocabulary: Weights, template: ChatTemplate) -> list[int]:
    """Return the tokens of a text file; of conversations, as the model sees them, if it is a bundled one."""
    lines = [line.replace("\r\n", "\n") for _, line in decoded_lines(file)]
    is_chat = file.parent == _FOLDER and file.suffix == ".jsonl"
    text = "\n".join(_rendered(json.loads(line), template) for line in lines) if is_chat else "".join(lines)
    return vocabulary.tokenize(text, add_special=not is_chat, parse_special=is_chat)


def _rendered(conversation: Mapping[str, Any], template: ChatTemplate) -> str:
    """Return a conversation as the model sees it; as JSON if the template has no tools, or refuses it."""
    try:
        return template.text(conversation["messages"], None, conversation.get("tools", []))
    except (MinkError, ValueError):
        return json.dumps(conversation, ensure_ascii=False)


def n_scored(length: int) -> int:
    """Return how many positions of a chunk are scored, given its tokens: those in its second half."""
    return length - 1 - length // 2


def _cut(kind: str, tokens: Sequence[int], length: int, special: Sequence[int]) -> Iterator[Chunk]:
    """Yield the full chunks of a text, each starting with the BOS token, if there is one."""
    for start in range(0, len(tokens) - length + 1, length):
        yield Chunk(kind, [*special, *tokens[start + len(special) : start + length]])
