"""The texts that files are compared on, by kind, and their chunks of tokens.

The bundled ones were written for mink-local, under its license. Conversations are rendered by the base's chat
template, since a quantization is used through it.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from mink_local.errors import DataError, MinkError
from mink_local.evals.inputs import DATE, file_sha256
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


class Texts:
    """The user's text, or the bundled ones.

    Args:
        path: A text file; None for the bundled ones.

    Raises:
        DataError: The file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self.source = "bundled" if path is None else path.name
        self._paths = {"text": path} if path else {kind: _bundled(kind) for kind in KINDS}
        self._texts = {kind: _read(path) for kind, path in self._paths.items()}

    @cached_property
    def sha256(self) -> str:
        """Of the file, or of the bundled files' SHA-256."""
        sums = [file_sha256(path) for path in self._paths.values()]
        return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    def chunks(self, vocabulary: Weights, length: int, positions: int | None) -> list[Chunk]:
        """Return the chunks to compare, one of each kind after the other.

        Args:
            length: Tokens per chunk.
            positions: Minimum number of positions; None for `ENOUGH` chunks of each kind.

        Raises:
            DataError: There are too few for intervals.
        """
        every = {kind: list(_cut(vocabulary, tokens, length)) for kind, tokens in self._tokens(vocabulary)}
        rounds = zip_longest(*([Chunk(kind, part) for part in parts] for kind, parts in every.items()))
        chunks = [chunk for chunk in chain.from_iterable(rounds) if chunk]
        each = n_scored(length)
        n = ENOUGH * len(every) if positions is None else max(FEWEST, -(-positions // each))
        if len(chunks) < FEWEST:
            raise DataError(
                f"the text fills {len(chunks)} chunks of {length:,} tokens, and intervals need {FEWEST}: "
                "give a longer --text or a smaller --chunk"
            )
        if len(chunks) < n:
            log.warning(
                "the text has %d positions, fewer than %d: give a longer --text",
                each * len(chunks),
                positions or each * n,
            )
        return chunks[:n]

    def _tokens(self, vocabulary: Weights) -> Iterator[tuple[str, list[int]]]:
        """Yield each kind with the tokens of its text."""
        template = ChatTemplate(vocabulary, DATE)
        try:
            for kind, text in self._texts.items():
                if self._paths[kind].suffix == ".jsonl" and self.source == "bundled":
                    conversations = map(json.loads, text.splitlines())
                    text = "\n".join(_rendered(one, template) for one in conversations)
                    yield kind, vocabulary.tokenize(text, add_special=False, parse_special=True)
                else:
                    yield kind, vocabulary.tokenize(text, add_special=True, parse_special=False)
        finally:
            template.close()


def _bundled(kind: str) -> Path:
    [path] = _FOLDER.glob(f"{kind}.*")
    return path


def _read(path: Path) -> str:
    return "".join(line for _, line in decoded_lines(path)).replace("\r\n", "\n")


def _rendered(conversation: Mapping[str, Any], template: ChatTemplate) -> str:
    """Return a conversation as the model sees it; as JSON if the template has no tools, or refuses it."""
    try:
        return template.text(conversation["messages"], None, conversation.get("tools", []))
    except (MinkError, ValueError):
        return json.dumps(conversation, ensure_ascii=False)


def n_scored(length: int) -> int:
    """Return how many positions of a chunk are scored, given its tokens: those in its second half."""
    return length - 1 - length // 2


def _cut(vocabulary: Weights, tokens: Sequence[int], length: int) -> Iterator[list[int]]:
    """Yield the full chunks of a text, each starting with the BOS token, if there is one."""
    special = vocabulary.tokenize("", add_special=True, parse_special=False)[:1]
    for start in range(0, len(tokens) - length + 1, length):
        yield [*special, *tokens[start + len(special) : start + length]]
