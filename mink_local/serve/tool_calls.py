"""Calls of tools as models write them, told from the text of an answer while it comes."""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_WORD = re.compile(r".[^\s<]*", re.DOTALL)
_MARK = re.compile(f"{OPEN}|{CLOSE}")
_MARKED = re.compile(rf"{OPEN}\s*")
_SEPARATORS = re.compile(rf"(?:[\s;]|{CLOSE})*")
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call: the first one has the id and the name, the others go on with the arguments."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `delta.tool_calls` in OpenAI's form."""
        if self.id is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


Event = str | ToolCallDelta
"""A text of the answer, or a piece of a call."""


def whole_calls(deltas: Iterable[ToolCallDelta]) -> list[dict[str, Any]]:
    """Return the entries of `message.tool_calls` in OpenAI's form."""
    calls = []
    for _, group in groupby(deltas, key=lambda delta: delta.index):
        first, *rest = group
        arguments = "".join([first.arguments, *(delta.arguments for delta in rest)])
        function = {"name": first.name, "arguments": arguments}
        calls.append({"id": first.id, "type": "function", "function": function})
    return calls


class ToolParser:
    """Tells calls of tools from an answer's text, piece by piece.

    A call is a JSON object with a name and arguments (or `parameters`), between the marks of Hermes and Qwen3 or,
    if it has the name of a known tool, on a line of its own, as LLaMA-3 writes it. An object between marks that
    is no call is text like everything else. Blanks next to calls are nobody's, and left out.

    Args:
        names: Names of the tools.
        is_constrained: A grammar sees to it that what begins as a call is one, so that its arguments are given out
            as they come. Otherwise a call is given out when it is whole and its arguments are JSON.
        is_parallel: Whether there may be more than one call; if not, calls after the first are left out.

    Attributes:
        n_calls: Number of calls so far.
    """

    def __init__(
        self, names: Sequence[str], *, is_constrained: bool = False, is_parallel: bool = True
    ) -> None:
        raise NotImplementedError

    def feed(self, text: str) -> list[Event]:
        """Return what is certain now; text that may belong to a call is held back."""
        raise NotImplementedError

    def end(self) -> list[Event]:
        """Return what was held back to the end."""
        raise NotImplementedError
