"""Tool calls put together from their pieces."""

from collections.abc import Iterable
from typing import Any

from mink_local.generation.answer import Answer, Piece
from mink_local.generation.format.tool_calls import ToolCallDelta
from mink_local.generation.request import Request


def whole_calls(deltas: Iterable[ToolCallDelta]) -> list[dict[str, Any]]:
    """Return the calls of an answer with these pieces, in OpenAI's format."""
    answer, piece = Answer(Request("")), Piece()
    piece.tool_calls = tuple(deltas)
    answer.add(piece)
    return answer.tool_calls
